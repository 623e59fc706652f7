"""Runs of `unmask compare` and `unmask recommend`: from settings to results in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.designs.design import parse_designs
from unmask.designs.presets import DEFAULT_DESIGN
from unmask.errors import UnmaskError, unknown
from unmask.evaluation.recommend import Recommendation, recommend
from unmask.evaluation.reference_models import reference_failures, require_runnable, score_reference_model
from unmask.evaluation.results import Failure, Result, ResultStore
from unmask.evaluation.scoring import ScoringPlan, failures_of, forget_vectors, score_designs
from unmask.evaluation.seed_means import mean_over_seeds
from unmask.evaluation.verdict import SystemTest, comparisons, split_word_level
from unmask.io.files import check_output, only_run_in, refuse_foreign, write_json
from unmask.io.rows import field, read_rows
from unmask.io.terminal import say
from unmask.models.bundled import resolve
from unmask.models.loading import Source
from unmask.saving.folder import read_saved
from unmask.starter import reference_texts
from unmask.tasks.find import resolve_tasks
from unmask.tasks.kinds import is_of_words

DEFAULT_DESIGNS = f"last,mean,weighted-mean,max,prompteol,prompteol-z,{DEFAULT_DESIGN},echo,bidirectional-mean"

RECOMMENDED_FROM = (
    f"last,mean,weighted-mean,max,causal/plain/mean/zscore,prompteol,prompteol-z,{DEFAULT_DESIGN},echo,causal/echo/weighted-mean,"
    "bidirectional-mean,bidirectional/plain/mean/zscore"
)


@dataclass(frozen=True)
class ComparisonSettings:
    """What to compare."""

    sources: tuple[Source, ...]
    tasks: tuple[str, ...]
    output: Path
    designs: str = ""
    """Without designs: a saved embedder's design, or eight common ones; for a recommendation, eleven."""
    references: tuple[str, ...] = ()
    """sentence-transformers models."""
    baseline: str | None = None
    """The design that all others are tested against; None tests all pairs."""
    fit_on: Path | None = None
    max_length: int | None = None
    batch_tokens: int | None = None


@dataclass(frozen=True)
class FinishedComparison:
    """The results of `run_comparison`, and their tests."""

    results: list[Result]
    parts: list[tuple[list[Result], list[SystemTest]]]
    """Results on texts and results on words, each with its paired tests."""
    failures: list[Failure]
    baseline: str | None
    store: ResultStore

    def as_json(self) -> dict[str, Any]:
        """The content of comparison.json."""
        return {
            "results": [result.model_dump(mode="json", exclude={"conditions"}) for result in self.results],
            "comparisons": [test.as_json() for _, tests in self.parts for test in tests],
            "failures": [failure.model_dump(mode="json", exclude={"conditions"}) for failure in self.failures],
        }


def run_comparison(settings: ComparisonSettings) -> FinishedComparison:
    """Compare designs on tasks; only what the folder lacks is computed. Raises UnmaskError if nothing has a score."""
    output, references = settings.output, settings.references
    check_output(output, folder=True)
    refuse_foreign(output / "comparison.json", ('"results"', '"comparisons"', '"failures"'))
    tasks = resolve_tasks(settings.tasks)
    fit_texts = reference_texts()
    if settings.fit_on is not None:
        fit_texts = [field(settings.fit_on, line, row, "text") for line, row in read_rows(settings.fit_on)]
    plans = [_scoring_plan(source, tasks, fit_texts, settings) for source in dict.fromkeys(settings.sources)]
    baseline = _baseline_label(settings, plans)
    if baseline is not None and all(is_of_words(task.kind) for task in tasks):
        raise UnmaskError("A baseline is a design on texts, and all these tasks are on words: leave --baseline out.")
    for source in settings.sources:
        resolve(source.model)
    trusted = settings.sources[0].trust_remote_code
    for name in references:
        require_runnable(name, trusted)
    with only_run_in(output):
        store = ResultStore(output)
        results = [result for plan in plans for result in score_designs(plan, store)]
        results += [result for name in references for result in score_reference_model(name, tasks, store, trusted)]
        forget_vectors(store)
        failures = [failure for plan in plans for failure in failures_of(plan, store)]
        for name in references:
            failures += reference_failures(name, tasks, store, trusted)
        if failures and not results:
            raise UnmaskError(failures[0].error)
        _print_failures(failures)
        results = mean_over_seeds(results)
        comparison = FinishedComparison(results, _test_texts_and_words(results, store, baseline), failures, baseline, store)
        write_json(output / "comparison.json", comparison.as_json())
    return comparison


def _scoring_plan(source: Source, tasks: Sequence[Any], fit_texts: list[str], settings: ComparisonSettings) -> ScoringPlan:
    saved = read_saved(source.model, source.revision, source.adapters)
    designs = parse_designs(settings.designs or (saved.design if saved else DEFAULT_DESIGNS))
    plan = ScoringPlan(source, designs, list(tasks), settings.max_length, fit_texts, settings.batch_tokens)
    fitted = [design for design in designs.values() if design.needs_fit]
    if settings.fit_on is not None and not fitted:
        raise UnmaskError("None of these designs is fitted (zscore, whiten, sum:auto), so --fit-on would change nothing.")
    if settings.fit_on is not None and all(plan.is_fitted(design) for design in fitted):
        raise UnmaskError(f"'{source.model}' keeps the fit that was saved with it, so --fit-on would change nothing.")
    return plan


def _baseline_label(settings: ComparisonSettings, plans: Sequence[ScoringPlan]) -> str | None:
    """The label of the baseline, which may be given as a label, a design's readable name, or a reference."""
    if settings.baseline is None:
        return None
    designs = {label: design.name for plan in plans for label, design in plan.designs.items()}
    labels = [*designs, *settings.references]
    matches = [label for label in labels if settings.baseline in (label, designs.get(label))]
    if not matches:
        raise unknown("design among those compared", settings.baseline, dict.fromkeys(labels))
    return matches[0]


def _test_texts_and_words(
    results: list[Result], store: ResultStore, baseline: str | None
) -> list[tuple[list[Result], list[SystemTest]]]:
    texts, words = split_word_level(results)
    against = next((result.system for result in texts if result.label == baseline), None)
    is_lost = baseline is not None and against is None
    if is_lost:
        say(f"'{baseline}' has no score, so nothing is tested against it")
    parts = [(texts, [] if is_lost else comparisons(texts, store, against)), (words, comparisons(words, store))]
    return [(part, tests) for part, tests in parts if part]


def _print_failures(failures: Sequence[Failure]) -> None:
    labels: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        labels.setdefault((failure.task, failure.error), []).append(failure.label)
    for (task, error), of_error in labels.items():
        suffix = f" and {len(of_error) - 1} more" if len(of_error) > 1 else ""
        say(f"no score on {task} for {of_error[0]}{suffix}: {error}")


def recommend_design(settings: ComparisonSettings, *, layers: bool = True) -> Recommendation:
    """Race designs of the first source on tasks and write recommendation.json."""
    check_output(settings.output, folder=True)
    refuse_foreign(settings.output / "recommendation.json", ('"design"', '"rounds"', '"tokens"'))
    designs, tasks = parse_designs(settings.designs or RECOMMENDED_FROM), resolve_tasks(settings.tasks)
    plan = ScoringPlan(settings.sources[0], designs, tasks, settings.max_length, reference_texts(), settings.batch_tokens)
    with only_run_in(settings.output):
        choice = recommend(plan, ResultStore(settings.output), layers=layers)
        write_json(settings.output / "recommendation.json", choice.as_json())
    return choice
