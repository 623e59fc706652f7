"""mteb's scores on local folders are those of the items, and of mteb's own run of an embedder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import normalizers

from tests.conftest import make_tokenizer
from tests.tiny import encode_words, labelled, write_rows, write_task
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.evaluation.embedder_scores import score as embedder_score
from unmask.statistics.bootstrap import score
from unmask.statistics.paired import paired_bootstrap
from unmask.tasks.find import find_task
from unmask.tasks.kinds import TEXT_KINDS
from unmask.tasks.kinds.clustering import Clustering
from unmask.tasks.mteb import catalogue
from unmask.tasks.mteb.evaluator import build, evaluate
from unmask.tasks.mteb.ranking import ndcg, per_query
from unmask.tasks.task import LocalTask

Vectors = NDArray[np.float32]
RANKING = {"recall_at_10", "mrr_at_10", "map_at_10"}
KINDS = {
    "sts": ("spearman", {"cosine_pearson"}),
    "pair-classification": ("average-precision", {"cosine_f1"}),
    "classification": ("mean", {"f1"}),
    "clustering": ("v-measure", {"ami"}),
    "retrieval": ("mean", RANKING),
    "reranking": ("mean", RANKING),
    "summarization": ("mean", {"cosine_pearson"}),
}
"""The metric of the items of each kind, and the other scores that are kept."""


def read(folder: Path) -> LocalTask:
    task = find_task(str(folder))
    assert isinstance(task, LocalTask)
    return task


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LocalTask]:
    """The tiny task of a kind."""
    folder = tmp_path_factory.mktemp("tiny")
    return lambda kind: read(write_task(folder / kind, kind))


def constant(texts: Sequence[str], _: str | None) -> Vectors:
    return np.ones((len(texts), 3), np.float32)


def noisy(texts: Sequence[str], _: str | None) -> Vectors:
    return np.asarray(encode_words(texts) + np.random.default_rng(0).normal(0, 3, (len(texts), 16)), np.float32)


# --- items -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_the_main_score_is_that_of_the_items_which_pair_with_those_of_another_design(kind: str, tiny: Any) -> None:
    task, (metric, other_scores) = tiny(kind), KINDS[kind]
    outcome = evaluate(task, "words", encode_words)
    assert outcome.items is not None
    assert score(outcome.items) == pytest.approx(outcome.main_score, abs=1e-4)
    assert 0.05 < outcome.main_score < 0.995  # at an end of the scale, equality would say nothing
    assert (outcome.items.metric, outcome.items.n, set(outcome.scores)) == (metric, task.size, other_scores)
    again = evaluate(task, "other-name", encode_words)
    assert (again.main_score, again.scores) == (outcome.main_score, outcome.scores)
    noise = evaluate(task, "noisy", noisy).items
    assert noise is not None
    paired_bootstrap([outcome.items], [noise], 10)  # refuses items with another gold


def test_clustering_items_follow_the_texts_that_mteb_keeps_of_a_large_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its own tasks embed a part of their texts and draw more than these: copies of a text are one item
    part = {"max_fraction_of_documents_to_embed": 0.3, "input_column_name": "text", "label_column_name": "label"}
    monkeypatch.setattr(Clustering, "mteb_settings", lambda *_: {**part, "max_documents_per_cluster": 50})
    write_rows(tmp_path / "all.jsonl", labelled(0, 120))
    items = (outcome := evaluate(read(tmp_path), "words", encode_words)).items
    assert items is not None and items.n == 36 and set(items.columns["weight"].sum(axis=0)) == {50}
    assert score(items) == pytest.approx(outcome.main_score, abs=1e-6)


def test_ndcg_by_hand() -> None:
    # Ranking a b c with gains 0 1 2: 0/1 + 1/log2(3) + 2/2. The best ranking c b a: 2/1 + 1/log2(3).
    scores, relevant, third = {"a": 0.9, "b": 0.8, "c": 0.7}, {"b": 1, "c": 2}, 1 / np.log2(3)
    assert ndcg(scores, relevant, 10) == pytest.approx((third + 1) / (2 + third))
    assert ndcg(scores, relevant, 2) == pytest.approx(third / (2 + third))
    assert ndcg(scores, {"a": 0, "b": -1}, 10) == 0.0
    assert per_query("p-MRR", {}, {}) is None


def test_abstention_is_left_out_here_and_not_in_mteb(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mteb._evaluators import retrieval_metrics

    areas: list[Any] = []
    evaluate_abstention = retrieval_metrics.evaluate_abstention
    monkeypatch.setattr(retrieval_metrics, "nauc", lambda *scores: areas.append(scores))
    evaluate(tiny("retrieval"), "words", encode_words)
    assert not areas and retrieval_metrics.evaluate_abstention is evaluate_abstention
    retrieval_metrics.evaluate_abstention({"q": {"a": 1.0, "b": 0.5}}, {"NDCG@1": [1.0]})
    assert areas


# --- odd vectors -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the mean over no summary at all
@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_one_vector_for_all_texts_is_a_low_finite_score(kind: str, tiny: Any) -> None:
    outcome = evaluate(tiny(kind), "constant", constant)
    assert 0.0 <= outcome.main_score <= (0.6 if "classification" in kind or kind == "retrieval" else 0.33)
    assert all(np.isfinite(value) for value in outcome.scores.values())
    if kind == "reranking":  # three negatives, then two positives: ties put the positives last
        assert outcome.main_score == pytest.approx((1 / 4 + 2 / 5) / 2, abs=1e-5)


def test_summaries_of_equal_vectors_leave_no_items_to_pair(tiny: Any) -> None:
    task = tiny("summarization")
    first = {text for text, _ in task.data["test"][0]["summaries"]}
    outcome = evaluate(
        task,
        "partly constant",
        lambda texts, _: np.stack([encode_words(["x" if text in first else text])[0] for text in texts]),
    )
    assert outcome.main_score > 0 and outcome.items is None


def test_vectors_that_are_not_numbers_are_refused(tiny: Any) -> None:
    with pytest.raises(UnmaskError, match="hold nan or infinite numbers, so they have no score"):
        evaluate(tiny("sts"), "broken", lambda texts, _: np.full((len(texts), 3), np.nan, np.float32))


def test_v_measure_finds_clusters_in_noise_and_ami_does_not(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": f"label {number % 12}"} for number in range(120)]
    write_rows(tmp_path / "all.jsonl", rows)
    noise = np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32)
    outcome = evaluate(read(tmp_path), "noise", lambda texts, _: noise[: len(texts)])
    assert outcome.main_score > 0.25
    assert abs(outcome.scores["ami"]) < 0.08


# --- instructions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("toml", ["", 'instruction = "Find it."'])
@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_all_texts_but_documents_get_the_instruction_of_the_task_or_of_its_kind(kind: str, toml: str, tmp_path: Path) -> None:
    seen: dict[str | None, set[str]] = {}

    def recorded(texts: Sequence[str], instruction: str | None) -> Vectors:
        seen.setdefault(instruction, set()).update(texts)
        return encode_words(texts)

    task = read(write_task(tmp_path, kind, toml))
    evaluate(task, "recorded", recorded)
    [instruction] = seen.keys() - {None}
    assert instruction == "Find it." if toml else len(instruction or "") > 10
    if kind == "retrieval":
        assert seen[instruction] == {row["text"] for row in task.data["queries"]}
        assert seen[None] == {f"{row['title']} {row['text']}".strip() for row in task.data["corpus"]}
    elif kind == "reranking":
        assert seen[instruction] == {row["query"] for row in task.data["test"]}
    else:
        assert None not in seen


# --- around mteb -----------------------------------------------------------------------------------------------------


def test_a_task_may_be_called_anything(tmp_path: Path) -> None:
    task = read(write_task(tmp_path, "sts", 'name = "my team/sts: v1 (ü)"'))
    assert evaluate(task, "a/b", encode_words).main_score > 0.5


def test_mteb_leaves_logging_and_bars_as_they_were(tiny: Any, capfd: pytest.CaptureFixture[str]) -> None:
    import datasets

    logging.disable(logging.NOTSET)
    datasets.enable_progress_bars()
    evaluate(tiny("classification"), "words", encode_words)
    assert (logging.root.manager.disable, datasets.are_progress_bars_disabled()) == (logging.NOTSET, False)
    assert capfd.readouterr().out == ""


def test_labels_may_look_like_numbers_or_not(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "classification")
    named = evaluate(read(folder), "words", encode_words).main_score
    for part, rows in {"train": labelled(0, 16), "test": labelled(16, 12)}.items():
        write_rows(folder / f"{part}.jsonl", [{**row, "label": int(row["label"] == "sport")} for row in rows])
    assert evaluate(read(folder), "words", encode_words).main_score == named


# --- mteb.evaluate with an embedder ------------------------------------------------------------------------------------


def by_mteb(embedder: Any, task: LocalTask, **options: Any) -> float:
    """What `mteb.evaluate` itself says of an embedder."""
    import mteb

    with catalogue.quiet():
        (result,) = mteb.evaluate(embedder, build(task), cache=None, show_progress_bar=False, **options).task_results
    return float(result.get_score())


@pytest.mark.sample(6)
@pytest.mark.parametrize("design", ["causal/plain/mean", "causal/instruction/mean/zscore"])
@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_mteb_scores_an_embedder_as_a_comparison_does(kind: str, design: str, tiny: Any, pico: Any) -> None:
    embedder, task = pico(design), tiny(kind)
    assert by_mteb(embedder, task) == pytest.approx(embedder_score(embedder, [task])[task.name], abs=1e-6)


def test_mteb_keeps_results_of_different_vectors_apart(tiny: Any, pico: Any) -> None:
    fitted, plain = pico("causal/plain/mean/zscore").mteb_model_meta, pico("causal/plain/mean").mteb_model_meta
    refitted = pico("causal/plain/mean/zscore").fit(["one text", "another text", "a third"]).mteb_model_meta
    assert len({str(meta.experiment_kwargs) for meta in (fitted, plain, refitted)}) == 3
    assert fitted.revision == plain.revision != pico(family="qwen2").mteb_model_meta.revision
    assert (plain.embed_dim, plain.max_tokens, plain.training_datasets) == (64, 512, set()) and plain.n_parameters > 0
    with pytest.raises(UnmaskError, match="no option 'convert_to_tensor'"):
        by_mteb(pico(), tiny("sts"), encode_kwargs={"convert_to_tensor": True})


@pytest.mark.parametrize("change", ["special token", "normalizer", "special names as letters"])
def test_mteb_keeps_results_of_different_tokenizers_apart(change: str, pico: Any) -> None:
    model, tokenizer = pico().backbone.model, make_tokenizer(add_bos=change == "special token")
    if change == "normalizer":
        tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    elif change == "special names as letters":
        tokenizer.split_special_tokens = True
    before, again, other = (
        Embedder.from_model(model, reader, "causal/plain/mean") for reader in (make_tokenizer(), make_tokenizer(), tokenizer)
    )
    assert before.mteb_model_meta == again.mteb_model_meta != other.mteb_model_meta
