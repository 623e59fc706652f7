"""Starter tasks: four small labelled sets and reference texts of our own writing, for demonstrations."""

from __future__ import annotations

from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.files import inside

_HERE = Path(__file__).parent


def starter_folders() -> list[Path]:
    """The starter tasks, as task folders."""
    return sorted(file.parent for file in _HERE.glob("*/task.toml"))


def reference_texts() -> list[str]:
    """Plain, varied sentences on which standardisation and alpha are fitted unless the user brings a corpus."""
    return (_HERE / "reference.txt").read_text(encoding="utf-8").splitlines()


def starter_lessons(domain: str) -> Path:
    """A file of a few lessons of knowledge, reasoning, math or coding; it need not exist."""
    return inside(_HERE / "lessons", f"{domain}.jsonl")


def lessons_file(name_or_path: str, root: Path) -> Path:
    """A file of lessons below the data folder, or `starter:DOMAIN`. Raises UnmaskError if it does not exist."""
    kind, mark, domain = name_or_path.partition(":")
    file = starter_lessons(domain) if mark and kind == "starter" else root / name_or_path
    if not file.is_file():
        raise UnmaskError(f"'{file}' does not exist. Give the folder of the data sets (--data).")
    return file
