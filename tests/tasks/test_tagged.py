"""Reading tagged sentences: both layouts give the same words and tags, every mistake its file, line and reason."""

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
3\ta\ta\tADP\tE\t_\t5\tcase\t_\t_
4\tNueva York\tmar\tNOUN\tN\t_\t1\tobl\t_\t_


# sent_id = 2\r
1\t#\t#\tSYM\tS\t_\t0\troot\t_\t_\r
"""


def written(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, encoding="utf-8", newline="")
    return folder / name


def test_conllu(tmp_path: Path) -> None:
    file = written(tmp_path, "a.conllu", CONLLU)
    first, second = read_sentences(file)
    assert first.words == ("Vamos", "nos", "a", "Nueva York")
    assert first.tags == ("VERB", "PRON", "ADP", "NOUN")
    assert (second.words, second.tags) == (("#",), ("SYM",))
    assert first.where.endswith("a.conllu, line 4")
    first, _ = read_sentences(file, "deprel", "lemma")
    assert first.tags == ("root", "obj", "case", "obl") and first.words[0] == "ir"


def test_jsonl_takes_its_columns_by_name(tmp_path: Path) -> None:
    file = written(tmp_path, "a.jsonl", '{"tokens": ["a", "b"], "tags": ["X", "Y"], "deprel": ["r", "s"], "w": ["c", "d"]}\n')
    assert read_sentences(file)[0].tags == ("X", "Y")
    assert read_sentences(file, "deprel", "w")[0] == Sentence(("c", "d"), ("r", "s"), f"{file}, line 1")


@pytest.mark.parametrize(
    ("name", "content", "tags", "message"),
    [
        ("a.txt", "a", None, r"end with \.jsonl, \.conllu, not '\.txt'"),
        ("a.conllu", "", None, "holds no sentence"),
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["X"]}', None, r"line 1: 2 words, but 1 tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [3]}', None, r"line 1, column 'tags': expected a list of str, found int"),
        ("a.jsonl", '{"tokens": [], "tags": []}', None, r"line 1: a sentence without words"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [""]}', None, r"line 1: an empty tag"),
        ("a.conllu", "1\ta\tX\n", None, r"line 1: expected the number of a word and 9 columns parted by tabs"),
        ("a.conllu", "1" + "\t_" * 9, "11", r"'11' is not a column of CoNLL-U"),
    ],
)
def test_a_mistake_is_reported_with_its_file_and_line(
    name: str, content: str, tags: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnmaskError, match=message):
        read_sentences(written(tmp_path, name, content), tags)


def test_a_file_that_is_missing_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="There is no file"):
        read_sentences(tmp_path / "none.conllu")
    (tmp_path / "b.conllu").write_bytes(b"1\t\xff" + b"\t_" * 8)
    with pytest.raises(UnmaskError, match="not UTF-8"):
        read_sentences(tmp_path / "b.conllu")


def test_a_sample_is_drawn_by_its_seed_and_keeps_the_order() -> None:
    sentences = [Sentence((str(n),), ("X",)) for n in range(50)]
    drawn = sample(sentences, 10, seed=1)
    assert drawn == sample(sentences, 10, seed=1) != sample(sentences, 10, seed=2)
    assert len(set(drawn)) == 10 and drawn == sorted(drawn, key=lambda sentence: int(sentence.words[0]))
    assert sample(sentences, None, 0) == sample(sentences, 99, 0) == sentences
