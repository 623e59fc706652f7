"""What the study of routers found: its tables, its conclusion in plain words, and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unmask.io.terminal import counted
from unmask.reporting.page import p_value
from unmask.statistics.correlations import RankCorrelation
from unmask.statistics.paired import SIGNIFICANT, PairedTest
from unmask.studies.claims.claim import Finding
from unmask.studies.claims.tables import claims_sheet
from unmask.studies.routers.analysis import (
    ROUTING_SCORE,
    Replication,
    Row,
    correlations_with_information,
    rows_of,
    tests_as_json,
    verdicts,
)
from unmask.studies.routers.cells import Anchor, Cell
from unmask.studies.routers.configurations import CONFIGURATIONS, EMBEDDINGS, OWN, STANDARD, Yardstick, baseline_of
from unmask.studies.routers.plan import PAPER, RoutersPlan
from unmask.studies.sheet import Sheet

_COMPARED = (
    "Each difference is the row minus the configuration that it is compared with (named below). Its interval is corrected for all tests of "
    "the column (Holm), and * marks a difference that the test shows. Tests need two seeds."
)
_MEASURES = {
    "confidence": "confidence", "balance": "balance", "distinctness": "distinctness", "max violation": "max violation",
    "repetition": "repetition", "vocabulary specialisation": "vocabulary", "layer agreement": "layers",
    "specialisation": "specialisation",
}  # fmt: skip
_AIMS: Mapping[Yardstick, str] = {
    "information": "Distinct routing",
    "gain": "Predicting held-out responses",
    "routing": "Routing weights as embeddings",
    "concat": "Routing weights concatenated with hidden states",
    "sum": "The sum of both similarities",
}


@dataclass
class MeasuredCells:
    """The cells so far."""

    anchor: Anchor
    """The layer that anchored routers read."""
    bases: dict[str, Cell] = field(default_factory=dict)
    """The base model by set of domains."""
    cells: dict[str, dict[int, Cell]] = field(default_factory=dict)
    replication: Replication | None = None
    """On fresh seeds, at the end."""

    @property
    def base_score(self) -> float:
        """The mean score of the base model's hidden states, in percent."""
        scores = self.bases[CONFIGURATIONS[STANDARD].domains].scores["hidden"]
        return 100 * sum(scores.values()) / len(scores)


@dataclass(frozen=True)
class RoutersFindings:
    """The numbers of the report. They take seconds to compute."""

    plan: RoutersPlan
    model: str
    measured: MeasuredCells
    rows: Mapping[str, Row]
    """Configurations in the order of the tables."""
    correlations: Mapping[str, RankCorrelation]
    """What correlates with distinct routing."""
    claims: list[Finding]

    @classmethod
    def of(cls, plan: RoutersPlan, model: str, measured: MeasuredCells) -> RoutersFindings:
        """Statistics derived from the measurements so far."""
        cells = {name: measured.cells[name] for name in CONFIGURATIONS if name in measured.cells}
        rows = {row.name: row for row in rows_of(cells, measured.bases)}
        claims = verdicts(plan.claims, measured.cells, measured.bases)
        return cls(plan, model, measured, rows, correlations_with_information(rows.values()), claims)

    def as_json(self) -> dict[str, Any]:
        """Every number of the report, and the measures of each cell."""
        measured = self.measured
        return {
            "anchor": asdict(measured.anchor),
            "base": {name: {"scores": cell.scores} for name, cell in measured.bases.items()},
            "configurations": [{**vars(row), "tests": tests_as_json(row.tests)} for row in self.rows.values()],
            "correlations": {name: value.as_json() for name, value in self.correlations.items()},
            "replication": measured.replication and measured.replication.as_json(),
            "conclusion": self.conclusion,
            "cells": {
                name: {str(seed): {"routing": cell.routing, "scores": cell.scores} for seed, cell in seeds.items()}
                for name, seeds in measured.cells.items()
            },
        }

    @property
    def conclusion(self) -> list[str]:
        """Points in Markdown, from the numbers alone.

        For each aim, what is better and worse than its baseline; whether distinct routing makes better embeddings; our own structure; what
        contradicts papers; what was not measured.
        """
        aims = {aim: " ".join(_aim_sentences(yardstick, self.rows)) for yardstick, aim in _AIMS.items()}
        papers = [finding for finding in self.claims if not finding.claim.is_own]
        undecided = sum(finding.verdict == "undecided" for finding in papers)
        missing = [name for name in CONFIGURATIONS if name not in self.rows]
        return [
            *(f"**{aim}.** {sentences}" for aim, sentences in aims.items() if sentences),
            *_embeddings_sentences(self.correlations),
            *_own_structure_sentences(self.measured.replication),
            *(
                f"**Refuted here:** \u201c{finding.claim.says}\u201d ({finding.claim.where})."
                for finding in papers
                if finding.verdict == "refuted"
            ),
            *([f"{counted(undecided, 'claim')} of papers stay{'s' if undecided == 1 else ''} undecided."] if undecided else []),
            *([f"Not measured: {', '.join(missing)}."] if missing else []),
            "The experts were trained once (those of joint training: once a seed), so nothing is said of other experts. The numbers are "
            f"of {counted(self.rows[STANDARD].seeds, 'router seed')}.",
        ]

    def tables(self) -> list[Sheet]:
        """The tables without the one of claims."""
        tables = [_routing_sheet(self.rows)]
        if any(row.scores for row in self.rows.values()):
            tables.append(_embeddings_sheet(self.rows, self.measured.base_score))
        if self.correlations:
            tables.append(_correlations_sheet(self.correlations))
        return [*tables, _measures_sheet(self.rows)]

    def terminal_tables(self) -> list[Sheet]:
        """Every table that has findings."""
        return [*self.tables(), *([claims_sheet(self.claims)] if self.claims else [])]

    def report(self, _: Path) -> str:
        """The conclusion first, then the tables."""
        plan, anchor = self.plan, self.measured.anchor
        cells = sum(len(seeds) for seeds in self.measured.cells.values())
        domains = ", ".join(plan.domains[CONFIGURATIONS[STANDARD].domains])
        head = (
            f"# {PAPER} on {self.model}\n\n"
            f"- {cells} of {len(plan.configurations) * len(plan.seeds)} cells are measured (configurations x {len(plan.seeds)} seeds).\n"
            f"- Domains of the standard configuration: {domains}. For each: {plan.number} lessons to learn, {plan.held_out} held out.\n"
            f"- Experts: LoRA of rank {plan.lora.r}, {plan.expert.steps} steps of {plan.batch} lessons. "
            f"Routers: {plan.router.steps} steps.\n"
            f"- Embeddings: PromptEOL, standardised, on {len(plan.tasks)} tasks.\n"
            f"- Anchored routers read layer {anchor.layer}, the first that tells the domains apart well "
            f"({100 * anchor.accuracies[anchor.layer - 1]:.0f} % of lessons; the best layer: {100 * max(anchor.accuracies):.0f} %).\n"
        )
        legend = [
            f"- **{name}**: {configuration.about}." + f" Compared with {baseline_of(name)}." * (baseline_of(name) != name)
            for name, configuration in CONFIGURATIONS.items()
        ]
        conclusion = ["## Conclusion", *(f"- {sentence}" for sentence in self.conclusion)]
        tables = [sheet.markdown() for sheet in self.terminal_tables()]
        return "\n".join([head, *conclusion, "", *tables, "\n".join(["## What the configurations are", *legend]) + "\n"])


def _aim_sentences(yardstick: Yardstick, rows: Mapping[str, Row]) -> Iterator[str]:
    tests = {row.name: test for row in rows.values() if (test := row.tests.get(yardstick)) is not None}
    better = [name for name, test in tests.items() if test.winner == "a"]
    worse = [name for name, test in tests.items() if test.winner == "b"]
    for names, word in ((better, "better"), (worse, "worse")):
        if names:
            listed = ", ".join(f"{name} ({tests[name].difference:+.3g} against {baseline_of(name)})" for name in names)
            yield f"{word.capitalize()}: {listed}."
    means = {
        row.name: value
        for row in rows.values()
        if CONFIGURATIONS[row.name].domains == CONFIGURATIONS[STANDARD].domains
        and not CONFIGURATIONS[row.name].choice
        and (value := {"information": row.information, "gain": row.gain, **row.scores}.get(yardstick)) is not None
    }
    if means and (highest := max(means, key=lambda name: means[name])) not in (STANDARD, *better, *worse):
        yield f"The highest mean of all trained configurations is that of {highest}, which is not shown to be better."
    if undecided := len(tests) - len(better) - len(worse):
        noun = "other configuration" if better or worse else "configuration"
        yield f"For {counted(undecided, noun)}, no difference was shown; there may be one."


def _embeddings_sentences(correlations: Mapping[str, RankCorrelation]) -> Iterator[str]:
    """Whether distinct routing makes better embeddings, and what else correlates with it."""

    def is_shown(correlation: RankCorrelation) -> bool:
        low, high = correlation.interval
        return correlation.p < SIGNIFICANT and not low <= 0 <= high

    def numbers(correlation: RankCorrelation) -> str:
        low, high = correlation.interval
        return (
            f"(rho {correlation.rho:+.2f}, 95 % {low:+.2f} to {high:+.2f}, p {p_value(correlation.p)}, "
            f"{correlation.n} configurations)"
        )

    main = correlations.get(ROUTING_SCORE)
    if main is None:
        return
    if is_shown(main):
        direction = "better" if main.rho > 0 else "worse"
        yield f"More distinct routing goes with routing weights that are {direction} embeddings {numbers(main)}. Why, this cannot say."
    else:
        yield (
            f"Whether more distinct routing goes with better embeddings is undecided {numbers(main)}. With this many "
            f"configurations, and without a correction, 80 % of studies find a true correlation of {main.detectable:.2f}. A smaller one "
            "may be missed."
        )
    for name, with_measure in correlations.items():
        if name != ROUTING_SCORE and is_shown(with_measure):
            yield f"More distinct routing goes with {'more' if with_measure.rho > 0 else 'less'} of this: {name} {numbers(with_measure)}."


def _own_structure_sentences(replication: Replication | None) -> Iterator[str]:
    """Our own structure against the configuration that was best before, on fresh seeds."""
    if replication is None:
        return
    outcomes = []
    for winner, word in (("a", "better"), ("b", "worse"), (None, "not shown to differ")):
        for yardstick, test in replication.tests.items():
            if test.winner == winner:
                low, high = test.interval
                numbers = f"{test.difference:+.3g}, interval {low:+.3g} to {high:+.3g}, p {p_value(test.corrected_p)}"
                outcomes.append(f"{_AIMS[yardstick]}: {word} ({numbers}).")
    yield (
        f"**Our own structure.** {CONFIGURATIONS[OWN].about.capitalize()}. It was compared with {replication.best}, which had the most "
        f"distinct routing of all other trained configurations, on {counted(replication.seeds, 'fresh seed')} and the same texts. "
        + " ".join(outcomes)
    )


def _routing_sheet(rows: Mapping[str, Row]) -> Sheet:
    """How distinct routing is, and how well held-out responses are predicted: one line for each configuration."""
    lines = tuple(
        (
            name,
            "" if row.information is None else f"{row.information:.3f}",
            _difference(row.tests.get("information"), 3),
            "" if row.best_information is None else f"{row.best_information:.3f}",
            "" if row.strength is None else f"{row.strength:.2f}",
            f"{row.gain:.3f}",
            _difference(row.tests.get("gain"), 3),
        )
        for name, row in rows.items()
    )
    note = (
        "I(D;E): how much the first expert of a response token tells about its domain, without chance; mean over routing points and "
        "seeds. 0 is nothing, 1 is the most that this number of domains and experts allows. Best point: the same at the routing point "
        "where it is highest. Strength: mean sum of the gates of a token. Gain: "
        f"nats per token of held-out responses below the base model; other domains have other gains. {_COMPARED}"
    )
    columns = ("", "I(D;E)", "difference", "best point", "strength", "gain", "difference")
    return Sheet("Distinct routing, and prediction", columns, lines, note)


def _measures_sheet(rows: Mapping[str, Row]) -> Sheet:
    """What routing is like by all measures: one line for each configuration with its own router."""
    lines = tuple(
        (name, *(f"{row.measures[measure]:.2f}" if measure in row.measures else "" for measure in _MEASURES))
        for name, row in rows.items()
        if row.measures
    )
    note = (
        "Means over routing points and seeds, of whole texts, corrected for chance. Confidence: the largest probability of a token. "
        "Balance: 1 if all experts are used equally. Distinctness: balance minus uncertainty; 0 if all tokens are routed in the same way. "
        "Max violation: the largest load / the mean load - 1. Repetition: neighbouring tokens with one first choice. Vocabulary: how much "
        "the token id decides the expert. Layers: how much the expert of one routing point tells about the expert of the next, if there "
        "is one. Specialisation: how far the experts of one domain differ from those of all."
    )
    return Sheet("All measures of routing", ("", *_MEASURES.values()), lines, note)


def _embeddings_sheet(rows: Mapping[str, Row], base: float) -> Sheet:
    """How good the embeddings are: one line for each configuration with embeddings. base: the score of the base model."""
    lines = tuple(
        (
            name,
            f"{row.scores['hidden']:.1f}",
            *(cell for design in EMBEDDINGS for cell in (f"{row.scores[design]:.1f}", _difference(row.tests.get(design), 1))),
        )
        for name, row in rows.items()
        if row.scores
    )
    note = (
        "Mean score over the tasks in percent: PromptEOL's hidden state (HS), routing weights (RW), both side by side, sum of both "
        f"similarities, all standardised in the same way. HS of the base model: {base:.1f}. {_COMPARED}"
    )
    columns = ("", "HS", "RW", "difference", "concat", "difference", "sum", "difference")
    return Sheet("Embeddings", columns, lines, note)


def _correlations_sheet(correlations: Mapping[str, RankCorrelation]) -> Sheet:
    lines = tuple(
        (
            name, f"{value.rho:+.2f}", f"{value.interval[0]:+.2f} .. {value.interval[1]:+.2f}", f"{value.p:.3f}", f"{value.n}",
            f"{value.detectable:.2f}",
        )
        for name, value in correlations.items()
    )  # fmt: skip
    note = (
        "Spearman's correlation with I(D;E) over configurations, each the mean of its seeds. The interval is Fisher's; p is by "
        "permutation, corrected for all rows (Holm). The configurations are a chosen list, no random sample. Detectable: a true "
        "correlation of this size is found in 80 % of studies with this many configurations."
    )
    return Sheet("What goes with distinct routing", ("", "rho", "95 %", "p", "n", "detectable"), lines, note)


def _difference(test: PairedTest | None, decimals: int) -> str:
    if test is None:
        return ""
    low, high = test.interval
    return f"{test.difference:+.{decimals}f} [{low:+.{decimals}f}, {high:+.{decimals}f}]{'*' if test.winner else ''}"
