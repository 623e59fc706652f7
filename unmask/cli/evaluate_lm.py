"""`unmask evaluate-lm`: how well models foresee held-out responses, domain by domain, with paired intervals."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import AsJson, Device, Dtype, TrustRemoteCode
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.experts.comparison import Row


def evaluate_lm(
    model: Annotated[
        list[str],
        typer.Option("--model", "-m", help="Language model, expert or mixture; repeat. Others are compared with the first."),
    ],
    lessons: Annotated[list[str], typer.Option(help="NAME=FILE of a domain's held-out lessons; repeat.")],
    max_length: Annotated[int, typer.Option(min=2, help="Most tokens of a lesson.")] = 512,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Negative log-likelihood of held-out responses: the measure of ability that speaks at any size of model."""
    from unmask.cli.learning import domains_of
    from unmask.experts.comparison import as_json as content
    from unmask.experts.comparison import compare_likelihoods
    from unmask.experts.likelihood import response_likelihood
    from unmask.experts.speakers import load_speaker
    from unmask.loading import Source
    from unmask.progress import progress_bar

    if len(set(model)) < len(model):
        raise UnmaskError("A model was given twice.")
    domains = domains_of(lessons)
    total = sum(len(some) for some in domains.values())
    values = {}
    for name in model:
        source = Source(name, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        speaker, tokenizer = load_speaker(source)
        with progress_bar(name, total, None) as advance:
            values[name] = {
                domain: response_likelihood(speaker, tokenizer, some, max_length=max_length, progress=advance)
                for domain, some in domains.items()
            }
        print(f"unmask: {name}: done", file=sys.stderr)
    rows = compare_likelihoods(values, model[0])
    if as_json:
        print(json.dumps(content(rows, model[0], {name: len(some) for name, some in domains.items()}), indent=2))
    else:
        _print(rows)


def _print(rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="Nats a response token, lower is better", title_justify="left")
    table.add_column("model", overflow="fold")
    for domain in rows[0].domains:
        table.add_column(escape(domain), justify="right")
    table.add_column("average", justify="right")
    table.add_column(f"less {escape(_short(rows[0].model))}", justify="right")
    for row in rows:
        value, low, high = row.difference
        differs = f"{value:+.3f} [{low:+.3f}, {high:+.3f}]" if row is not rows[0] else ""
        table.add_row(escape(_short(row.model)), *(f"{one:.3f}" for one in row.domains.values()), f"{row.average:.3f}", differs)
    console = Console()
    console.print(table)
    console.print("Differences of averages with 95 % intervals, by a paired bootstrap over lessons.", style="dim")


def _short(name: str) -> str:
    return Path(name).name or name
