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


def sets_in(data: Path) -> set[str]:
    """The sets of a data folder: its folders with a file PROVENANCE."""
    return {file.parent.name for file in data.glob(f"*/{PROVENANCE}")}


def find_facts(data: Path) -> dict[str, Facts]:
    """The facts of all sets: new ones of those that a data folder has, kept ones of the others.

    A set is a folder of its name, with a file PROVENANCE. Of that file, these lines are read. `source` names files of repositories of
    GitHub at a commit, with `; ` between them. `overlap` is left out if no row of the set was left out for a text of a task:

        source: github.com/OWNER/REPOSITORY@COMMIT:PATH; github.com/OWNER/REPOSITORY@COMMIT:PATH
        licence as stated: CC BY 4.0
        overlap: 2 rows with a text of a task, 30 more equal but for case

    Exits if the folder has no set, or a set that sets.toml does not describe, or if a set that sets.toml describes has no facts yet.
    """
    groups = {name: group for group, sets in WORDS.items() for name in sets}
    kept, here = kept_facts(), sets_in(data)
    if not here:
        sys.exit(f"'{data}' holds no set: a set is a folder with a file {PROVENANCE}.")
    if unknown := here - groups.keys():
        sys.exit(
            f"tools/data_page/sets.toml does not describe {', '.join(sorted(unknown))}: describe these sets of '{data}' there."
        )
    if missing := groups.keys() - here - kept.keys():
        sys.exit(
            f"'{data}' lacks {', '.join(sorted(missing))}: sets.toml describes these sets, and their facts are not known yet."
        )
    return {name: facts_of(data / name, group) if name in here else kept[name] for name, group in groups.items()}


def facts_of(folder: Path, group: str) -> Facts:
    """What the files of a set tell. left_out: rows that were left out of a training set for a text of a task."""
    told = dict(re.findall(r"^([\w ]+): *(.+)$", (folder / PROVENANCE).read_text(encoding="utf-8"), flags=re.MULTILINE))
    if missing := [line for line in ("source", "licence as stated") if line not in told]:
        sys.exit(f"'{folder / PROVENANCE}' has no line '{missing[0]}: ...'.")
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
