"""A cell of the study: one configuration with one seed, measured by three yardsticks.

1. How distinct routing is: which experts the tokens of held-out responses choose, by domain.
2. How well the mixture predicts held-out responses.
3. How good its hidden states, its routing weights and both together are as embeddings.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field

from unmask.designs.design import Design
from unmask.encoding.backbone import Backbone
from unmask.encoding.loaded_model import LoadedModel
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan, compare
from unmask.evaluation.results import ResultStore
from unmask.io.array_types import NDArray
from unmask.io.arrays import load_arrays, save_arrays
from unmask.io.files import inside, remove
from unmask.io.records import Record
from unmask.io.seals import Damaged
from unmask.io.terminal import say
from unmask.models.decoder import body_of
from unmask.models.identity import identity_of
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.likelihood import likelihoods, response_likelihood
from unmask.moe.mixture.model import override_routing
from unmask.moe.routing.labelled_texts import LabelledText, LabelledTexts
from unmask.moe.routing.measures import measured_routing
from unmask.moe.routing.record import EXPERTS, MEASURES, PARTS, RECORD, RecordSettings
from unmask.moe.routing.recording import record_routing
from unmask.starter import reference_texts
from unmask.studies.routers.configurations import CONFIGURATIONS, digest
from unmask.studies.routers.lesson_sets import Lessons
from unmask.studies.routers.recorded import responses
from unmask.studies.routers.same_experts import experts_of
from unmask.tasks.task import Task

BASE, ORACLE = "base", "oracle"
CELL, COUNTS, DOMAIN = "cell.json", "counts.npz", "domain"
_EOL = {"attention": "causal", "prompt": "eol", "pooling": "last", "zscore": True}
HIDDEN: Mapping[str, Design] = {"hidden": Design(**_EOL)}  # type: ignore[arg-type]
DESIGNS: Mapping[str, Design] = {
    **HIDDEN,
    "routing": Design(**_EOL, features="routing"),  # type: ignore[arg-type]
    "concat": Design(**_EOL, features="concat"),  # type: ignore[arg-type]
    "sum": Design(**_EOL, features="sum"),  # type: ignore[arg-type]
}
"""PromptEOL, all standardised alike: hidden state, routing weights, both one after the other, sum of both similarities."""


class CellRecord(Record):
    """What was measured of a cell.

    likelihood: nats per token of each held-out response, by domain. routing: measures of the recorded routing of all tokens. strength:
    mean sum of gates. scores: by design, the main score of each task (0 to 1). mixture: what was measured, so that a cell of another
    mixture is measured again. configuration: its digest, so that a cell is measured again when the configuration changes. experts: hashes
    of their weights (`experts_of`). Both are empty in cells of earlier versions.
    """

    mixture: str
    configuration: str = ""
    experts: dict[str, str] = Field(default_factory=dict)
    likelihood: dict[str, tuple[float, ...]]
    routing: dict[str, Any] = Field(default_factory=dict)
    strength: float | None = None
    scores: dict[str, dict[str, float]] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell. shares: for each held-out response and routing point, the share of tokens that chose each expert first. labels: its domain.

    strength: mean sum of gates. fresh: it was measured just now, not by an earlier run. experts: those that it was measured with.
    """

    likelihood: dict[str, tuple[float, ...]]
    routing: dict[str, Any]
    scores: dict[str, dict[str, float]]
    shares: Float[NDArray[Any], "text point expert"] | None = None
    strength: float | None = None
    fresh: bool = False
    experts: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> Int[NDArray[np.int64], " text"]:
        """The domain of each held-out lesson, as its place."""
        return np.repeat(np.arange(len(self.likelihood)), [len(values) for values in self.likelihood.values()])


@dataclass(frozen=True)
class Measuring:
    """Measures cells of one base model, each at most once. folder: holds a file for each cell, and what it was measured from."""

    source: Source
    folder: Path
    tasks: Sequence[Task]
    max_length: int
    embedded_length: int

    def base(self, domains: str, held_out: Lessons) -> Cell:
        """The base model on a set of domains: likelihoods, and the scores of its hidden states."""
        return self._measured(f"{BASE} {domains}", 0, None, held_out)

    def cell(self, name: str, seed: int, mixture: Path, held_out: Lessons) -> Cell:
        """A configuration with a seed."""
        return self._measured(name, seed, mixture, held_out)

    def known(self, name: str, seed: int, mixture: str | None = None) -> Cell | None:
        """A cell that was measured before, of this mixture or of any. None if there is none, or if it is damaged.

        None also if the configuration has changed since.
        """
        folder = self._folder(name, seed)
        record = CellRecord.read(folder / CELL)
        if record is None or mixture not in (None, record.mixture) or not self._is_current(name, record):
            return None
        counts = _read_counts(folder)
        return None if counts is None else _cell(record, counts, fresh=False)

    def _is_current(self, name: str, record: CellRecord) -> bool:
        """Whether the configuration is still the measured one. The base model has none, and older records do not say it."""
        return not record.configuration or record.configuration == digest(name)

    def _folder(self, name: str, seed: int) -> Path:
        return inside(inside(self.folder, name.replace(" ", "-")), str(seed))

    def _measured(self, name: str, seed: int, mixture: Path | None, held_out: Lessons) -> Cell:
        content = identity_of(self.source if mixture is None else replace(self.source, model=str(mixture))).revision
        if (known := self.known(name, seed, content)) is not None:
            return known
        say(f"{self.source.model}: measuring {name}" + ("" if mixture is None else f", seed {seed}"))
        record, counts = self._measure(name, seed, mixture, held_out, content)
        if mixture is not None:
            record = record.model_copy(update={"configuration": digest(name), "experts": experts_of(name, mixture)})
        folder = self._folder(name, seed)
        save_arrays(folder / COUNTS, {"counts": counts}, compressed=True)
        record.write(folder / CELL)
        return _cell(record, counts, fresh=True)

    def _measure(
        self, name: str, seed: int, mixture: Path | None, held_out: Lessons, content: str
    ) -> tuple[CellRecord, NDArray[Any]]:
        source = self.source if mixture is None else replace(self.source, model=str(mixture))
        model, tokenizer = load_language_model(source)
        none = np.zeros((0, 0, 0), np.uint16)
        if mixture is not None and (choice := CONFIGURATIONS[name].choice):
            return CellRecord(mixture=content, likelihood=self._chosen(model, tokenizer, held_out, choice, seed)), none
        values = likelihoods(model, tokenizer, held_out, max_length=self.max_length)
        loaded = LoadedModel(Backbone(body_of(model), "causal"), tokenizer, source, max_length=self.max_length)
        folder = self._folder(name, seed)
        found = None if mixture is None else self._routing(loaded, held_out, folder / "routing")
        record = CellRecord(
            mixture=content,
            likelihood={domain: tuple(of_domain.tolist()) for domain, of_domain in values.items()},
            routing=found.measures if found else {},
            strength=found.strength if found else None,
            scores=self._scores(loaded, HIDDEN if mixture is None else DESIGNS, folder / "scores"),
        )
        return record, found.counts if found else none

    def _chosen(self, model: Any, tokenizer: Any, held_out: Lessons, choice: str, seed: int) -> dict[str, tuple[float, ...]]:
        """Likelihoods under another choice of experts. The oracle takes the expert of each lesson's domain."""
        values = {}
        for place, (domain, lessons) in enumerate(held_out.items()):
            with override_routing(body_of(model).mixture, domain if choice == ORACLE else choice, seed * len(held_out) + place):
                nats = response_likelihood(model, tokenizer, lessons, max_length=self.max_length)
            values[domain] = tuple(nats.tolist())
        return values

    def _scores(self, loaded: LoadedModel, designs: Mapping[str, Design], folder: Path) -> dict[str, dict[str, float]]:
        plan = ComparisonPlan(loaded.source, designs, self.tasks, self.embedded_length, reference_texts())
        results = compare(plan, ResultStore(folder), loaded=lambda: (loaded.backbone, loaded.tokenizer))
        scores: dict[str, dict[str, float]] = {label: {} for label in designs}
        for result in results:
            scores[result.label][result.task] = result.main_score
        for label, of_tasks in scores.items():
            if missing := {task.name for task in self.tasks} - set(of_tasks):
                raise UnmaskError(
                    f"'{label}' has no score on {', '.join(sorted(missing))}, so the cell is not complete. Run the study again."
                )
        return scores

    def _routing(self, loaded: LoadedModel, held_out: Lessons, folder: Path) -> _Routing:
        """Record what the routers do with the held-out lessons, and measure it."""
        lessons = [(lesson, domain) for domain, of_domain in held_out.items() for lesson in of_domain]
        texts = tuple(LabelledText(lesson.prompt + lesson.output, (domain,)) for lesson, domain in lessons)
        _remove_record_of_another(folder, str(loaded.provenance["weights"]))
        record = record_routing(loaded, LabelledTexts(texts, (DOMAIN,)), folder, max_length=self.max_length)
        known = measured_routing(record)
        measures = {**known["general"], **known["labels"][DOMAIN]["measures"]}
        counts, strength = responses(record, [len(lesson.prompt) for lesson, _ in lessons])
        return _Routing(measures, strength, counts)


@dataclass(frozen=True)
class _Routing:
    measures: dict[str, Any]
    strength: float
    counts: NDArray[np.uint16]


def _cell(record: CellRecord, counts: NDArray[Any], fresh: bool) -> Cell:
    shares = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1) if record.routing else None
    return Cell(record.likelihood, record.routing, record.scores, shares, record.strength, fresh, record.experts)


def _remove_record_of_another(folder: Path, weights: str) -> None:
    """Remove a cell's record if it is of another mixture. Files that are no part of a record stay.

    The cell decides where its record is, so a user could not give another folder.
    """
    before = RecordSettings.read(folder / RECORD)
    if before is not None and before.weights != weights:
        for name in (MEASURES, EXPERTS, PARTS, RECORD):  # the record last: until then, a run that was stopped finds it again
            remove(folder / name)


def _read_counts(folder: Path) -> NDArray[Any] | None:
    """The counts of a cell; None if they are damaged, so that they are measured again."""
    try:
        return load_arrays(folder / COUNTS)["counts"]
    except Damaged as error:
        warnings.warn(f"It is measured again: {error}", stacklevel=2)
        return None
