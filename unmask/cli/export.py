"""`unmask export`: an embedder in the format of another runtime, checked there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from unmask.cli.options import ADVANCED, Design, Model, ModelOptions, NewFolder
from unmask.io.terminal import say, tell_result


def export(
    model: Model,
    to: Annotated[
        str,
        typer.Option(
            "--to", help="Runtime for the export: sentence-transformers, onnx, openvino, gguf (llama.cpp) or model2vec."
        ),
    ],
    output: NewFolder,
    design: Design = None,
    unchecked: Annotated[
        bool,
        typer.Option("--unchecked", help="Write the export unchecked if this machine cannot run it.", rich_help_panel=ADVANCED),
    ] = False,
    *,
    options: ModelOptions,
) -> None:
    """Export an embedder to another runtime. The export embeds 200 texts there and is refused if a vector differs."""
    from unmask.embedder import Embedder
    from unmask.saving.exports.export import export as run
    from unmask.saving.exports.export import find_target, require_ready

    target = find_target(to)
    require_ready(target, output, unchecked=unchecked)
    arguments = asdict(options)
    if target.precision is not None:  # the format holds plain weights
        dtype = target.precision if options.dtype == "auto" else options.dtype
        arguments |= {"merge": options.adapter is not None, "dtype": dtype}
    embedder = Embedder.from_pretrained(model, design, **arguments)
    checked = run(embedder, target, output, unchecked=unchecked)
    tell_result(
        {
            "output": str(output),
            "format": to,
            "model": embedder.source.model,
            "design": embedder.design.name,
            "check": checked.line,
        }
    )
    say(f"'{embedder.design.name}' of {embedder.source.model} for {to} in {output}: {checked.line}")
