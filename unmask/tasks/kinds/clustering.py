"""Clustering: texts with a label, which no training sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unmask.io.rows import Row
from unmask.statistics.bootstrap import Items
from unmask.tasks.folder import TaskFolder
from unmask.tasks.kinds.kind import Data, TextKind, all_alike
from unmask.tasks.mteb.scored import ScoredSubset


class Clustering(TextKind):
    """Labelled texts: how well k-means on their vectors finds the labels."""

    name = "clustering"
    heading = "clust"
    layout = "all.jsonl or test.jsonl: text, label"
    metric = "V-measure (AMI beside it)"
    note = "Clustering has AMI beside V-measure: AMI is corrected for chance, V-measure flatters many clusters."
    example: ClassVar[dict[str, Row]] = {"all.jsonl": {"text": "The striker scored twice.", "label": "sport"}}
    named = frozenset({"text", "label"})
    tried = 2
    mteb_types = ("Clustering",)
    main_score = "v_measure"

    def recognises(self, folder: TaskFolder) -> bool:
        """Labelled texts in a file named `all`, without a training file."""
        return folder.has_labelled_texts and folder.main_file.stem == "all"

    def read(self, folder: TaskFolder) -> Data:
        """Labelled texts."""
        return {"test": folder.labelled_texts(folder.main_file)}

    def nothing_to_tell(self, data: Data) -> str | None:
        """All texts have one label."""
        return all_alike(data, "label")

    def mteb_class(self) -> type[Any]:
        """mteb's clustering."""
        from mteb.abstasks import AbsTaskClustering

        return AbsTaskClustering  # type: ignore[no-any-return]

    def mteb_settings(self, data: Data) -> dict[str, Any]:
        """All texts are embedded, and each experiment draws as many as there are."""
        return {
            "max_fraction_of_documents_to_embed": None,
            "max_documents_per_cluster": min(16_384, self.size(data)),
            "input_column_name": "text",
            "label_column_name": "label",
        }

    def items(self, scored: ScoredSubset) -> Items | None:
        """Texts with label and cluster; in mteb's older tasks, the sets of texts that they score one by one."""
        return _sets_of_texts(scored) if isinstance(scored.predicted, list) else _draws_of_texts(scored)


def _sets_of_texts(scored: ScoredSubset) -> Items:
    """mteb's older clustering scores several sets of texts, each on its own. The item is then the set."""
    sets = scored.data[scored.task.label_column_name]
    if len(sets) > 1:
        return Items("mean", {"value": np.array(scored.scores["v_measures"], float)})
    label = _codes(sets[0])
    # a set of one label is not clustered, and scores 1
    assigned = np.array(scored.predicted[0]) if scored.predicted else np.zeros_like(label)
    return Items("v-measure", {"assigned": assigned[:, None], "label": label[:, None]})


def _draws_of_texts(scored: ScoredSubset) -> Items | None:
    """mteb samples texts in each of ten experiments, once per label level.

    It draws as many texts as it embedded, or many more. Copies of a text share label and cluster and add no evidence. So with more
    draws the item is the embedded text, and `weight` says how often it was drawn. That holds for several levels, too.
    """
    recorder = scored.recorder
    labels = [label if isinstance(label, list) else [label] for label in scored.data[scored.task.label_column_name]]
    if recorder.kept is not None:
        labels = [labels[index] for index in recorder.kept]
    assigned = [(level, clusters) for level, experiments in enumerate(scored.predicted.values()) for clusters in experiments]
    if len(recorder.draws) != len(assigned):
        return None
    of_level = [_of_level(labels, level) for level in range(len(scored.predicted))]
    if len(of_level) > 1 or len(recorder.draws[0]) > len(labels):
        columns = np.zeros((3, len(labels), len(assigned)), np.int64)
        for replicate, ((level, clusters), draw) in enumerate(zip(assigned, recorder.draws, strict=True)):
            indices, codes = of_level[level]
            texts = indices[draw]
            columns[0, texts, replicate], columns[1, indices, replicate] = clusters, codes
            columns[2, :, replicate] = np.bincount(texts, minlength=len(labels))
        return Items("v-measure", dict(zip(("assigned", "label", "weight"), columns, strict=True)))
    [(_, codes)] = of_level
    clusters = np.array([clusters for _, clusters in assigned]).T
    return Items("v-measure", {"assigned": clusters, "label": np.stack([codes[draw] for draw in recorder.draws], axis=1)})


def _of_level(labels: Sequence[Sequence[Any]], level: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The texts that have a label of one level, and these labels.

    mteb leaves out a text that has none if labels are numbers. Otherwise it labels it "-1".
    """
    values = np.array([label[level] if len(label) > level else -1 for label in labels])
    indices = np.flatnonzero(values != -1) if values.dtype.kind == "i" else np.arange(len(values))
    return indices, _codes(values[indices])


def _codes(labels: Sequence[Any] | NDArray[Any]) -> NDArray[np.int64]:
    return np.unique(np.array(labels), return_inverse=True)[1]
