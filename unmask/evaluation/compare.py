"""Compare: designs x tasks on one or several models, each text computed once for all designs that share its pass.

Designs that differ only in pooling, layer or features share attention and prompt, and so the forward passes: the first of
them that a task scores pays, the others read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.designs.design import ATTENTIONS, Attention, Design
from unmask.encoding.backbone import Backbone
from unmask.encoding.batching import default_batch_tokens
from unmask.encoding.encode import Vectors, fit_designs, group_by_pass
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import ForwardPass, SharedVectors
from unmask.encoding.loaded_model import LoadedModel
from unmask.encoding.tokenization import MAX_LENGTH, PromptTokenizer
from unmask.encoding.vector_store import VectorStore
from unmask.evaluation.outcomes import attempted, failed, made_result, model_revision, not_asked
from unmask.evaluation.results import Conditions, Cost, Result, ResultStore
from unmask.evaluation.word_level import WORD_LEVEL, why_not
from unmask.io.progress import progress_bar
from unmask.mixture.any_model import load_any_decoder
from unmask.models.identity import attention_implementation, older_revision
from unmask.models.loading import Source, pick_device, pick_dtype
from unmask.models.provenance import hardware, versions
from unmask.saving.folder import Settings, read_settings
from unmask.statistics.bootstrap import Items
from unmask.tasks.task import LocalTask, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from unmask.tasks.mteb.evaluator import Encode


@dataclass(frozen=True)
class ComparisonPlan:
    """What to compare: a source of weights, designs by label, tasks; and what every vector depends on beside them.

    max_length: None takes that of a saved embedder, else 512; dtype and attention implementation likewise.
    reference: texts that standardisation and alpha are fitted on; batch_tokens: None chooses by device. beside: designs that are not
    scored, but whose vectors are computed in the passes of those that are, for a comparison to come.
    """

    source: Source
    designs: Mapping[str, Design]
    tasks: Sequence[Task]
    max_length: int | None
    reference: Sequence[str]
    batch_tokens: int | None = None
    beside: Sequence[Design] = ()

    def __post_init__(self) -> None:
        """Load a saved embedder as it was saved, where nothing else was asked for."""
        if self.saved is not None:
            object.__setattr__(self, "source", self.saved.completed(self.source))

    @property
    def limit(self) -> int:
        """Most tokens of one text with its prompt."""
        return self.max_length or (self.saved.max_length if self.saved else MAX_LENGTH)

    @cached_property
    def saved(self) -> Settings | None:
        """The settings of the model, if it is a saved embedder: its own design keeps what was fitted with it."""
        return read_settings(Path(self.source.model).expanduser())

    def own_fit(self, design: Design) -> Fit | None:
        """What was fitted and saved with a design, if the model is a saved embedder of that very design."""
        return self.saved.fit if self.saved and self._is_fitted(design) else None

    def _is_fitted(self, design: Design) -> bool:
        return self.saved is not None and self.saved.design == design.name and design.needs_fit

    def conditions(self, design: Design, task: Task, revision: str, dtype: str) -> Conditions:
        """The conditions of one cell of the grid."""
        return Conditions(
            model=self.source.model,
            model_revision=revision,
            adapter=self.source.adapter,
            design=design.name,
            task=task.name,
            task_revision=task.revision,
            max_length=self.limit,
            dtype=dtype,
            reference=self._reference(design),
            attn_implementation=self.source.attn_implementation,
        )

    def _reference(self, design: Design) -> str | None:
        if not design.needs_fit:
            return None
        return "as saved" if self._is_fitted(design) else _hash(self.reference)


Loaded = tuple[Backbone, "PreTrainedTokenizerBase"]
"""A model and its tokenizer."""


def compare(
    plan: ComparisonPlan,
    store: ResultStore,
    say: Callable[[str], None] = lambda _: None,
    *,
    cache: VectorStore | None = None,
    loaded: Callable[[], Loaded] | None = None,
    fits: dict[Design, Fit] | None = None,
) -> list[Result]:
    """Score every design on every task; what the store holds already is not computed again.

    Returns the results in the order of designs, then tasks. Every design is checked on the loaded model before the first
    text is computed. A cell that fails is kept as such in the store (`failures`), and the others go on; so are the cells that are
    none, since a word-level task asks nothing of such a design. cache: vectors by their text; one in the store's folder if not given,
    which vanishes when all cells are done. loaded: gives the plan's model, and
    fits holds what was fitted, if they are to outlive this call. Raises UnmaskError
    and AttentionError as loading does.
    """
    say(f"{plan.source.model}: {len(plan.designs)} designs on {len(plan.tasks)} tasks")
    device = pick_device(plan.source.device)
    dtype = str(pick_dtype(plan.source.dtype, device)).removeprefix("torch.")
    grid = PlannedResults(plan, store, model_revision(plan.source), dtype, say)
    grid.note_what_is_not_asked()
    vectors = cache or VectorStore.beside(store.folder)
    if any(grid.kept(conditions) is None for conditions in grid.cells.values()):
        backbone, tokenizer = loaded() if loaded else load_checked(plan, say)
        _fill(grid, backbone, tokenizer, vectors, {} if fits is None else fits)
    if cache is None:
        vectors.forget()  # also what a run left that was killed when all was scored
    found = [grid.kept(conditions) for conditions in grid.cells.values()]
    relabelled = zip((label for label, _ in grid.cells), found, strict=True)
    return [result.model_copy(update={"label": label}) for label, result in relabelled if result is not None]


@dataclass(frozen=True)
class PlannedResults:
    """The cells of a plan, and where their results go."""

    plan: ComparisonPlan
    store: ResultStore
    revision: str
    dtype: str
    say: Callable[[str], None]

    @cached_property
    def cells(self) -> dict[tuple[str, str], Conditions]:
        """Conditions by label and task."""
        return {
            (label, task.name): self.plan.conditions(design, task, self.revision, self.dtype)
            for label, design in self.plan.designs.items()
            for task in self.plan.tasks
            if why_not(design, task) is None
        }

    def kept(self, conditions: Conditions) -> Result | None:
        """The result under these conditions; one of an older version counts if that named the same weights as it would today."""
        found = self.store.get(conditions)
        if found is None and self._older is not None:
            found = self.store.get(conditions.model_copy(update={"model_revision": self._older}))
        return found

    @cached_property
    def _older(self) -> str | None:
        """How an older version named these weights, if the store holds results of this model under other names."""
        others = {one.conditions.model_revision for one in self.store.results if one.model == self.plan.source.model}
        older = older_revision(self.plan.source) if others - {self.revision} else None
        return older if older in others else None

    def note_what_is_not_asked(self) -> None:
        """Keep of the cells that are none, since the task asks nothing of the design, why that is so."""
        known = {failure.conditions.key for failure in self.store.failures}
        for label, design in self.plan.designs.items():
            for task in self.plan.tasks:
                conditions = self.plan.conditions(design, task, self.revision, self.dtype)
                if conditions.key not in known and (reason := why_not(design, task)):
                    self.store.fail(not_asked(conditions, label, task, reason))

    def give_up(self, labels: Sequence[str], task: Task, error: Exception) -> None:
        """Keep why these designs have no score on a task, and say it."""
        for label in labels:
            failure = failed(self.cells[label, task.name], label, task, error)
            self.store.fail(failure)
            self.say(f"{label} on {task.name} failed: {failure.error}")

    def give_up_design(self, group: Mapping[str, Design], tasks: Sequence[Task], design: Design, error: Exception) -> None:
        """Keep why a design that cannot be fitted has no score on any of these tasks."""
        for task in tasks:
            self.give_up([label for label, missing in self.missing(group, task).items() if missing == design], task, error)

    def attempt(self, label: str, task: Task, work: Callable[[], tuple[Result, Items | None]]) -> None:
        """Keep what scoring a cell gives, or why it failed."""
        if kept := attempted(work, partial(self.give_up, [label], task)):
            self.store.add(*kept)

    def missing(self, designs: Mapping[str, Design], task: Task) -> dict[str, Design]:
        """Those of some designs that have no score on a task yet, by label."""
        cells = {label: self.cells.get((label, task.name)) for label in designs}
        return {label: designs[label] for label, cell in cells.items() if cell is not None and self.kept(cell) is None}


def _fill(
    grid: PlannedResults, backbone: Backbone, tokenizer: PreTrainedTokenizerBase, cache: VectorStore, fitted: dict[Design, Fit]
) -> None:
    plan = grid.plan
    # all of them first: what the tokenizer lacks is refused before anything is computed
    limit = backbone.within_positions(plan.limit)
    prompts = {design.prompt: PromptTokenizer(tokenizer, design.prompt, limit) for design in plan.designs.values()}
    budget = plan.batch_tokens or default_batch_tokens(backbone)
    name = f"{grid.revision} {grid.dtype} {_kernels(backbone)} {plan.limit} {_hash(plan.reference)}"
    for (attention, prompt), sharing in group_by_pass(plan.designs.values()).items():
        group = {label: design for label, design in plan.designs.items() if design in sharing}
        tasks = [task for task in plan.tasks if grid.missing(group, task)]
        if not tasks:
            continue
        if backbone.attention != attention:
            backbone.set_attention(attention)
        for task in tasks:
            if isinstance(task, LocalTask) and task.kind == WORD_LEVEL:
                _score_on_words(grid, LoadedModel(backbone, tokenizer, plan.source), task, grid.missing(group, task), budget)
        tasks = [task for task in tasks if task.kind != WORD_LEVEL]
        wanted = dict.fromkeys(design for task in tasks for design in grid.missing(group, task).values())
        if not wanted:
            continue
        wanted |= dict.fromkeys(one for one in plan.beside if (one.attention, one.prompt) == (attention, prompt))
        fitted |= {design: saved for design in wanted if (saved := plan.own_fit(design))}
        others = [design for design in wanted if design not in fitted]
        give_up = partial(grid.give_up_design, group, tasks)
        fitted |= fit_designs(backbone, prompts[prompt], others, plan.reference, batch_tokens=budget, give_up=give_up)
        fits = {design: fitted[design] for design in wanted if design in fitted}
        source = ForwardPass(backbone, prompts[prompt], fits, cache, name, budget)
        group = {label: design for label, design in group.items() if design in fits}
        for task in tasks:
            if missing := grid.missing(group, task):
                _score_group(grid, source, task, missing)
    if cache.damaged:
        grid.say(f"{cache.damaged} blocks of vectors were damaged, and were computed again")


def _provenance(backbone: Backbone) -> dict[str, Any]:
    return {
        "attention": backbone.proof.summary,
        "attn_implementation": attention_implementation(backbone.model),
        "hardware": hardware(backbone.device),
        "versions": versions(),
    }


def _kernels(backbone: Backbone) -> str:
    """What computes, and so decides the last bits: vectors of two library versions are never mixed in one score."""
    used = versions()
    libraries = " ".join(f"{name}={used[name]}" for name in ("unmask", "torch", "transformers", "peft"))
    return f"{backbone.device.type} {attention_implementation(backbone.model)} {libraries}"


def _score_group(grid: PlannedResults, source: ForwardPass, task: Task, missing: Mapping[str, Design]) -> None:
    """Score the designs of one pass on one task."""
    from unmask.tasks.mteb.evaluator import evaluate

    backbone, prompt = source.backbone, source.prompts.prompt.name
    grid.say(f"{backbone.attention}/{prompt} on {task.name}: {', '.join(missing)}")
    proof = _provenance(backbone)
    computed = dict.fromkeys([*missing.values(), *(one for one in grid.plan.beside if one in source.fits)])
    shared = SharedVectors(source, list(computed), lambda total: progress_bar(f"{prompt} on {task.name}", total))
    for label, design in missing.items():
        widths = [0]

        def encode(
            texts: Sequence[str], instruction: str | None, design: Design = design, widths: list[int] = widths
        ) -> Vectors:
            vectors = shared.get(design, texts, instruction)
            widths[0] = vectors.shape[1]
            return vectors

        def score(
            label: str = label, name: str = design.name, encode: Encode = encode, widths: list[int] = widths
        ) -> tuple[Result, Items | None]:
            outcome = evaluate(task, name, encode)
            return made_result(grid.cells[label, task.name], label, task, outcome, widths[0], shared.tally, proof)

        grid.attempt(label, task, score)
    if shared.spent.texts:
        spent, model = asdict(shared.spent), grid.plan.source.model
        where: dict[str, Any] = {"model": model, "model_revision": grid.revision, "hardware": hardware(backbone.device)}
        grid.store.spend(Cost(attention=backbone.attention, prompt=prompt, task=task.name, **where, **spent))


def _score_on_words(
    grid: PlannedResults, model: LoadedModel, task: LocalTask, missing: Mapping[str, Design], budget: int
) -> None:
    """Score the designs of one attention on a word-level task: one probe for each layer that they read, in the same passes."""
    from unmask.evaluation.word_scores import score_words

    backbone = model.backbone
    grid.say(f"words of {task.name}, {backbone.attention}: {', '.join(missing)}")
    layers = {label: design.layer if isinstance(design.layer, int) else backbone.depth for label, design in missing.items()}
    sentences = sum(len(rows) for rows in task.data.values())
    with progress_bar(f"words of {task.name}", sentences) as advance:
        found = attempted(
            partial(score_words, model, task, sorted(set(layers.values())), budget, advance),
            partial(grid.give_up, list(missing), task),
        )
    if found is None:
        return
    proof = _provenance(backbone)
    for label, layer in layers.items():
        scored = found[layer]
        given = scored.outcome, scored.dim, scored.tally, proof | {"probe": scored.about}
        grid.attempt(label, task, partial(made_result, grid.cells[label, task.name], label, task, *given))


def load_checked(plan: ComparisonPlan, say: Callable[[str], None] = lambda _: None) -> Loaded:
    """The model of a plan, on which each of its designs was checked."""
    say(f"loading {plan.source.model}")
    model, tokenizer = load_any_decoder(plan.source)
    backbone = Backbone(model, _first_attention(plan))
    head = plan.saved.trained_head(model) if plan.saved else None
    backbone.head = head.to(backbone.device) if head else None
    return _checked(backbone, plan), tokenizer


def _first_attention(plan: ComparisonPlan) -> Attention:
    return min((design.attention for design in plan.designs.values()), key=ATTENTIONS.index)


def _checked(backbone: Backbone, plan: ComparisonPlan) -> Backbone:
    """Refuse a design that the model cannot serve before anything is computed."""
    first = backbone.attention
    for design in plan.designs.values():
        backbone.check(design)
    for attention in {design.attention for design in plan.designs.values()} - {first}:
        backbone.set_attention(attention)
    if backbone.attention != first:
        backbone.set_attention(first)
    return backbone


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
