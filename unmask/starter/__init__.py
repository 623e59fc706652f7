"""Starter tasks: four small labelled sets and a reference corpus of our own writing, for demonstrations."""

from __future__ import annotations

from pathlib import Path

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
