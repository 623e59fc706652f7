"""Own files: which files in the folder of a saved embedder belong to it. All others are somebody else's."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from unmask.io.seals import SEAL, read_record

SETTINGS, FIT, HEAD = "unmask.json", "unmask_fit.safetensors", "unmask_head.safetensors"
ST_CONFIG = "config_sentence_transformers.json"
ADDED = ("README.md", "training.png")
"""What training and sentence-transformers add to a saved embedder."""

_NAMES = (
    *(SETTINGS, FIT, HEAD, SEAL),
    *("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json"),
    "model-?????-of-?????.safetensors",
    *("adapter_config.json", "adapter_model.safetensors", "mixture.json", "router.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja"),
    *("modules.json", ST_CONFIG, "sentence_bert_config.json", "1_Pooling/config.json"),
)
"""The names that saving gives to files."""


def own_files(folder: Path) -> set[Path]:
    """The files of the saved embedder in a folder: those in its seal, or, without one (sentence-transformers), those that saving names."""
    files = files_in(folder)
    if (sealed := read_record(folder / SEAL)) is not None:
        return {folder / name for name in (*sealed, SEAL)} & set(files)
    return {file for file in files if any(fnmatchcase(file.relative_to(folder).as_posix(), name) for name in _NAMES)}


def files_in(folder: Path) -> list[Path]:
    """Everything in a folder and below that is no folder itself, in order."""
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def replace_files(folder: Path, earlier: Iterable[Path], scratch: Path) -> None:
    """Move all files of a scratch folder into a folder, and remove the earlier files there that were not replaced."""
    gone = set(earlier)
    for file in files_in(scratch):
        target = folder / file.relative_to(scratch)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
        gone.discard(target)
    for file in gone:
        file.unlink(missing_ok=True)
    for emptied in sorted({place for file in gone for place in file.parents if folder in place.parents}, reverse=True):
        with suppress(OSError):  # something else lies there
            emptied.rmdir()
