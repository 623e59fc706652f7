"""`unmask upcycle`: a dense model in, a mixture of experts that computes the same out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.lesson_options import LAST_SEED
from unmask.cli.options import AsJson, LoadOptions, Model
from unmask.errors import UnmaskError
from unmask.io.terminal import say


def upcycle(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="New folder for the mixture.")],
    branch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL", help="A trained copy of the model. Its MLPs become one expert. Repeat for each expert."
        ),
    ] = None,
    experts: Annotated[
        int | None, typer.Option(min=2, max=4096, help="Number of copies of each MLP. Default without --branch: 8.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=2, max=4096, help="How many experts a token uses.")] = 2,
    every: Annotated[
        int, typer.Option(min=1, help="Turn only every n-th layer into a mixture, if the architecture supports it.")
    ] = 1,
    noise: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=10,
            help="Noise to add to each expert, as a share of its weights' standard deviation. Default: 0.01 for copies, 0 for branches.",
        ),
    ] = None,
    drop: Annotated[
        float, typer.Option(min=0, max=1, help="Share of each expert's neurons that get new random weights (Drop-Upcycling).")
    ] = 0.0,
    router_std: Annotated[float, typer.Option(min=0, max=10, help="Standard deviation of the new routers' weights.")] = 0.02,
    aux_loss: Annotated[float, typer.Option(min=0, max=1000, help="Weight of the load-balancing loss in training.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=LAST_SEED, help="Seed of routers, noise and drop.")] = 0,
    *,
    options: LoadOptions,
    as_json: AsJson = False,
) -> None:
    """Turn a dense model into a mixture of experts. The experts are copies of its MLPs, or the MLPs of trained copies (--branch)."""
    from unmask.io.files import only_writer_of
    from unmask.models.loading import dtype_name, load_base_language_model, places_of
    from unmask.moe.upcycling.branches import load_branch
    from unmask.moe.upcycling.upcycle import UpcycleOptions, sizes
    from unmask.moe.upcycling.upcycle import upcycle as run
    from unmask.moe.upcycling.upcycled_folder import check_free, save_upcycled

    named = _by_name(branch or [])
    if named and experts not in (None, len(named)):
        raise UnmaskError(f"{len(named)} branches make {len(named)} experts: leave --experts out.")
    noise = noise if noise is not None else 0.0 if named else 0.01
    how = UpcycleOptions(len(named) or experts or 8, top_k, every, noise, drop, router_std, aux_loss, seed)
    check_free(output)
    sources = {name: replace(options.source(place), revision=None) for name, place in named.items()}  # it is of the model
    for source in sources.values():  # a wrong path is told before anything is loaded
        places_of(source)
    with only_writer_of(output):
        dense, tokenizer = load_base_language_model(options.source(model))
        before = sum(parameter.numel() for parameter in dense.parameters())
        done = run(dense, how, [load_branch(name, source, dense, tokenizer) for name, source in sources.items()])
        save_upcycled(done, tokenizer, output, model, how)
    total, active = sizes(done.model, top_k)
    if as_json:
        said = {"folder": str(output), "architecture": done.target.model_type, "dtype": dtype_name(done.model)}
        counted = {"dense_parameters": before, "parameters": total, "active_parameters": active}
        print(json.dumps({**said, **counted, "difference": done.difference, "branches": done.branches}, indent=2))
        return
    say(f"proven equal: the logits of plain copies differ by {done.difference:.1g} of the largest (fp32).")
    print(
        f"{output}: {done.target.model_type}, {dtype_name(done.model)}; {before / 1e6:.0f} M parameters became {total / 1e6:.0f} M,"
    )
    print(f"of which a token uses {active / 1e6:.0f} M. It is untrained: continue training before you judge its routing.")


def _by_name(given: list[str]) -> dict[str, str]:
    """Branches by the name of their expert, of NAME=MODEL. Raises UnmaskError."""
    named: dict[str, str] = {}
    for option in given:
        name, mark, place = option.partition("=")
        if not name or not mark or not place:
            raise UnmaskError(f"--branch takes NAME=MODEL, such as code=branches/code/model, not '{option}'.")
        if name in named:
            raise UnmaskError(f"--branch names '{name}' twice.")
        named[name] = place
    if len(named) == 1:
        raise UnmaskError("One branch makes one expert, and a mixture needs two or more: repeat --branch NAME=MODEL.")
    return named
