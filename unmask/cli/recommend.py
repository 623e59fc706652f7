"""`unmask recommend`: the best design for some tasks, without computing the whole grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import Adapter, AsJson, BatchTokens, Device, Dtype, MaxLength, Model, Revision, TrustRemoteCode
from unmask.terminal import say, tell

if TYPE_CHECKING:
    from unmask.evaluation.recommend import Advice, Round

DESIGNS = (
    "last,mean,weighted-mean,max,causal/plain/mean/zscore,prompteol,prompteol-z,echo,causal/echo/weighted-mean,"
    "bidirectional-mean,bidirectional/plain/mean/zscore"
)


def recommend(
    model: Model,
    task: Annotated[list[str], typer.Option("--task", "-t", help="FOLDER, FOLDER:kind, FOLDER#200, or `starter`; repeat.")],
    designs: Annotated[str, typer.Option("--designs", "-d", help="Designs to choose from, with commas between.")] = DESIGNS,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the results; the same command goes on if it was stopped."
        ),
    ] = Path("recommendation"),
    max_length: MaxLength = None,
    batch_tokens: BatchTokens = None,
    adapter: Adapter = None,
    revision: Revision = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Recommend a design for tasks like these: all designs on few items, the better ones on more."""
    from unmask.design import parse_designs
    from unmask.evaluation.compare import Plan
    from unmask.evaluation.recommend import recommend as run
    from unmask.evaluation.results import ResultStore
    from unmask.evaluation.tasks import resolve_tasks
    from unmask.files import check_output, only_run_in, refuse_foreign, write_json
    from unmask.loading import Source
    from unmask.starter import reference_texts

    check_output(output, folder=True)
    refuse_foreign(output / "recommendation.json", ('"design"', '"rounds"', '"tokens"'))
    source = Source(model, revision, adapter, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    plan = Plan(source, parse_designs(designs), resolve_tasks(task), max_length, reference_texts(), batch_tokens)
    with only_run_in(output):
        advice = run(plan, ResultStore(output), say)
        write_json(output / "recommendation.json", advice.as_json())
    if as_json:
        print(json.dumps(advice.as_json(), indent=2, ensure_ascii=False))
    else:
        _print(advice)


def _print(advice: Advice) -> None:
    for number, one in enumerate(advice.rounds, start=1):
        _print_round(number, one)
    low, high = advice.interval
    name = advice.label if advice.label == advice.design.name else f"{advice.label} ({advice.design.name})"
    tell(f"Use {name}: {100 * advice.score:.1f} [{100 * low:.1f}, {100 * high:.1f}], {advice.tokens_a_text:.0f} tokens a text.")
    if advice.ties:
        tell(f"  Not told apart from it: {', '.join(advice.ties)}.")
    tell(
        f"  {advice.tokens:,} tokens were computed; all designs on all items are about {advice.grid_tokens:,} "
        f"({advice.grid_tokens / advice.tokens:.1f} times as many)."
    )


def _print_round(number: int, one: Round) -> None:
    tell(f"Round {number}: {one.items} items, {one.tokens:,} tokens")
    for standing in one.standings:
        low, high = standing.interval
        behind = f"{100 * standing.behind:5.1f} behind [{100 * low:.1f}, {100 * high:.1f}]" if standing.behind else ""
        tell(
            f"  {'+' if standing.label in one.kept else ' '} {100 * standing.score:5.1f}  {standing.label:34} {behind}".rstrip()
        )
    print()
