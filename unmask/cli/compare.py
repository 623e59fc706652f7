"""`unmask compare`: which way of reading a model is best for which task."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.options import Adapter, AsJson, BatchTokens, Device, Dtype, MaxLength, Revision, TrustRemoteCode

if TYPE_CHECKING:
    from unmask.evaluation.results import Result, ResultStore
    from unmask.evaluation.verdict import Comparison

DEFAULT_DESIGNS = "last,mean,weighted-mean,max,prompteol,prompteol-z,echo,bidirectional-mean"


def compare(
    model: Annotated[
        list[str], typer.Option("--model", "-m", help="Hub id, folder or bundled name; repeat to compare models.")
    ],
    task: Annotated[
        list[str],
        typer.Option(
            "--task",
            "-t",
            help="FOLDER, FOLDER:kind, FOLDER#200 (200 of its items), a name in mteb, or `starter`; repeat.",
        ),
    ],
    designs: Annotated[
        list[str] | None,
        typer.Option(
            "--designs",
            "-d",
            help="Designs or sets of them, commas between (see `unmask designs`); repeat. Default: a saved embedder's own, or eight.",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None, typer.Option("--reference", "-r", help="sentence-transformers model to stand in the same table.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results; run again to add to them.")] = Path(
        "report"
    ),
    fit_on: Annotated[
        Path | None, typer.Option(help="Texts to fit zscore, whiten and alpha on (txt, jsonl, csv, parquet).")
    ] = None,
    max_length: MaxLength = 512,
    batch_tokens: BatchTokens = None,
    adapter: Adapter = None,
    revision: Revision = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Compare designs on tasks: a ranked table, a paired test for each pair, a recommendation for each kind of task."""
    from unmask.design import parse_designs
    from unmask.errors import UnmaskError
    from unmask.evaluation.compare import Plan, compare_reference
    from unmask.evaluation.compare import compare as run
    from unmask.evaluation.results import ResultStore
    from unmask.evaluation.tasks import resolve_tasks
    from unmask.evaluation.verdict import comparisons
    from unmask.files import only_run_in, write_json
    from unmask.loading import Source
    from unmask.persistence import read_settings

    given = parse_designs(",".join(designs)) if designs else None
    tasks = resolve_tasks(task)
    texts = _reference_texts(fit_on)
    results: list[Result] = []
    with only_run_in(output):
        store = ResultStore(output)
        for name in dict.fromkeys(model):
            saved = read_settings(Path(name).expanduser())
            asked = given or parse_designs(saved.design if saved else DEFAULT_DESIGNS)
            if fit_on is not None and not any(design.needs_fit for design in asked.values()):
                raise UnmaskError(
                    "None of these designs is fitted (zscore, whiten, sum:auto), so --fit-on would change nothing."
                )
            precision = saved.dtype if saved and dtype == "auto" else dtype
            source = Source(name, revision, adapter, dtype=precision, device=device, trust_remote_code=trust_remote_code)
            results += run(Plan(source, asked, tasks, max_length, texts, batch_tokens), store, _say)
        for name in reference or []:
            results += compare_reference(name, tasks, store, _say)
        tests = comparisons(results, store)
        content = _as_json(results, tests)
        write_json(output / "comparison.json", content)
        if as_json:
            print(json.dumps(content, indent=2, ensure_ascii=False))
        else:
            _print(results, tests, store, output)


def _as_json(results: list[Result], tests: list[Comparison]) -> dict[str, Any]:
    return {
        "results": [result.model_dump(mode="json", exclude={"conditions"}) for result in results],
        "comparisons": [test.as_json() for test in tests],
    }


def _print(results: list[Result], tests: list[Comparison], store: ResultStore, output: Path) -> None:
    from rich.console import Console

    from unmask.evaluation.verdict import recommendations
    from unmask.reporting.tables import advice, differences, ranking

    console = Console()
    wide = console.width >= 100
    console.print(ranking(results, with_intervals=wide))
    if cut := [result for result in results if result.truncated]:
        most = max(cut, key=lambda result: result.truncated / max(1, result.texts))
        console.print(f"Up to {most.truncated} of {most.texts} texts were cut to the limit ({most.task}).", style="dim")
    if tests:
        console.print(differences(results, tests, decimals=int(wide), most=(console.width - 26) // (7 if wide else 6) + 1))
    console.print(advice(recommendations(results, store), results))
    if any(result.task.startswith("starter-") for result in results):
        console.print(
            "The starter tasks are a demonstration, not a benchmark: small, and written for this package.", style="dim"
        )
    console.print(
        f"Saved to {output}/: results.jsonl, comparison.json. The same command again computes only what is new.", style="dim"
    )


def _reference_texts(file: Path | None) -> list[str]:
    from unmask.rows import field, read_rows
    from unmask.starter import reference_texts

    return reference_texts() if file is None else [field(file, line, row, "text") for line, row in read_rows(file)]


def _say(message: str) -> None:
    print(f"unmask: {message}", file=sys.stderr, flush=True)
