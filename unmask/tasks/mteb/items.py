"""The items behind a score of mteb's: what each pair, text or query contributed, read from the predictions that mteb saves."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.statistics.bootstrap import Items, score
from unmask.tasks.mteb.ranking import per_query
from unmask.tasks.task import Kind

_ROUNDED = 2e-5  # mteb rounds what it ranks by to five digits


class RecordingRandom(random.Random):
    """mteb's clustering draws its resamples here and keeps only the assignments, so the draws are kept for it.

    kept: the texts that it embeds, where those are not all; draws: places among them, with repeats, an experiment a row.
    """

    def __init__(self, state: Any) -> None:
        """Go on from the state of the generator that it stands for."""
        super().__init__()
        self.setstate(state)
        self.forget()

    def forget(self) -> None:
        """Remember nothing of what was drawn so far: another subset is about to be scored."""
        self.kept: list[int] | None = None
        self.draws: list[list[int]] = []

    def sample(self, population: Any, k: int, **options: Any) -> list[Any]:
        """Choose the texts that are embedded at all, and remember them."""
        self.kept = super().sample(population, k, **options)
        return self.kept

    def choices(self, population: Any, *args: Any, **options: Any) -> list[Any]:
        """Draw as random.Random does, and remember."""
        drawn = super().choices(population, *args, **options)
        self.draws.append(drawn)
        return drawn


@dataclass(frozen=True)
class Scored:
    """One subset of one split as mteb has scored it.

    task: mteb's task; data: the rows of the split; predicted: what mteb saved of the model's predictions; scores: mteb's own.
    """

    task: Any
    data: Any
    predicted: Any
    scores: Mapping[str, Any]

    @property
    def metric(self) -> str:
        """The name of the task's main score."""
        return str(self.task.metadata.main_score)

    @property
    def recorder(self) -> RecordingRandom:
        """What the task drew from."""
        recorder = self.task.rng_state
        assert isinstance(recorder, RecordingRandom)
        return recorder


def items_of(kind: Kind, scored: Scored) -> Items | None:
    """The items behind a main score, or None where it is none of their scores (a main score that is no mean over items)."""
    items = ITEMS[kind](scored)
    main = float(scored.scores["main_score"])
    fits = items is not None and abs(score(items) - (0.0 if np.isnan(main) else main)) < _ROUNDED
    return items if fits else None


def joined(parts: Sequence[Items | None], main: float) -> Items | None:
    """The items of several subsets as one set: where each has a score of its own, and their mean is the main score."""
    found = [items for items in parts if items is not None]
    if len(found) == len(parts) == 1:
        return found[0]
    if len(found) < len(parts) or any(items.metric != "mean" for items in found):
        return None
    values = np.concatenate([items.columns["value"] for items in found])
    return Items("mean", {"value": values}) if abs(values.mean() - main) < _ROUNDED else None


def _sts_items(scored: Scored) -> Items:
    gold = np.array(scored.data["score"], float)
    return Items("spearman", {"predicted": np.array(scored.predicted["cosine_scores"]), "gold": gold})


_NEARNESS = {
    "similarity": ("similarity_scores", 1),
    "cosine": ("cosine_scores", 1),
    "dot": ("dot_scores", 1),
    "manhattan": ("manhattan_distances", -1),
    "euclidean": ("euclidean_distances", -1),
}


def _pair_items(scored: Scored) -> Items | None:
    """Pairs ranked by the nearness that the main score names, or by the best one where that is `max_ap`."""
    table = scored.data
    labels = table[scored.task.label_column_name]
    labels = np.array(labels[0] if len(labels) == 1 else labels, int)  # mteb's older sets hold all pairs in one row
    name, _, measure = scored.metric.rpartition("_")
    if measure != "ap":
        return None
    choices = [
        Items("average-precision", {"predicted": sign * np.array(scored.predicted[key], float), "label": labels})
        for nearness, (key, sign) in _NEARNESS.items()
        if name in ("max", nearness)
    ]
    return max(choices, key=score)


def _classification_items(scored: Scored) -> Items | None:
    gold = scored.data[scored.task.label_column_name]
    if isinstance(gold[0], list) or len({len(one) for one in scored.predicted} | {len(gold)}) > 1:
        return None  # several labels a text, or another part of the texts in each fold of a cross-validation
    return Items("mean", {"value": (np.array(scored.predicted) == np.array(gold)).mean(axis=0)})


def _clustering_items(scored: Scored) -> Items | None:
    legacy = isinstance(scored.predicted, list)
    return _sets_of_texts(scored) if legacy else _draws_of_texts(scored)


def _sets_of_texts(scored: Scored) -> Items:
    """mteb's older clustering scores several sets of texts, each on its own: the item is then the set."""
    sets = scored.data[scored.task.label_column_name]
    if len(sets) > 1:
        return Items("mean", {"value": np.array(scored.scores["v_measures"], float)})
    label = _codes(sets[0])
    # a set of one label is not clustered, and scores 1
    assigned = np.array(scored.predicted[0]) if scored.predicted else np.zeros_like(label)
    return Items("v-measure", {"assigned": assigned[:, None], "label": label[:, None]})


def _draws_of_texts(scored: Scored) -> Items | None:
    """mteb draws so many texts in each of ten experiments, on every level of the labels where they have several."""
    recorder = scored.recorder
    labels = [label if isinstance(label, list) else [label] for label in scored.data[scored.task.label_column_name]]
    if recorder.kept is not None:
        labels = [labels[place] for place in recorder.kept]
    assigned = [(level, one) for level, experiments in enumerate(scored.predicted.values()) for one in experiments]
    if len(recorder.draws) != len(assigned):
        return None
    of_level = [_of_level(labels, level) for level in range(len(scored.predicted))]
    label = [of_level[level][draw] for (level, _), draw in zip(assigned, recorder.draws, strict=True)]
    return Items("v-measure", {"assigned": np.array([one for _, one in assigned]).T, "label": np.stack(label, axis=1)})


def _of_level(labels: Sequence[Sequence[Any]], level: int) -> NDArray[np.int64]:
    """The labels of one level. A text that has none there is left out by mteb if labels are numbers, else it is labelled "-1"."""
    known = np.array([label[level] if len(label) > level else -1 for label in labels])
    return _codes(known[known != -1] if known.dtype.kind == "i" else known)


def _ranked_items(scored: Scored) -> Items | None:
    results = scored.predicted
    if scored.task.ignore_identical_ids:
        results = {query: {one: value for one, value in found.items() if one != query} for query, found in results.items()}
    if scored.task.skip_first_result:
        results = {
            query: dict(sorted(found.items(), key=lambda one: one[1], reverse=True)[1:]) for query, found in results.items()
        }
    values = per_query(scored.metric, results, scored.data["relevant_docs"])
    return None if values is None else Items("mean", {"value": values})


def _summarization_items(scored: Scored) -> Items | None:
    from scipy.stats import spearmanr

    pairs = list(zip(scored.predicted["human_scores"], scored.predicted["cosine_scores"], strict=True))
    if len(pairs) != sum(len(set(scores)) > 1 for scores in scored.data[scored.task.relevancy_column_name]):
        return None  # mteb skips texts whose summaries have equal vectors, and then designs are not paired
    return Items("mean", {"value": np.array([spearmanr(human, cosine).statistic for human, cosine in pairs])})


ITEMS: dict[Kind, Callable[[Scored], Items | None]] = {
    "sts": _sts_items,
    "pair-classification": _pair_items,
    "classification": _classification_items,
    "clustering": _clustering_items,
    "retrieval": _ranked_items,
    "reranking": _ranked_items,
    "summarization": _summarization_items,
}


def _codes(labels: Sequence[Any] | NDArray[Any]) -> NDArray[np.int64]:
    return np.unique(np.array(labels), return_inverse=True)[1]
