"""BM25: the scores of its formula, the same after saving, and the nDCG that is published for scifact."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from unmask.errors import UnmaskError
from unmask.search.documents import joined
from unmask.search.fusion import best
from unmask.search.keywords import K1, B, Keywords, stemmer
from unmask.tasks.mteb.ranking import ndcg

TEXTS = ["The cats sat.", "A cat and a dog, and a cat.", "Nothing", "", "dog dog dog"]


def by_hand(word: str, texts: list[list[str]]) -> list[float]:
    """Lucene's BM25 of one word."""
    holding = sum(word in words for words in texts)
    rarity = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
    mean = sum(map(len, texts)) / len(texts)
    return [rarity * words.count(word) / (words.count(word) + K1 * (1 - B + B * len(words) / mean)) for words in texts]


def test_scores_are_those_of_the_formula() -> None:
    words = [["the", "cat", "sat"], ["a", "cat", "and", "a", "dog", "and", "a", "cat"], ["noth"], [], ["dog"] * 3]
    found = Keywords.build(TEXTS, "english").scores("Cats, dogs!", 5)
    expected = np.array(by_hand("cat", words)) + by_hand("dog", words)
    assert found == pytest.approx(expected, rel=1e-6)


def test_without_stems_words_are_as_they_are() -> None:
    found = Keywords.build(TEXTS, "none").scores("CATS", 5)
    assert found[0] > 0 and not found[1:].any()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我住在北京市" * 20, "北京"),
        ("私は東京都に住んでいます。", "東京都"),
        ("コーヒーとカフェラテ", "カフェ"),
        ("ฉันรักแมวมาก", "แมว"),
        ("ຂ້ອຍຮັກແມວຫຼາຍ", "ແມວ"),
        ("ខ្ញុំស្រឡាញ់ឆ្មាណាស់", "ឆ្មា"),
        ("ကျွန်တော်ကြောင်ချစ်တယ်", "ကြောင်"),
        ("新しいiPhoneケース", "IPHONE"),
    ],
)
def test_a_word_without_spaces_around_it_is_found(text: str, query: str) -> None:
    found = Keywords.build(["Nothing", text, "한국어"], "english").scores(query, 3)
    assert (found > 0).tolist() == [False, True, False]


def test_a_run_without_spaces_is_its_overlapping_pairs() -> None:
    runs, spaced = ["東京都に", "京", "東京"], ["東京 京都 都に", "京", "東京"]
    for query in ("東京都", "京", "京都"):
        found = Keywords.build(runs, "none").scores(query, 3)
        assert found.any() and found.tolist() == Keywords.build(spaced, "none").scores(query, 3).tolist()


@pytest.mark.parametrize("query", ["zebra", "", "!?", "x" * 1000])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert not Keywords.build(TEXTS, "english").scores(query, 5).any()


@pytest.mark.parametrize("texts", [TEXTS, ["", "!!"], ["x" * 10_000]])
def test_saved_is_the_same(texts: list[str], tmp_path: Path) -> None:
    built = Keywords.build(texts, "english")
    built.save(tmp_path / "words")
    opened = Keywords.open(tmp_path / "words", "english")
    for query in ("cat dog", "", "zebra", "nothing"):
        assert opened.scores(query, len(texts)).tolist() == built.scores(query, len(texts)).tolist()


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(UnmaskError, match="Unknown language 'klingon'"):
        stemmer("klingon")


@pytest.mark.sample(0)
def test_scifact_reaches_the_published_score(data: Path) -> None:
    def read(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (data / "scifact" / name).read_text(encoding="utf-8").splitlines()]

    corpus, queries = read("corpus.jsonl"), {row["_id"]: row["text"] for row in read("queries.jsonl")}
    ids = [row["_id"] for row in corpus]
    keywords = Keywords.build((joined(row["title"], row["text"]) for row in corpus), "english")
    relevant: dict[str, dict[str, int]] = {}
    for line in (data / "scifact" / "qrels_test.tsv").read_text().splitlines()[1:]:
        query, document, gain = line.split("\t")
        relevant.setdefault(query, {})[document] = int(gain)
    values = []
    for query, gains in relevant.items():
        scores = keywords.scores(queries[query], len(ids))
        found = best(np.flatnonzero(scores), scores[scores > 0], 10)
        values.append(ndcg({ids[row]: score for row, score in zip(found.rows, found.scores, strict=True)}, gains, 10))
    assert len(values) == 300
    assert np.mean(values) == pytest.approx(0.679, abs=0.005)  # Anserini's in BEIR
