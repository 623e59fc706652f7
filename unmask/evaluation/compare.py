"""Comparing designs on tasks: each text is computed once for all designs that share its forward pass.

Designs that differ only in pooling, layer or features have the same attention and prompt, and so the same forward pass. The first design
that is scored on a task computes the vectors for the whole group; the others reuse them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from unmask.designs.design import ATTENTIONS, Design
from unmask.designs.prompts import AND
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import PassKey, Vectors, group_by_pass
from unmask.encoding.lexical import KEPT, dot_products
from unmask.encoding.shared_prefix import group_by_shared_prefix
from unmask.encoding.stored_vectors import AveragedVectors, StoredVectors, link_shared_passes
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.encoding.vector_store import VectorStore
from unmask.errors import require_package
from unmask.evaluation.outcomes import attempted, does_not_apply, failed, made_result, model_revision, runs_code, why_not_scored
from unmask.evaluation.results import Conditions, Cost, Failure, Result, ResultStore
from unmask.io.terminal import counted, say
from unmask.models.identity import attention_implementation
from unmask.models.loading import Source, precision_of
from unmask.models.provenance import hardware, versions
from unmask.saving.folder import EmbedderSettings, read_saved
from unmask.statistics.bootstrap import Items
from unmask.tasks.kinds import is_of_words
from unmask.tasks.task import LocalTask, Task

if TYPE_CHECKING:
    from unmask.tasks.mteb.evaluator import Encode


@dataclass(frozen=True)
class ComparisonPlan:
    """What to compare: one model, designs by label, and tasks; and everything else that vectors depend on.

    max_length: None takes the saved embedder's value, else 512; dtype and attention implementation likewise. reference: texts on which
    standardisation and alpha are fitted. batch_tokens: None chooses by device. beside: designs that are not scored now. Their vectors are
    computed in the same forward passes, for a later comparison.
    """

    source: Source
    designs: Mapping[str, Design]
    tasks: Sequence[Task]
    max_length: int | None
    reference: Sequence[str]
    batch_tokens: int | None = None
    beside: Sequence[Design] = ()

    def __post_init__(self) -> None:
        """Load a saved embedder with the precision and attention implementation that it was saved with, unless others are given.

        Raises UnmaskError, before anything is written, if the package that scores is not installed.
        """
        require_package("mteb")
        if self.saved is not None:
            object.__setattr__(self, "source", self.saved.completed(self.source))

    @property
    def limit(self) -> int:
        """The most tokens of one text with its prompt."""
        return self.max_length or (self.saved.max_length if self.saved else MAX_LENGTH)

    def instruction_for(self, design: Design, instruction: str | None) -> str | None:
        """The task's instruction, or the prompt with which a sentence encoder was trained. instruction: None for documents."""
        if design.prompt != "full-instruction" or (saved := self.saved) is None:
            return instruction
        return saved.instructions.get("document" if instruction is None else "query")

    @cached_property
    def saved(self) -> EmbedderSettings | None:
        """The settings of the model if it is a saved embedder. Its own design keeps the fit that was saved with it."""
        return read_saved(self.source.model, self.source.revision, self.source.adapters)

    def own_fit(self, design: Design) -> Fit | None:
        """The saved fit of a design, if the model is a saved embedder of this design."""
        return self.saved.fit if self.saved and self.is_fitted(design) else None

    def is_fitted(self, design: Design) -> bool:
        """Whether the model is a saved embedder of this design, with a fit."""
        return (
            self.saved is not None
            and self.saved.design == design.name
            and design.needs_fit
            and self.saved.has_same_weights(self.source)
        )

    def conditions(self, design: Design, task: Task, revision: str, dtype: str) -> Conditions:
        """The conditions of one design on one task."""
        return Conditions(
            model=self.source.model,
            model_revision=revision,
            adapter=self.source.adapter_names,
            design=design.name,
            task=task.name,
            task_revision=task.revision,
            max_length=self.limit,
            dtype=dtype,
            reference=self._reference(design),
            attn_implementation=self.source.attn_implementation,
            trust_remote_code=self.own_code,
        )

    @cached_property
    def own_code(self) -> bool | None:
        """Whether code that comes with the model runs. None if not, since older results do not say it."""
        return runs_code(self.source) or None

    def _reference(self, design: Design) -> str | None:
        if not design.needs_fit:
            return None
        return "as saved" if self.is_fitted(design) else reference_hash(self.reference)


def compare(
    plan: ComparisonPlan,
    store: ResultStore,
    *,
    cache: VectorStore | None = None,
    load: Callable[[], Encoder] | None = None,
    fits: dict[Design, Fit] | None = None,
) -> list[Result]:
    """Score every design on every task. Results that the store already holds are not computed again.

    Returns the results in the order of designs, then tasks. Every design is checked on the loaded model before the first text is
    computed. If a design fails on a task, the reason goes into the store (`failures`) and the others go on. A design that a word-level
    task cannot score is recorded there as "does not apply".

    cache: where vectors are kept by their text; by default a folder in the store, which is removed when all is scored. load and fits:
    give the model and keep the fits if they should outlive this call. Raises UnmaskError and AttentionError as loading does.
    When all plans of a store are done, `forget_vectors` removes what a run left that was killed after its last score.
    """
    say(f"{plan.source.model}: {counted(len(plan.designs), 'design')} on {counted(len(plan.tasks), 'task')}")
    planned = PlannedResults(plan, store, model_revision(plan.source), precision_of(plan.source))
    planned.record_what_does_not_apply()
    vectors = cache or VectorStore.beside(store.folder)
    if any(planned.store.get(conditions) is None for conditions in planned.cells.values()):
        encoder = load() if load else load_checked(plan)
        _fill(planned, encoder, vectors, {} if fits is None else fits)
        if cache is None:  # if nothing was missing, the vectors belong to another model that is not scored yet
            vectors.forget()
    results = ((label, planned.store.get(conditions)) for (label, _), conditions in planned.cells.items())
    return [result.model_copy(update={"label": label}) for label, result in results if result is not None]


def forget_vectors(store: ResultStore) -> None:
    """Remove the vectors that runs stored with their scores."""
    VectorStore.beside(store.folder).forget()


def unscored(plan: ComparisonPlan, store: ResultStore) -> list[Failure]:
    """Why cells of a plan have no score. Failures of earlier runs under other conditions are left out."""
    revision, dtype = model_revision(plan.source), precision_of(plan.source)
    requested = {plan.conditions(design, task, revision, dtype).key for design in plan.designs.values() for task in plan.tasks}
    return [failure for failure in store.failures if failure.conditions.key in requested]


@dataclass(frozen=True)
class PlannedResults:
    """The results that a plan asks for, and the store that holds those that exist."""

    plan: ComparisonPlan
    store: ResultStore
    revision: str
    dtype: str

    @cached_property
    def cells(self) -> dict[tuple[str, str], Conditions]:
        """The conditions of every result that the plan asks for, by label and task."""
        return {
            (label, task.name): self.plan.conditions(design, task, self.revision, self.dtype)
            for label, design in self.plan.designs.items()
            for task in self.plan.tasks
            if why_not_scored(design, task) is None
        }

    @cached_property
    def beside(self) -> dict[PassKey, list[Design]]:
        """Designs whose vectors are computed in the same forward passes as those that are scored, by attention and prompt.

        They are the plan's, and the features that averages over several prompts without a score are made of.
        """
        missing = [design for label, design in self.plan.designs.items() if self._lacks_a_score(label, design)]
        designs = dict.fromkeys(design for design in self.plan.beside if len(design.prompts) == 1)
        for design in [*missing, *self.plan.beside]:
            if len(design.prompts) > 1:
                designs |= dict.fromkeys(feature for prompt in design.prompts for feature in design.features_under(prompt))
        return group_by_pass(designs)

    def _lacks_a_score(self, label: str, design: Design) -> bool:
        return any(self.missing({label: design}, task) for task in self.plan.tasks)

    def record_what_does_not_apply(self) -> None:
        """Store the reason for every design that a task cannot score."""
        recorded = {failure.conditions.key for failure in self.store.failures}
        for label, design in self.plan.designs.items():
            for task in self.plan.tasks:
                conditions = self.plan.conditions(design, task, self.revision, self.dtype)
                if conditions.key not in recorded and (reason := why_not_scored(design, task)):
                    self.store.fail(does_not_apply(conditions, label, task, reason))

    def give_up(self, labels: Sequence[str], task: Task, error: Exception) -> None:
        """Store why these designs have no score on a task, and say it."""
        for label in labels:
            failure = failed(self.cells[label, task.name], label, task, error)
            self.store.fail(failure)
            say(f"{label} on {task.name} failed: {failure.error}")

    def give_up_design(self, group: Mapping[str, Design], tasks: Sequence[Task], design: Design, error: Exception) -> None:
        """Store why a design that cannot be fitted has no score on any of these tasks."""
        for task in tasks:
            self.give_up([label for label, missing in self.missing(group, task).items() if missing == design], task, error)

    def attempt(self, label: str, task: Task, work: Callable[[], tuple[Result, Items | None]]) -> None:
        """Store the result of scoring a design on a task, or the reason why it failed."""
        if scored := attempted(work, partial(self.give_up, [label], task)):
            self.store.add(*scored)

    def missing(self, designs: Mapping[str, Design], task: Task) -> dict[str, Design]:
        """The designs, among those given, that have no score on a task yet, by label."""
        cells = {label: self.cells.get((label, task.name)) for label in designs}
        return {label: designs[label] for label, cell in cells.items() if cell is not None and self.store.get(cell) is None}


def _fill(planned: PlannedResults, encoder: Encoder, cache: VectorStore, fitted: dict[Design, Fit]) -> None:
    """Compute and store the results that are missing, one forward pass after the other."""
    plan = planned.plan
    encoder = replace(encoder, max_length=plan.limit, batch_tokens=plan.batch_tokens or 0)
    for design in plan.designs.values():  # what the tokenizer lacks is refused before anything is computed
        encoder.prompt_tokenizer(design.prompt)
    name = f"{planned.revision} {planned.dtype} {_kernels(encoder.backbone)} {plan.limit} {reference_hash(plan.reference)}"
    name += " own code" * bool(plan.own_code)
    groups = group_by_pass(plan.designs.values())
    for keys in group_by_shared_prefix(groups, encoder.prompt_tokenizer):
        ready = []
        for attention, prompt in keys:
            group = {label: design for label, design in plan.designs.items() if design in groups[attention, prompt]}
            if not any(planned.missing(group, task) for task in plan.tasks):
                continue
            reader = encoder.under(attention)
            _score_on_words(planned, reader, group)
            fits = _fits(planned, reader, group, fitted)
            ready.append(_Group(reader, {label: design for label, design in group.items() if design in fits}, fits))
        for task in plan.tasks:
            if not is_of_words(task.kind):
                _score_together(planned, ready, task, cache, name)
    if cache.damaged:
        say(f"{cache.damaged} blocks of vectors were damaged and have been computed again")


@dataclass(frozen=True)
class _Group:
    """Designs that share a prompt, or the same set of prompts, by label, with their fits and the fits of linked designs."""

    encoder: Encoder
    designs: Mapping[str, Design]
    fits: Mapping[Design, Fit]


def _fits(
    planned: PlannedResults, encoder: Encoder, group: Mapping[str, Design], fitted: dict[Design, Fit]
) -> dict[Design, Fit]:
    """The fits of a group's designs without a score, and of linked designs. New ones go into `fitted`."""
    plan = planned.plan
    tasks = [task for task in plan.tasks if not is_of_words(task.kind)]
    required = dict.fromkeys(design for task in tasks for design in planned.missing(group, task).values())
    if not required:
        return {}
    first = next(iter(required))
    required |= dict.fromkeys(planned.beside.get((first.attention, first.prompt), ()))
    fitted |= {design: saved for design in required if (saved := plan.own_fit(design))}
    unfitted = [design for design in required if design not in fitted]
    give_up = partial(planned.give_up_design, group, tasks)
    fitted |= encoder.fit(unfitted, plan.reference, on_error=give_up)
    return {design: fitted[design] for design in required if design in fitted}


def _provenance(backbone: Backbone) -> dict[str, Any]:
    return {
        "attention": backbone.proof.summary,
        "attn_implementation": attention_implementation(backbone.model),
        "hardware": hardware(backbone.device),
        "versions": versions(),
    }


def _kernels(backbone: Backbone) -> str:
    """The libraries that compute: they decide the last bits, so vectors of two versions are never mixed in one score."""
    used = versions()
    libraries = " ".join(f"{name}={used[name]}" for name in ("unmask", "torch", "transformers", "peft"))
    return f"{backbone.device.type} {attention_implementation(backbone.model)} {libraries}"


def _score_together(planned: PlannedResults, groups: Sequence[_Group], task: Task, cache: VectorStore, name: str) -> None:
    """Score groups of designs on one task. Prompts that share a prefix read a text once. name: of the vectors in the cache."""
    scored = []
    for group in groups:
        if not (missing := planned.missing(group.designs, task)):
            continue
        attention, prompt = next((design.attention, design.prompt) for design in missing.values())
        by_prompt = {}
        for part in [prompt] if isinstance(prompt, str) else prompt:
            linked = planned.beside.get((attention, part), ())
            if part == prompt:
                fits = {
                    design: group.fits[design] for design in dict.fromkeys([*missing.values(), *linked]) if design in group.fits
                }
            else:
                fits = {
                    design: Fit() for design in linked if not design.needs_fit
                }  # what needs a fit is not part of an average
            by_prompt[part] = StoredVectors(group.encoder, fits, cache, name, f"{part} on {task.name}")
        scored.append((group, missing, by_prompt))
    link_shared_passes([shared for _, _, by_prompt in scored for shared in by_prompt.values()])
    for group, missing, by_prompt in scored:
        _score_group(planned, group, by_prompt, task, missing)


def _score_group(
    planned: PlannedResults,
    group: _Group,
    by_prompt: Mapping[str, StoredVectors],
    task: Task,
    missing: Mapping[str, Design],
) -> None:
    """Score the designs of one prompt, or of the same several prompts, on one task."""
    from unmask.tasks.mteb.evaluator import evaluate

    shared = AveragedVectors(by_prompt, group.fits) if len(by_prompt) > 1 else next(iter(by_prompt.values()))
    backbone = group.encoder.backbone
    say(f"{backbone.attention}/{AND.join(by_prompt)} on {task.name}: {', '.join(missing)}")
    provenance = _provenance(backbone)
    for label, design in missing.items():
        widths = [0]

        def encode(
            texts: Sequence[str], instruction: str | None, design: Design = design, widths: list[int] = widths
        ) -> Vectors:
            vectors = shared.get(design, texts, planned.plan.instruction_for(design, instruction))
            widths[0] = KEPT if design.is_sparse else vectors.shape[1]
            return vectors

        def score(
            label: str = label, design: Design = design, encode: Encode = encode, widths: list[int] = widths
        ) -> tuple[Result, Items | None]:
            outcome = evaluate(task, design.name, encode, dot_products if design.is_sparse else None)
            return made_result(planned.cells[label, task.name], label, task, outcome, widths[0], shared.tally, provenance)

        planned.attempt(label, task, score)
    conditions = planned.cells[next(iter(missing)), task.name].model_dump(exclude={"design", "reference", "own_prompts"})
    for prompt, vectors in by_prompt.items():
        if vectors.cost.texts:
            made_on, cost = hardware(backbone.device), asdict(vectors.cost)
            planned.store.spend(Cost(attention=backbone.attention, prompt=prompt, hardware=made_on, **conditions, **cost))


def _score_on_words(planned: PlannedResults, encoder: Encoder, group: Mapping[str, Design]) -> None:
    """Score the designs of one attention on the word-level tasks, with one probe for each layer that they read."""
    for task in planned.plan.tasks:
        if isinstance(task, LocalTask) and is_of_words(task.kind) and (missing := planned.missing(group, task)):
            _score_on_task_of_words(planned, encoder, task, missing)


def _score_on_task_of_words(planned: PlannedResults, encoder: Encoder, task: LocalTask, missing: Mapping[str, Design]) -> None:
    from unmask.evaluation.word_scores import score_words

    backbone = encoder.backbone
    say(f"words of {task.name}, {backbone.attention}: {', '.join(missing)}")
    layers = {label: design.layer if isinstance(design.layer, int) else backbone.depth for label, design in missing.items()}
    outcomes = attempted(
        partial(score_words, encoder, task, sorted(set(layers.values()))),
        partial(planned.give_up, list(missing), task),
    )
    if outcomes is None:
        return
    provenance = _provenance(backbone)
    for label, layer in layers.items():
        words = outcomes[layer]
        measured = words.outcome, words.dim, words.tally, provenance | {"probe": words.about}
        planned.attempt(label, task, partial(made_result, planned.cells[label, task.name], label, task, *measured))


def load_checked(plan: ComparisonPlan) -> Encoder:
    """Load the model of a plan, and check each of its designs on it before anything is computed."""
    attention = min((design.attention for design in plan.designs.values()), key=ATTENTIONS.index)
    encoder = Encoder.load(plan.source, attention, max_length=plan.limit, batch_tokens=plan.batch_tokens)
    if plan.saved and (head := plan.saved.trained_head(encoder.backbone.model)):
        encoder = encoder.with_head(head)
    encoder.check(plan.designs.values())
    return encoder


def reference_hash(texts: Iterable[str]) -> str:
    """The name of reference texts in conditions: a hash of them."""
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
