"""Scoring designs on tasks: each text is computed once for all designs that share its forward pass.

Designs that differ only in pooling, layer or features have the same attention and prompt, and so the same forward pass. The first design
that is scored on a task computes the vectors for the whole group; the others reuse them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

from unmask.designs.design import ATTENTIONS, Design, plain_attention
from unmask.designs.prompts import AND
from unmask.encoding.backbone import Backbone
from unmask.encoding.cached_pass import AveragedPasses, CachedPass, link_shared_passes
from unmask.encoding.encoder import Encoder
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import PassKey, Vectors, group_by_pass
from unmask.encoding.lexical import KEPT, dot_products
from unmask.encoding.shared_prefix import group_by_shared_prefix
from unmask.encoding.tokenization import MAX_LENGTH
from unmask.encoding.vector_cache import VectorCache
from unmask.errors import require_package
from unmask.evaluation.outcomes import (
    attempt,
    make_failure,
    make_not_applicable,
    make_result,
    model_revision,
    runs_code,
    why_not_scored,
)
from unmask.evaluation.results import Conditions, Cost, Failure, Result, ResultStore
from unmask.io.terminal import counted, say
from unmask.models.identity import attention_implementation
from unmask.models.loading import Source, precision_of
from unmask.models.provenance import hardware, versions
from unmask.saving.folder import EmbedderSettings, read_saved
from unmask.statistics.bootstrap import Items
from unmask.tasks.kinds import is_of_words
from unmask.tasks.task import LocalTask, Task


@dataclass(frozen=True)
class ScoringPlan:
    """What to score: one model, designs by label, and tasks; and everything else that vectors depend on."""

    source: Source
    designs: Mapping[str, Design]
    tasks: Sequence[Task]
    max_length: int | None
    """None takes the saved embedder's value, else 512; dtype and attention implementation of `source` likewise."""
    fit_texts: Sequence[str]
    """Texts on which standardisation and alpha are fitted."""
    batch_tokens: int | None = None
    """None chooses by device."""
    linked: Sequence[Design] = ()
    """Designs that are not scored now. Their vectors are computed in the same forward passes, for a later comparison."""

    def __post_init__(self) -> None:
        """Complete the source from a saved embedder. Raises UnmaskError if the package that scores is not installed."""
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
        fit = ("as saved" if self.is_fitted(design) else texts_hash(self.fit_texts)) if design.needs_fit else None
        return Conditions(
            model=self.source.model,
            model_revision=revision,
            adapter=self.source.adapter_names,
            design=design.name,
            task=task.name,
            task_revision=task.revision,
            max_length=self.limit,
            dtype=dtype,
            reference=fit,
            attn_implementation=self.source.attn_implementation,
            trust_remote_code=self.runs_own_code,
        )

    @cached_property
    def runs_own_code(self) -> bool | None:
        """Whether code that comes with the model runs. None if not, since older results do not say it."""
        return runs_code(self.source) or None


def score_designs(
    plan: ScoringPlan,
    store: ResultStore,
    *,
    cache: VectorCache | None = None,
    load: Callable[[], Encoder] | None = None,
    fits: dict[Design, Fit] | None = None,
) -> list[Result]:
    """Score every design on every task. Results that the store already holds are not computed again.

    Returns the results in the order of designs, then tasks. Every design is checked on the loaded model before the first text is
    computed. If a design fails on a task, the reason goes into the store (`failures`) and the others are scored. A design that a
    word-level task cannot score is recorded there as "does not apply".

    cache: where vectors are stored by their text; by default a folder in the store, which is removed when all is scored. load, fits: the
    loaded model and the fits, if they should outlive this call. Raises UnmaskError and AttentionError as loading does.
    When all plans of a store are done, `forget_vectors` removes the vectors of a run that was killed after its last score.
    """
    say(f"{plan.source.model}: {counted(len(plan.designs), 'design')} on {counted(len(plan.tasks), 'task')}")
    planned = PlannedResults(plan, store, model_revision(plan.source), precision_of(plan.source))
    planned.record_what_does_not_apply()
    vector_cache = cache or VectorCache.in_folder(store.folder)
    if any(planned.store.get(conditions) is None for conditions in planned.cells.values()):
        encoder = load() if load else load_checked(plan)
        _score_missing(planned, encoder, vector_cache, {} if fits is None else fits)
        if cache is None:  # if nothing was missing, the vectors belong to another model that is not scored yet
            vector_cache.remove()
    results = ((label, planned.store.get(conditions)) for (label, _), conditions in planned.cells.items())
    return [result.model_copy(update={"label": label}) for label, result in results if result is not None]


def forget_vectors(store: ResultStore) -> None:
    """Remove the vectors that runs stored with their scores."""
    VectorCache.in_folder(store.folder).remove()


def failures_of(plan: ScoringPlan, store: ResultStore) -> list[Failure]:
    """Why cells of a plan have no score. Failures of earlier runs under other conditions are left out."""
    revision, dtype = model_revision(plan.source), precision_of(plan.source)
    return store.failures_under(
        plan.conditions(design, task, revision, dtype) for design in plan.designs.values() for task in plan.tasks
    )


@dataclass(frozen=True)
class PlannedResults:
    """The results that a plan asks for, and the store that holds those that exist."""

    plan: ScoringPlan
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
    def linked(self) -> dict[PassKey, list[Design]]:
        """Designs whose vectors are computed in the same forward passes as those that are scored, by attention and prompt.

        They are the plan's, and the features that averages over several prompts without a score are made of.
        """
        missing = [
            design
            for label, design in self.plan.designs.items()
            if any(self.missing({label: design}, task) for task in self.plan.tasks)
        ]
        designs = dict.fromkeys(design for design in self.plan.linked if len(design.prompts) == 1)
        for design in [*missing, *self.plan.linked]:
            if len(design.prompts) > 1:
                designs |= dict.fromkeys(feature for prompt in design.prompts for feature in design.features_under(prompt))
        return group_by_pass(designs)

    def record_what_does_not_apply(self) -> None:
        """Store the reason for every design that a task cannot score."""
        recorded = {failure.conditions.key for failure in self.store.failures}
        for label, design in self.plan.designs.items():
            for task in self.plan.tasks:
                conditions = self.plan.conditions(design, task, self.revision, self.dtype)
                if conditions.key not in recorded and (reason := why_not_scored(design, task)):
                    self.store.add_failure(make_not_applicable(conditions, label, task, reason))

    def give_up(self, labels: Sequence[str], task: Task, error: Exception) -> None:
        """Store why these designs have no score on a task, and say it."""
        for label in labels:
            failure = make_failure(self.cells[label, task.name], label, task, error)
            self.store.add_failure(failure)
            say(f"{label} on {task.name} failed: {failure.error}")

    def attempt(self, label: str, task: Task, work: Callable[[], tuple[Result, Items | None]]) -> None:
        """Store the result of scoring a design on a task, or the reason why it failed."""
        if scored := attempt(work, partial(self.give_up, [label], task)):
            self.store.add(*scored)

    def missing(self, designs: Mapping[str, Design], task: Task) -> dict[str, Design]:
        """The designs, among those given, that have no score on a task yet, by label."""
        cells = {label: self.cells.get((label, task.name)) for label in designs}
        return {label: designs[label] for label, cell in cells.items() if cell is not None and self.store.get(cell) is None}


def _score_missing(planned: PlannedResults, encoder: Encoder, cache: VectorCache, fitted: dict[Design, Fit]) -> None:
    """Compute and store the results that are missing, one forward pass after the other."""
    plan = planned.plan
    encoder = replace(encoder, max_length=plan.limit, batch_tokens=plan.batch_tokens or 0)
    for design in plan.designs.values():  # what the tokenizer lacks is refused before anything is computed
        encoder.prompt_tokenizer(design.prompt)
    # the libraries that compute decide the last bits, so vectors of two versions are never mixed in one score
    device, attention_kernel = encoder.backbone.device.type, attention_implementation(encoder.backbone.model)
    libraries = " ".join(f"{package}={versions()[package]}" for package in ("unmask", "torch", "transformers", "peft"))
    name = (
        f"{planned.revision} {planned.dtype} {device} {attention_kernel} {libraries} {plan.limit} {texts_hash(plan.fit_texts)}"
    )
    name += " own code" * bool(plan.runs_own_code)
    groups = group_by_pass(plan.designs.values())
    for keys in group_by_shared_prefix(groups, encoder.prompt_tokenizer):
        ready = []
        for attention, prompt in keys:
            designs = {label: design for label, design in plan.designs.items() if design in groups[attention, prompt]}
            if not any(planned.missing(designs, task) for task in plan.tasks):
                continue
            reader = encoder.under(attention)
            for task in plan.tasks:
                if isinstance(task, LocalTask) and is_of_words(task.kind) and (missing := planned.missing(designs, task)):
                    _score_words(planned, reader, task, missing)
            fits = _fit_missing(planned, reader, designs, fitted)
            ready.append(_Group(reader, {label: design for label, design in designs.items() if design in fits}, fits))
        for task in plan.tasks:
            if not is_of_words(task.kind):
                _score_texts(planned, ready, task, cache, name)
    if cache.damaged:
        say(f"{cache.damaged} blocks of vectors were damaged and have been computed again")


@dataclass(frozen=True)
class _Group:
    """Designs that share a prompt, or the same set of prompts, by label, with their fits and the fits of linked designs."""

    encoder: Encoder
    designs: Mapping[str, Design]
    fits: Mapping[Design, Fit]


def _fit_missing(
    planned: PlannedResults, encoder: Encoder, designs: Mapping[str, Design], fitted: dict[Design, Fit]
) -> dict[Design, Fit]:
    """The fits of designs without a score, and of linked designs. New ones go into `fitted`."""
    plan = planned.plan
    tasks = [task for task in plan.tasks if not is_of_words(task.kind)]
    required = dict.fromkeys(design for task in tasks for design in planned.missing(designs, task).values())
    if not required:
        return {}
    first = next(iter(required))
    required |= dict.fromkeys(planned.linked.get((first.attention, first.prompt), ()))
    fitted |= {design: plan.saved.fit for design in required if plan.saved and plan.saved.fit and plan.is_fitted(design)}

    def give_up(failed: Design, error: Exception) -> None:
        for task in tasks:
            labels = [label for label, design in planned.missing(designs, task).items() if design == failed]
            planned.give_up(labels, task, error)

    fitted |= encoder.fit([design for design in required if design not in fitted], plan.fit_texts, on_error=give_up)
    return {design: fitted[design] for design in required if design in fitted}


def _score_texts(planned: PlannedResults, groups: Sequence[_Group], task: Task, cache: VectorCache, name: str) -> None:
    """Score groups of designs on one task. Prompts that share a prefix read a text once. name: of the vectors in the cache."""
    work = []
    for group in groups:
        if not (missing := planned.missing(group.designs, task)):
            continue
        attention, prompt = next((design.attention, design.prompt) for design in missing.values())
        by_prompt = {}
        for part in [prompt] if isinstance(prompt, str) else prompt:
            linked = planned.linked.get((attention, part), ())
            fits = {design: group.fits[design] for design in [*missing.values(), *linked] if design in group.fits}
            if part != prompt:  # what needs a fit is not part of an average
                fits = {design: Fit() for design in linked if not design.needs_fit}
            by_prompt[part] = CachedPass(group.encoder, fits, cache, name, f"{part} on {task.name}")
        work.append((group, missing, by_prompt))
    link_shared_passes([cached for _, _, by_prompt in work for cached in by_prompt.values()])
    for group, missing, by_prompt in work:
        backbone = group.encoder.backbone
        say(f"{backbone.attention}/{AND.join(by_prompt)} on {task.name}: {', '.join(missing)}")
        vectors = AveragedPasses(by_prompt, group.fits) if len(by_prompt) > 1 else next(iter(by_prompt.values()))
        provenance = _provenance(backbone)
        for label, design in missing.items():
            planned.attempt(
                label,
                task,
                partial(
                    _score,
                    planned.plan,
                    planned.cells[label, task.name],
                    label,
                    task,
                    design,
                    vectors=vectors,
                    provenance=provenance,
                ),
            )
        conditions = planned.cells[next(iter(missing)), task.name].model_dump(exclude={"design", "reference", "own_prompts"})
        for prompt, cached in by_prompt.items():
            if cached.cost.texts:
                device, cost = hardware(backbone.device), asdict(cached.cost)
                planned.store.add_cost(Cost(attention=backbone.attention, prompt=prompt, hardware=device, **conditions, **cost))


def _score(
    plan: ScoringPlan,
    conditions: Conditions,
    label: str,
    task: Task,
    design: Design,
    vectors: CachedPass | AveragedPasses,
    provenance: Mapping[str, Any],
) -> tuple[Result, Items | None]:
    from unmask.tasks.mteb.evaluator import evaluate

    dim = 0

    def encode(texts: Sequence[str], instruction: str | None) -> Vectors:
        nonlocal dim
        of_texts = vectors.get(design, texts, plan.instruction_for(design, instruction))
        dim = KEPT if design.is_sparse else of_texts.shape[1]
        return of_texts

    outcome = evaluate(task, design.name, encode, dot_products if design.is_sparse else None)
    return make_result(conditions, label, task, outcome, dim=dim, tally=vectors.tally, provenance=provenance)


def _score_words(planned: PlannedResults, encoder: Encoder, task: LocalTask, missing: Mapping[str, Design]) -> None:
    """Score the designs of one attention on a word-level task, with one probe for each layer that they read."""
    from unmask.evaluation.word_scores import score_words

    backbone = encoder.backbone
    say(f"words of {task.name}, {backbone.attention}: {', '.join(missing)}")
    layers = {label: max(design.numbered_layers, default=backbone.depth) for label, design in missing.items()}
    outcomes = attempt(
        partial(score_words, encoder, task, sorted(set(layers.values()))),
        partial(planned.give_up, list(missing), task),
    )
    for label, layer in layers.items() if outcomes else ():
        words = outcomes[layer]  # type: ignore[index]
        score = partial(
            make_result, dim=words.dim, tally=words.tally, provenance=_provenance(backbone) | {"probe": words.about}
        )
        planned.attempt(label, task, partial(score, planned.cells[label, task.name], label, task, words.outcome))


def _provenance(backbone: Backbone) -> dict[str, Any]:
    return {
        "attention": backbone.proof.summary,
        "attn_implementation": attention_implementation(backbone.model),
        "hardware": hardware(backbone.device),
        "versions": versions(),
    }


def load_checked(plan: ScoringPlan) -> Encoder:
    """Load the model of a plan, and check each of its designs on it before anything is computed."""
    attention = min((plain_attention(design.attention) for design in plan.designs.values()), key=ATTENTIONS.index)
    source = plan.saved.decoder_of(plan.source) if plan.saved else plan.source
    encoder = Encoder.load(source, attention, max_length=plan.limit, batch_tokens=plan.batch_tokens)
    if plan.saved and (head := plan.saved.trained_head(encoder.backbone.model)):
        encoder = encoder.with_head(head)
    encoder.check(plan.designs.values())
    return encoder


def texts_hash(texts: Iterable[str]) -> str:
    """A hash of the texts that a design is fitted on, as conditions record it."""
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
