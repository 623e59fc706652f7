"""Labelled texts: what is recorded, and what each text or word is called (domain, topic, language, part of speech).

A source is a file of rows or a task folder. A row has a text and any number of labels in columns, or words (`tokens`) with a label for
each. If there are several sources, the label `source` says where a text comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.paths import expanded
from unmask.io.rows import Row, field, read_rows
from unmask.tasks.find import without_limit
from unmask.tasks.folder import open_folder
from unmask.tasks.sampling import random_subset
from unmask.tasks.tagged import Sentence, read_sentences

SOURCE, WORDS, TAGS = "source", "tokens", "tags"
MOST_VALUES = 2**15 - 1
"""A record keeps the number of a value in 16 bits."""


@dataclass(frozen=True)
class LabelledText:
    """A text with a value for each label of texts. words, tags: of a text of tagged words; tags has one tuple for each label of tokens."""

    text: str
    values: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    tags: tuple[tuple[str, ...], ...] = ()
    where: str = ""

    @property
    def sentence(self) -> Sentence:
        """The words, for their alignment with tokens."""
        return Sentence(self.words, self.words, self.where)


@dataclass(frozen=True)
class LabelledTexts:
    """All texts, in order. labels: the names of their `values`; token_labels: the names of their `tags`."""

    texts: tuple[LabelledText, ...]
    labels: tuple[str, ...] = ()
    token_labels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def values(self, name: str) -> list[str]:
        """The distinct values of a label, in order."""
        if name in self.labels:
            return sorted({text.values[self.labels.index(name)] for text in self.texts})
        return sorted({tag for text in self.texts for tag in text.tags[self.token_labels.index(name)]})


def read_labelled(
    sources: Sequence[str], labels: Sequence[str] = (), columns: Sequence[str] = ("text",), seed: int = 0
) -> LabelledTexts:
    """The texts of files and task folders (`PATH`, or `PATH#100` for 100 texts drawn by the seed).

    labels: columns that hold a label for each text, or a list with a label for each word. columns: the text is in the first of these that a
    row has. Raises UnmaskError for rows without text or label, and for a label with one value only or with too many.
    """
    labels = list(dict.fromkeys(labels))
    loaded = [_read_source(spec, labels, columns, seed) for spec in sources]
    names = _distinct_names([of_source.file for of_source in loaded])
    first = loaded[0]
    for source in loaded[1:]:
        if (source.labels, source.token_labels) != (first.labels, first.token_labels):
            raise UnmaskError(
                f"{first.file} and {source.file} have other labels, or one labels texts and the other words. Give sources with the same "
                "labels."
            )
    text_labels, texts = first.labels, [text for of_source in loaded for text in of_source.texts]
    if len(set(names)) > 1 and SOURCE not in labels:
        text_labels = (SOURCE, *text_labels)
        texts = [
            replace(text, values=(name, *text.values))
            for name, of_source in zip(names, loaded, strict=True)
            for text in of_source.texts
        ]
    labelled = LabelledTexts(tuple(texts), text_labels, first.token_labels, tuple(names))
    for name in (*labelled.labels, *labelled.token_labels):
        if not 2 <= len(values := labelled.values(name)) <= MOST_VALUES:
            raise UnmaskError(
                f"The label '{name}' has {len(values)} values, such as '{values[0]}': 2 to {MOST_VALUES} can be compared. Leave it out."
            )
    return labelled


@dataclass(frozen=True)
class _Source:
    file: Path
    labels: tuple[str, ...]
    token_labels: tuple[str, ...]
    texts: list[LabelledText]


def _read_source(spec: str, labels: Sequence[str], columns: Sequence[str], seed: int) -> _Source:
    name, limit = without_limit(spec)
    path = expanded(name)
    file = path
    if path.is_dir():
        folder = open_folder(path)
        file = folder.main_file
        if folder.settings.text not in columns:
            columns = (folder.settings.text, *columns)
    if file.suffix == ".conllu":
        sentences = enumerate(read_sentences(file), start=1)
        rows = [(number, {WORDS: list(sentence.words), TAGS: list(sentence.tags)}) for number, sentence in sentences]
    else:
        rows = list(read_rows(file))
    if not rows:
        raise UnmaskError(f"{file} holds no row.")
    first = rows[0][1]
    if not labels and WORDS in first and TAGS in first and not any(column in first for column in columns):
        labels = [TAGS]
    of_words = tuple(label for label in labels if isinstance(first.get(label), list))
    of_texts = tuple(label for label in labels if label not in of_words)
    texts = [_labelled_text(file, line, row, of_texts, of_words, columns) for line, row in random_subset(rows, limit, seed)]
    return _Source(file, of_texts, of_words, texts)


def _labelled_text(
    file: Path, line: int, row: Row, labels: Sequence[str], token_labels: Sequence[str], columns: Sequence[str]
) -> LabelledText:
    values = tuple(str(field(file, line, row, name, (str, int, bool))) for name in labels)
    column = next((column for column in columns if column in row), None)
    if not token_labels and (column is not None or WORDS not in row):
        return LabelledText(field(file, line, row, column or columns[0]), values)
    lists = []
    for name in (WORDS, *token_labels):
        lists.append(field(file, line, row, name, list))
        if not lists[-1] or not all(isinstance(value, str) and value.strip() for value in lists[-1]):
            raise UnmaskError(f"{file}, line {line}, column '{name}': expected a list of words, none of them empty.")
    words, *tags = map(tuple, lists)
    for name, words_tags in zip(token_labels, tags, strict=True):
        if len(words_tags) != len(words):
            raise UnmaskError(f"{file}, line {line}: {len(words)} words, but {len(words_tags)} labels in '{name}'.")
    return LabelledText(" ".join(words), values, words, tuple(tags), f"{file}, line {line}")


def _distinct_names(files: Sequence[Path]) -> list[str]:
    """The folder of a source if its main file is read (`test`, `all`), else the file; both if that is not enough."""
    short = [file.resolve().parent.name if file.stem in ("test", "all") else file.stem for file in files]
    return [
        f"{file.resolve().parent.name}/{file.stem}" if short.count(name) > 1 else name
        for name, file in zip(short, files, strict=True)
    ]
