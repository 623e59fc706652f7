"""Facts of the sets: rows and columns from their files, sources and licences from their file PROVENANCE. They are kept in facts.json."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypedDict

from unmask.io.rows import has_rows, read_rows
from unmask.tasks.find import recognised_kind
from unmask.tasks.folder import open_folder

WORDS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = tomllib.loads(
    Path(__file__).with_name("sets.toml").read_text(encoding="utf-8")
)
FACTS: Final = Path(__file__).with_name("facts.json")
PROVENANCE: Final = "PROVENANCE"


class Facts(TypedDict):
    """What the page tells of a set and does not say in our words."""

    kind: str
    files: list[str]
    sources: list[str]
    licence: str
    left_out: int


def kept_facts() -> dict[str, Facts]:
    """The facts that were found last, by set."""
    found: dict[str, Facts] = json.loads(FACTS.read_text(encoding="utf-8"))
    return found


def find_facts(data: Path) -> dict[str, Facts]:
    """The facts of each set of a data folder. Exits if the folder and tools/data_page/sets.toml do not have the same sets."""
    groups = {name: group for group, sets in WORDS.items() for name in sets}
    if other := groups.keys() ^ {file.parent.name for file in data.glob(f"*/{PROVENANCE}")}:
        sys.exit(f"'{data}' and tools/data_page/sets.toml differ in {', '.join(sorted(other))}.")
    return {name: facts_of(data / name, group) for name, group in groups.items()}


def facts_of(folder: Path, group: str) -> Facts:
    """What the files of a set tell. left_out: rows that were left out of a training set for a text of a task."""
    told = dict(re.findall(r"^([\w ]+): *(.+)$", (folder / PROVENANCE).read_text(encoding="utf-8"), flags=re.MULTILINE))
    return {
        "kind": recognised_kind(open_folder(folder)).name if group == "tasks" else "",
        "files": list(files_of(folder)),
        "sources": list(sources_of(told["source"])),
        "licence": told["licence as stated"],
        "left_out": sum(int(rows) for rows in re.findall(r"(\d+) (?:rows with|more equal)", told.get("overlap", ""))),
    }


def files_of(folder: Path) -> Iterator[str]:
    """The files of a set with their rows. Files of the same columns stand together."""
    alike: dict[str, list[str]] = {}
    for file in sorted(path for path in folder.iterdir() if has_rows(path)):
        rows, columns = _content(file)
        alike.setdefault(columns, []).append(f"`{file.name}` {rows:,}")
    for columns, files in alike.items():
        yield f"{', '.join(files)}: {columns}"


def _content(file: Path) -> tuple[int, str]:
    """The number of rows of a file, and its columns in words."""
    rows, columns = 0, dict[str, str]()
    for _, row in read_rows(file):
        rows += 1
        columns |= {name: f"{name}[]" if isinstance(value, list) else name for name, value in row.items()}
    return rows, "lines of text" if file.suffix == ".txt" else f"`{', '.join(columns.values())}`"


def sources_of(told: str) -> Iterator[str]:
    """The repositories of a source, as links to the commit, each with its files."""
    files: dict[str, list[str]] = {}
    for source in told.split("; "):
        place, _, path = source.partition(":")
        files.setdefault(place, []).append(path)
    for place, paths in files.items():
        repository, _, commit = place.removeprefix("github.com/").partition("@")
        named = ", ".join(f"`{path}`" for path in paths)
        yield f"[{repository}](https://github.com/{repository}/tree/{commit}): {named}"
