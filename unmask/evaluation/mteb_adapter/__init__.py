"""mteb: tasks of ours as tasks of mteb, scored by mteb's own evaluators, and the items behind each score.

Everything that knows mteb is in this package. A score is what mteb computes; the items (for intervals and paired tests) are read
from the predictions that mteb saves.
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError, unknown
from unmask.evaluation.mteb_adapter.building import MAIN_SCORE, SPLIT, TYPES, build
from unmask.evaluation.mteb_adapter.items import ITEMS, RecordingRandom
from unmask.evaluation.resampling import Items
from unmask.evaluation.tasks import Kind, LocalTask, MtebTask

Encode = Callable[[Sequence[str], "str | None"], NDArray[np.float32]]
_SIDE_SCORES = ("ami", "f1", "recall_at_10", "mrr_at_10", "map_at_10", "cosine_pearson", "cosine_f1")


@dataclass(frozen=True)
class Outcome:
    """What one model scored on one task.

    main_score: mteb's main score of the kind, 0 to 1; scores: others worth keeping; items: what the main score was computed from.
    """

    metric: str
    main_score: float
    scores: dict[str, float]
    items: Items | None


class MtebModel:
    """A function from texts to vectors, as the model that mteb's evaluators expect."""

    def __init__(self, name: str, encode: Encode, default_instruction: str | None) -> None:
        """encode takes texts and an instruction (None for documents)."""
        from mteb.models.model_meta import ModelMeta

        self._encode, self._instruction = encode, default_instruction
        # what the model is called goes into our own results; here it only has to satisfy mteb
        self.mteb_model_meta = ModelMeta.create_empty({"name": f"unmask/{name.replace('/', '-')}", "revision": "local"})

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> NDArray[np.float32]:
        """Vectors of the texts in mteb's batches."""
        texts = [text for batch in inputs for text in batch["text"]]
        role = getattr(prompt_type, "value", None)
        vectors = self._encode(texts, None if role == "document" else self._instruction)
        if not np.isfinite(vectors).all():
            raise UnmaskError("Some vectors hold nan or infinite numbers, so they have no score; try dtype float32.")
        return vectors

    @staticmethod
    def similarity(one: Any, other: Any) -> Any:
        """Cosine of all pairs."""
        from mteb.similarity_functions import cos_sim

        return cos_sim(one, other)

    @staticmethod
    def similarity_pairwise(one: Any, other: Any) -> Any:
        """Cosine of the vectors side by side."""
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(one, other)


def mteb_kind(name: str) -> tuple[Kind, str]:
    """The kind and the pinned data revision of an mteb task. Raises UnmaskError for an unknown name or a kind that is not text to text."""
    task = _find(name)
    kind = TYPES.get(task.metadata.type)
    if kind is None or task.metadata.modalities != ["text"]:
        raise UnmaskError(
            f"'{name}' is a {task.metadata.type} task; the kinds that can be compared are {', '.join(MAIN_SCORE)}."
        )
    return kind, str(task.metadata.dataset["revision"])


def evaluate(task: LocalTask | MtebTask, name: str, encode: Encode) -> Outcome:
    """Score vectors on a task with mteb's evaluators. Raises UnmaskError if the data of an mteb task cannot be had."""
    built = build(task) if isinstance(task, LocalTask) else _loaded(task)
    split = SPLIT if isinstance(task, LocalTask) else built.eval_splits[0]
    subset = built.hf_subsets[0]
    recorder = RecordingRandom(built.seed)
    built.rng_state = recorder
    instruction = task.instruction if isinstance(task, LocalTask) else None
    model = MtebModel(name, encode, instruction or _instruction(built))
    options = {"batch_size": 1024, "show_progress_bar": False}
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        found = built.evaluate(model, split, [subset], encode_kwargs=options, prediction_folder=Path(folder))[subset]
        saved = json.loads((Path(folder) / built.prediction_file_name).read_text(encoding="utf-8"))
    metric = MAIN_SCORE[task.kind]
    items = ITEMS[task.kind](built.dataset[subset], split, saved[subset][split], recorder)
    side = {key: _defined(found[key]) for key in _SIDE_SCORES if key != metric and isinstance(found.get(key), int | float)}
    if "ami" in side and items is not None:
        side["ami"] = _ami(items, recorder)
    return Outcome(metric, _defined(found[metric]), side, items)


def _defined(score: float) -> float:
    # equal vectors order nothing: a correlation of 0, as in resampling, where scipy says nan
    return 0.0 if np.isnan(score) else float(score)


def _ami(items: Items, recorder: RecordingRandom) -> float:
    """AMI over the distinct texts of each experiment, averaged.

    mteb draws with replacement and counts a text as often as it is drawn: copies share their cluster and their label, so that
    its own AMI of random vectors on a hundred texts is 0.2 and not the 0 that AMI is there for.
    """
    from sklearn.metrics import adjusted_mutual_info_score

    values = []
    for replicate, draw in enumerate(recorder.draws):
        first = np.unique(draw, return_index=True)[1]
        label, assigned = (items.columns[name][first, replicate] for name in ("label", "assigned"))
        values.append(adjusted_mutual_info_score(label, assigned))
    return float(np.mean(values))


def _loaded(task: MtebTask) -> Any:
    built = _find(task.name)
    try:
        with _quiet():
            built.load_data()
    except Exception as error:  # whatever the hub's client raises, the reason is that the data are not there
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnmaskError(f"The data of mteb's '{task.name}' could not be loaded from the hub: {reason}") from error
    return built


def _find(name: str) -> Any:
    import mteb

    with _quiet():
        try:
            return mteb.get_task(name)
        except (KeyError, ValueError):
            names = [
                task.metadata.name for task in mteb.get_tasks(modalities=["text"], languages=["eng"], exclude_superseded=False)
            ]
            nearest = unknown("task", name, names).args[0].partition(" Allowed:")[0]
            raise UnmaskError(f"{nearest} A task is a folder, 'starter', or a name in mteb.") from None


def _instruction(task: Any) -> str:
    prompt = task.metadata.prompt
    return str((prompt.get("query") if isinstance(prompt, dict) else prompt) or task.abstask_prompt)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep mteb's and datasets' log lines, bars and the warnings of its 100-step logistic regression off the terminal."""
    import datasets
    from scipy.stats import ConstantInputWarning
    from sklearn.exceptions import ConvergenceWarning, UndefinedMetricWarning

    bars, level = datasets.are_progress_bars_disabled(), logging.root.manager.disable
    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for harmless in (ConvergenceWarning, UndefinedMetricWarning, ConstantInputWarning):
                warnings.simplefilter("ignore", harmless)
            yield
    finally:
        logging.disable(level)
        if not bars:
            datasets.enable_progress_bars()
