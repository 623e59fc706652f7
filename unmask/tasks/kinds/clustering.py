"""Clustering: texts with a label, which no training sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unmask.io.rows import Row
from unmask.statistics.bootstrap import Items
from unmask.tasks import columns
from unmask.tasks.columns import ColumnReader
from unmask.tasks.folder import TaskFolder
from unmask.tasks.kinds.kind import Data, TextKind
from unmask.tasks.mteb.scored import ScoredSubset


class Clustering(TextKind):
    """Labelled texts: how well k-means on their vectors finds the labels."""

    name = "clustering"
    heading = "clust"
    layout = "all.jsonl or test.jsonl: text, label"
    metric = "V-measure (with AMI)"
    note = (
        "For clustering, AMI is shown as well: unlike V-measure, it is corrected for chance and does not favour many clusters."
    )
    example: ClassVar[dict[str, Row]] = {"all.jsonl": {"text": "The striker scored twice.", "label": "sport"}}
    named = frozenset({"text", "label"})
    readers: ClassVar[dict[str, ColumnReader]] = {"text": columns.text, "label": columns.label}
    gold = "label"
    order = 2
    mteb_types = ("Clustering",)
    mteb_class = "AbsTaskClustering"
    main_score = "v_measure"

    def recognises(self, folder: TaskFolder) -> bool:
        """Labelled texts in a file named `all`, without a training file."""
        return super().recognises(folder) and folder.main_file.stem == "all"

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
    """mteb draws texts with replacement in each of ten experiments: as many as it embedded, or many more.

    Copies of a text share label and cluster and add no evidence. So with more draws the item is the embedded text, and `weight` says how
    often it was drawn. None for labels on several levels.
    """
    recorder = scored.recorder
    labels = scored.data[scored.task.label_column_name]
    labels = list(labels) if recorder.kept is None else [labels[index] for index in recorder.kept]
    labels = [label[0] if isinstance(label, list) and len(label) == 1 else label for label in labels]
    experiments = [clusters for level in scored.predicted.values() for clusters in level]
    if (
        len(scored.predicted) != 1
        or any(isinstance(label, list) for label in labels)
        or len(recorder.draws) != len(experiments)
    ):
        return None
    label, draws, assigned = _codes(labels), np.array(recorder.draws).T, np.array(experiments).T
    if len(draws) <= len(label):
        return Items("v-measure", {"assigned": assigned, "label": label[draws]})
    clusters, weight = np.zeros((2, len(label), draws.shape[1]), np.int64)
    np.put_along_axis(clusters, draws, assigned, axis=0)
    np.add.at(weight, (draws, np.arange(draws.shape[1])), 1)
    return Items("v-measure", {"assigned": clusters, "label": np.tile(label[:, None], draws.shape[1]), "weight": weight})


def _codes(labels: Sequence[Any]) -> NDArray[np.int64]:
    return np.unique(np.array(labels), return_inverse=True)[1]
