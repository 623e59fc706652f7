"""mteb's scores are those of the items, of a computation by hand, and of what the vectors deserve."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from tokenizers import normalizers

from tests.conftest import make_tokenizer
from tests.tiny import encode_words, labelled, write_rows, write_task
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.evaluation.embedder_scores import score as embedder_score
from unmask.statistics.bootstrap import METRICS, bootstrap, score
from unmask.statistics.paired import paired_bootstrap
from unmask.tasks.find import find_task
from unmask.tasks.kinds import TEXT_KINDS
from unmask.tasks.kinds.clustering import Clustering
from unmask.tasks.mteb import catalogue
from unmask.tasks.mteb.building import build
from unmask.tasks.mteb.evaluator import Outcome, evaluate
from unmask.tasks.mteb.ranking import MEASURES, average_precision, ndcg, per_query
from unmask.tasks.task import LocalTask

Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str], str | None], Vectors]


def read(folder: Path) -> LocalTask:
    task = find_task(str(folder))
    assert isinstance(task, LocalTask)
    return task


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LocalTask]:
    """The tiny task of a kind."""
    folder = tmp_path_factory.mktemp("tiny")
    return lambda kind: read(write_task(folder / kind, kind))


@pytest.fixture(scope="module")
def outcome(tiny: Callable[[str], LocalTask]) -> Callable[[str], Outcome]:
    """What the encoder of words scores on the tiny task of a kind, computed once."""
    found: dict[str, Outcome] = {}

    def score_once(kind: str) -> Outcome:
        if kind not in found:
            found[kind] = evaluate(tiny(kind), "words", encode_words)
        return found[kind]

    return score_once


def constant(texts: Sequence[str], _: str | None) -> Vectors:
    return np.ones((len(texts), 3), np.float32)


def looked_up(vectors: dict[str, Vectors]) -> Encode:
    return lambda texts, _: np.stack([vectors[text] for text in texts])


def cosine(one: Vectors, other: Vectors) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def cosines_of_pairs(task: LocalTask) -> list[float]:
    return [cosine(*encode_words([row["sentence1"], row["sentence2"]])) for row in task.data["test"]]


# --- items -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_the_main_score_is_the_score_of_the_items(kind: str, outcome: Callable[[str], Outcome]) -> None:
    found = outcome(kind)
    assert found.items is not None
    assert score(found.items) == pytest.approx(found.main_score, abs=1e-4)
    assert 0.05 < found.main_score < 0.995  # at an end of the scale, equality would say nothing


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_there_is_an_item_for_everything_that_is_scored(kind: str, tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    items = outcome(kind).items
    assert items is not None
    assert items.n == tiny(kind).size
    assert len(bootstrap(items, 10)) == 10


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_scoring_is_deterministic(kind: str, tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    again = evaluate(tiny(kind), "other-name", encode_words)
    assert (again.main_score, again.scores) == (outcome(kind).main_score, outcome(kind).scores)


def test_items_of_two_designs_are_paired(tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    def noisy(texts: Sequence[str], _: str | None) -> Vectors:
        return encode_words(texts) + np.random.default_rng(0).normal(0, 3, (len(texts), 16)).astype(np.float32)

    for kind in TEXT_KINDS:
        one, other = outcome(kind).items, evaluate(tiny(kind), "noisy", noisy).items
        assert one is not None and other is not None
        paired_bootstrap([one], [other], 10)  # refuses items with another gold


def test_every_kind_of_items_is_resampled_by_the_metric_of_its_score(outcome: Callable[[str], Outcome]) -> None:
    found = {kind: items.metric for kind in TEXT_KINDS if (items := outcome(kind).items)}
    special = {"sts": "spearman", "pair-classification": "average-precision", "clustering": "v-measure"}
    assert found == {kind: special.get(kind, "mean") for kind in TEXT_KINDS}
    assert set(found.values()) == set(METRICS) - {"ratio"}  # of words, which have no text vectors


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_sts_is_the_spearman_correlation_of_cosine_and_gold(tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    task = tiny("sts")
    gold = [row["score"] for row in task.data["test"]]
    assert outcome("sts").main_score == pytest.approx(spearmanr(cosines_of_pairs(task), gold).statistic, abs=1e-6)


def test_pair_classification_is_the_average_precision_of_cosine(tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    task = tiny("pair-classification")
    expected = average_precision_score([row["label"] for row in task.data["test"]], cosines_of_pairs(task))
    assert outcome("pair-classification").main_score == pytest.approx(expected, abs=1e-6)


def test_an_item_of_classification_is_how_often_its_text_was_classified_rightly(outcome: Callable[[str], Outcome]) -> None:
    items = outcome("classification").items
    assert items is not None
    value = items.columns["value"]
    assert value.mean() == pytest.approx(outcome("classification").main_score)
    assert set(np.round(value * 10)) <= set(range(11))  # ten experiments
    assert len(set(value)) > 1


def test_clustering_keeps_the_draws_that_mteb_scored(tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    items = outcome("clustering").items
    assert items is not None
    label = items.columns["label"]
    assert label.shape == (24, 10)
    assert not all(np.array_equal(label[:, 0], column) for column in label.T)  # each experiment draws its own


def test_clustering_items_follow_the_texts_that_mteb_keeps_of_a_large_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its own tasks embed a part of their texts and draw more than these: copies of a text are one item
    part = {"max_fraction_of_documents_to_embed": 0.3, "input_column_name": "text", "label_column_name": "label"}
    monkeypatch.setattr(Clustering, "mteb_settings", lambda *_: {**part, "max_documents_per_cluster": 50})
    write_rows(tmp_path / "all.jsonl", labelled(0, 120))
    found = evaluate(read(tmp_path), "words", encode_words)
    assert found.items is not None and found.items.n == 36 and set(found.items.columns["weight"].sum(axis=0)) == {50}
    assert score(found.items) == pytest.approx(found.main_score, abs=1e-6)


def test_retrieval_is_ndcg_of_cosine(tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    task = tiny("retrieval")
    documents = {row["_id"]: encode_words([f"{row['title']} {row['text']}".strip()])[0] for row in task.data["corpus"]}
    values = []
    for query in task.data["queries"]:
        vector = encode_words([query["text"]])[0]
        relevant = {row["corpus-id"]: row["score"] for row in task.data["qrels"] if row["query-id"] == query["_id"]}
        values.append(ndcg({name: cosine(vector, one) for name, one in documents.items()}, relevant, 10))
    assert outcome("retrieval").main_score == pytest.approx(np.mean(values), abs=1e-5)


def test_reranking_is_average_precision_of_cosine(tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    values = []
    for row in tiny("reranking").data["test"]:
        vector = encode_words([row["query"]])[0]
        texts = row["positive"] + row["negative"]
        scores = {f"{number}": cosine(vector, one) for number, one in enumerate(encode_words(texts))}
        values.append(average_precision(scores, {f"{number}": 1 for number in range(len(row["positive"]))}, 1000))
    assert outcome("reranking").main_score == pytest.approx(np.mean(values), abs=1e-5)


def test_summarization_is_the_mean_spearman_of_the_best_cosine(tiny: Any, outcome: Callable[[str], Outcome]) -> None:
    values = []
    for row in tiny("summarization").data["test"]:
        references = encode_words(row["references"])
        best = [max(cosine(encode_words([text])[0], one) for one in references) for text, _ in row["summaries"]]
        values.append(spearmanr(best, [human for _, human in row["summaries"]]).statistic)
    assert outcome("summarization").main_score == pytest.approx(np.mean(values), abs=1e-6)


def test_ndcg_by_hand() -> None:
    # Ranking a b c with gains 0 1 2: 0/1 + 1/log2(3) + 2/2. The best ranking c b a: 2/1 + 1/log2(3).
    scores = {"a": 0.9, "b": 0.8, "c": 0.7}
    relevant = {"b": 1, "c": 2}
    third = 1 / np.log2(3)
    assert ndcg(scores, relevant, 10) == pytest.approx((third + 1) / (2 + third))
    assert ndcg(scores, relevant, 2) == pytest.approx(third / (2 + third))
    assert ndcg(scores, {**relevant, "unseen": 2}, 10) == pytest.approx((third + 1) / (2 + 2 * third + 1 / 2))
    assert ndcg(scores, {"a": 0, "b": -1}, 10) == 0.0


def test_average_precision_by_hand() -> None:
    # Ranking a b c d, relevant b and d: precision 1/2 at the first, 2/4 at the second.
    scores = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    assert average_precision(scores, {"b": 1, "d": 2}, 4) == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert average_precision(scores, {"b": 1, "d": 2}, 3) == pytest.approx((1 / 2) / 2)
    assert average_precision(scores, {"b": 1, "unseen": 1}, 4) == pytest.approx((1 / 2) / 2)
    assert average_precision(scores, {"a": 0}, 4) == 0.0


def test_ties_are_ranked_by_descending_id() -> None:
    assert average_precision({"a": 1.0, "b": 1.0}, {"b": 1}, 2) == 1.0
    assert average_precision({"a": 1.0, "b": 1.0}, {"a": 1}, 2) == 0.5


@given(st.integers(0, 2**32 - 1), st.integers(1, 25), st.integers(1, 30))
def test_measures_of_a_query_are_the_evaluators_own_with_ties_and_all(seed: int, size: int, depth: int) -> None:
    import pytrec_eval
    from mteb._evaluators.retrieval_metrics import mrr

    draw = random.Random(seed)
    scores = {f"d{number}": draw.randint(0, 4) / 4 for number in range(size)}
    relevant = {f"d{number}": draw.randint(0, 3) for number in draw.sample(range(30), 18)}
    theirs = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall", "precision": "P", "hit_rate": "success"}
    evaluator = pytrec_eval.RelevanceEvaluator({"q": relevant}, {f"{measure}.{depth}" for measure in theirs.values()})
    found = evaluator.evaluate({"q": scores})["q"]
    expected = {name: found[f"{measure}_{depth}"] for name, measure in theirs.items()}
    expected["mrr"] = mrr({"q": relevant}, {"q": scores}, [depth])[f"MRR@{depth}"][0]
    ours = {name: measure(scores, relevant, depth) for name, measure in MEASURES.items()}
    assert ours == pytest.approx(expected, abs=1e-9)


def test_queries_that_are_parts_of_one_take_the_best_score_of_a_document() -> None:
    # a_1 puts x first, a_2 puts y first; with the best scores y is before x and z. b has one part.
    results = {"a_1": {"x": 0.5, "y": 0.1}, "a_2": {"y": 0.9, "z": 0.2}, "b_1": {"x": 0.1, "y": 0.2}}
    relevant = {"a_1": {"y": 1}, "a_2": {"y": 1}, "b_1": {"x": 1}}
    merged = per_query("max_over_subqueries_map_at_1000", results, relevant)
    assert merged is not None and list(merged) == [1.0, 0.5]
    apart = per_query("map_at_1000", results, relevant)
    assert apart is not None and list(apart) == [0.5, 1.0, 0.5]
    assert per_query("p-MRR", results, relevant) is None


def test_abstention_is_left_out_here_and_not_in_mteb(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mteb._evaluators import retrieval_metrics

    areas: list[Any] = []
    of_mteb = retrieval_metrics.evaluate_abstention
    monkeypatch.setattr(retrieval_metrics, "nauc", lambda *given: areas.append(given))
    evaluate(tiny("retrieval"), "words", encode_words)
    assert not areas and retrieval_metrics.evaluate_abstention is of_mteb
    retrieval_metrics.evaluate_abstention({"q": {"a": 1.0, "b": 0.5}}, {"NDCG@1": [1.0]})
    assert areas


# --- what vectors deserve --------------------------------------------------------------------------------------------


def axis(number: int) -> Vectors:
    return np.asarray(np.arange(64) == number, np.float32)


def towards(target: Vectors, closeness: float, aside: int) -> Vectors:
    """A unit vector whose cosine with the target is the closeness."""
    return np.asarray(closeness * target + np.sqrt(1 - closeness**2) * axis(aside), np.float32)


def perfect(task: LocalTask) -> dict[str, Vectors]:
    """Vectors of every text under which the task is solved."""
    vectors: dict[str, Vectors] = {}
    for number, row in enumerate([*task.data.get("train", []), *task.data.get("test", [])]):
        if task.kind in ("sts", "pair-classification"):
            gold = row["score"] / 8 if task.kind == "sts" else row["label"]
            vectors |= {row["sentence1"]: axis(number), row["sentence2"]: towards(axis(number), gold, 63)}
        elif task.kind in ("classification", "clustering"):
            vectors[row["text"]] = axis(["music", "sport"].index(row["label"]))
        elif task.kind == "reranking":
            vectors |= {text: axis(number) for text in [row["query"], *row["positive"]]}
            vectors |= {text: axis(63) for text in row["negative"]}
        else:
            vectors |= {text: axis(number) for text in row["references"]}
            vectors |= {text: towards(axis(number), human / 5, 63) for text, human in row["summaries"]}
    return vectors


def perfect_search(task: LocalTask) -> dict[str, Vectors]:
    place = {row["_id"]: number for number, row in enumerate(task.data["queries"])}
    vectors = {row["text"]: axis(place[row["_id"]]) for row in task.data["queries"]}
    gains = {row["corpus-id"]: (place[row["query-id"]], row["score"] / 2) for row in task.data["qrels"]}
    for number, row in enumerate(task.data["corpus"]):
        query, closeness = gains[row["_id"]]
        vectors[f"{row['title']} {row['text']}".strip()] = towards(axis(query), closeness, 20 + number)
    return vectors


def solved(task: LocalTask) -> dict[str, Vectors]:
    return perfect_search(task) if task.kind == "retrieval" else perfect(task)


def shuffled(vectors: dict[str, Vectors]) -> dict[str, Vectors]:
    order = list(vectors.values())
    random.Random(1).shuffle(order)
    return dict(zip(vectors, order, strict=True))


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_perfect_vectors_score_one_and_shuffled_ones_do_not(kind: str, tiny: Any) -> None:
    vectors = solved(tiny(kind))
    assert evaluate(tiny(kind), "perfect", looked_up(vectors)).main_score == pytest.approx(1.0, abs=1e-6)
    assert evaluate(tiny(kind), "shuffled", looked_up(shuffled(vectors))).main_score < 0.9


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the mean over no summary at all
@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_one_vector_for_all_texts_is_a_low_finite_score(kind: str, tiny: Any) -> None:
    task = tiny(kind)
    found = evaluate(task, "constant", constant)
    ranking = kind in ("retrieval", "reranking")  # ranked by id, so not nothing, but never well
    assert 0.0 <= found.main_score <= (0.6 if ranking or "classification" in kind else 0.0)
    assert all(np.isfinite(value) for value in found.scores.values())


def test_ties_put_the_positives_of_a_reranking_query_last(tiny: Any) -> None:
    # Three negatives, then two positives: (1/4 + 2/5) / 2. Ids that said "positive" first would score 1.
    assert evaluate(tiny("reranking"), "constant", constant).main_score == pytest.approx((1 / 4 + 2 / 5) / 2, abs=1e-5)


def test_summaries_of_equal_vectors_leave_no_items_to_pair(tiny: Any) -> None:
    task = tiny("summarization")
    same = dict.fromkeys([text for text, _ in task.data["test"][0]["summaries"]], axis(0))
    found = evaluate(task, "partly constant", looked_up({**solved(task), **same}))
    assert found.main_score == pytest.approx(1.0)  # over the other texts
    assert found.items is None


def test_vectors_that_are_no_numbers_are_refused(tiny: Any) -> None:
    def broken(texts: Sequence[str], _: str | None) -> Vectors:
        return np.full((len(texts), 3), np.nan, np.float32)

    with pytest.raises(UnmaskError, match="hold nan or infinite numbers, so they have no score"):
        evaluate(tiny("sts"), "broken", broken)


def test_v_measure_finds_clusters_in_noise_where_ami_does_not(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": f"label {number % 12}"} for number in range(120)]
    write_rows(tmp_path / "all.jsonl", rows)
    found = evaluate(read(tmp_path), "noise", lambda texts, _: noise(texts))
    assert found.main_score > 0.25
    assert abs(found.scores["ami"]) < 0.08


def noise(texts: Sequence[str]) -> Vectors:
    return np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "side"),
    [
        ("sts", {"cosine_pearson"}),
        ("pair-classification", {"cosine_f1"}),
        ("classification", {"f1"}),
        ("clustering", {"ami"}),
        ("retrieval", {"recall_at_10", "mrr_at_10", "map_at_10"}),
        ("reranking", {"recall_at_10", "mrr_at_10", "map_at_10"}),
        ("summarization", {"cosine_pearson"}),
    ],
)
def test_side_scores_are_kept(kind: str, side: set[str], outcome: Callable[[str], Outcome]) -> None:
    found = outcome(kind)
    assert set(found.scores) == side
    assert found.metric not in side


# --- instructions ----------------------------------------------------------------------------------------------------


class Recorder:
    """An encoder that remembers which texts came with which instruction."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str | None]] = {}

    def __call__(self, texts: Sequence[str], instruction: str | None) -> Vectors:
        for text in texts:
            self.seen.setdefault(text, set()).add(instruction)
        return encode_words(texts)


def instructions(task: LocalTask, texts: Sequence[str]) -> set[str | None]:
    recorder = Recorder()
    evaluate(task, "recorder", recorder)
    return set().union(*(recorder.seen[text] for text in texts))


@pytest.mark.parametrize(("kind", "texts", "queries"), [("retrieval", "corpus", "queries"), ("reranking", "", "")])
def test_queries_get_the_instruction_and_documents_none(kind: str, texts: str, queries: str, tmp_path: Path) -> None:
    task = read(write_task(tmp_path, kind, 'instruction = "Find it."'))
    if kind == "retrieval":
        asked = [row["text"] for row in task.data[queries]]
        searched = [f"{row['title']} {row['text']}".strip() for row in task.data[texts]]
    else:
        asked = [row["query"] for row in task.data["test"]]
        searched = [text for row in task.data["test"] for text in row["positive"] + row["negative"]]
    assert instructions(task, asked) == {"Find it."}
    assert instructions(task, searched) == {None}


@pytest.mark.parametrize("kind", ["sts", "pair-classification", "classification", "clustering", "summarization"])
def test_where_texts_have_no_role_all_get_the_instruction_of_the_task(kind: str, tmp_path: Path) -> None:
    recorder = Recorder()
    evaluate(read(write_task(tmp_path, kind, 'instruction = "Compare."')), "recorder", recorder)
    assert set().union(*recorder.seen.values()) == {"Compare."}


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_a_task_that_states_no_instruction_gets_that_of_its_kind(kind: str, tiny: Any) -> None:
    recorder = Recorder()
    evaluate(tiny(kind), "recorder", recorder)
    found = set().union(*recorder.seen.values()) - {None}
    assert len(found) == 1
    assert len(str(next(iter(found)))) > 10


# --- around mteb -----------------------------------------------------------------------------------------------------


def test_a_task_may_be_called_anything(tmp_path: Path) -> None:
    task = read(write_task(tmp_path, "sts", 'name = "my team/sts: v1 (ü)"'))
    assert evaluate(task, "a/b", encode_words).main_score > 0.5


def test_mteb_leaves_logging_and_bars_as_they_were(tiny: Any, capfd: pytest.CaptureFixture[str]) -> None:
    import datasets

    logging.disable(logging.NOTSET)
    datasets.enable_progress_bars()
    for kind in TEXT_KINDS:
        evaluate(tiny(kind), "words", encode_words)
    assert (logging.root.manager.disable, datasets.are_progress_bars_disabled()) == (logging.NOTSET, False)
    assert capfd.readouterr().out == ""


def test_labels_may_look_like_numbers_or_not(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "classification")
    named = evaluate(read(folder), "words", encode_words).main_score
    for part, rows in {"train": labelled(0, 16), "test": labelled(16, 12)}.items():
        write_rows(folder / f"{part}.jsonl", [{**row, "label": int(row["label"] == "sport")} for row in rows])
    assert evaluate(read(folder), "words", encode_words).main_score == named


def test_a_name_in_mteb_has_one_of_our_kinds() -> None:
    assert {name: catalogue.find(name).kind for name in ("STS12", "SciFact", "Banking77Classification", "SummEval")} == {
        "STS12": "sts",
        "SciFact": "retrieval",
        "Banking77Classification": "classification",
        "SummEval": "summarization",
    }


# --- mteb.evaluate with an embedder ------------------------------------------------------------------------------------


def by_mteb(embedder: Any, task: LocalTask, **options: Any) -> float:
    """What `mteb.evaluate` itself says of an embedder."""
    import mteb

    with catalogue.quiet():
        (found,) = mteb.evaluate(embedder, build(task), cache=None, show_progress_bar=False, **options).task_results
    return float(found.get_score())


@pytest.mark.sample(6)
@pytest.mark.parametrize("design", ["causal/plain/mean", "causal/instruction/mean/zscore"])
@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_mteb_scores_an_embedder_as_a_comparison_does(kind: str, design: str, tiny: Any, pico: Any) -> None:
    embedder, task = pico(design), tiny(kind)
    assert by_mteb(embedder, task) == pytest.approx(embedder_score(embedder, [task])[task.name], abs=1e-6)


def test_mteb_keeps_results_of_different_vectors_apart(tiny: Any, pico: Any) -> None:
    one, two = pico("causal/plain/mean/zscore").mteb_model_meta, pico("causal/plain/mean").mteb_model_meta
    refitted = pico("causal/plain/mean/zscore").fit(["one text", "another text", "a third"]).mteb_model_meta
    assert len({str(meta.experiment_kwargs) for meta in (one, two, refitted)}) == 3
    assert one.revision == two.revision != pico(family="qwen2").mteb_model_meta.revision
    assert one.name.startswith("unmask/")


@pytest.mark.parametrize("change", ["special token", "normalizer", "added token", "special names as letters"])
def test_mteb_keeps_results_of_different_tokenizers_apart(change: str, pico: Any) -> None:
    model, tokenizer = pico().backbone.model, make_tokenizer(add_bos=change == "special token")
    if change == "normalizer":
        tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    elif change == "added token":
        tokenizer.add_tokens(["guitar"])
        model.resize_token_embeddings(len(tokenizer))
    elif change == "special names as letters":
        tokenizer.split_special_tokens = True
    before, again, other = (
        Embedder.from_model(model, reader, "causal/plain/mean") for reader in (make_tokenizer(), make_tokenizer(), tokenizer)
    )
    before.tokenizer(["of the last call", "x"], padding=True, truncation=True, max_length=3)
    assert before.mteb_model_meta == again.mteb_model_meta != other.mteb_model_meta


def test_weights_are_not_turned_into_numbers_of_python(pico: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = pico("causal/plain/mean/zscore")
    assert embedder.fitted.tensors
    monkeypatch.setattr(torch.Tensor, "tolist", lambda _: pytest.fail("a head has millions of numbers"))
    assert embedder.mteb_model_meta.experiment_kwargs


def test_an_option_of_mteb_that_would_change_nothing_is_refused(tiny: Any, pico: Any) -> None:
    assert by_mteb(pico(), tiny("sts"), encode_kwargs={"batch_size": 3})
    with pytest.raises(UnmaskError, match="no option 'convert_to_tensor'"):
        by_mteb(pico(), tiny("sts"), encode_kwargs={"convert_to_tensor": True})
