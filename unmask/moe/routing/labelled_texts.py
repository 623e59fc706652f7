"""Labelled texts: what is recorded, and what each text or word is called (domain, topic, language, part of speech).

A source is a file of rows or a task folder. A row has a text and any number of labels in columns, or words (`tokens`) with a label for
each. If there are several sources, the label `source` says which one a text is from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
Of = Literal["text", "token"]


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
        """The words, as what aligns them with tokens takes them."""
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
    sources_read = [_read_source(spec, labels, columns, seed) for spec in sources]
    names = _distinct_names([file for file, _, _ in sources_read])
    if len(set(names)) > 1 and SOURCE not in labels:
        sources_read = [
            (file, {SOURCE: "text", **kinds}, _with_source(name, texts))
            for name, (file, kinds, texts) in zip(names, sources_read, strict=True)
        ]
    kinds = _one_kind(sources_read)
    labelled = LabelledTexts(
        tuple(text for _, _, texts in sources_read for text in texts),
        tuple(name for name, unit in kinds.items() if unit == "text"),
        tuple(name for name, unit in kinds.items() if unit == "token"),
        tuple(names),
    )
    for name in kinds:
        if len(values := labelled.values(name)) < 2:
            raise UnmaskError(
                f"Every text has the label '{values[0]}' in '{name}', so there is nothing to tell apart. Leave it out."
            )
        if len(values) > MOST_VALUES:
            raise UnmaskError(
                f"The label '{name}' has {len(values)} values, and at most {MOST_VALUES} can be recorded: leave it out."
            )
    return labelled


_Source = tuple[Path, dict[str, Of], list[LabelledText]]


def _read_source(spec: str, labels: Sequence[str], columns: Sequence[str], seed: int) -> _Source:
    name, limit = without_limit(spec)
    path = expanded(name)
    file = open_folder(path).main_file if path.is_dir() else path
    if path.is_dir() and (settings := open_folder(path).settings).text not in columns:
        columns = (settings.text, *columns)
    if not labels and file.suffix == ".conllu":
        labels = [TAGS]
    rows = list(_rows(file))
    if not rows:
        raise UnmaskError(f"{file} holds no row.")
    if not labels and WORDS in rows[0][1] and TAGS in rows[0][1] and not any(column in rows[0][1] for column in columns):
        labels = [TAGS]
    rows = random_subset(rows, limit, seed)
    kinds: dict[str, Of] = {label: "token" if isinstance(rows[0][1].get(label), list) else "text" for label in labels}
    return file, kinds, [_text(file, line, row, kinds, columns) for line, row in rows]


def _rows(file: Path) -> Iterator[tuple[int, Row]]:
    if file.suffix == ".conllu":
        for number, sentence in enumerate(read_sentences(file), start=1):
            yield number, {WORDS: list(sentence.words), TAGS: list(sentence.tags)}
    else:
        yield from read_rows(file)


def _text(file: Path, line: int, row: Row, kinds: dict[str, Of], columns: Sequence[str]) -> LabelledText:
    values = tuple(str(field(file, line, row, name, (str, int, bool))) for name, unit in kinds.items() if unit == "text")
    column = next((column for column in columns if column in row), None)
    if column is not None and "token" not in kinds.values():
        return LabelledText(field(file, line, row, column), values)
    if column is None and WORDS not in row:
        field(file, line, row, columns[0])
    words = _strings(file, line, row, WORDS)
    tags = tuple(_strings(file, line, row, name) for name, unit in kinds.items() if unit == "token")
    for name, words_tags in zip((name for name, unit in kinds.items() if unit == "token"), tags, strict=True):
        if len(words_tags) != len(words):
            raise UnmaskError(f"{file}, line {line}: {len(words)} words, but {len(words_tags)} labels in '{name}'.")
    return LabelledText(" ".join(words), values, words, tags, f"{file}, line {line}")


def _strings(file: Path, line: int, row: Row, column: str) -> tuple[str, ...]:
    values = field(file, line, row, column, list)
    if not values or not all(isinstance(value, str) and value.strip() for value in values):
        raise UnmaskError(f"{file}, line {line}, column '{column}': expected a list of words, none of them empty.")
    return tuple(values)


def _distinct_names(files: Sequence[Path]) -> list[str]:
    """What the sources are called: their folder if its main file is read (`test`, `all`), else the file; both if that is not enough."""
    short = [file.resolve().parent.name if file.stem in ("test", "all") else file.stem for file in files]
    return [
        f"{file.resolve().parent.name}/{file.stem}" if short.count(name) > 1 else name
        for name, file in zip(short, files, strict=True)
    ]


def _with_source(name: str, texts: Sequence[LabelledText]) -> list[LabelledText]:
    return [LabelledText(text.text, (name, *text.values), text.words, text.tags, text.where) for text in texts]


def _one_kind(sources_read: Sequence[_Source]) -> dict[str, Of]:
    """Which labels are of texts and which of tokens. Raises UnmaskError if the sources differ in that."""
    first, kinds, _ = sources_read[0]
    for file, kinds_here, _ in sources_read[1:]:
        for name in {**kinds, **kinds_here}:
            if kinds.get(name) != kinds_here.get(name):
                raise UnmaskError(
                    f"'{name}' is a label of {kinds.get(name, 'nothing')}s in {first}, and of {kinds_here.get(name, 'nothing')}s in "
                    f"{file}. Give sources with the same labels."
                )
    return kinds
