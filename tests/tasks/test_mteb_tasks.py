"""A task of mteb scores here what mteb's own run of it scores: every split and subset, on data that stand in for those of the hub."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.tiny import encode_words, labelled, overlapping
from unmask.errors import UnmaskError
from unmask.statistics.bootstrap import Items, score
from unmask.tasks.find import resolve_tasks
from unmask.tasks.mteb import catalogue, evaluator
from unmask.tasks.mteb.evaluator import Outcome, evaluate
from unmask.tasks.task import MtebTask

Data = Callable[[int], Any]


def sts(part: int) -> Any:
    from datasets import Dataset

    rows = [(*overlapping(40 * part + number, number % 5), float(number % 5 + (number * part) % 3)) for number in range(20)]
    return Dataset.from_list([{"sentence1": one, "sentence2": two, "score": gold} for one, two, gold in rows])


def pairs_in_one_row(part: int) -> Any:
    from datasets import Dataset

    rows = [overlapping(number, (number * 7) % 5) for number in range(24)]
    labels = [int(number % 6 in (1, 3, 4)) for number in range(24)]
    columns = {"sentence1": [one for one, _ in rows], "sentence2": [two for _, two in rows], "labels": labels}
    return Dataset.from_dict({name: [column] for name, column in columns.items()})


def classified(part: int) -> Any:
    from datasets import Dataset

    rows = labelled(30 * part, 24 + 4 * part)
    return Dataset.from_list([{"text": row["text"], "label": int(row["label"] == "sport")} for row in rows])


def several_labels(part: int) -> Any:
    from datasets import Dataset

    rows = labelled(40 * part, 30)
    return Dataset.from_list([{**row, "label": [["a", "b", "ab"][n % 3], row["label"]]} for n, row in enumerate(rows)])


def sets_of_texts(part: int) -> Any:
    from datasets import Dataset

    sets = [labelled(20 * number, 12 + 2 * number) for number in range(3)]
    columns = {
        "sentences": [[row["text"] for row in rows] for rows in sets],
        "labels": [[row["label"] for row in rows] for rows in sets],
    }
    return Dataset.from_dict(columns)


def one_set_of_texts(part: int) -> Any:
    return sets_of_texts(part).select([1])


def clustered(part: int) -> Any:
    from datasets import Dataset

    rows = labelled(0, 60)
    return Dataset.from_dict({"sentences": [row["text"] for row in rows], "labels": [row["label"] for row in rows]})


def clustered_on_two_levels(part: int) -> Any:
    from datasets import Dataset

    rows = labelled(0, 60)
    # some texts have no second label
    labels = [[row["label"], row["text"].split()[0]][: 2 - (number % 7 == 0)] for number, row in enumerate(rows)]
    return Dataset.from_dict({"sentences": [row["text"] for row in rows], "labels": labels})


def search(part: int, prefix: str = "d", ranked: bool = False) -> Any:
    from datasets import Dataset
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

    documents = [overlapping((number + part) % 6, 4 - number // 3)[1] for number in range(12)]
    corpus = [{"id": f"{prefix}{number}", "title": "", "text": text} for number, text in enumerate(documents)]
    queries = [{"id": f"q{number}_{number}", "text": overlapping(number, 0)[0]} for number in range(6)]
    queries.append({"id": "q0_1", "text": overlapping(3, 0)[0]})
    relevant = {
        query["id"]: {f"{prefix}{n % 12}": 1 + n % 2 for n in (place, place + 5)} for place, query in enumerate(queries)
    }
    relevant["q0_1"] = relevant["q0_0"]
    every = [row["id"] for row in corpus]
    return RetrievalSplitData(
        corpus=Dataset.from_list(corpus),
        queries=Dataset.from_list(queries),
        relevant_docs=relevant,
        top_ranked={query["id"]: every[place:] for place, query in enumerate(queries)} if ranked else None,
    )


def search_with_instructions(part: int) -> Any:
    found = search(part)
    found["queries"] = found["queries"].add_column("instruction", [f"a{number} c{number}" for number in range(7)])
    return found


def search_with_the_queries_among_the_documents(part: int) -> Any:
    from datasets import Dataset

    found = search(part)
    queries = [{"id": row["id"], "title": "", "text": row["text"]} for row in found["queries"]]
    found["corpus"] = Dataset.from_list([*found["corpus"], *queries])
    return found


def summarized(part: int) -> Any:
    from datasets import Dataset

    rows = [
        {
            "text": f"s{number}",
            "human_summaries": [overlapping(number, 0)[0]],
            "machine_summaries": [overlapping(number, shared)[1] for shared in range(5)],
            "relevance": [float((shared * (number + 2)) % 5) for shared in range(5)],
        }
        for number in range(4)
    ]
    return Dataset.from_list(rows)


# name in mteb: data of a split; are its splits under the name of a subset, though it has but one?
TASKS: dict[str, Data] = {
    "STSBenchmark": sts,
    "STS17": sts,
    "SprintDuplicateQuestions": pairs_in_one_row,
    "Banking77Classification": classified,
    "AmazonCounterfactualClassification": classified,  # two subsets, two splits
    "MTOPDomainClassification": classified,  # two splits
    "SciRepEvalFoSClassification": several_labels,
    "BiorxivClusteringS2S": sets_of_texts,
    "MedrxivClusteringS2S": one_set_of_texts,
    "StackExchangeClustering.v2": clustered,
    "ArXivHierarchicalClusteringP2P": clustered_on_two_levels,
    "SciFact": search,
    "IFIRNFCorpus": search_with_instructions,
    "FiQA2018": search_with_the_queries_among_the_documents,
    "MLQARetrieval": search,  # two splits
    "CQADupstackRetrieval": search,  # twelve tasks
    "AskUbuntuDupQuestions": lambda part: search(part, ranked=True),
    "MindSmallReranking": lambda part: search(part, ranked=True),
    "SummEvalSummarization.v2": summarized,
}
WITHOUT_ITEMS = {
    *("SciRepEvalFoSClassification", "AmazonCounterfactualClassification", "MTOPDomainClassification", "MindSmallReranking"),
    "ArXivHierarchicalClusteringP2P",
}
"""Their score is no score of one set of items."""


class Plain:
    """A model of mteb's that knows nothing of ours."""

    def __init__(self) -> None:
        from mteb.models.model_meta import ModelMeta

        self.mteb_model_meta = ModelMeta.create_empty({"name": "a/plain", "revision": "1"})

    def encode(self, inputs: Any, **_: Any) -> NDArray[np.float32]:
        return noisy([text for batch in inputs for text in batch["text"]])

    def similarity(self, one: Any, other: Any) -> Any:
        from mteb.similarity_functions import cos_sim

        return cos_sim(one, other)

    def similarity_pairwise(self, one: Any, other: Any) -> Any:
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(one, other)


def noisy(texts: Sequence[str], _: str | None = None) -> NDArray[np.float32]:
    """Word overlap at any length, with something of each text's own, so that no score is at an end of its scale."""
    own = encode_words([text.replace(" ", "") for text in texts])
    return np.asarray((encode_words(texts) + 1.5 * own) * (1 + np.abs(own[:, :1])), np.float32)


def stand_in(name: str) -> Callable[..., None]:
    """Load data that mteb would have from the hub: as it lays them out, and drawing from the task's generator."""

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        from datasets import DatasetDict
        from mteb.abstasks import AbsTaskRetrieval

        self.rng_state.random(), self.np_rng.random()
        splits = {"train": 0, **{split: number for number, split in enumerate(self.metadata.eval_splits, start=1)}}
        nested = self.metadata.is_multilingual or isinstance(self, AbsTaskRetrieval)

        def of(place: int) -> Any:
            found = {split: TASKS[name](number + 2 * place) for split, number in splits.items()}
            return found if isinstance(self, AbsTaskRetrieval) else DatasetDict(found)

        self.dataset = {subset: of(place) for place, subset in enumerate(self.hf_subsets)} if nested else of(0)
        self.data_loaded = True

    return load_data


@pytest.fixture(autouse=True)
def no_data_of_before() -> Iterator[None]:
    evaluator._loaded.cache_clear()
    yield
    evaluator._loaded.cache_clear()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], MtebTask]:
    """A task of mteb by name, with data of ours."""

    def patched(name: str) -> MtebTask:
        whole = catalogue.english(name)
        for part in whole.metadata.tasks if whole.is_aggregate else [whole]:
            monkeypatch.setattr(type(part), "load_data", stand_in(name))
            if hasattr(part, "max_documents_per_cluster"):
                monkeypatch.setattr(type(part), "max_documents_per_cluster", 30)
                monkeypatch.setattr(type(part), "max_document_to_embed", 50)
                monkeypatch.setattr(type(part), "max_fraction_of_documents_to_embed", None)
        return catalogue.find(name)

    return patched


def of_mteb(task: Any) -> float:
    import mteb

    with catalogue.quiet():
        (found,) = mteb.evaluate(
            Plain(), task, cache=None, show_progress_bar=False, encode_kwargs={"batch_size": 7}
        ).task_results
    return float(found.get_score())


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", TASKS)
def test_the_main_score_is_that_of_mteb_and_of_the_items(name: str, offline: Callable[[str], MtebTask]) -> None:
    task = offline(name)
    found = evaluate(task, "noisy", noisy)
    assert found.main_score == of_mteb(catalogue.english(name))
    assert found.metric == task.metric == catalogue.english(name).metadata.main_score
    assert 0.05 < found.main_score < 0.98
    if name in WITHOUT_ITEMS:
        assert found.items is None
    else:
        assert found.items is not None
        assert score(found.items) == pytest.approx(found.main_score, abs=2e-5)


DRAWING = ["StackExchangeClustering.v2", "AmazonCounterfactualClassification", "FiQA2018", "SciRepEvalFoSClassification"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", DRAWING)
def test_a_second_design_is_scored_on_the_same_draws(name: str, offline: Callable[[str], MtebTask]) -> None:
    task = offline(name)
    first = evaluate(task, "noisy", noisy)
    evaluate(task, "words", encode_words)
    assert same(first, evaluate(task, "noisy", noisy))


def same(one: Outcome, other: Outcome) -> bool:
    return (one.main_score, one.scores) == (other.main_score, other.scores) and values(one.items) == values(other.items)


def values(items: Items | None) -> dict[str, Any] | None:
    return None if items is None else {name: column.tolist() for name, column in items.columns.items()}


def test_a_set_scores_the_subsets_and_splits_of_the_benchmark(offline: Callable[[str], MtebTask]) -> None:
    import mteb

    offline("AmazonCounterfactualClassification")
    (task,) = [one for one in resolve_tasks(["mteb-eng-v2"]) if one.name == "AmazonCounterfactualClassification"]
    (theirs,) = [one for one in mteb.get_benchmark("MTEB(eng, v2)").tasks if one.metadata.name == task.name]
    assert isinstance(task, MtebTask) and (task.subsets, task.splits) == (("en",), ("test",))
    try:
        assert evaluate(task, "noisy", noisy).main_score == of_mteb(theirs)
    finally:  # a benchmark's tasks live as long as the process
        theirs.dataset, theirs.data_loaded = None, False
        theirs.rng_state, theirs.np_rng = type(theirs)().rng_state, type(theirs)().np_rng


def test_data_that_mteb_cannot_score_are_said_so(offline: Callable[[str], MtebTask], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "STSBenchmark", lambda part: sts(part).remove_columns("score"))
    with pytest.raises(UnmaskError, match="mteb could not score 'STSBenchmark': Column 'score'"):
        evaluate(offline("STSBenchmark"), "noisy", noisy)


@pytest.mark.parametrize("place", ["load_data", "evaluate"])
def test_a_full_disk_is_not_put_on_the_task(
    place: str, offline: Callable[[str], MtebTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    task = offline("STSBenchmark")
    monkeypatch.setattr(type(catalogue.english("STSBenchmark")), place, full)
    with pytest.raises(OSError, match="No space left"):
        evaluate(task, "noisy", noisy)
