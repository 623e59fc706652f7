"""Sentences with a tag for each word, from jsonl or CoNLL-U files, with errors that name file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unmask.errors import UnmaskError
from unmask.io.rows import read_rows
from unmask.tasks import columns

READERS = (".jsonl", ".conllu")
"""Endings of files of tagged sentences."""
_OTHER_ID = re.compile(r"\d+-\d+|\d+\.\d+")  # a range of words written as one (1-2), or an empty node (1.1)
_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # of CoNLL-U

_Word = tuple[int, str, str]  # line, word, tag


@dataclass(frozen=True)
class Sentence:
    """Words and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str = ""
    """File and line, for errors."""


def read_sentences(file: Path, tags: str | None = None, tokens: str | None = None) -> list[Sentence]:
    """Read the tagged sentences of a file. Raises UnmaskError with file, line and reason.

    .jsonl: rows {tokens: [str], tags: [str]}. .conllu: the columns form and upos, without ranges (1-2) and empty nodes (1.1).
    tags, tokens: names of other columns.
    """
    if not file.is_file():
        raise UnmaskError(f"There is no file '{file}'.")
    if file.suffix not in READERS:
        raise UnmaskError(f"'{file}': files of tagged sentences end with {', '.join(READERS)}, not '{file.suffix}'.")
    read = _jsonl(file, tokens or "tokens", tags or "tags")
    if file.suffix == ".conllu":
        read = _conllu(file, tokens or "form", tags or "upos")
    try:
        sentences = []
        for line, words in read:
            if not words:
                raise UnmaskError(f"{file}, line {line}: a sentence without words.")
            for number, word, tag in words:
                if not word.strip() or not tag:
                    raise UnmaskError(f"{file}, line {number}: an empty {'tag' if word.strip() else 'word'}.")
            _, forms, labels = zip(*words, strict=True)
            sentences.append(Sentence(forms, labels, f"{file}, line {line}"))
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


def _jsonl(file: Path, tokens: str, tags: str) -> Iterator[tuple[int, list[_Word]]]:
    for line, row in read_rows(file):
        words, labels = (columns.texts(file, line, row, name) for name in (tokens, tags))
        if len(words) != len(labels):
            raise UnmaskError(f"{file}, line {line}: {len(words)} words, but {len(labels)} tags.")
        yield line, [(line, word, tag) for word, tag in zip(words, labels, strict=True)]


def _conllu(file: Path, tokens: str, tags: str) -> Iterator[tuple[int, list[_Word]]]:
    for name in (tokens, tags):
        if name not in _COLUMNS:
            raise UnmaskError(f"'{file}': '{name}' is not a column of CoNLL-U. Its columns are {', '.join(_COLUMNS)}.")
    word_column, tag_column = _COLUMNS.index(tokens), _COLUMNS.index(tags)
    first, words = 0, list[_Word]()
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate([*lines, ""], start=1):
            cells = line.rstrip("\r\n").split("\t")
            if not line.strip():  # a sentence ends
                if words:
                    yield first, words
                words = []
            elif not line.startswith("#") and not _OTHER_ID.fullmatch(cells[0]):
                if len(cells) != len(_COLUMNS) or not cells[0].isdecimal():
                    raise UnmaskError(
                        f"{file}, line {number}: expected the number of a word and {len(_COLUMNS) - 1} columns parted by tabs."
                    )
                first = first if words else number
                words.append((number, cells[word_column], cells[tag_column]))
