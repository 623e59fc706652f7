"""Documents: read from every format, joined as mteb joins them, typed by column, and refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_rows
from unmask.errors import UnmaskError
from unmask.search.documents import Corpus, Document, joined, read_documents, survey, typed

ROWS: list[dict[str, Any]] = [
    {"_id": "d1", "title": "Guitars", "text": "Six strings.", "year": 2020},
    {"_id": "d2", "title": "", "text": " Drums. ", "year": 2021},
]


def corpus(folder: Path, rows: list[dict[str, Any]], name: str = "a.jsonl", **options: Any) -> Corpus:
    return Corpus((write_rows(folder / name, rows),), **options)


def documents(folder: Path, rows: list[dict[str, Any]], **options: Any) -> list[Document]:
    return list(read_documents(corpus(folder, rows, **options)))


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_documents_are_the_same_in_every_format(ending: str, tmp_path: Path) -> None:
    given = corpus(tmp_path, ROWS, f"a{ending}")
    found = [(one.id, one.title, one.text) for one in read_documents(given)]
    assert found == [("d1", "Guitars", "Six strings."), ("d2", "", " Drums. ")]
    assert survey(given).columns == {"year": "integer"}


def test_title_and_text_are_joined_as_mteb_joins_them(tmp_path: Path) -> None:
    from mteb._create_dataloaders import _corpus_to_dict

    for title, text in (("Guitars", "Six."), ("", " Drums. "), (" a", "b "), ("x", ""), ("", "")):
        assert joined(title, text) == _corpus_to_dict({"id": "d", "title": title, "text": text})["text"]


def test_a_text_is_no_title_of_itself(tmp_path: Path) -> None:
    texts = ["Alien", "Heat"]
    films = documents(tmp_path, [{"_id": text, "title": text} for text in texts], text="title")
    assert films == documents(tmp_path, [{"_id": text, "text": text} for text in texts])
    assert [film.joined for film in films] == texts
    with pytest.raises(UnmaskError, match="both name 'text'"):
        Corpus((tmp_path / "a.jsonl",), title="text")


def test_a_column_of_titles_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    rows = [{"_id": "a", "text": "x"}, {"_id": "b", "name": "n", "text": "y"}, {"_id": "c", "text": "z"}]
    assert [one.joined for one in documents(tmp_path, rows, title="name")] == ["x", "n y", "z"]
    with pytest.raises(UnmaskError, match="no row has the column 'nmae'; the last one has _id, text"):
        survey(corpus(tmp_path, rows, title="nmae"))
    assert survey(corpus(tmp_path, rows)).columns == {"name": "text"}, "'title' need not be there"
    titled = [{"_id": "a", "title": "Dr.", "text": "x"}]
    assert [one.joined for one in documents(tmp_path, titled, title="")] == ["x"]
    assert survey(corpus(tmp_path, titled, title="")).columns == {"title": "text"}, "then it is a column like any other"


def test_without_an_id_it_is_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    file = tmp_path / "a.txt"
    assert [one.id for one in read_documents(Corpus((file,)))] == [f"{file}:1", f"{file}:2"]


def test_the_id_column_may_be_named(tmp_path: Path) -> None:
    found = documents(tmp_path, [{"key": 7, "id": "x", "text": "a"}], id="key")
    assert found[0].id == "7" and found[0].columns == {"id": "x"}


def test_an_id_that_comes_twice_is_named_with_both_places(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "a.jsonl", ROWS)
    other = write_rows(tmp_path / "b.jsonl", [{"_id": "x", "text": "a"}, ROWS[1]])
    with pytest.raises(UnmaskError) as error:
        survey(Corpus((one, other)))
    assert str(error.value).startswith(f"{other}, line 2: the id 'd2' comes twice; it is also in {one}, line 2.")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"_id": "a"}, "column 'text' (str) is missing"),
        ({"_id": "a", "text": 5}, "column 'text': expected str, found int"),
        ({"_id": ["a"], "text": "x"}, "column '_id': expected str or int"),
        ({"_id": "a", "text": "x", "title": 3}, "column 'title': expected str"),
        ({"text": "x"}, "column '_id' (str or int) is missing"),
    ],
)
def test_a_row_that_is_no_document_is_refused(row: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError) as error:
        survey(corpus(tmp_path, [ROWS[0], row]))
    assert f"{tmp_path / 'a.jsonl'}, line 2" in str(error.value) and told in str(error.value)


@pytest.mark.parametrize("name", ["_id", "id"])
def test_an_id_is_not_dropped_because_the_first_row_has_none(name: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "x"}, {"text": "y"}, {name: "a", "text": "z"}]
    with pytest.raises(UnmaskError) as error:
        survey(corpus(tmp_path, rows))
    assert str(error.value).startswith(f"{tmp_path / 'a.jsonl'}, line 1: column '{name}' is missing, and line 3 has it.")
    assert len(documents(tmp_path, rows, id="text")) == 3, "another column was named"


def test_a_corpus_without_a_document_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(UnmaskError, match="there is no document to index"):
        survey(Corpus((tmp_path / "a.jsonl",)))


@pytest.mark.parametrize(
    ("values", "holds", "kept"),
    [
        ([1, 2], "integer", [1, 2]),
        ([1, 2.5], "number", [1.0, 2.5]),
        ([True, None], "boolean", [True, None]),
        (["a", 1], "text", ["a", "1"]),
        ([True, 1], "text", ["true", "1"]),
        ([[1, "é"], {"a": 1}], "text", ['[1, "é"]', '{"a": 1}']),
        ([2**70, 1], "text", [str(2**70), "1"]),
        ([10**400, 1.5], "text", [str(10**400), "1.5"]),
        ([-(2**63), 2**63 - 1], "integer", [-(2**63), 2**63 - 1]),
        ([2**53, 1.5], "number", [2.0**53, 1.5]),
        ([2**53 + 1, 1.5], "text", [str(2**53 + 1), "1.5"]),
        ([2**53 + 1, 1], "integer", [2**53 + 1, 1]),
        ([None, None], None, [None, None]),
    ],
)
def test_a_column_has_one_type(values: list[Any], holds: Any, kept: list[Any], tmp_path: Path) -> None:
    given = corpus(tmp_path, [{"_id": str(n), "text": "x", "c": value} for n, value in enumerate(values)])
    assert survey(given).columns == {"c": holds}
    assert [typed(one.columns["c"], holds or "text") for one in read_documents(given)] == kept


@pytest.mark.parametrize(
    ("values", "holds", "kept"),
    [
        (["1", "", "-2"], "integer", [1, None, -2]),
        (["1", "-2.5", "1e-07", "0.0001"], "number", [1.0, -2.5, 1e-7, 0.0001]),
        (["1.10", "1.1"], "text", ["1.10", "1.1"]),
        (["+4930123456", "4930123456"], "text", ["+4930123456", "4930123456"]),
        (["3E5", "300000.0"], "text", ["3E5", "300000.0"]),
        (["-0", "0"], "text", ["-0", "0"]),
        (["0.12345678901234567890", "0.5"], "text", ["0.12345678901234567890", "0.5"]),
        (["nan", "1.5"], "text", ["nan", "1.5"]),
        (["1" * 5000, "1"], "text", ["1" * 5000, "1"]),
        (["007", "1"], "text", ["007", "1"]),
        (["1234567890123456789", "1234567890123456788"], "integer", [1234567890123456789, 1234567890123456788]),
        (["9007199254740993", "0.5"], "text", ["9007199254740993", "0.5"]),
        (["9" * 20, "9" * 19], "text", ["9" * 20, "9" * 19]),
        (["1e+999", "1.5"], "text", ["1e+999", "1.5"]),
        (["", ""], None, [None, None]),
        (["a", ""], "text", ["a", ""]),
    ],
)
def test_numbers_in_csv_are_numbers(values: list[str], holds: Any, kept: list[Any], tmp_path: Path) -> None:
    given = corpus(tmp_path, [{"_id": f"n{n}", "text": "x", "c": value} for n, value in enumerate(values)], "a.csv")
    assert survey(given).columns == {"c": holds}
    assert [typed(one.columns["c"], holds or "integer") for one in read_documents(given)] == kept


def test_numbers_in_a_csv_are_numbers_whatever_the_case_of_its_ending(tmp_path: Path) -> None:
    given = corpus(tmp_path, ROWS, "a.csv")
    (renamed,) = (file.rename(tmp_path / "A.CSV") for file in given.files)
    assert survey(Corpus((renamed,))).columns == {"year": "integer"}


def test_what_no_encoding_can_hold_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"_id": "a\ud800", "text": "\udfffx", "c\ud800": "\ud800"}))
    (found,) = read_documents(Corpus((tmp_path / "a.jsonl",)))
    assert (found.id, found.text, found.columns) == ("a�", "�x", {"c�": "�"})


def test_hashes_tell_what_changed() -> None:
    def known(**changes: Any) -> Any:
        given = {"id": "a", "title": "t", "text": "x", "columns": {"c": 1}} | changes
        return Document(**given, file=Path("f"), line=1).known

    same = known()
    assert known() == same
    embedded: list[dict[str, Any]] = [{"text": "y"}, {"title": "u"}]
    others: list[dict[str, Any]] = [{"id": "b"}, {"columns": {"c": 2}}, {"columns": {}}]
    for changes in embedded:
        assert known(**changes).key != same.key and known(**changes).digest != same.digest
    for changes in others:
        assert known(**changes).key == same.key and known(**changes).digest != same.digest
    assert known(title="t x", text="").digest != same.digest  # one text, but other parts
