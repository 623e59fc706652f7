"""Local folders as tasks of mteb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unmask.tasks.task import Kind, LocalTask

TYPES: dict[str, Kind] = {
    "STS": "sts",
    "PairClassification": "pair-classification",
    "Classification": "classification",
    "Clustering": "clustering",
    "Retrieval": "retrieval",
    "Reranking": "reranking",
    "Summarization": "summarization",
    "InstructionRetrieval": "retrieval",
    "InstructionReranking": "reranking",
    "MultilabelClassification": "classification",
}
"""mteb's types of task by our kinds; of several for one kind the first is that of a local folder."""
# a word-level task has no text vectors, so it is none of mteb's
MAIN_SCORE: dict[Kind, str] = {
    "sts": "cosine_spearman",
    "pair-classification": "cosine_ap",
    "classification": "accuracy",
    "clustering": "v_measure",
    "retrieval": "ndcg_at_10",
    "reranking": "map_at_1000",
    "summarization": "cosine_spearman",
}
SPLIT, SUBSET = "test", "default"


def _metadata(task: LocalTask) -> Any:
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        name=task.name.replace("/", "-"),  # mteb makes it a file's name
        description="a local folder",
        dataset={"path": f"local/{task.name}", "revision": task.revision},
        type=next(name for name, kind in TYPES.items() if kind == task.kind),
        eval_splits=[SPLIT],
        eval_langs=["eng-Latn"],
        main_score=MAIN_SCORE[task.kind],
    )


def build(task: LocalTask) -> Any:
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
    attributes: dict[str, Any] = {"metadata": _metadata(task), **SETTINGS[task.kind](task)}
    built = type("LocalMtebTask", (bases[task.kind],), attributes)()
    built.dataset = {SUBSET: _DATA[task.kind](task)}
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


SETTINGS: dict[Kind, Callable[[LocalTask], dict[str, Any]]] = {
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

    return DatasetDict({SPLIT: Dataset.from_list(task.data["test"])})


def _pair_data(task: LocalTask) -> Any:
    from datasets import Dataset, DatasetDict

    return DatasetDict({SPLIT: Dataset.from_list([{**row, "label": int(row["label"])} for row in task.data["test"]])})


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
    return {SPLIT: _search_data(documents, queries, {row["id"]: relevant[row["id"]] for row in queries}, None)}


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
    return {SPLIT: _search_data(documents, queries, relevant, ranked)}


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
            SPLIT: Dataset.from_list(
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
