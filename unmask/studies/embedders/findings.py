"""What a study of embedders found: scores, agreements, claims, and the tables and report that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.evaluation.results import ResultStore
from unmask.statistics.paired import PairedTest
from unmask.studies.claims.carry import TaskScores, with_basis
from unmask.studies.claims.claim import Claim, Finding, add_item_verdicts, findings
from unmask.studies.claims.tables import claims_sheet, short_sheet, summary
from unmask.studies.embedders.analysis import ScoredEmbedder, TaskAgreement, agreement_test, agreements, compare_embedders
from unmask.studies.embedders.plan import BASE, EmbeddersPlan
from unmask.studies.sheet import Sheet


@dataclass(frozen=True)
class EmbeddersFindings:
    """Each embedder with its scores, then the reference model if there is one, and the verdict on each claim."""

    plan: EmbeddersPlan
    model: str
    scored: dict[str, ScoredEmbedder]
    claims: list[Finding]
    agreements: dict[str, dict[str, list[TaskAgreement]]]
    """Of each claim about agreement, by id: how far both sides agree on each task, one value for each run."""

    @classmethod
    def of(cls, plan: EmbeddersPlan, model: str, scored: dict[str, ScoredEmbedder], store: ResultStore) -> EmbeddersFindings:
        """Test the claims on the scores of a study. store: holds the items behind them."""
        by_claim = {}
        for claim in plan.claims:
            if claim.agreement and claim.better in scored and claim.than[0] in scored:
                better, rival = (
                    [scored[name] for name in plan.under_all_prompts(side)] for side in (claim.better, claim.than[0])
                )
                by_claim[claim.id] = agreements(claim.agreement, better, rival, store)
        found = cls(plan, model, scored, _verdicts(plan, scored, store, by_claim), by_claim)
        content = found.as_json()
        return replace(found, claims=with_basis(found.claims, task_scores(plan, content["scores"], content["kinds"])))

    @property
    def kinds(self) -> list[str]:
        """The kinds of task."""
        return list(dict.fromkeys(result.kind for scored in self.scored.values() for result in scored.runs[0].values()))

    def mean(self, embedder: str, kind: str) -> float | None:
        """The mean score of an embedder over the tasks of a kind and its seeds, in percent. None without such a task."""
        scored = self.scored[embedder]
        tasks = scored.tasks([kind])
        return 100 * float(np.mean(scored.points(tasks))) if tasks else None

    def as_json(self) -> dict[str, Any]:
        """Every score, and the plan."""
        return {
            "scores": {
                name: {task: [run[task].main_score for run in scored.runs] for task in scored.runs[0]}
                for name, scored in self.scored.items()
            },
            "kinds": {task: result.kind for scored in self.scored.values() for task, result in scored.runs[0].items()},
            "plan": self.plan.model_dump(mode="json"),
        }

    def tables(self) -> list[Sheet]:
        """Scores by kind of task, and for each claim about agreement how far both sides agree, task by task."""
        rows = []
        for name, scored in self.scored.items():
            means = [self.mean(name, kind) for kind in self.kinds]
            rows.append((name, f"{len(scored.runs)}", *("" if mean is None else f"{mean:.1f}" for mean in means)))
        note = (
            "Main scores in percent: the mean over the tasks of a kind, and over seeds where a model was trained with several. "
            f"Tasks: {', '.join(self.plan.tasks)}."
        )
        tables = [Sheet("Scores", ("", "seeds", *self.kinds), tuple(rows), note)]
        for claim in self.plan.claims:
            if by_task := self.agreements.get(claim.id):
                rows = []
                for task, runs in by_task.items():
                    better, rival = 100 * np.mean([run.total for run in runs], axis=0)
                    rows.append((task, f"{better:.1f}", f"{rival:.1f}", f"{better - rival:+.1f}"))
                second = {
                    "prompts": f"{claim.than[0]}, two prompts",
                    "clusters": f"{claim.better} and {claim.than[0]}, two prompts",
                    "clusters under one prompt": f"{claim.better} and {claim.than[0]}, one prompt",
                }[claim.agreement or "prompts"]
                columns = ("task", f"{claim.better}, two prompts", second, "difference")
                tables.append(Sheet(f"Agreement: {claim.id}", columns, tuple(rows), f"In percent. {claim.how}"))
        return tables

    def terminal_tables(self) -> list[Sheet]:
        """Scores by kind of task, then the claims in short."""
        return [self.tables()[0], short_sheet(self.claims)]

    def report(self, _: Path) -> str:
        """The claims first, then the scores."""
        legend = "\n".join(
            f"- **{name}**: `{spec.design}` of {spec.model}" for name, spec in self.plan.measured_embedders.items()
        )
        if self.plan.reference in self.scored:
            legend += f"\n- **{self.plan.reference}**: a sentence-transformers model, as a yardstick"
        head = f"# {self.plan.paper} on {self.model}\n\n{summary(self.claims)}\n"
        tables = [sheet.markdown() for sheet in (claims_sheet(self.claims), *self.tables())]
        return "\n".join([head, *tables, "## What the embedders are", legend, ""])


def task_scores(
    plan: EmbeddersPlan, scores: Mapping[str, Mapping[str, Sequence[float]]], kinds: Mapping[str, str]
) -> TaskScores:
    """The scores of a study, 0 to 1 in its results, in the unit of its differences. kinds: of each task."""
    return TaskScores(
        {name: {task: [100 * score for score in of_runs] for task, of_runs in of.items()} for name, of in scores.items()},
        kinds,
        {name: spec.model for name, spec in plan.measured_embedders.items() if spec.model != BASE},
    )


def _verdicts(
    plan: EmbeddersPlan,
    scored: dict[str, ScoredEmbedder],
    store: ResultStore,
    agreements_by_claim: Mapping[str, Mapping[str, Sequence[TaskAgreement]]],
) -> list[Finding]:
    """The verdict on each claim: on tasks of these kinds in general, and on these tasks alone."""
    pairs = [(claim, rival) for claim in plan.claims for rival in claim.than if claim.better in scored and rival in scored]
    general: dict[tuple[str, str], PairedTest] = {}
    item_tests: dict[tuple[str, str], PairedTest] = {}
    for claim, rival in pairs:
        if claim.agreement:
            tests = (agreement_test(agreements_by_claim[claim.id]),) * 2
        else:
            tests = compare_embedders(scored[claim.better], scored[rival], claim.kinds, store, len(pairs), claim.less_on)
        for family, test in zip((general, item_tests), tests, strict=True):
            if test is not None:
                family[claim.id, rival] = test
    on_these_tasks = findings(plan.claims, item_tests, _unit)
    confirmed_here = [finding.claim.id for finding in on_these_tasks if finding.verdict == "confirmed"]
    return add_item_verdicts(findings(plan.claims, general, _unit, confirmed_here), on_these_tasks)


def _unit(claim: Claim) -> str:
    if claim.agreement is None:
        return "points"
    return "points of Spearman" if claim.agreement == "prompts" else "points of V-measure"
