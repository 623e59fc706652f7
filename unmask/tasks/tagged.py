"""Sentences with a tag for each word, from jsonl or CoNLL files, with errors that name file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unmask.errors import UnmaskError
from unmask.io.rows import read_rows
from unmask.tasks import columns

_WORD_ID = re.compile(r"\d+")
_OTHER_ID = re.compile(r"\d+-\d+|\d+\.\d+")  # a range of words written as one (1-2), or an empty node (1.1)
_DOCUMENT = "-DOCSTART-"  # CoNLL-2003 parts its documents by such lines
_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # of CoNLL-U


@dataclass(frozen=True)
class Sentence:
    """Words and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str = ""
    """File and line, for errors."""


def read_sentences(file: Path, tags: str | None = None, tokens: str | None = None) -> list[Sentence]:
    """Read the tagged sentences of a file.

    .jsonl: rows {tokens: [str], tags: [str]}, columns by name. .conllu: ten columns parted by tabs; by name, or by number from 1
    (form and upos unless told otherwise). .conll: columns parted by white space; by number from 1, or from the end -1, -2 (the
    first and the last unless told otherwise). In both, a blank line ends a sentence and a line that begins with `#` is a comment:
    in .conll unless it has as many columns as the lines of words and a tag of theirs. Ranges (1-2) and empty nodes (1.1) of
    CoNLL-U are skipped.
    Raises UnmaskError with file, line and reason.
    """
    if not file.is_file():
        raise UnmaskError(f"There is no file '{file}'.")
    if file.suffix not in READERS:
        raise UnmaskError(f"'{file}': files of tagged sentences end with {', '.join(READERS)}, not '{file.suffix}'.")
    try:
        sentences = list(READERS[file.suffix](file, tokens, tags))
    except UnicodeDecodeError as error:
        raise UnmaskError(f"{file} is not UTF-8 text (byte {error.start}).") from error
    if not sentences:
        raise UnmaskError(f"'{file}' holds no sentence.")
    return sentences


def sample(sentences: Sequence[Sentence], limit: int | None, seed: int) -> list[Sentence]:
    """At most `limit` sentences, drawn by the seed, in their order."""
    if limit is None or limit >= len(sentences):
        return list(sentences)
    indices = np.random.default_rng(seed).permutation(len(sentences))[:limit]
    return [sentences[index] for index in sorted(indices.tolist())]


def _jsonl(file: Path, tokens: str | None, tags: str | None) -> Iterator[Sentence]:
    for line, row in read_rows(file):
        words, labels = (columns.texts(file, line, row, name) for name in (tokens or "tokens", tags or "tags"))
        if len(words) != len(labels):
            raise UnmaskError(f"{file}, line {line}: {len(words)} words, but {len(labels)} tags.")
        yield _sentence(file, [(line, word, tag) for word, tag in zip(words, labels, strict=True)], line)


def _conllu(file: Path, tokens: str | None, tags: str | None) -> Iterator[Sentence]:
    word_at, tag_at = (_number(file, name, _COLUMNS) for name in (tokens or "form", tags or "upos"))
    for block in _blocks(file, lambda line: line.startswith("#")):
        rows = []
        for number, line in block:
            cells = line.split("\t")
            if _OTHER_ID.fullmatch(cells[0]):
                continue
            if len(cells) != len(_COLUMNS):
                raise UnmaskError(
                    f"{file}, line {number}: expected {len(_COLUMNS)} columns parted by tabs, found {len(cells)}."
                )
            if not _WORD_ID.fullmatch(cells[0]):
                raise UnmaskError(f"{file}, line {number}: '{cells[0]}' is not the number of a word.")
            rows.append((number, cells[word_at], cells[tag_at]))
        if rows:
            yield _sentence(file, rows, block[0][0])


def _conll(file: Path, tokens: str | None, tags: str | None) -> Iterator[Sentence]:
    word_at, tag_at = _number(file, tokens or "1", ()), _number(file, tags or "-1", ())
    fewest = max(2, *(column + 1 if column >= 0 else -column for column in (word_at, tag_at)))
    rows = [line.split() for block in _blocks(file, lambda line: line.startswith(("#", _DOCUMENT))) for _, line in block]
    width = len(rows[0]) if rows else fewest
    if width < fewest:
        raise UnmaskError(f"'{file}': its first line of words has {width} columns, and {fewest} are needed.")
    tag_set = {cells[tag_at] for cells in rows if len(cells) == width}

    def comment(line: str) -> bool:
        # "#" is a word as well, in tweets above all: such a line has as many columns as the others, and a tag of theirs
        cells = line.split()
        return line.startswith(_DOCUMENT) or (line.startswith("#") and (len(cells) != width or cells[tag_at] not in tag_set))

    for block in _blocks(file, comment):
        words = []
        for number, line in block:
            cells = line.split()
            if len(cells) != width:
                raise UnmaskError(f"{file}, line {number}: expected {width} columns as before, found {len(cells)}.")
            words.append((number, cells[word_at], cells[tag_at]))
        yield _sentence(file, words, block[0][0])


def _number(file: Path, column: str, names: Sequence[str]) -> int:
    """Where a column is: from its name, or from its number, 1 or more, or from the end -1 or less."""
    if column in names:
        return names.index(column)
    try:
        number = int(column)
    except ValueError:
        number = 0
    if number == 0 or (names and not -len(names) <= number <= len(names)):
        allowed = f", or {', '.join(names)}" if names else ""
        raise UnmaskError(f"'{file}': '{column}' is no column; give its number from 1 (from the end: -1){allowed}.")
    return number - 1 if number > 0 else number


def _blocks(file: Path, comment: Callable[[str], bool]) -> Iterator[list[tuple[int, str]]]:
    block: list[tuple[int, str]] = []
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            line = line.rstrip("\r\n")
            if not line.strip():
                if block:
                    yield block
                block = []
            elif not comment(line):
                block.append((number, line))
    if block:
        yield block


def _sentence(file: Path, rows: Sequence[tuple[int, str, str]], line: int) -> Sentence:
    if not rows:
        raise UnmaskError(f"{file}, line {line}: a sentence without words.")
    for number, word, tag in rows:
        if not word.strip() or not tag:
            raise UnmaskError(f"{file}, line {number}: an empty {'tag' if word.strip() else 'word'}.")
    return Sentence(tuple(word for _, word, _ in rows), tuple(tag for _, _, tag in rows), f"{file}, line {line}")


READERS: dict[str, Callable[[Path, str | None, str | None], Iterator[Sentence]]] = {
    ".jsonl": _jsonl,
    ".conll": _conll,
    ".conllu": _conllu,
}
