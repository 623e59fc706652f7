"""Reading tagged sentences: every layout gives the same words and tags, every mistake its file, line and reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.tasks.tagged import Sentence, read_sentences, sample

CONLLU = """# sent_id = 1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
2.1\tgo\t_\tVERB\t_\t_\t_\t_\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tE\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tD\t_\t5\tdet\t_\t_
5\tNueva York\tmar\tNOUN\tN\t_\t1\tobl\t_\t_

# sent_id = 2
1\t#\t#\tSYM\tS\t_\t0\troot\t_\t_
"""
CONLL = """-DOCSTART- -X- O

# a comment
EU NNP B-ORG
rejects VBZ O

# SYM O
Peter NNP B-PER
"""


def written(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def test_conllu(tmp_path: Path) -> None:
    first, second = read_sentences(written(tmp_path, "a.conllu", CONLLU))
    assert first.words == ("Vamos", "nos", "a", "el", "Nueva York")
    assert first.tags == ("VERB", "PRON", "ADP", "DET", "NOUN")
    assert (second.words, second.tags) == (("#",), ("SYM",))
    assert first.where.endswith("a.conllu, line 3")


@pytest.mark.parametrize("column", ["deprel", "8", "-3"])
def test_columns_of_conllu_have_a_name_and_a_number(column: str, tmp_path: Path) -> None:
    first, _ = read_sentences(written(tmp_path, "a.conllu", CONLLU), column, "lemma")
    assert first.tags == ("root", "obj", "case", "det", "obl") and first.words[0] == "ir"


def test_conll(tmp_path: Path) -> None:
    first, second = read_sentences(written(tmp_path, "a.conll", CONLL))
    assert first.words == ("EU", "rejects") and first.tags == ("B-ORG", "O")
    assert second.words == ("#", "Peter")  # a word, since its line has as many columns as the others
    assert read_sentences(tmp_path / "a.conll", "2")[0].tags == ("NNP", "VBZ")
    assert read_sentences(tmp_path / "a.conll", "-2")[0].tags == ("NNP", "VBZ")


def test_windows_line_ends_and_several_blank_lines(tmp_path: Path) -> None:
    found = read_sentences(written(tmp_path, "a.conll", "\r\n\r\na X\r\nb Y\r\n\r\n\r\nc X"))
    assert [(one.words, one.tags) for one in found] == [(("a", "b"), ("X", "Y")), (("c",), ("X",))]


def test_jsonl_takes_its_columns_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, "a.jsonl", '{"tokens": ["a", "b"], "tags": ["X", "Y"], "deprel": ["r", "s"], "w": ["c", "d"]}\n')
    assert read_sentences(file)[0].tags == ("X", "Y")
    assert read_sentences(file, "deprel")[0].tags == ("r", "s")
    assert read_sentences(file, "deprel", "w")[0].words == ("c", "d")


@pytest.mark.parametrize(
    ("name", "content", "tags", "message"),
    [
        ("a.txt", "a", None, r"end with \.jsonl, \.conll, \.conllu, not '\.txt'"),
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["X"]}', None, r"line 1: 2 words, but 1 tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [3]}', None, r"line 1, column 'tags': expected a list of str, found int"),
        ("a.jsonl", '{"tokens": [], "tags": []}', None, r"line 1: a sentence without words"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [""]}', None, r"line 1: an empty tag"),
        ("a.conll", "a X\nb\n", None, r"line 2: expected 2 columns as before, found 1"),
        ("a.conll", "a X\n", "3", r"first line of words has 2 columns, and 3 are needed"),
        ("a.conll", "a X\n", "upos", r"'upos' is no column; give its number from 1"),
        ("a.conllu", "1\ta\tX\n", None, r"line 1: expected 10 columns parted by tabs, found 3"),
        ("a.conllu", "1" + "\t_" * 9, "11", r"'11' is no column; .* or id, form, lemma, upos"),
    ],
)
def test_a_mistake_is_told_with_its_place(name: str, content: str, tags: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=message):
        read_sentences(written(tmp_path, name, content), tags)


def test_a_file_that_is_missing_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="There is no file"):
        read_sentences(tmp_path / "none.conll")
    (tmp_path / "b.conll").write_bytes(b"a X\n\xff Y\n")
    with pytest.raises(UnmaskError, match=r"not UTF-8"):
        read_sentences(tmp_path / "b.conll")


def test_a_sample_is_drawn_by_its_seed_and_keeps_the_order() -> None:
    sentences = [Sentence((str(n),), ("X",)) for n in range(50)]
    drawn = sample(sentences, 10, seed=1)
    assert drawn == sample(sentences, 10, seed=1) != sample(sentences, 10, seed=2)
    assert len(set(drawn)) == 10 and drawn == sorted(drawn, key=lambda one: int(one.words[0]))
    assert sample(sentences, None, 0) == sample(sentences, 99, 0) == sentences
