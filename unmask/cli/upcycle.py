"""`unmask upcycle`: a dense model in, a mixture of experts that computes the same out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.lesson_options import LAST_SEED
from unmask.cli.options import AsJson, LoadOptions
from unmask.io.terminal import say


def upcycle(
    model: Annotated[str, typer.Argument(help="Hub id, folder or bundled name of a dense model (see `unmask models`).")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="New folder for the mixture.")],
    experts: Annotated[int, typer.Option(min=2, max=4096, help="Copies of each MLP.")] = 8,
    top_k: Annotated[int, typer.Option(min=2, max=4096, help="How many experts a token visits.")] = 2,
    every: Annotated[
        int, typer.Option(min=1, help="Each n-th layer becomes a mixture, where the architecture can say so.")
    ] = 1,
    noise: Annotated[
        float, typer.Option(min=0, max=10, help="Noise on each expert, as a share of its weights' deviation.")
    ] = 0.01,
    drop: Annotated[
        float, typer.Option(min=0, max=1, help="Share of each expert's neurons to draw anew (Drop-Upcycling).")
    ] = 0.0,
    router_std: Annotated[float, typer.Option(min=0, max=10, help="Deviation of the new routers' weights.")] = 0.02,
    aux_loss: Annotated[float, typer.Option(min=0, max=1000, help="Weight of the load-balancing loss in training.")] = 0.01,
    seed: Annotated[int, typer.Option(min=0, max=LAST_SEED, help="Of routers, noise and drop.")] = 0,
    *,
    options: LoadOptions,
    as_json: AsJson = False,
) -> None:
    """Copy a dense model's MLPs into experts with a new router: a standard mixture of experts, proven equal, ready to train."""
    from unmask.io.files import only_writer_of
    from unmask.models.loading import dtype_name, load_language_model
    from unmask.models.upcycling import UpcycleOptions, check_free, save_upcycled, sizes
    from unmask.models.upcycling import upcycle as run

    how = UpcycleOptions(experts, top_k, every, noise, drop, router_std, aux_loss, seed)
    output = output.expanduser()
    check_free(output)
    with only_writer_of(output):
        dense, tokenizer = load_language_model(options.source(model))
        before = sum(parameter.numel() for parameter in dense.parameters())
        done = run(dense, how)
        save_upcycled(done, tokenizer, output, model, how)
    total, active = sizes(done.model, top_k)
    if as_json:
        said = {"folder": str(output), "architecture": done.target.model_type, "dtype": dtype_name(done.model)}
        counted = {"dense_parameters": before, "parameters": total, "active_parameters": active}
        print(json.dumps({**said, **counted, "difference": done.difference}, indent=2))
        return
    say(f"proven equal: the copies' logits differ by {done.difference:.1g} of the largest (fp32).")
    print(
        f"{output}: {done.target.model_type}, {dtype_name(done.model)}; {before / 1e6:.0f} M parameters became {total / 1e6:.0f} M,"
    )
    print(f"of which a token uses {active / 1e6:.0f} M. It is untrained: continue training before you judge its routing.")
