"""`unmask mix`: experts and lessons in, a mixture out. `unmask merge`: experts in, one plain model out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.lesson_options import (
    LAST_SEED,
    MOST_STEPS,
    Accumulate,
    Average,
    Batch,
    MaxLength,
    Seed,
    domains_of,
    showing,
)
from unmask.cli.options import LoadOptions, refuse_given
from unmask.errors import UnmaskError, in_one_sentence
from unmask.io.terminal import say, tell_result
from unmask.moe.names import Level, Method, Over, RouterKind, Start

if TYPE_CHECKING:
    from unmask.moe.experts.mixing import Ingredients
    from unmask.moe.experts.router import RouterOptions
    from unmask.training.lora import LoraOptions

Router = Annotated[
    RouterKind,
    typer.Option(
        help="block: one router for all blocks. layer: one for each block. final: one decision, from a forward pass without experts."
    ),
]
Decision = Annotated[Level, typer.Option(help="token: route each token by itself. sequence: route by the text so far.")]
StartFrom = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Start from this mixture's router. Experts that both mixtures have keep their weights in it."
    ),
]
RouterStart = Annotated[
    Start,
    typer.Option(
        help="Router before training. random: small random weights. prototypes: the mean states of the experts' domains."
    ),
]
BalanceOver = Annotated[
    Over,
    typer.Option(
        help="step: balance the load over the passes of a training step so far. pass: over each pass alone, which may hold one domain only."
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="New folder for the mixture. Run the same command again to continue."
    ),
]
RouterRate = Annotated[
    float | None,
    typer.Option(help="Peak learning rate of the router (with --joint). The experts then learn at --lr. Default: 1e-2."),
]
_LEARNING = ("train_top_k", "balance", "balance_over", "batch", "accumulate", "lr", "router_lr", "average")


def mix(
    context: typer.Context,
    output: Output,
    lessons: Annotated[
        list[str],
        typer.Option(metavar="NAME=FILE", help="Lessons of one domain for the router to learn on. Repeat for each domain."),
    ],
    experts: Annotated[
        list[Path] | None, typer.Argument(help="PEFT folders of experts with the same base model, in order.")
    ] = None,
    joint: Annotated[
        bool, typer.Option("--joint", help="Train new experts together with the router, one for each domain.")
    ] = False,
    shared: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="An expert that acts on every token at full strength, beside the routed experts."),
    ] = None,
    start_from: StartFrom = None,
    router: Router = "block",
    level: Decision = "token",
    span: Annotated[
        int, typer.Option(min=0, help="How many layers share one decision, made by the first of them. 0: each block decides.")
    ] = 0,
    from_layer: Annotated[
        int, typer.Option(min=0, help="First layer with experts. The layers below it stay as in the base model.")
    ] = 0,
    top_k: Annotated[int, typer.Option(min=1, help="How many experts act on a token.")] = 1,
    renormalise: Annotated[
        bool, typer.Option("--renormalise", help="Scale the gates of the chosen experts so that they sum to 1.")
    ] = False,
    train_top_k: Annotated[
        int | None, typer.Option(min=1, help="How many experts act on a token while the router learns. Default: all.")
    ] = None,
    start: RouterStart = "random",
    balance: Annotated[float, typer.Option(min=0, max=1000, help="Weight of the load-balancing loss.")] = 0.0,
    balance_over: BalanceOver = "step",
    steps: Annotated[
        int | None,
        typer.Option(
            min=0, max=MOST_STEPS, help="Optimiser steps. Default: 48, or 192 with --joint. 0: the router stays as it starts."
        ),
    ] = None,
    batch: Batch = 8,
    accumulate: Accumulate = 1,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate. Default: 1e-2, or 3e-4 with --joint.")] = None,
    router_lr: RouterRate = None,
    max_length: MaxLength = 512,
    average: Average = "example",
    seed: Seed = 0,
    r: Annotated[int, typer.Option(min=1, help="Rank of each new LoRA (with --joint).")] = 8,
    alpha: Annotated[float, typer.Option(help="Each new LoRA is scaled by alpha / r (with --joint).")] = 16,
    base: Annotated[str | None, typer.Option(help="Base model. Needed with --joint, or if no expert names it.")] = None,
    *,
    options: LoadOptions,
) -> None:
    """Combine experts into a mixture (MiXSE): put them into their base model and train a router. Use it like any other model."""
    from unmask.moe.experts.mixing import Ingredients
    from unmask.moe.experts.router import Balance, RouterOptions
    from unmask.moe.mixture.gating import Routing
    from unmask.training.lora import LoraOptions

    if joint and (experts or shared or start_from or not base):
        raise UnmaskError("--joint makes experts of its own: name the base model (--base) and lessons, and no other experts.")
    if not joint and not experts:
        raise UnmaskError("Name the folders of the experts, or let new ones learn with --joint.")
    _refuse_unused(context, joint, steps, balance, accumulate)
    with in_one_sentence():
        lora = LoraOptions(r=r, alpha=alpha)
    routing = Routing(router, top_k, renormalise, level, span, from_layer)
    _mix(
        lora if joint else Ingredients(tuple(experts or ()), shared, start_from),
        (domains_of(lessons), output, routing, options.source(base or "")),
        RouterOptions(train_top_k, start, Balance(balance, balance_over), joint, _rate_of_router(joint, router_lr)),
        {"batch": batch, "accumulate": accumulate, "max_length": max_length, "average": average, "seed": seed},
        steps,
        lr,
    )


def _rate_of_router(joint: bool, given: float | None) -> float | None:
    """The router's own rate in joint training: that of a router alone, by default. At the rate of experts it hardly moves."""
    from unmask.moe.experts.router import LEARNING

    return LEARNING.lr if joint and given is None else given


def _refuse_unused(context: typer.Context, joint: bool, steps: int | None, balance: float, accumulate: int) -> None:
    """Raise UnmaskError for options of learning that would change nothing."""
    if not joint:
        refuse_given(context, ("r", "alpha"), "is for new experts: give --joint, or leave it out.")
        refuse_given(context, ("router_lr",), "is for a router that learns with new experts: give --joint, or use --lr.")
    if steps == 0:
        refuse_given(context, _LEARNING, "is for a router that learns, and with --steps 0 none does: leave it out.")
    if not balance or accumulate == 1:
        refuse_given(context, ("balance_over",), "needs --balance, and --accumulate above 1: else a step is one pass.")


def _mix(
    made_of: Ingredients | LoraOptions,
    given: tuple[Any, ...],
    options: RouterOptions,
    learned: dict[str, Any],
    steps: int | None,
    lr: float | None,
) -> None:
    """Mix experts, or train new ones jointly where only their LoRA is said; with the steps and the rate that are usual for that."""
    from unmask.moe.experts.mixing import JOINT, Ingredients, mix_jointly
    from unmask.moe.experts.mixing import mix as run
    from unmask.moe.experts.router import LEARNING

    usual = LEARNING if isinstance(made_of, Ingredients) else JOINT
    steps = usual.steps if steps is None else steps
    warmup = max(0, min(usual.warmup, steps - 1))
    learning = replace(usual, steps=steps, lr=usual.lr if lr is None else lr, warmup=warmup, **learned)
    with showing() as callbacks:
        common: dict[str, Any] = {"learning": learning, "options": options, "callbacks": callbacks}
        if isinstance(made_of, Ingredients):  # noqa: SIM108
            done = run(made_of, *given, **common)
        else:
            done = mix_jointly(*given, lora=made_of, **common)
    losses = f"; loss {done.losses[0]:.3f} at first, {done.losses[-1]:.3f} at last" if done.losses else ""
    tell_result({"output": str(done.folder), "losses": list(done.losses)})
    say(f"mixture in {done.folder}{losses}")


def merge(
    context: typer.Context,
    experts: Annotated[list[Path], typer.Argument(help="PEFT folders of experts with the same base model.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="New folder for the merged model.")],
    method: Annotated[Method, typer.Option(help="How to add up the experts' weight changes (task vectors).")] = "linear",
    weight: Annotated[
        list[float] | None,
        typer.Option(
            min=-1000,
            max=1000,
            help="Weight of an expert. Repeat for each expert, in order. Default: 1 / n for linear, else 1.",
        ),
    ] = None,
    density: Annotated[
        float | None, typer.Option(max=1, help="Share of each weight change that is kept. ties and dare need it.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LAST_SEED, help="Decides what dare drops.")] = 0,
    base: Annotated[str | None, typer.Option(help="Base model, if the experts do not name it.")] = None,
    *,
    options: LoadOptions,
) -> None:
    """Merge experts into the weights of their base model. The result is a plain language model without a router."""
    from unmask.io.files import atomic_folder, only_writer_of
    from unmask.io.seals import seal
    from unmask.models.loading import load_base_language_model
    from unmask.moe.mixture.expert_folder import read_expert, require_stackable
    from unmask.moe.mixture.merging import check_merge, merge_experts
    from unmask.moe.mixture.mixture_folder import base_of_experts

    if method != "dare":
        refuse_given(context, ("seed",), "is for dare, which draws what it drops: leave it out.")
    check_merge(len(experts), method, weight, density)
    loaded = [read_expert(folder) for folder in experts]
    require_stackable(loaded)
    source = base_of_experts(loaded, options.source(base or ""))
    with only_writer_of(output):
        if output.exists():
            raise UnmaskError(f"'{output}' exists: give a new folder.")
        model, tokenizer = load_base_language_model(source)
        merge_experts(model, loaded, method, weights=weight, density=density, seed=seed)
        with atomic_folder(output) as scratch:
            model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
            seal(scratch)
    tell_result({"output": str(output), "method": method, "experts": [str(folder) for folder in experts]})
    say(f"{len(loaded)} experts merged ({method}) into {output}")
