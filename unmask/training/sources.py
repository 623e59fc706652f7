"""Sources: where training rows come from. A file, a folder of queries and documents, the hub, or the starter sets of this package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from unmask.errors import UnmaskError, cause_of, unknown
from unmask.io.files import inside
from unmask.io.paths import expanded
from unmask.io.rows import Row, read_rows
from unmask.io.terminal import counted, say
from unmask.models.digests import digest_of_file
from unmask.tasks import columns

Rows = Iterator[tuple[int, Row]]
_SAME_MEANING = 4.0  # of the 0 to 5 of the starter pairs


def open_rows(path: str, split: str, root: Path) -> tuple[Path, Rows]:
    """What errors call a source, and its rows with their lines. root: of relative paths. Raises UnmaskError if there is no such source."""
    if path.startswith("hub:"):
        return Path(path), _read_hub(path, split)
    if path.startswith("starter:"):
        return Path(path), _read_starter(path.removeprefix("starter:"))
    location = root / expanded(path)
    if not location.is_dir():
        return location, read_rows(location)
    for files, reader in FOLDERS.items():
        if all((location / name).is_file() for name in files):
            return location, reader(location, split)
    layouts = " or ".join(" and ".join(files) for files in FOLDERS)
    raise UnmaskError(f"'{location}' is a folder without {layouts}; name a file of it instead.")


def digest_of_source(path: str, split: str, root: Path) -> str | None:
    """A hash of the files that the rows of a source come from. None for rows of the hub and of this package. Raises UnmaskError."""
    if path.startswith(("hub:", "starter:")):
        return None
    location = root / expanded(path)
    if not location.is_dir():
        return digest_of_file(location)
    names = {name for files in FOLDERS for name in files} | {f"qrels_{split}.tsv", f"qrels/{split}.tsv"}
    digests = [f"{name} {digest_of_file(location / name)}" for name in sorted(names) if (location / name).is_file()]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:32]


def refuse_split(path: str, split: str, root: Path) -> None:
    """Raise UnmaskError for a split of a source that has none, because all of its rows would be read."""
    location = root / expanded(path)
    if path.startswith("hub:") or all((location / name).is_file() for name in _JUDGED):
        return
    raise UnmaskError(
        f"'{path}' has no splits, so split = \"{split}\" would change nothing. Leave it out. Only a data set of the hub and a folder "
        "with judgements (qrels_train.tsv or qrels/train.tsv) have splits; rows with a certain value are chosen by where = "
        "{COLUMN = VALUE}."
    )


def _read_hub(path: str, split: str) -> Rows:
    import datasets

    repo, _, config = path.removeprefix("hub:").partition(":")
    try:
        table = datasets.load_dataset(repo, config or None, split=split)
    except Exception as error:  # whatever the network, the hub or the data set's own files may raise
        raise UnmaskError(f"'{path}', split '{split}' cannot be loaded: {cause_of(error)}") from error
    for number, row in enumerate(table, start=1):
        yield number, dict(row)


def _read_judged(folder: Path, split: str) -> Rows:
    """Retrieval in BEIR's layout: a row for every relevant (query, document), with the judgement's line.

    The row also holds the other columns of its query, so that rows can be chosen by them.
    """
    documents = _read_by_id(folder / "corpus.jsonl")
    queries = _read_by_id(folder / "queries.jsonl")
    flat, nested = inside(folder, f"qrels_{split}.tsv"), inside(folder / "qrels", f"{split}.tsv")
    judgements = nested if nested.is_file() and not flat.is_file() else flat
    score = columns.judged_once(columns.number)
    rows, absent = 0, list[str]()
    for line, row in read_rows(judgements):
        if score(judgements, line, row, "score") <= 0:
            continue
        query = _look_up(judgements, line, row, "query-id", queries)
        if (name := columns.identifier(judgements, line, row, "corpus-id")) not in documents:
            absent.append(f"{judgements}, line {line}, column 'corpus-id': nothing has the id '{name}'")
            continue
        rows += 1
        extra = {column: value for column, value in query.items() if column not in ("_id", "text")}
        yield line, {**extra, "anchor": query.get("text"), "positive": title_and_text(documents[name])}
    if absent and not rows:
        raise UnmaskError(f"{absent[0]}.")
    if absent:
        say(f"{absent[0]}; {counted(len(absent), 'judgement')} of documents that are not in the corpus left out.")


def _read_passages(folder: Path, split: str) -> Rows:
    """Questions with the id of the passage that answers them: a row for each question."""
    passages = _read_by_id(folder / "passages.jsonl")
    questions = folder / "queries.jsonl"
    for line, row in read_rows(questions):
        passage = _look_up(questions, line, row, "passage_id", passages)
        extra = {column: value for column, value in row.items() if column not in ("_id", "query", "text", "passage_id")}
        yield line, {**extra, "anchor": row.get("query", row.get("text")), "positive": title_and_text(passage)}


def _read_by_id(file: Path) -> dict[str, Row]:
    return {columns.identifier(file, line, row, "_id"): row for line, row in read_rows(file)}


def _look_up(file: Path, line: int, row: Row, column: str, table: dict[str, Row]) -> Row:
    name = columns.identifier(file, line, row, column)
    if name not in table:
        raise UnmaskError(f"{file}, line {line}, column '{column}': nothing has the id '{name}'.")
    return table[name]


def title_and_text(document: Row) -> Any:
    """Title and text as retrieval reads them: with a space between."""
    title, text = document.get("title"), document.get("text")
    return f"{title} {text}" if title and isinstance(text, str) else text


def _read_starter(name: str) -> Rows:
    from unmask.starter import reference_texts, starter_folders

    folders = {folder.name: folder for folder in starter_folders()}
    if name == "reference":
        yield from ((line, {"text": text}) for line, text in enumerate(reference_texts(), start=1))
    elif name == "pairs":
        for line, row in read_rows(folders["sts"] / "test.jsonl"):
            if row["score"] >= _SAME_MEANING:
                yield line, {"sentence1": row["sentence1"], "sentence2": row["sentence2"]}
    elif name == "labels":
        yield from read_rows(folders["clustering"] / "all.jsonl")
    else:
        raise unknown("starter source", name, ("reference", "pairs", "labels"))


_JUDGED: Final = ("corpus.jsonl", "queries.jsonl")
FOLDERS: Final[dict[tuple[str, str], Callable[[Path, str], Rows]]] = {
    _JUDGED: _read_judged,
    ("passages.jsonl", "queries.jsonl"): _read_passages,
}
