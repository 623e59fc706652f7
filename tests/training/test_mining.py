"""Mining: what may be a negative, in which order, against sentence-transformers' miner and against vectors that can be read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from tests.tiny import write_rows
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.training.data import DataSet, DataSource, Example, read_pairs
from unmask.training.mining import hardest_negatives, mine, read_corpus
from unmask.training.text_keys import several_positives


def at(*degrees: float) -> NDArray[np.float32]:
    """Unit vectors at these angles: nearer angles are more alike."""
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1).astype(np.float32)


def chosen(count: int, ratio: float | None, matches: set[int] = frozenset({0})) -> list[int]:  # type: ignore[assignment]
    """Negatives of an anchor at 0 whose positive is at 30, in a pool at 30 (the positive), 10, 40, 60, 89 and 170 degrees."""
    return hardest_negatives(at(0), at(30), at(30, 10, 40, 60, 89, 170), [set(matches)], count, ratio)[0]


def test_the_most_alike_come_first_and_what_is_right_never() -> None:
    assert chosen(6, None) == [1, 2, 3, 4, 5]
    assert chosen(2, None, {0, 1}) == [2, 3]


def test_a_ratio_leaves_out_what_is_nearly_as_alike_as_the_positive() -> None:
    assert chosen(1, 1) == [2]  # cos 30 = .866: all above it go
    assert chosen(1, 0.8) == [3]  # below .693: 40 degrees (.766) goes


def test_a_positive_that_points_away_still_bounds_its_negatives() -> None:
    found = hardest_negatives(at(0), at(120), at(120, 118, 121, 125, 170), [{0}], 4, 0.9)
    assert found == [[3, 4]], (
        "cos 120 = -.5, and a tenth of its size below it is -.55: a share of it would let 118 and 121 through"
    )


def test_equals_rank_by_their_place_in_blocks_of_any_size() -> None:
    draw = np.random.default_rng(0)
    pool = draw.integers(-1, 2, (40, 3)).astype(np.float32) + np.float32(0.1)
    pool /= np.linalg.norm(pool, axis=1, keepdims=True)
    right = [{place} for place in range(40)]
    whole = hardest_negatives(pool, pool, pool, right, 5, None)
    expected = []
    for place in range(40):
        scores = (pool @ pool.T)[place]
        expected.append(sorted((one for one in range(40) if one != place), key=lambda one: (-scores[one], one))[:5])
    assert whole == expected
    assert whole == hardest_negatives(pool, pool, pool, right, 5, None, block_bytes=1)


class Angles:
    """An embedder of texts that end with an angle, and that tells what it was asked; a text "40!" is at 40 degrees too."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str], object]] = []

    def encode_query(self, texts: list[str], **options: object) -> NDArray[np.float32]:
        self.asked.append(("query", texts, options.get("instruction")))
        return 3 * at(*(float(text.split()[-1].strip("!")) for text in texts))

    def encode_document(self, texts: list[str], **options: object) -> NDArray[np.float32]:
        self.asked.append(("document", texts, options.get("instruction")))
        return 2 * at(*(float(text.split()[-1].strip("!")) for text in texts))


def pairs(*rows: tuple[str, ...], **source: Any) -> DataSet:
    examples = [Example(number, row) for number, row in enumerate(rows, start=1)]
    columns = ("anchor", "positive", "negative")[: len(rows[0])]
    return DataSet("set", columns, examples, DataSource(path="x", **source), {"repeated": 2})


def mined(data: DataSet, corpus: Sequence[str] = (), negatives: int = 1) -> list[tuple[str, ...]]:
    mined = mine(Angles(), data, negatives=negatives, ratio=None, corpus=corpus)  # type: ignore[arg-type]
    return [example.texts for example in mined.dataset.examples]


def test_negatives_come_from_the_other_positives_and_the_corpus() -> None:
    data = pairs(("0", "20"), ("90", "100"))
    assert mined(data) == [("0", "20", "100"), ("90", "100", "20")]
    assert mined(data, corpus=("50", "80")) == [("0", "20", "50"), ("90", "100", "80")]
    assert mined(pairs(("0", "20", "9"), ("90", "100", "9"))) == mined(data), "negatives that were there go"


def test_no_text_that_is_right_becomes_a_negative() -> None:
    assert mined(pairs(("0", "20"), ("0", "30"), ("90", "100"))) == [
        ("0", "20", "100"),
        ("0", "30", "100"),
        ("90", "100", "30"),
    ]
    assert mined(pairs(("0", "20"), ("90", "0"), ("91", "100")))[0] == ("0", "20", "100"), "the anchor itself"
    assert mined(pairs(("0", "20"), ("!0", "30!"), ("90", "100")), corpus=("30",))[0] == ("0", "20", "100"), "in any spelling"


def test_positives_of_rows_that_were_not_drawn_are_right_too() -> None:
    data = replace(pairs(("0", "20"), ("90", "100")), positives=several_positives([("0", "20"), ("0", "30")]))
    assert mined(data, corpus=("30!", "50")) == [("0", "20", "50"), ("90", "100", "50")]


def test_a_corpus_is_read_as_the_positives_of_a_folder(tmp_path: Path) -> None:
    documents = [
        {"_id": "d1", "title": "Songs", "text": "20"},
        {"_id": "d2", "text": " "},
        {"_id": "d3", "title": "", "text": "50"},
    ]
    corpus = str(write_rows(tmp_path / "corpus.jsonl", [*documents, {"_id": "d4", "text": "100"}]))
    write_rows(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "0"}, {"_id": "q2", "text": "90"}])
    judged = [{"query-id": query, "corpus-id": document, "score": 1} for query, document in (("q1", "d1"), ("q2", "d4"))]
    write_rows(tmp_path / "qrels_train.tsv", judged)
    source = DataSource(path=str(tmp_path))
    found = read_corpus(corpus, source)
    assert found == ["Songs 20", "50", "100"]
    negatives = mined(read_pairs("folder", source, Path(), 0), corpus=found)
    assert negatives == [("0", "Songs 20", "50"), ("90", "100", "50")], "the positive alone would be nearer than 50"
    of_file = read_corpus(corpus, DataSource(path="pairs.jsonl"))
    assert of_file == ["20", "50", "100"], "a file of pairs says nothing of titles"


@pytest.mark.filterwarnings("ignore:Any text")
def test_pairs_with_too_few_negatives_are_left_out_and_counted() -> None:
    data = pairs(("0", "20"), ("90", "100"))
    result = mine(Angles(), data, corpus=["10"])  # type: ignore[arg-type]
    assert [example.texts for example in result.dataset.examples] == [("0", "20", "100"), ("90", "100", "20")]
    far = mine(Angles(), pairs(("0", "80"), ("90", "100")), ratio=0.5)  # type: ignore[arg-type]
    assert [example.row for example in far.dataset.examples] == [1]
    assert far.dataset.skipped == {"repeated": 2, "too few negatives": 1}
    with pytest.raises(UnmaskError, match="no pair has 5 texts"):
        mined(data, negatives=5)


def test_what_comes_out_is_a_data_set_with_its_cosines() -> None:
    result = mine(Angles(), pairs(("0", "60"), ("90", "90!")), ratio=None)  # type: ignore[arg-type]
    found = result.dataset
    assert found.columns == ("anchor", "positive", "negative_1") and found.kind == "pairs"
    assert [example.row for example in found.examples] == [1, 2]
    assert result.positive_cosine == pytest.approx((0.5 + 1) / 2, abs=1e-6)
    assert result.negative_cosine == pytest.approx((0 + np.cos(np.radians(30))) / 2, abs=1e-6)
    assert result.any_cosine == pytest.approx((0.5 + 0 + np.cos(np.radians(30)) + 1) / 4, abs=1e-6)


def test_a_ratio_among_vectors_that_all_point_one_way_is_warned_about() -> None:
    near, wide = pairs(("0", "1"), ("20", "21")), pairs(("0", "1"), ("90", "91"))
    with pytest.warns(UserWarning, match=r"Any text has a cosine of 0.97 with an anchor, .* a ratio of 0.95"):
        mine(Angles(), near)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine(Angles(), wide)  # type: ignore[arg-type]
        mine(Angles(), near, ratio=None)  # type: ignore[arg-type]


def test_each_text_is_embedded_once_under_the_instruction_of_its_role() -> None:
    embedder = Angles()
    data = pairs(("0", "20"), ("0", "30"), ("90", "20!"), instruction="ask", document_instruction="answer")
    mine(embedder, data, ratio=None, corpus=["20", "50"])  # type: ignore[arg-type]
    assert embedder.asked == [("document", ["20", "30", "50"], "answer"), ("query", ["0", "90"], "ask")]


class AsTheirs:
    """Vectors as sentence-transformers' miner asks for them."""

    device = "cpu"

    def __init__(self, vectors: dict[str, NDArray[np.float32]]) -> None:
        self.vectors = vectors

    def encode_query(self, texts: list[str], **_: object) -> NDArray[np.float32]:
        return np.stack([self.vectors[text] for text in texts])

    encode_document = encode_query

    @staticmethod
    def similarity(one: Any, other: Any) -> Any:
        import torch

        return torch.as_tensor(one) @ torch.as_tensor(other).T

    @staticmethod
    def similarity_pairwise(one: Any, other: Any) -> Any:
        import torch

        return (torch.as_tensor(one) * torch.as_tensor(other)).sum(dim=1)


@pytest.mark.filterwarnings("ignore:Any text")
@pytest.mark.parametrize("ratio", [None, 0.9])
def test_negatives_are_those_of_sentence_transformers(ratio: float | None) -> None:
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    draw = np.random.default_rng(0)
    shared = (
        2 if ratio is None else 1
    )  # of an anchor's positives, theirs takes the farthest as the bound, ours each for its pair
    rows = [(f"a{number // shared}", f"p{number}") for number in range(60)]
    vectors = {text: draw.normal(size=8) + 2 for row in rows for text in row}
    unit = {text: (one / np.linalg.norm(one)).astype(np.float32) for text, one in vectors.items()}
    table = Dataset.from_dict({"anchor": [row[0] for row in rows], "positive": [row[1] for row in rows]})
    theirs = mine_hard_negatives(
        table,
        AsTheirs(unit),  # type: ignore[arg-type]
        num_negatives=3,
        range_max=59,
        relative_margin=None if ratio is None else 1 - ratio,
        output_format="n-tuple",
        verbose=False,
    )
    ours = mine(AsTheirs(unit), pairs(*rows), negatives=3, ratio=ratio).dataset  # type: ignore[arg-type]
    expected = {(row["anchor"], row["positive"]): tuple(row[f"negative_{number}"] for number in (1, 2, 3)) for row in theirs}
    assert {example.texts[:2]: example.texts[2:] for example in ours.examples} == expected and len(expected) > 20


def test_the_command_writes_triples_that_are_read_again(pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    file, corpus, output = tmp_path / "pairs.jsonl", tmp_path / "corpus.txt", tmp_path / "out" / "triples.jsonl"
    texts = ["A dog runs.", "A hound is running.", "The sun is hot.", "It is warm outside."]
    file.write_text("".join(json.dumps({"query": texts[i], "document": texts[i + 1]}) + "\n" for i in (0, 2)))
    corpus.write_text("Nobody came.\nThe sun is hot.\n")
    words = [
        "mine",
        str(file),
        "-m",
        str(pico_folder("llama")),
        "-d",
        "causal/plain/mean",
        "-o",
        str(output),
        "--dtype",
        "float32",
    ]
    run = CliRunner().invoke(app, [*words, "--negatives", "2", "--ratio", "0", "--corpus", str(corpus)], catch_exceptions=False)
    assert run.exit_code == 0 and f"2 of 2 pairs with 2 negatives in {output}" in run.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [list(row) for row in rows] == [["anchor", "positive", "negative_1", "negative_2"]] * 2
    assert {rows[1]["negative_1"], rows[1]["negative_2"]} == {texts[1], "Nobody came."}, (
        "not its own anchor, though the corpus has it"
    )
    again = read_pairs("again", DataSource(path=str(output)), Path(), 0)
    assert [example.texts for example in again.examples] == [tuple(row.values()) for row in rows]
    refused = CliRunner().invoke(app, [*words[:6], "-o", "x.csv"])
    assert isinstance(refused.exception, UnmaskError) and "needs the suffix .jsonl" in str(refused.exception)
