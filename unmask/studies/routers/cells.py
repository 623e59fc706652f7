"""Cells of the study: one configuration with one seed, measured by three yardsticks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt
from pydantic import Field

from unmask.designs.design import Design
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.encoding.features import Fit
from unmask.errors import UnmaskError
from unmask.evaluation.results import ResultStore
from unmask.evaluation.scoring import ScoringPlan, score_designs
from unmask.io.array_types import NDArray
from unmask.io.arrays import load_arrays, save_arrays
from unmask.io.files import inside, remove
from unmask.io.records import Record
from unmask.io.seals import Damaged
from unmask.io.terminal import say
from unmask.models.decoder import body_of, find_layers
from unmask.models.identity import identity_of
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.likelihood import likelihoods, response_likelihood
from unmask.moe.experts.mixing import RECORD as MIXING_RECORD
from unmask.moe.experts.mixing import MixingSettings
from unmask.moe.mixture.override import override_routing
from unmask.moe.routing.labelled_texts import LabelledText, LabelledTexts
from unmask.moe.routing.measures import load_or_measure_routing
from unmask.moe.routing.record import EXPERTS, MEASURES, PARTS, RECORD, RecordSettings, RoutingRecord
from unmask.moe.routing.recording import record_routing
from unmask.moe.routing.text_bootstrap import text_counts
from unmask.runs import runs
from unmask.starter import reference_texts
from unmask.studies.routers.configurations import CONFIGURATIONS, digest
from unmask.studies.routers.plan import Lessons
from unmask.tasks.task import Task

BASE, ORACLE = "base", "oracle"
CELL, COUNTS, DOMAIN = "cell.json", "counts.npz", "domain"
TOGETHER = "together"
"""The expert trained on every domain, which "shared expert" uses too."""
_EOL = {"attention": "causal", "prompt": "eol", "pooling": "last", "transforms": ("zscore",)}
HIDDEN: Mapping[str, Design] = {"hidden": Design(**_EOL)}  # type: ignore[arg-type]
DESIGNS: Mapping[str, Design] = {
    **HIDDEN,
    "routing": Design(**_EOL, features="routing"),  # type: ignore[arg-type]
    "concat": Design(**_EOL, features="concat"),  # type: ignore[arg-type]
    "sum": Design(**_EOL, features="sum"),  # type: ignore[arg-type]
}
"""PromptEOL, all standardised: hidden state, routing weights, both one after the other, sum of both similarities."""


class CellRecord(Record):
    """What was measured of a cell."""

    mixture: str
    """The weights that were measured: a cell of another mixture is measured again."""
    configuration: str = ""
    """Its digest: a cell is measured again when its configuration changes. Empty for the base model."""
    experts: dict[str, str] = Field(default_factory=dict)
    """Hashes of the experts' weights (`experts_of`)."""
    likelihood: dict[str, tuple[float, ...]]
    """Nats per token of each held-out response, by domain."""
    routing: dict[str, Any] = Field(default_factory=dict)
    """Measures of the recorded routing of every token."""
    strength: float | None = None
    """Mean sum of gates."""
    scores: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By design, the main score of each task (0 to 1)."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One configuration with one seed, measured by three yardsticks.

    1. How distinct routing is: which experts the tokens of held-out responses choose, by domain.
    2. How well the mixture predicts held-out responses.
    3. How good its hidden states, its routing weights and both together are as embeddings.
    """

    likelihood: dict[str, tuple[float, ...]]
    routing: dict[str, Any]
    scores: dict[str, dict[str, float]]
    shares: Float[NDArray[Any], "text point expert"] | None = None
    """For each held-out response and routing point, the share of tokens that chose each expert first."""
    strength: float | None = None
    fresh: bool = False
    """Whether it was measured by this run."""
    experts: Mapping[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> Int[NDArray[np.int64], " text"]:
        """The index of each held-out lesson's domain."""
        return np.repeat(np.arange(len(self.likelihood)), [len(values) for values in self.likelihood.values()])


@dataclass(frozen=True)
class CellMeasurements:
    """Measures cells of one base model, each at most once."""

    source: Source
    folder: Path
    """Holds a file for each cell, and what it was measured from."""
    tasks: Sequence[Task]
    max_length: int
    embedded_length: int

    def read(self, name: str, seed: int, mixture: str | None = None) -> Cell | None:
        """A cell that was measured before, of this mixture or of any. None if it is missing or damaged, or if its configuration changed."""
        folder = self._folder(name, seed)
        record = CellRecord.read(folder / CELL)
        if record is None or mixture not in (None, record.mixture):
            return None
        if record.configuration and record.configuration != digest(name):
            return None
        try:
            return _cell(record, load_arrays(folder / COUNTS)["counts"], fresh=False)
        except Damaged as error:
            warnings.warn(f"It is measured again: {error}", stacklevel=2)
            return None

    def measure_base(self, domains: str, held_out: Lessons) -> Cell:
        """The base model on a set of domains: likelihoods, and the scores of its hidden states."""
        return self.measure(f"{BASE} {domains}", 0, None, held_out)

    def measure(self, name: str, seed: int, mixture: Path | None, held_out: Lessons) -> Cell:
        """A configuration with a seed."""
        source = self.source if mixture is None else replace(self.source, model=str(mixture))
        weights = identity_of(source).revision
        if (stored := self.read(name, seed, weights)) is not None:
            return stored
        say(f"{self.source.model}: measuring {name}" + ("" if mixture is None else f", seed {seed}"))
        model, tokenizer = load_language_model(source)
        folder, counts = self._folder(name, seed), np.zeros((0, 0, 0), np.uint16)
        of_mixture: dict[str, Any] = (
            {} if mixture is None else {"configuration": digest(name), "experts": experts_of(name, mixture)}
        )
        if mixture is not None and (choice := CONFIGURATIONS[name].choice):
            record = CellRecord(
                mixture=weights, likelihood=self._likelihood_of_choice(model, tokenizer, held_out, choice, seed), **of_mixture
            )
        else:
            values = likelihoods(model, tokenizer, held_out, max_length=self.max_length)
            encoder = Encoder(Backbone(body_of(model), "causal"), tokenizer, source, self.max_length)
            measures, strength = dict[str, Any](), None
            if mixture is not None:
                measures, strength, counts = self._routing(encoder, held_out, folder / "routing")
            record = CellRecord(
                mixture=weights,
                likelihood={domain: tuple(of_domain.tolist()) for domain, of_domain in values.items()},
                routing=measures,
                strength=strength,
                scores=self._scores(encoder, HIDDEN if mixture is None else DESIGNS, folder / "scores"),
                **of_mixture,
            )
        save_arrays(folder / COUNTS, {"counts": counts}, compressed=True)
        record.write(folder / CELL)
        return _cell(record, counts, fresh=True)

    def _folder(self, name: str, seed: int) -> Path:
        return inside(inside(self.folder, name.replace(" ", "-")), str(seed))

    def _likelihood_of_choice(
        self, model: Any, tokenizer: Any, held_out: Lessons, choice: str, seed: int
    ) -> dict[str, tuple[float, ...]]:
        """Likelihoods under another choice of experts. The oracle takes the expert of each lesson's domain."""
        values = {}
        for index, (domain, lessons) in enumerate(held_out.items()):
            with override_routing(body_of(model).mixture, domain if choice == ORACLE else choice, seed * len(held_out) + index):
                nats = response_likelihood(model, tokenizer, lessons, max_length=self.max_length)
            values[domain] = tuple(nats.tolist())
        return values

    def _scores(self, encoder: Encoder, designs: Mapping[str, Design], folder: Path) -> dict[str, dict[str, float]]:
        plan = ScoringPlan(encoder.source, designs, self.tasks, self.embedded_length, reference_texts())
        results = score_designs(plan, ResultStore(folder), load=lambda: encoder)
        scores: dict[str, dict[str, float]] = {label: {} for label in designs}
        for result in results:
            scores[result.label][result.task] = result.main_score
        for label, of_tasks in scores.items():
            if missing := {task.name for task in self.tasks} - set(of_tasks):
                raise UnmaskError(
                    f"'{label}' has no score on {', '.join(sorted(missing))}, so the cell is not complete. Run the study again."
                )
        return scores

    def _routing(
        self, encoder: Encoder, held_out: Lessons, folder: Path
    ) -> tuple[dict[str, Any], float, UInt[NDArray[np.uint16], "text point expert"]]:
        """Record what the routers do with the held-out lessons: its measures, and `response_choices`."""
        lessons = [(lesson, domain) for domain, of_domain in held_out.items() for lesson in of_domain]
        texts = tuple(LabelledText(lesson.prompt + lesson.output, (domain,)) for lesson, domain in lessons)
        before = RecordSettings.read(folder / RECORD)
        # the study chose this folder, so a user could not give another one for a new mixture
        if before is not None and before.weights != str(encoder.provenance["weights"]):
            for name in (MEASURES, EXPERTS, PARTS, RECORD):  # the record last: until then, a stopped run finds it again
                remove(folder / name)
        record = record_routing(encoder, LabelledTexts(texts, (DOMAIN,)), folder)
        measured = load_or_measure_routing(record)
        counts, strength = response_choices(record, [len(lesson.prompt) for lesson, _ in lessons])
        return {**measured["general"], **measured["labels"][DOMAIN]["measures"]}, strength, counts


def _cell(record: CellRecord, counts: NDArray[Any], fresh: bool) -> Cell:
    shares = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1) if record.routing else None
    values = {name: getattr(record, name) for name in ("likelihood", "routing", "scores", "strength", "experts")}
    return Cell(**values, shares=shares, fresh=fresh)


def response_choices(
    record: RoutingRecord, starts: Sequence[int]
) -> tuple[UInt[NDArray[np.uint16], "text point expert"], float]:
    """For each text and routing point, how many tokens of the response chose each expert first; and the mean sum of gates.

    starts: for each text, the character at which its response begins. A token across this border counts as response. All points have the
    same number of experts. The mean is over all tokens and routing points.
    """
    experts, spans = record.points[0].experts, record.spans()
    counts = np.zeros((record.settings.texts, len(record.points), experts))
    strength, tokens = 0.0, 0
    for choices in record.batches():
        texts = choices.texts.astype(np.int64)
        positions = zip(choices.texts.tolist(), choices.positions.tolist(), strict=True)
        in_response = np.array([bool(spans[text][position][1] > starts[text]) for text, position in positions], np.bool_)
        for point, selected in enumerate(choices.chosen):
            counted = in_response & (selected[:, 0] >= 0)
            counts[:, point] += text_counts(selected[counted, 0].astype(np.int64), texts[counted], len(counts), experts)
        strength += sum(float(gates.sum(dtype=np.float64)) for gates in choices.gates)
        tokens += len(texts)
    return counts.astype(np.uint16), strength / max(1, tokens * len(record.points))


def experts_of(configuration: str, mixture: Path) -> dict[str, str]:
    """The experts of a mixture, by set of domains and name: a hash of each one's weights.

    Empty if the experts learned with the router: every such mixture has its own. Raises UnmaskError for a mixture without its record.
    """
    record = runs.read(mixture, MIXING_RECORD)
    if record is None:
        raise UnmaskError(f"'{mixture / MIXING_RECORD}' is missing or damaged, so the experts of this mixture are unknown.")
    settings = MixingSettings.model_validate(record.settings)
    shared = {} if settings.shared is None else {TOGETHER: settings.shared}
    domains = CONFIGURATIONS[configuration].domains
    return {f"{domains}/{name}": content for name, content in (settings.experts | shared).items()}


@dataclass
class SameExperts:
    """Refuses cells of different experts: a study compares ways to route between the same ones."""

    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Each expert's hash, and the cell that it was first seen in."""

    def require(self, cell: str, experts: Mapping[str, str]) -> None:
        """Note the experts of a cell. Raises UnmaskError if an earlier cell had another expert of the same name."""
        for name, content in experts.items():
            before, first = self.seen.setdefault(name, (content, cell))
            if before != content:
                raise UnmaskError(
                    f"The cells {first} and {cell} were measured with different experts: the weights of '{name}' were {before} and "
                    f"{content}. Their difference would not be one of routing. Restore the old expert, or remove the cells of one of "
                    "the two below `cells` to measure them again."
                )


@dataclass(frozen=True)
class Anchor:
    """The layer whose input anchored routers read, and the accuracy of every layer, from layer 1 on."""

    layer: int
    accuracies: tuple[float, ...]


def find_anchor(model: Any, tokenizer: Any, domains: Lessons, max_length: int) -> Anchor:
    """The first layer of a base model whose states separate the domains about as well as the best layer.

    For each layer, the mean state of a lesson is standardised and given to the nearest domain mean (by cosine). Without standardising, the
    few dimensions with huge values in middle layers (arXiv 2402.17762) would decide alone. Mean, deviation and domain means come from one
    half of the lessons to learn, the accuracy from the other half. Held-out lessons are not used. Few layers are left above a late anchor.
    So the first layer within one standard error of the best accuracy is taken (the rule of Breiman et al., 1984).
    """
    body = body_of(model)
    encoder = Encoder(Backbone(body, "causal"), tokenizer, Source(""), max_length)
    designs = [Design("causal", "plain", "mean", layer) for layer in range(1, len(find_layers(body)))]
    texts = [lesson.prompt + lesson.output for lessons in domains.values() for lesson in lessons]
    labels = np.repeat(np.arange(len(domains)), [len(lessons) for lessons in domains.values()])
    indices = np.concatenate([np.arange(len(lessons)) for lessons in domains.values()])
    vectors = encoder.encode(texts, {design: Fit() for design in designs}, share_text=True)
    accuracies = [prototype_accuracy(vectors[design], labels, indices % 2 == 0) for design in designs]
    best, tested = max(accuracies), int((indices % 2 == 1).sum())
    error = float(np.sqrt(best * (1 - best) / tested))
    return Anchor(1 + int(np.argmax(np.array(accuracies) >= best - error)), tuple(accuracies))


def prototype_accuracy(
    vectors: Float[NDArray[Any], "text dim"], labels: Int[NDArray[Any], " text"], training: Sequence[bool] | NDArray[np.bool_]
) -> float:
    """The share of the other texts whose nearest domain mean, of the training texts, is their own domain's. Vectors are standardised."""
    training = np.asarray(training)
    standardised = (vectors - vectors[training].mean(axis=0)) / vectors[training].std(axis=0).clip(1e-6)
    means = np.stack([standardised[training & (labels == label)].mean(axis=0) for label in np.unique(labels)])
    scaled = means / np.linalg.norm(means, axis=1, keepdims=True).clip(1e-12)
    return float((np.argmax(standardised[~training] @ scaled.T, axis=1) == labels[~training]).mean())
