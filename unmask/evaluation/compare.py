"""Compare: designs x tasks on one or several models, each text computed once for all designs that share its pass.

Designs that differ only in pooling, layer or features share attention and prompt, and so the forward passes: the first of
them that a task scores pays, the others read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.backbone import Backbone
from unmask.design import ATTENTIONS, Attention, Design
from unmask.embedder import default_batch_tokens
from unmask.encoding import Tally, Vectors, encode_designs, fit_designs
from unmask.errors import UnmaskError
from unmask.evaluation.resampling import Items, bootstrap, interval
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Conditions, Result, ResultStore
from unmask.evaluation.tasks import Task
from unmask.features import Fit
from unmask.files import fingerprint
from unmask.loading import Source, hub_commit, load, pick_device, pick_dtype
from unmask.models import resolve
from unmask.persistence import Settings, hardware, read_settings, versions
from unmask.progress import progress_bar
from unmask.tokens import PromptTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from unmask.evaluation.mteb_adapter import Outcome

_RESAMPLES = 1000


@dataclass(frozen=True)
class Plan:
    """What to compare: a source of weights, designs by label, tasks; and what every vector depends on beside them.

    reference: texts that standardisation and alpha are fitted on; batch_tokens: None chooses by device.
    """

    source: Source
    designs: Mapping[str, Design]
    tasks: Sequence[Task]
    max_length: int
    reference: Sequence[str]
    batch_tokens: int | None = None

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
            max_length=self.max_length,
            dtype=dtype,
            reference=self._reference(design),
        )

    def _reference(self, design: Design) -> str | None:
        if not design.needs_fit:
            return None
        return "as saved" if self._is_fitted(design) else _hash(self.reference)


@dataclass
class SharedVectors:
    """Vectors of every design of a group for the texts of one task, computed when a text is first asked for."""

    compute: Callable[[Sequence[str], str | None, Tally], dict[Design, Vectors]]
    tally: Tally = field(default_factory=Tally)
    _rows: dict[tuple[str, str | None], int] = field(default_factory=dict)
    _blocks: dict[Design, list[Vectors]] = field(default_factory=dict)

    def get(self, design: Design, texts: Sequence[str], instruction: str | None) -> Vectors:
        """Vectors of one design, shape (text, dim)."""
        missing = [text for text in dict.fromkeys(texts) if (text, instruction) not in self._rows]
        if missing:
            for one, vectors in self.compute(missing, instruction, self.tally).items():
                self._blocks.setdefault(one, []).append(vectors)
            for text in missing:
                self._rows[text, instruction] = len(self._rows)
        blocks = self._blocks[design]
        if len(blocks) > 1:
            blocks[:] = [np.concatenate(blocks)]
        return blocks[0][[self._rows[text, instruction] for text in texts]]


def compare(plan: Plan, store: ResultStore, say: Callable[[str], None] = lambda _: None) -> list[Result]:
    """Score every design on every task; what the store holds already is not computed again.

    Returns the results in the order of designs, then tasks. Every design is checked on the loaded model before the first
    text is computed. Raises UnmaskError and AttentionError as loading and encoding do.
    """
    say(f"{plan.source.model}: {len(plan.designs)} designs on {len(plan.tasks)} tasks")
    device = pick_device(plan.source.device)
    dtype = str(pick_dtype(plan.source.dtype, device)).removeprefix("torch.")
    revision = model_revision(plan.source)
    cells = {
        (label, task.name): plan.conditions(design, task, revision, dtype)
        for label, design in plan.designs.items()
        for task in plan.tasks
    }
    if any(store.get(conditions) is None for conditions in cells.values()):
        say(f"loading {plan.source.model}")
        model, tokenizer = load(plan.source)
        backbone = Backbone(model, _first_attention(plan))
        head = plan.saved.trained_head(model) if plan.saved else None
        backbone.head = head.to(backbone.device) if head else None
        _fill(plan, cells, store, _checked(backbone, plan), tokenizer, say)
    found = [store.get(conditions) for conditions in cells.values()]
    relabelled = zip((label for label, _ in cells), found, strict=True)
    return [result.model_copy(update={"label": label}) for label, result in relabelled if result is not None]


def _fill(
    plan: Plan,
    cells: Mapping[tuple[str, str], Conditions],
    store: ResultStore,
    backbone: Backbone,
    tokenizer: PreTrainedTokenizerBase,
    say: Callable[[str], None],
) -> None:
    # all of them first: what the tokenizer lacks is refused before anything is computed
    limit = backbone.within_positions(plan.max_length)
    prompts = {design.prompt: PromptTokenizer(tokenizer, design.prompt, limit) for design in plan.designs.values()}
    budget = plan.batch_tokens or default_batch_tokens(backbone)
    for (attention, prompt), group in _groups(plan.designs).items():
        missing = {
            task.name: {label: design for label, design in group.items() if store.get(cells[label, task.name]) is None}
            for task in plan.tasks
        }
        wanted = dict.fromkeys(design for of_task in missing.values() for design in of_task.values())
        if not wanted:
            continue
        if backbone.attention != attention:
            backbone.set_attention(attention)
        own = {design: saved for design in wanted if (saved := plan.own_fit(design))}
        others = [design for design in wanted if design not in own]
        fits = own | fit_designs(backbone, prompts[prompt], others, plan.reference, batch_tokens=budget)
        for task in plan.tasks:
            if of_task := missing[task.name]:
                say(f"{attention}/{prompt} on {task.name}: {', '.join(of_task)}")
                _score_group(of_task, task, cells, store, backbone, prompts[prompt], fits, budget)


def _score_group(
    missing: Mapping[str, Design],
    task: Task,
    cells: Mapping[tuple[str, str], Conditions],
    store: ResultStore,
    backbone: Backbone,
    prompts: PromptTokenizer,
    fits: Mapping[Design, Fit],
    budget: int,
) -> None:
    from unmask.evaluation.mteb_adapter import evaluate

    wanted = {design: fits[design] for design in missing.values()}

    def compute(texts: Sequence[str], instruction: str | None, tally: Tally) -> dict[Design, Vectors]:
        with progress_bar(f"{prompts.prompt.name} on {task.name}", len(texts)) as advance:
            return encode_designs(
                backbone,
                prompts,
                wanted,
                texts,
                instruction=instruction if prompts.prompt.takes_instruction else None,
                batch_tokens=budget,
                tally=tally,
                progress=advance,
            )

    shared = SharedVectors(compute)
    for label, design in missing.items():
        widths: list[int] = []

        def encode(
            texts: Sequence[str], instruction: str | None, design: Design = design, widths: list[int] = widths
        ) -> Vectors:
            vectors = shared.get(design, texts, instruction)
            widths.append(vectors.shape[1])
            return vectors

        outcome = evaluate(task, design.name, encode)
        proof = {"attention": backbone.proof.summary, "hardware": hardware(backbone.device), "versions": versions()}
        store.add(*_result(cells[label, task.name], label, task, outcome, widths[0], shared.tally, proof))


def compare_reference(name: str, tasks: Sequence[Task], store: ResultStore, say: Callable[[str], None]) -> list[Result]:
    """Score a sentence-transformers model (bundled name, folder or hub id) on the tasks, as a row to compare with."""
    from unmask.evaluation.mteb_adapter import evaluate

    source = Source(name)
    revision = model_revision(source)
    loaded: list[Any] = []
    results = []
    for task in tasks:
        conditions = Conditions(
            model=name,
            model_revision=revision,
            design=SENTENCE_TRANSFORMERS,
            task=task.name,
            task_revision=task.revision,
            max_length=0,
            dtype="float32",
        )
        if store.get(conditions) is None:
            say(f"{name} on {task.name}")
            loaded = loaded or [_sentence_transformer(name)]
            model, tally, widths = loaded[0], Tally(), [0]

            def encode(
                texts: Sequence[str], _: str | None, model: Any = model, tally: Tally = tally, widths: list[int] = widths
            ) -> Vectors:
                tally.texts += len(texts)
                vectors: Vectors = model.encode(list(texts), batch_size=64, convert_to_numpy=True)
                widths[0] = vectors.shape[1]
                return vectors

            outcome = evaluate(task, name, encode)
            proof = {"attention": "as the model's own code", "hardware": hardware(pick_device("auto")), "versions": versions()}
            store.add(*_result(conditions, name, task, outcome, widths[0], tally, proof))
        found = store.get(conditions)
        assert found is not None
        results.append(found)
    return results


def _sentence_transformer(name: str) -> Any:
    from sentence_transformers import SentenceTransformer

    try:
        return SentenceTransformer(resolve(name))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UnmaskError(f"'{name}' could not be loaded by sentence-transformers: {first}") from error


def _result(
    conditions: Conditions, label: str, task: Task, outcome: Outcome, dim: int, tally: Tally, provenance: Mapping[str, Any]
) -> tuple[Result, Items | None]:
    items = outcome.items
    bounds = None
    if items is not None and items.n > 1:
        bounds = interval(bootstrap(items, _RESAMPLES), around=outcome.main_score if items.metric == "v-measure" else None)
    result = Result(
        model=conditions.model,
        design=conditions.design,
        label=label,
        task=task.name,
        kind=task.kind,
        metric=outcome.metric,
        main_score=outcome.main_score,
        interval=bounds,
        n=items.n if items is not None else tally.texts,
        scores=outcome.scores,
        dim=dim,
        texts=tally.texts,
        tokens=tally.tokens,
        truncated=tally.truncated,
        conditions=conditions,
        provenance=dict(provenance),
    )
    return result, items


def model_revision(source: Source) -> str:
    """What identifies the weights: a fingerprint of a local folder (and adapter), or the commit on the hub."""
    revision = _revision(source.model, source.revision)
    return f"{revision}+{_revision(source.adapter, None)}" if source.adapter else revision


def _revision(name: str, revision: str | None) -> str:
    path = Path(resolve(name))
    if path.is_dir():
        return fingerprint(path)
    return hub_commit(name, revision)


def _groups(designs: Mapping[str, Design]) -> dict[tuple[Attention, str], dict[str, Design]]:
    """Designs by what they share a pass with, causal first so that the attention is switched at most once."""
    groups: dict[tuple[Attention, str], dict[str, Design]] = {}
    for label, design in sorted(designs.items(), key=lambda item: ATTENTIONS.index(item[1].attention)):
        groups.setdefault((design.attention, design.prompt), {})[label] = design
    return groups


def _first_attention(plan: Plan) -> Attention:
    return min((design.attention for design in plan.designs.values()), key=ATTENTIONS.index)


def _checked(backbone: Backbone, plan: Plan) -> Backbone:
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
