"""Files of labelled pairs as people train on them: GLUE, STS, NLI, FlagEmbedding, hard negatives by many names."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import run_program
from unmask.errors import UnmaskError
from unmask.training.data import DataSet, DataSource
from unmask.training.labels import read_related
from unmask.training.recipe import load_recipe, scales, shipped_recipes
from unmask.training.train import check_data

Read = Callable[..., DataSet]
PAIRS = [("a man plays", "a person plays"), ("a dog runs", "a cat sleeps"), ("it rains", "it pours")]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read pairs with more columns: their values by name."""

    def make(more: dict[str, list[Any]], reader: Read = read_related, **options: Any) -> DataSet:
        file = tmp_path / "rows.jsonl"
        rows = [{"sentence1": one, "sentence2": two} for one, two in PAIRS]
        for name, values in more.items():
            for row, value in zip(rows, values, strict=True):
                row[name] = value
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return reader("set", DataSource(path="rows.jsonl", **options), tmp_path, 0)

    return make


@pytest.mark.parametrize(
    ("column", "values", "where"),
    [
        ("label", [1, 0, 1], 1),
        ("gold_label", ["entailment", "contradiction", "entailment"], "entailment"),
        ("similarity_score", ["5.0", "0.1", "4.2"], {"at_least": 4}),
    ],
)
def test_a_column_that_says_whether_a_pair_matches_chooses_rows_or_is_refused(
    read: Read, column: str, values: list[Any], where: Any
) -> None:
    with pytest.raises(
        UnmaskError, match=rf"the column '{column}' of .*rows.jsonl \(.*\) may say that a pair does not match.*where = "
    ):
        read({column: values})
    chosen = read({column: values}, where={column: where})
    assert [example.texts for example in chosen.examples] == [PAIRS[0], PAIRS[2]]
    negatives = read({column: [values[1]] * 3}, where={column: values[1]})
    assert len(negatives.examples) == 3, "whoever asks for these rows gets them"


def test_a_choice_by_one_verdict_settles_the_others(read: Read) -> None:
    """SICK has a score of relatedness beside entailment."""
    more = {"score": [4.5, 1.0, 4.0], "entailment": ["ENTAILMENT", "NEUTRAL", "ENTAILMENT"], "split": ["train"] * 3}
    chosen = read(more, where={"entailment": "ENTAILMENT"})
    assert len(chosen.examples) == 2 and chosen.unread == ("score", "split")
    with pytest.raises(UnmaskError, match="may say that a pair does not match"):
        read(more, where={"split": "train"})


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"neg1": ["n"], "neg2": ["m"]}, {"negative_1": "neg1", "negative_2": "neg2"}),
        ({"neg": [["n", "m"]], "neg_scores": [[0.3, 0.2]]}, {"negatives": "neg"}),
    ],
)
def test_negatives_of_another_name_are_refused_unless_they_are_named(
    read: Read, columns: dict[str, list[Any]], named: dict[str, str]
) -> None:
    columns = {name: values * 3 for name, values in columns.items()}
    with pytest.raises(
        UnmaskError, match=rf"the column '{next(iter(columns))}' of .* looks like negatives and is not read.*negatives = 0"
    ):
        read(columns)
    assert {len(example.texts) for example in read(columns, columns=named).examples} == {
        2 + (len(named) if "negative_1" in named else 1)
    }
    without = read(columns, negatives=0)
    assert len(without.examples) == 3 and without.unread == tuple(columns)


def test_mine_chooses_rows_by_their_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"sentence1": one, "sentence2": two, "label": label} for (one, two), label in zip(PAIRS, (1, 0, 1), strict=True)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "mine",
        "pairs.jsonl",
        "-m",
        "pico",
        "-o",
        "triples.jsonl",
        "--ratio",
        "0",
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    code, _, err = run_program(words, monkeypatch, capfd)
    assert code == 2 and "the column 'label' of pairs.jsonl (0, 1) may say that a pair does not match" in err
    code, _, err = run_program([*words, "--where", "label=1"], monkeypatch, capfd)
    assert code == 0, err
    triples = [json.loads(line) for line in Path("triples.jsonl").read_text().splitlines()]
    assert [(row["anchor"], row["positive"]) for row in triples] == [PAIRS[0], PAIRS[2]]
    code, _, err = run_program([*words, "--where", "label={at_most=1}"], monkeypatch, capfd)
    assert code == 2 and "--where: " in err and "Traceback" not in err


def test_every_shipped_recipe_reads_its_real_data(data: Path, tmp_path: Path) -> None:
    """At the scale small, on the first rows of each file. Recipes whose texts the user brings are left out."""
    recipes = [
        load_recipe(name, "small") for name in shipped_recipes() if "small" in scales(name) and name not in ("branch", "grown")
    ]
    folders = {source.path.split("/")[0] for recipe in recipes for source in recipe.data.values() if ":" not in source.path}
    for file in (file for folder in folders for file in (data / folder).iterdir()):
        (tmp_path / file.parent.name).mkdir(exist_ok=True)
        with file.open("rb") as lines:
            (tmp_path / file.parent.name / file.name).write_bytes(b"".join(islice(lines, 300)))
    for recipe in recipes:
        assert all(sets for sets in check_data(recipe, tmp_path).values()), recipe.name
