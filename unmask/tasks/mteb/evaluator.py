"""Scoring vectors on a task with mteb's own evaluators, and the items behind each score.

A score is what mteb computes. The items, for intervals and paired tests, are read from the predictions that mteb saves.
"""

from __future__ import annotations

import copy
import errno
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError, cause_of
from unmask.statistics.bootstrap import Items
from unmask.tasks.kinds import TEXT_KINDS
from unmask.tasks.kinds.kind import TextKind
from unmask.tasks.mteb.catalogue import english, quiet
from unmask.tasks.mteb.protocol import instruction_of, is_document, model_meta, texts_of
from unmask.tasks.mteb.ranking import without_abstention
from unmask.tasks.mteb.scored import RecordingRandom, ScoredSubset, checked, joined
from unmask.tasks.mteb.tables import SPLIT
from unmask.tasks.task import LocalTask, MtebTask

Encode = Callable[[Sequence[str], "str | None"], NDArray[np.float32]]
Similarity = Callable[[Any, Any], Any]
"""(query vectors, document vectors) -> pairwise similarity matrix."""
Observer = Callable[[NDArray[np.float32]], object]
"""Called with each batch of vectors when it is computed."""
_BATCH = 64  # texts of a batch of a sentence-transformers model
# secondary scores worth keeping; AMI is chance-corrected where V-measure is not
_SIDE_SCORES = ("ami", "f1", "recall_at_10", "mrr_at_10", "map_at_10", "cosine_pearson", "cosine_f1")


@dataclass(frozen=True)
class Outcome:
    """The scores of one model on one task.

    metric: mteb's name of the main score. main_score: 0 to 1, the mean over subsets and splits. scores: others worth keeping.
    items: the items that the main score averages over, or None if it is not the score of a single set of items.
    """

    metric: str
    main_score: float
    scores: dict[str, float]
    items: Items | None


class MtebModel:
    """A function from texts to vectors, as mteb's evaluators expect a model. Vectors that are not finite are refused."""

    def __init__(self, name: str, encode: Encode, instruction: str | None, similarity: Similarity | None = None) -> None:
        """encode: takes texts and an instruction (None for documents). instruction: None takes the one of the task's kind.

        similarity: of all pairs of vectors, if it is not the cosine.
        """
        self._encode, self.instruction, self._similarity = encode, instruction, similarity
        self.failed = False
        """Whether an error came from the model, and not from mteb."""
        # what the model is called goes into our own results; here it only has to satisfy mteb
        self.mteb_model_meta = model_meta(name)

    def encode(self, inputs: Any, *, prompt_type: Any = None, **options: Any) -> NDArray[np.float32]:
        """Vectors of the texts in mteb's batches."""
        self.failed = True
        vectors = self.vectors(inputs, prompt_type, options)
        if not np.isfinite(vectors).all():
            raise UnmaskError("Some vectors hold nan or infinite numbers, so they have no score; try dtype float32.")
        self.failed = False
        return vectors

    def vectors(self, inputs: Any, prompt_type: Any, options: Mapping[str, Any]) -> NDArray[np.float32]:
        """What the function returns."""
        return self._encode(texts_of(inputs), None if is_document(prompt_type) else self.instruction)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The similarity of all pairs."""
        from mteb.similarity_functions import cos_sim

        return (self._similarity or cos_sim)(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine of the vectors side by side."""
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)


class WrappedModel(MtebModel):
    """A sentence-transformers model in mteb's own wrapper, which applies the prompts and the similarity of the model."""

    def __init__(self, name: str, model: Any, observer: Observer) -> None:
        """observer: is called with all vectors."""
        from mteb.models import SentenceTransformerEncoderWrapper

        with quiet():
            self._wrapper = SentenceTransformerEncoderWrapper(model)
        super().__init__(name, model.encode, None, self._wrapper.similarity)
        self._observer = observer

    def vectors(self, inputs: Any, prompt_type: Any, options: Mapping[str, Any]) -> NDArray[np.float32]:
        """What the wrapper returns, in batches that fit into memory."""
        smaller = {**options, "batch_size": _BATCH}
        vectors = np.asarray(self._wrapper.encode(inputs, prompt_type=prompt_type, **smaller), np.float32)
        self._observer(vectors)
        return vectors

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The model's own similarity of the vectors side by side."""
        return self._wrapper.similarity_pairwise(embeddings1, embeddings2)


def evaluate(task: LocalTask | MtebTask, name: str, encode: Encode, similarity: Similarity | None = None) -> Outcome:
    """Score vectors on a task with mteb's evaluators, on every split and subset of it, as mteb.evaluate does.

    similarity: of vectors that are not compared by their cosine; only retrieval and reranking take one. Raises UnmaskError for a
    word-level task, if the data of an mteb task cannot be had, and if mteb cannot score them.
    """
    return _evaluated(task, lambda instruction: MtebModel(name, encode, instruction, similarity))


def evaluate_wrapped(task: LocalTask | MtebTask, name: str, model: Any, observer: Observer) -> Outcome:
    """Score a sentence-transformers model with its own prompts and similarity, as mteb.evaluate does. Raises UnmaskError as `evaluate`.

    observer: is called with all vectors.
    """
    return _evaluated(task, lambda _: WrappedModel(name, model, observer))


def _evaluated(task: LocalTask | MtebTask, model_of: Callable[[str | None], MtebModel]) -> Outcome:
    """model_of: takes the instruction of a local task."""
    kind = TEXT_KINDS.get(task.kind)
    if kind is None:
        raise UnmaskError(
            f"'{task.name}' is a word-level task, so there are no text vectors to score. Use `unmask compare` or `unmask probe words`."
        )
    if isinstance(task, LocalTask):
        return _outcome(build(task), kind, model_of(task.instruction))
    # a task made of tasks (CQADupstackRetrieval) scores the mean of theirs
    return _mean([_of_mteb(part, task, kind, model_of(None)) for part in _loaded(task)])


def build(task: LocalTask) -> Any:
    """An mteb task over the rows of a local one."""
    from mteb.abstasks.task_metadata import TaskMetadata

    kind = TEXT_KINDS[task.kind]
    metadata = TaskMetadata(
        name=task.name.replace("/", "-"),  # mteb makes it a file's name
        description="a local folder",
        dataset={"path": f"local/{task.name}", "revision": task.revision},
        type=kind.mteb_types[0],
        eval_splits=[SPLIT],
        eval_langs=["eng-Latn"],
        main_score=kind.main_score,
    )
    built = kind.new_task({"metadata": metadata, **kind.mteb_settings(task.data)})
    built.dataset = {"default": kind.mteb_data(task.data)}
    built.data_loaded = True
    return built


def _of_mteb(loaded: Any, task: MtebTask, kind: TextKind, model: MtebModel) -> Outcome:
    try:
        return _outcome(loaded, kind, model)
    except UnmaskError:
        raise
    except Exception as error:
        if model.failed or _is_full(error):  # not mteb's: re-raised unchanged
            raise
        raise UnmaskError(f"mteb could not score '{task.name}': {cause_of(error)}") from error


def _outcome(loaded: Any, kind: TextKind, model: MtebModel) -> Outcome:
    """Score the splits and subsets of a task in mteb's order, because its random draws for one depend on those before."""
    built = copy.copy(loaded)  # it is scored again with other vectors, by the same draws
    built.rng_state = RecordingRandom(loaded.rng_state.getstate())
    built.np_rng = copy.deepcopy(loaded.np_rng)
    kind.prepare(built)
    model.instruction = model.instruction or instruction_of(built.metadata, built.abstask_prompt)
    with quiet(), without_abstention():
        return _mean([_cell(built, kind, model, split, subset) for split in built.eval_splits for subset in built.hf_subsets])


def _cell(built: Any, kind: TextKind, model: MtebModel, split: str, subset: str) -> Outcome:
    built.rng_state.forget()
    options = {"batch_size": 1024, "show_progress_bar": False}
    with tempfile.TemporaryDirectory() as folder:
        scores = built.evaluate(model, split, [subset], encode_kwargs=options, prediction_folder=Path(folder))[subset]
        saved = json.loads((Path(folder) / built.prediction_file_name).read_text(encoding="utf-8"))
    data = built.dataset.get(subset, built.dataset)[split]  # data of an only subset may lie there without its name
    scored = ScoredSubset(built, data, saved[subset][split], scores)
    items = checked(kind.items(scored), scored)
    side = {
        key: _defined(scores[key]) for key in _SIDE_SCORES if key != scored.metric and isinstance(scores.get(key), int | float)
    }
    if "ami" in side and items is not None:
        side["ami"] = _ami(items, scored.recorder)
    return Outcome(scored.metric, _defined(scores["main_score"]), side, items)


def _mean(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of several subsets, splits or tasks: mteb's mean of their main scores (TaskResult.get_score)."""
    main = float(np.mean([outcome.main_score for outcome in outcomes]))
    shared = [key for key in outcomes[0].scores if all(key in outcome.scores for outcome in outcomes)]
    side = {key: float(np.mean([outcome.scores[key] for outcome in outcomes])) for key in shared}
    return Outcome(outcomes[0].metric, main, side, joined([outcome.items for outcome in outcomes], main))


def _defined(score: float) -> float:
    # equal vectors order nothing: a correlation of 0, as in resampling, where scipy says nan
    return 0.0 if np.isnan(score) else float(score)


def _ami(items: Items, recorder: RecordingRandom) -> float:
    """AMI over the distinct texts of each experiment, averaged.

    mteb draws with replacement and counts every draw of a text: copies share their cluster and their label, so that
    its own AMI of random vectors on a hundred texts is 0.2 and not the 0 that AMI is there for.
    """
    from sklearn.metrics import adjusted_mutual_info_score

    values = []
    for replicate, indices in enumerate(recorder.draws):
        # an item is a draw, or a text with the number of its draws
        weight = items.columns.get("weight")
        distinct = np.unique(indices, return_index=True)[1] if weight is None else np.flatnonzero(weight[:, replicate])
        label, assigned = (items.columns[name][distinct, replicate] for name in ("label", "assigned"))
        values.append(adjusted_mutual_info_score(label, assigned))
    return float(np.mean(values))


@lru_cache(maxsize=1)  # the designs that share a pass are scored on a task one after the other
def _loaded(task: MtebTask) -> list[Any]:
    """mteb's task with its data, on the splits and subsets of the task; its parts if it is made of tasks."""
    loaded = english(task.name)
    parts = [english(part.metadata.name) for part in loaded.metadata.tasks] if loaded.is_aggregate else [loaded]
    for part in parts:
        part.filter_eval_splits(list(task.splits) or None)
        if task.subsets and not loaded.is_aggregate:
            part.hf_subsets = list(task.subsets)
        try:
            with quiet():
                part.load_data()
                if hasattr(part, "convert_v1_dataset_format_to_v2"):
                    part.convert_v1_dataset_format_to_v2(num_proc=None)
        except Exception as error:  # whatever the hub's client raises, the reason is that the data are not there
            if _is_full(error):
                raise
            reason = f"The data of mteb's '{task.name}' could not be loaded from the hub: {cause_of(error)}"
            raise UnmaskError(reason) from error
    return parts


def _is_full(error: Exception) -> bool:
    """Whether the disk is full: no fault of this task, and the next one would meet it too."""
    return isinstance(error, OSError) and error.errno == errno.ENOSPC
