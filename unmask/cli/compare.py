"""`unmask compare`: which way of reading a model is best for which task."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.options import AsJson, ModelOptions, complete_design, complete_model
from unmask.io.terminal import say, tell_json

if TYPE_CHECKING:
    from rich.console import Console

    from unmask.evaluation.compare import ComparisonPlan
    from unmask.evaluation.results import Failure, Result, ResultStore
    from unmask.evaluation.verdict import Comparison, System
    from unmask.tasks.task import Task

    Tested = tuple[list[Result], list[Comparison]]

DEFAULT_DESIGNS = "last,mean,weighted-mean,max,prompteol,prompteol-z,echo,bidirectional-mean"

Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="Folder for the results. Run the same command again to continue. New designs, tasks and models are added.",
    ),
]


def compare(
    model: Annotated[
        list[str],
        typer.Option(
            "--model", "-m", help="Hub id, folder or bundled name. Repeat to compare models.", autocompletion=complete_model
        ),
    ],
    task: Annotated[
        list[str],
        typer.Option(
            "--task",
            "-t",
            help="FOLDER, FOLDER:kind, FOLDER#200 (a sample of 200 items), a task or task set of mteb, `starter` or "
            "starter:NAME. Repeat for several.",
        ),
    ],
    designs: Annotated[
        list[str] | None,
        typer.Option(
            "--designs",
            "-d",
            help="Designs or sets of designs (see `unmask designs`), separated by commas. LABEL=DESIGN gives a design a "
            "label. Default: the saved embedder's design, or eight common designs.",
            autocompletion=complete_design,
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option("--reference", "-r", help="sentence-transformers model to show in the same table. Repeat for several."),
    ] = None,
    output: Output = Path("report"),
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            "-b",
            help="Test every design against this one only, instead of all pairs. Choose it before you see the scores.",
        ),
    ] = None,
    fit_on: Annotated[
        Path | None,
        typer.Option(help="File of texts to fit zscore, whiten, alpha and idf on. Default: sentences that come with unmask."),
    ] = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Compare designs on tasks. Prints a ranked table, paired tests, and what to use for each kind of task."""
    from unmask.evaluation.compare import compare as run
    from unmask.evaluation.compare import forget_vectors, unscored
    from unmask.evaluation.reference_rows import compare_reference, require_runnable, unscored_reference
    from unmask.evaluation.results import ResultStore
    from unmask.evaluation.seed_means import mean_over_seeds
    from unmask.io.files import only_run_in, write_json
    from unmask.models.bundled import resolve
    from unmask.tasks.find import resolve_tasks

    _check_output(output)
    tasks = resolve_tasks(task)
    plans = [_plan(name, designs, tasks, fit_on, options) for name in dict.fromkeys(model)]
    baseline = _checked_baseline(baseline, plans, reference or [], tasks)
    for name in model:
        resolve(name)
    trusted = options.trust_remote_code
    for name in reference or []:
        require_runnable(name, trusted)
    with only_run_in(output):
        store = ResultStore(output)
        results = [result for plan in plans for result in run(plan, store)]
        results += [result for name in reference or [] for result in compare_reference(name, tasks, store, trusted)]
        forget_vectors(store)
        failures = [failure for plan in plans for failure in unscored(plan, store)]
        for name in reference or []:
            failures += unscored_reference(name, tasks, store, trusted)
        _tell_failures(failures, bool(results))
        results = mean_over_seeds(results)
        tested = _tested(results, store, baseline)
        content = _as_json(results, [test for _, tests in tested for test in tests], failures)
        write_json(output / "comparison.json", content)
        if as_json:
            tell_json(content)
        else:
            _print(results, tested, store, output, baseline)
    if any(failure.applies for failure in failures):
        raise typer.Exit(1)


def _check_output(output: Path) -> None:
    """Refuse, before any work, a folder that cannot be written or whose files are not ours."""
    from unmask.io.files import check_output, refuse_foreign

    check_output(output, folder=True)
    refuse_foreign(output / "comparison.json", ('"results"', '"comparisons"', '"failures"'))


def _checked_baseline(
    baseline: str | None, plans: Sequence[ComparisonPlan], references: Sequence[str], tasks: Sequence[Task]
) -> str | None:
    """The label of a baseline, which may be named by its label, by its design's readable name, or as a reference."""
    from unmask.errors import UnmaskError, unknown
    from unmask.tasks.kinds import is_of_words

    if baseline is None:
        return None
    designs = {label: design.name for plan in plans for label, design in plan.designs.items()}
    labels = [*designs, *references]
    matches = [label for label in labels if baseline in (label, designs.get(label))]
    if not matches:
        raise unknown("design among those compared", baseline, dict.fromkeys(labels))
    if all(is_of_words(task.kind) for task in tasks):
        raise UnmaskError("A baseline is a design on texts, and all these tasks are on words: leave --baseline out.")
    return matches[0]


def _tested(results: list[Result], store: ResultStore, baseline: str | None) -> list[Tested]:
    """Results on texts and those on words, each with the paired tests of its own; a baseline is a design on texts."""
    from unmask.evaluation.verdict import comparisons
    from unmask.evaluation.word_level import split_word_level

    texts, words = split_word_level(results)
    against = next((result.system for result in texts if result.label == baseline), None)
    if lost := baseline is not None and against is None:
        say(f"'{baseline}' has no score, so nothing is tested against it")
    tests = [(texts, [] if lost else comparisons(texts, store, against)), (words, comparisons(words, store))]
    return [(part, of_part) for part, of_part in tests if part]


def _plan(
    model: str, designs: list[str] | None, tasks: list[Task], fit_on: Path | None, options: ModelOptions
) -> ComparisonPlan:
    """What to compare on one model: the designs that were asked for, a saved embedder's own, or the usual ones."""
    from unmask.designs.design import parse_designs
    from unmask.errors import UnmaskError
    from unmask.evaluation.compare import ComparisonPlan
    from unmask.saving.folder import read_saved

    texts = _reference_texts(fit_on)
    saved = read_saved(model, options.revision, options.adapter)
    asked = parse_designs(",".join(designs) if designs else saved.design if saved else DEFAULT_DESIGNS)
    plan = ComparisonPlan(options.source(model), asked, tasks, options.max_length, texts, options.batch_tokens)
    fitted = [design for design in asked.values() if design.needs_fit]
    if fit_on is not None and not fitted:
        raise UnmaskError("None of these designs is fitted (zscore, whiten, sum:auto), so --fit-on would change nothing.")
    if fit_on is not None and all(plan.is_fitted(design) for design in fitted):
        raise UnmaskError(f"'{model}' keeps the fit that was saved with it, so --fit-on would change nothing.")
    return plan


def _tell_failures(failures: Sequence[Failure], scored: bool) -> None:
    """Say which cells of this run have no score, and why. Raises UnmaskError if no cell has one."""
    from unmask.errors import UnmaskError

    if failures and not scored:
        raise UnmaskError(failures[0].error)
    alike: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        alike.setdefault((failure.task, failure.error), []).append(failure.label)
    for (task, error), labels in alike.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        say(f"no score on {task} for {labels[0]}{more}: {error}")


def _as_json(results: list[Result], tests: list[Comparison], failures: list[Failure]) -> dict[str, Any]:
    return {
        "results": [result.model_dump(mode="json", exclude={"conditions"}) for result in results],
        "comparisons": [test.as_json() for test in tests],
        "failures": [failure.model_dump(mode="json", exclude={"conditions"}) for failure in failures],
    }


def _print(results: list[Result], tested: list[Tested], store: ResultStore, output: Path, baseline: str | None) -> None:
    from unmask.evaluation.seed_means import one_seed
    from unmask.evaluation.word_level import labels_by_layer
    from unmask.io.terminal import console as open_console
    from unmask.reporting.tables import shared_readings

    console = open_console()
    for part, tests in tested:
        _print_standing(console, part, tests, store, next((result.system for result in part if result.label == baseline), None))
    if note := one_seed(results):
        console.print(note, style="dim")
    if shared := labels_by_layer(results):
        console.print(shared_readings(shared))
    if cut := [result for result in results if result.truncated]:
        most = max(cut, key=lambda result: result.truncated / max(1, result.texts))
        console.print(
            f"Up to {most.truncated} of {most.texts} texts were cut to {most.conditions.max_length} tokens, prompt included "
            f"({most.label} on {most.task}). --max-length sets the limit.",
            style="dim",
        )
    if any(result.task.startswith("starter-") for result in results):
        console.print(
            "The starter tasks are a demonstration, not a benchmark: small, and written for this package.", style="dim"
        )
    console.print(
        f"Saved to {output}/: results.jsonl, comparison.json. The same command again computes only what is new.", style="dim"
    )
    console.print(f"Look at it next: unmask report {shlex.quote(str(output))}", soft_wrap=True)


def _print_standing(
    console: Console, results: list[Result], tests: list[Comparison], store: ResultStore, baseline: System | None
) -> None:
    """The ranked table, a test for each pair, and what follows for each kind of task."""
    from unmask.evaluation.leader import kind_leaders
    from unmask.reporting.tables import advice, differences, ranking

    console.print(ranking(results, console.width))
    if tests:
        console.print(differences(results, tests, console.width))
    console.print(advice(kind_leaders(results, store, baseline), results))


def _reference_texts(file: Path | None) -> list[str]:
    from unmask.io.rows import field, read_rows
    from unmask.starter import reference_texts

    return reference_texts() if file is None else [field(file, line, row, "text") for line, row in read_rows(file)]
