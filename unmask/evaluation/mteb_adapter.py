"""mteb: tasks of ours as tasks of mteb, scored by mteb's own evaluators, and the items behind each score.

Everything that knows mteb is in this file. A score is what mteb computes; the items (for intervals and paired tests) are read
from the predictions that mteb saves.
"""

from __future__ import annotations

import json
import logging
import random
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
from unmask.evaluation.resampling import Items
from unmask.evaluation.tasks import Kind, LocalTask, MtebTask

Encode = Callable[[Sequence[str], "str | None"], NDArray[np.float32]]

_TYPES: dict[str, Kind] = {
    "STS": "sts",
    "PairClassification": "pair-classification",
    "Classification": "classification",
    "Clustering": "clustering",
    "Retrieval": "retrieval",
    "Reranking": "reranking",
    "Summarization": "summarization",
}
_MAIN_SCORE: dict[Kind, str] = {
    "sts": "cosine_spearman",
    "pair-classification": "cosine_ap",
    "classification": "accuracy",
    "clustering": "v_measure",
    "retrieval": "ndcg_at_10",
    "reranking": "map_at_1000",
    "summarization": "cosine_spearman",
}
# scores worth keeping beside the main one; AMI is chance-corrected where V-measure is not
_SIDE_SCORES = ("ami", "f1", "recall_at_10", "mrr_at_10", "map_at_10", "cosine_pearson", "cosine_f1")
_SPLIT, _SUBSET = "test", "default"


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


class _RecordingRandom(random.Random):
    """mteb's clustering draws its resamples here and keeps only the assignments, so the draws are kept for it.

    kept: the texts that it embeds, where those are not all; draws: places among them, with repeats, an experiment a row.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
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


def mteb_kind(name: str) -> tuple[Kind, str]:
    """The kind and the pinned data revision of an mteb task. Raises UnmaskError for an unknown name or a kind that is not text to text."""
    task = _find(name)
    kind = _TYPES.get(task.metadata.type)
    if kind is None or task.metadata.modalities != ["text"]:
        raise UnmaskError(
            f"'{name}' is a {task.metadata.type} task; the kinds that can be compared are {', '.join(_MAIN_SCORE)}."
        )
    return kind, str(task.metadata.dataset["revision"])


def evaluate(task: LocalTask | MtebTask, name: str, encode: Encode) -> Outcome:
    """Score vectors on a task with mteb's evaluators. Raises UnmaskError if the data of an mteb task cannot be had."""
    built = _build(task) if isinstance(task, LocalTask) else _loaded(task)
    split = _SPLIT if isinstance(task, LocalTask) else built.eval_splits[0]
    subset = built.hf_subsets[0]
    recorder = _RecordingRandom(built.seed)
    built.rng_state = recorder
    instruction = task.instruction if isinstance(task, LocalTask) else None
    model = MtebModel(name, encode, instruction or _instruction(built))
    options = {"batch_size": 1024, "show_progress_bar": False}
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        found = built.evaluate(model, split, [subset], encode_kwargs=options, prediction_folder=Path(folder))[subset]
        saved = json.loads((Path(folder) / built.prediction_file_name).read_text(encoding="utf-8"))
    metric = _MAIN_SCORE[task.kind]
    items = ITEMS[task.kind](built.dataset[subset], split, saved[subset][split], recorder)
    side = {key: _defined(found[key]) for key in _SIDE_SCORES if key != metric and isinstance(found.get(key), int | float)}
    if "ami" in side and items is not None:
        side["ami"] = _ami(items, recorder)
    return Outcome(metric, _defined(found[metric]), side, items)


def _defined(score: float) -> float:
    # equal vectors order nothing: a correlation of 0, as in resampling, where scipy says nan
    return 0.0 if np.isnan(score) else float(score)


def _ami(items: Items, recorder: _RecordingRandom) -> float:
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


def _metadata(task: LocalTask) -> Any:
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        name=task.name.replace("/", "-"),  # mteb makes it a file's name
        description="a local folder",
        dataset={"path": f"local/{task.name}", "revision": task.revision},
        type=next(name for name, kind in _TYPES.items() if kind == task.kind),
        eval_splits=[_SPLIT],
        eval_langs=["eng-Latn"],
        main_score=_MAIN_SCORE[task.kind],
    )


def _build(task: LocalTask) -> Any:
    """An mteb task over the rows of a local one."""
    from mteb import abstasks
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    bases = {
        "sts": abstasks.AbsTaskSTS,
        "pair-classification": abstasks.AbsTaskPairClassification,
        "classification": abstasks.AbsTaskClassification,
        "clustering": abstasks.AbsTaskClustering,
        "retrieval": AbsTaskRetrieval,
        "reranking": AbsTaskRetrieval,
        "summarization": _summarization(),
    }
    attributes: dict[str, Any] = {"metadata": _metadata(task), **_SETTINGS[task.kind](task)}
    built = type("LocalMtebTask", (bases[task.kind],), attributes)()
    built.dataset = {_SUBSET: _DATA[task.kind](task)}
    built.data_loaded = True
    return built


def _summarization() -> Any:
    from mteb.abstasks.text.summarization import AbsTaskSummarization

    return AbsTaskSummarization


def _sts_settings(task: LocalTask) -> dict[str, Any]:
    scores = [row["score"] for row in task.data["test"]]
    return {"min_score": min(scores), "max_score": max(scores)}


def _clustering_settings(task: LocalTask) -> dict[str, Any]:
    return {
        "max_fraction_of_documents_to_embed": None,
        "max_documents_per_cluster": min(16_384, task.size),
        "input_column_name": "text",
        "label_column_name": "label",
    }


def _summarization_settings(task: LocalTask) -> dict[str, Any]:
    scores = [score for row in task.data["test"] for _, score in row["summaries"]]
    return {"min_score": min(scores), "max_score": max(scores)}


_SETTINGS: dict[Kind, Callable[[LocalTask], dict[str, Any]]] = {
    "sts": _sts_settings,
    "pair-classification": lambda _: {
        "input1_column_name": "sentence1",
        "input2_column_name": "sentence2",
        "label_column_name": "label",
    },
    "classification": lambda _: {},
    "clustering": _clustering_settings,
    "retrieval": lambda _: {},
    "reranking": lambda _: {},
    "summarization": _summarization_settings,
}


def _table(task: LocalTask) -> Any:
    from datasets import Dataset, DatasetDict

    return DatasetDict({_SPLIT: Dataset.from_list(task.data["test"])})


def _pair_data(task: LocalTask) -> Any:
    from datasets import Dataset, DatasetDict

    return DatasetDict({_SPLIT: Dataset.from_list([{**row, "label": int(row["label"])} for row in task.data["test"]])})


def _classification_data(task: LocalTask) -> Any:
    from datasets import Dataset, DatasetDict

    # numbers, not names: of two classes, mteb takes class 1 to be the positive one
    number = {label: place for place, label in enumerate(sorted({row["label"] for row in task.data["train"]}))}
    parts = {part: [{**row, "label": number[row["label"]]} for row in task.data[part]] for part in ("train", "test")}
    return DatasetDict({part: Dataset.from_list(rows) for part, rows in parts.items()})


def _retrieval_data(task: LocalTask) -> Any:
    relevant: dict[str, dict[str, int]] = {}
    for row in task.data["qrels"]:
        relevant.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    documents = [{"id": row["_id"], "title": row["title"], "text": row["text"]} for row in task.data["corpus"]]
    queries = [{"id": row["_id"], "text": row["text"]} for row in task.data["queries"]]
    return {_SPLIT: _search_data(documents, queries, {row["id"]: relevant[row["id"]] for row in queries}, None)}


def _reranking_data(task: LocalTask) -> Any:
    documents, queries = [], []
    relevant: dict[str, dict[str, int]] = {}
    ranked: dict[str, list[str]] = {}
    for number, row in enumerate(task.data["test"]):
        query = f"q{number}"
        queries.append({"id": query, "text": row["query"]})
        candidates = [(text, 1) for text in row["positive"]] + [(text, 0) for text in row["negative"]]
        # the names that mteb gives them: ties are ranked by descending name, so that a tie never favours a positive
        ids = [f"{'apositive' if good else 'negative'}_{query}_{place}" for place, (_, good) in enumerate(candidates)]
        documents += [{"id": one, "title": "", "text": text} for one, (text, _) in zip(ids, candidates, strict=True)]
        relevant[query] = {one: good for one, (_, good) in zip(ids, candidates, strict=True)}
        ranked[query] = ids
    return {_SPLIT: _search_data(documents, queries, relevant, ranked)}


def _search_data(documents: list[Any], queries: list[Any], relevant: Any, ranked: Any) -> Any:
    from datasets import Dataset
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

    return RetrievalSplitData(
        corpus=Dataset.from_list(documents), queries=Dataset.from_list(queries), relevant_docs=relevant, top_ranked=ranked
    )


def _summarization_data(task: LocalTask) -> Any:
    from datasets import Dataset, DatasetDict

    return DatasetDict(
        {
            _SPLIT: Dataset.from_list(
                [
                    {
                        "text": row["source"],
                        "human_summaries": row["references"],
                        "machine_summaries": [summary for summary, _ in row["summaries"]],
                        "relevance": [score for _, score in row["summaries"]],
                    }
                    for row in task.data["test"]
                ]
            )
        }
    )


_DATA: dict[Kind, Callable[[LocalTask], Any]] = {
    "sts": _table,
    "pair-classification": _pair_data,
    "classification": _classification_data,
    "clustering": _table,
    "retrieval": _retrieval_data,
    "reranking": _reranking_data,
    "summarization": _summarization_data,
}


def _sts_items(data: Any, split: str, predicted: Any, _: _RecordingRandom) -> Items:
    return Items("spearman", {"predicted": np.array(predicted["cosine_scores"]), "gold": np.array(data[split]["score"], float)})


def _pair_items(data: Any, split: str, predicted: Any, _: _RecordingRandom) -> Items:
    table = data[split]
    labels = table["labels"] if "labels" in table.column_names else table["label"]
    labels = labels[0] if len(labels) == 1 else labels  # mteb's older sets hold all pairs in one row
    return Items("average-precision", {"predicted": np.array(predicted["cosine_scores"]), "label": np.array(labels, int)})


def _classification_items(data: Any, split: str, predicted: Any, _: _RecordingRandom) -> Items:
    gold = np.array(data[split]["label"])
    return Items("mean", {"value": (np.array(predicted) == gold).mean(axis=0)})


def _clustering_items(data: Any, split: str, predicted: Any, recorder: _RecordingRandom) -> Items | None:
    if len(predicted) != 1:  # hierarchical labels: several levels, each scored on its own
        return None
    table = data[split]
    column = "labels" if "labels" in table.column_names else "label"
    labels = np.unique([label[0] if isinstance(label, list) else label for label in table[column]], return_inverse=True)[1]
    assigned = np.array(next(iter(predicted.values()))).T
    if recorder.kept is not None:
        labels = labels[recorder.kept]
    if len(recorder.draws) != assigned.shape[1] or max(map(max, recorder.draws)) >= len(labels):
        return None
    return Items("v-measure", {"assigned": assigned, "label": np.stack([labels[draw] for draw in recorder.draws], axis=1)})


def _retrieval_items(data: Any, split: str, predicted: Any, _: _RecordingRandom) -> Items:
    relevant = data[split]["relevant_docs"]
    return Items("mean", {"value": np.array([ndcg(predicted[query], relevant[query], 10) for query in sorted(predicted)])})


def _reranking_items(data: Any, split: str, predicted: Any, _: _RecordingRandom) -> Items:
    relevant = data[split]["relevant_docs"]
    return Items(
        "mean", {"value": np.array([average_precision(predicted[query], relevant[query]) for query in sorted(predicted)])}
    )


def _summarization_items(data: Any, split: str, predicted: Any, _: _RecordingRandom) -> Items | None:
    from scipy.stats import spearmanr

    pairs = list(zip(predicted["human_scores"], predicted["cosine_scores"], strict=True))
    if len(pairs) != sum(len(set(scores)) > 1 for scores in data[split]["relevance"]):
        return None  # mteb skips texts whose summaries have equal vectors, and then designs are not paired
    return Items("mean", {"value": np.array([spearmanr(human, cosine).statistic for human, cosine in pairs])})


ITEMS: dict[Kind, Callable[[Any, str, Any, _RecordingRandom], Items | None]] = {
    "sts": _sts_items,
    "pair-classification": _pair_items,
    "classification": _classification_items,
    "clustering": _clustering_items,
    "retrieval": _retrieval_items,
    "reranking": _reranking_items,
    "summarization": _summarization_items,
}


def ndcg(scores: dict[str, float], relevant: dict[str, int], depth: int) -> float:
    """nDCG at a depth of one query, with gains as they are (trec_eval's ndcg_cut); ties by descending id, as trec_eval."""
    gains = [max(relevant.get(document, 0), 0) for document in _ranking(scores)[:depth]]
    ideal = sorted((gain for gain in relevant.values() if gain > 0), reverse=True)[:depth]
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    best = float(np.dot(ideal, discounts[: len(ideal)]))
    return float(np.dot(gains, discounts[: len(gains)])) / best if best else 0.0


def average_precision(scores: dict[str, float], relevant: dict[str, int]) -> float:
    """Average precision of one query over the documents that were ranked (trec_eval's map)."""
    hits = np.array([relevant.get(document, 0) > 0 for document in _ranking(scores)])
    total = sum(gain > 0 for gain in relevant.values())
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / total) if total else 0.0


def _ranking(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)


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
