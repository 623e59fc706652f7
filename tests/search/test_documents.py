"""Documents: read from every format, joined as mteb joins them, typed by column, and refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_rows
from unmask.errors import UnmaskError
from unmask.search.documents import Document, DocumentSource, as_type, join_title, read_documents, survey

ROWS: list[dict[str, Any]] = [
    {"_id": "d1", "title": "Guitars", "text": "Six strings.", "year": 2020},
    {"_id": "d2", "title": "", "text": " Drums. ", "year": 2021},
]


def corpus(folder: Path, rows: list[dict[str, Any]], name: str = "a.jsonl", **options: Any) -> DocumentSource:
    return DocumentSource((write_rows(folder / name, rows),), **options)


def documents(folder: Path, rows: list[dict[str, Any]], **options: Any) -> list[Document]:
    return list(read_documents(corpus(folder, rows, **options)))


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_documents_are_the_same_in_every_format(ending: str, tmp_path: Path) -> None:
    source = corpus(tmp_path, ROWS, f"a{ending}")
    assert [(document.id, document.title, document.text) for document in read_documents(source)] == [
        ("d1", "Guitars", "Six strings."),
        ("d2", "", " Drums. "),
    ]
    assert survey(source).columns == {"year": "integer"}


def test_title_and_text_are_joined_as_mteb_joins_them() -> None:
    from mteb._create_dataloaders import _corpus_to_dict

    for title, text in (("Guitars", "Six."), ("", " Drums. "), (" a", "b "), ("x", ""), ("", "")):
        assert join_title(title, text) == _corpus_to_dict({"id": "d", "title": title, "text": text})["text"]


def test_columns_of_titles_and_ids_may_be_named(tmp_path: Path) -> None:
    rows = [{"_id": "a", "text": "x"}, {"_id": "b", "name": "n", "text": "y"}]
    assert [document.full_text for document in documents(tmp_path, rows, title="name")] == ["x", "n y"]
    with pytest.raises(UnmaskError, match="no document has a title in the column 'nmae'"):
        survey(corpus(tmp_path, rows, title="nmae"))
    films = [{"_id": "a", "title": "Alien"}]
    assert [document.full_text for document in documents(tmp_path, films, text="title")] == ["Alien"], "no title of itself"
    with pytest.raises(UnmaskError, match="both name 'text'"):
        DocumentSource((tmp_path / "a.jsonl",), title="text")
    (document,) = documents(tmp_path, [{"key": 7, "id": "x", "title": "Dr.", "text": "a"}], id="key", title="")
    assert (document.id, document.full_text, document.columns) == ("7", "a", {"id": "x", "title": "Dr."})


def test_without_an_id_it_is_file_and_line(tmp_path: Path) -> None:
    file, table = tmp_path / "a.txt", write_rows(tmp_path / "b.jsonl", [{"key": "k", "body": "three"}])
    file.write_text("one\ntwo\n")
    assert survey(DocumentSource((file,))).numbered
    mixed = list(read_documents(DocumentSource((file, table), text="body", id="key")))
    assert [(document.id, document.text) for document in mixed] == [(f"{file}:1", "one"), (f"{file}:2", "two"), ("k", "three")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"_id": "a"}, "column 'text' (str) is missing"),
        ({"_id": "a", "text": 5}, "column 'text': expected str, found int"),
        ({"_id": ["a"], "text": "x"}, "column '_id': expected str or int"),
        ({"_id": "a", "text": "x", "title": 3}, "column 'title': expected str"),
        ({"_id": "d1", "text": "x"}, "the id 'd1' comes twice"),
        ({"_id": "a", "text": "x", "_vector": [1]}, "has a column '_vector' of its own"),
        ({"_id": "a", "text": "x", "b.c": 1, "b_c": 2}, "two columns have one name"),
    ],
)
def test_a_row_that_is_not_a_document_is_refused(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError) as error:
        survey(corpus(tmp_path, [ROWS[0], row]))
    assert f"{tmp_path / 'a.jsonl'}, line 2" in str(error.value) and message in str(error.value)
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(UnmaskError, match="there is no document to index"):
        survey(DocumentSource((tmp_path / "a.jsonl",)))


@pytest.mark.parametrize(
    ("values", "holds", "stored"),
    [
        ([1, 2], "integer", [1, 2]),
        ([1, 2.5], "number", [1.0, 2.5]),
        ([True, None], "boolean", [True, None]),
        (["a", 1], "text", ["a", "1"]),
        ([True, 1], "text", ["true", "1"]),
        ([[1, "é"], {"a": 1}], "text", ['[1, "é"]', '{"a": 1}']),
        ([2**70, 1], "text", [str(2**70), "1"]),
        ([-(2**63), 2**63 - 1], "integer", [-(2**63), 2**63 - 1]),
        ([None, None], None, [None, None]),
    ],
)
def test_a_column_has_one_type(values: list[Any], holds: Any, stored: list[Any], tmp_path: Path) -> None:
    source = corpus(tmp_path, [{"_id": str(n), "text": "x", "c": value} for n, value in enumerate(values)])
    assert survey(source).columns == {"c": holds}
    assert [as_type(document.columns["c"], holds or "text") for document in read_documents(source)] == stored


@pytest.mark.parametrize(
    ("values", "holds", "stored"),
    [
        (["1", "", "-2"], "integer", [1, None, -2]),
        (["1", "-2.5", "1e-07", "0.0001"], "number", [1.0, -2.5, 1e-7, 0.0001]),
        (["", ""], None, [None, None]),
        *(
            ([word, "1"], "text", [word, "1"])
            for word in (
                "1.10",
                "+49",
                "007",
                "3E5",
                "-0",
                "nan",
                "inf",
                "1e+999",
                "1_000",
                "\u0661",
                "9" * 20,
                "1" * 5000,
                "a",
            )
        ),
    ],
)
def test_numbers_in_csv_are_numbers(values: list[str], holds: Any, stored: list[Any], tmp_path: Path) -> None:
    rows = [{"_id": f"n{n}", "text": "x", "c": value} for n, value in enumerate(values)]
    for name in ("a.csv", "B.TSV"):
        file = corpus(tmp_path, rows, name.lower()).files[0].rename(tmp_path / name)
        assert survey(DocumentSource((file,))).columns == {"c": holds}
        assert [
            as_type(document.columns["c"], holds or "integer") for document in read_documents(DocumentSource((file,)))
        ] == stored


def test_names_and_texts_that_the_index_cannot_hold_are_replaced(tmp_path: Path) -> None:
    row = {"_id": "a\ud800", "text": "\udfffx", "c\ud800": "\ud800", "": 1, "a.b": 2}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    (document,) = read_documents(DocumentSource((tmp_path / "a.jsonl",)))
    assert (document.id, document.text, document.columns) == ("a�", "�x", {"c�": "�", "unnamed": 1, "a_b": 2})


def test_digests_show_what_changed() -> None:
    def digests(**changes: Any) -> Any:
        values = {"id": "a", "title": "t", "text": "x", "columns": {"c": 1}} | changes
        return Document(**values, file=Path("f"), line=1).digests

    key, digest = digests()
    assert digests() == (key, digest)
    embedded: list[dict[str, Any]] = [{"text": "y"}, {"title": "u"}]
    others: list[dict[str, Any]] = [{"id": "b"}, {"columns": {"c": 2}}, {"columns": {}}, {"title": "t x", "text": ""}]
    for changes in (*embedded, *others):
        assert (digests(**changes)[0] != key) == (changes in embedded) and digests(**changes)[1] != digest
