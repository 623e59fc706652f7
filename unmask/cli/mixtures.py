"""`unmask mix`: experts and lessons in, a mixture out. `merge`: one plain model out. `upcycle`: a dense model to a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from unmask.cli.options import (
    ADVANCED,
    AsJson,
    Base,
    LearningOptions,
    Lessons,
    LoadOptions,
    LoraSettings,
    Model,
    NewFolder,
    OutputFolder,
    Reads,
    Seed,
    parse_named,
    refuse_options,
)
from unmask.io.terminal import say, tell_json, tell_result
from unmask.moe.names import MergeMethod, RouterPlacement, RouterStart, RoutingLevel

if TYPE_CHECKING:
    from unmask.moe.mixture.gating import Routing

Experts = Annotated[
    list[Path] | None, Reads(is_model=True), typer.Argument(help="PEFT folders of experts with the same base model, in order.")
]
_LEARNING = ("balance", "batch", "accumulate", "lr", "average")


@dataclass(frozen=True)
class RoutingOptions:
    """How a mixture routes, named as the fields of `Routing`."""

    PANEL: ClassVar[str] = "Routing options"

    router: Annotated[
        RouterPlacement,
        typer.Option(
            help="block: one router for all blocks. layer: one for each block. final: one decision, from a pass without experts."
        ),
    ] = "block"
    top_k: Annotated[int, typer.Option(min=1, help="Experts that act on a token.")] = 1
    renormalise: Annotated[
        bool, typer.Option("--renormalise", help="Scale the gates of the selected experts so that they sum to 1.")
    ] = False
    level: Annotated[
        RoutingLevel, typer.Option(help="token: route each token by itself. sequence: route by the text so far.")
    ] = "token"
    span: Annotated[
        int, typer.Option(min=0, help="Layers that share one decision, made by the first of them. 0: each block decides.")
    ] = 0
    from_layer: Annotated[
        int, typer.Option(min=0, help="First layer with experts. Lower layers stay as in the base model.")
    ] = 0

    def routing(self) -> Routing:
        """The routing of the mixture."""
        from unmask.moe.mixture.gating import Routing

        return Routing(**vars(self))


def mix(
    context: typer.Context,
    output: OutputFolder,
    lessons: Lessons,
    experts: Experts = None,
    joint: Annotated[
        bool, typer.Option("--joint", help="Train new experts together with the router, one for each domain.")
    ] = False,
    base: Base = None,
    shared: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Expert that acts on every token at full strength.", rich_help_panel=ADVANCED),
    ] = None,
    start: Annotated[
        RouterStart,
        typer.Option(help="Initial router. random: small weights. prototypes: mean states of the experts' domains."),
    ] = "random",
    balance: Annotated[float, typer.Option(min=0, max=1000, help="Weight of the load-balancing loss.")] = 0.0,
    *,
    routing: RoutingOptions,
    learning: LearningOptions,
    lora: LoraSettings,
    options: LoadOptions,
) -> None:
    """Combine experts into a mixture (MiXSE): put them into their base model and train a router. Use it like any other model."""
    from unmask.cli.train import training_progress
    from unmask.moe.experts.lessons.lessons import read_lessons
    from unmask.moe.experts.mixing import Ingredients, default_learning, train_mixture
    from unmask.moe.experts.router import LEARNING, Balance, RouterOptions

    if not joint:
        refuse_options(context, ("r", "alpha"), "applies to new experts: give --joint, or leave it out.")
    if learning.steps == 0:
        refuse_options(context, _LEARNING, "applies to training, and --steps 0 trains nothing: leave it out.")
    with training_progress() as callbacks:
        result = train_mixture(
            Ingredients(tuple(experts or ()), shared),
            {name: read_lessons(Path(file)) for name, file in parse_named("lessons", lessons).items()},
            output,
            routing.routing(),
            options.source(base or ""),
            lora=lora.lora(),
            learning=default_learning(joint).with_options(learning),
            options=RouterOptions(start=start, balance=Balance(balance), joint=joint, lr=LEARNING.lr),
            callbacks=callbacks,
        )
    losses = f"; loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}" if result.losses else ""
    tell_result({"output": str(result.folder), "losses": list(result.losses)})
    say(f"mixture in {result.folder}{losses}")


def merge(
    context: typer.Context,
    experts: Experts,
    output: NewFolder,
    method: Annotated[MergeMethod, typer.Option(help="How to add up the experts' weight changes (task vectors).")] = "linear",
    weight: Annotated[
        list[float] | None,
        typer.Option(
            min=-1000,
            max=1000,
            help="Weight of an expert. Repeat for each expert, in order. Default: 1 / n for linear, else 1.",
        ),
    ] = None,
    density: Annotated[
        float | None, typer.Option(max=1, help="Share of each weight change to keep; required by ties and dare.")
    ] = None,
    seed: Seed = 0,
    base: Base = None,
    *,
    options: LoadOptions,
) -> None:
    """Merge experts into the weights of their base model. The result is a plain language model without a router."""
    from unmask.moe.mixture.merging import merge_to_folder

    if method != "dare":
        refuse_options(context, ("seed",), "applies to dare only, which drops weights at random: leave it out.")
    folders = experts or []
    merge_to_folder(folders, options.source(base or ""), output, method, weights=weight, density=density, seed=seed)
    tell_result({"output": str(output), "method": method, "experts": [str(folder) for folder in folders]})
    say(f"{len(folders)} experts merged ({method}) into {output}")


def upcycle(
    model: Model,
    output: NewFolder,
    branch: Annotated[
        list[str] | None,
        Reads(is_model=True),
        typer.Option(metavar="NAME=MODEL", help="A trained copy of the model; its MLPs become one expert. Repeat for each."),
    ] = None,
    experts: Annotated[
        int | None, typer.Option(min=2, max=4096, help="Number of copies of each MLP. Default without --branch: 8.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=2, max=4096, help="Experts that act on a token.")] = 2,
    seed: Seed = 0,
    *,
    options: LoadOptions,
    as_json: AsJson = False,
) -> None:
    """Turn a dense model into a mixture of experts. The experts are copies of its MLPs, or the MLPs of trained copies (--branch)."""
    from unmask.moe.upcycling import upcycle_to_folder

    result = upcycle_to_folder(
        options.source(model),
        parse_named("branch", branch or [], "NAME=MODEL, such as code=branches/code/model"),
        output,
        experts=experts,
        top_k=top_k,
        seed=seed,
    )
    if as_json:
        tell_json(result)
        return
    millions = {name: f"{result[name] / 1e6:.0f} M" for name in ("dense_parameters", "parameters", "active_parameters")}
    say(f"verified: the logits of plain copies differ by at most {result['difference']:.1g} of the largest (fp32)")
    print(f"{output}: {result['architecture']}, {result['dtype']}; {millions['dense_parameters']} parameters became")
    print(
        f"{millions['parameters']}, of which {millions['active_parameters']} are active per token. Train it before you judge its routing."
    )
