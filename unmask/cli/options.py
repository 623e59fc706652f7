"""Options that several commands share: one declaration for code, help and docs."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Option("--model", "-m", help="Hub id, folder or bundled name (see `unmask models`).")]
Adapter = Annotated[str | None, typer.Option(help="PEFT adapter to put on the model.")]
Revision = Annotated[str | None, typer.Option(help="Revision of a model on the hub.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto: bf16 where the device is fast at it.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto.")]
MaxLength = Annotated[
    int | None,
    typer.Option("--max-length", min=1, help="Most tokens of one text with its prompt: a saved embedder's own, or 512."),
]
BatchTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens of one batch; chosen by device if not given.")]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python code that comes with the model that you name, and with no other."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
