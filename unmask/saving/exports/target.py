"""Target: a format that an embedder is exported to, and what an embedder must offer for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.encoder import Encoder
from unmask.saving.folder import Saveable

Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str], "str | None"], Vectors]
"""Texts and an instruction (or None) to vectors of shape (text, dim)."""


class Exportable(Saveable, Protocol):
    """What an export reads of an embedder."""

    @property
    def encoder(self) -> Encoder: ...  # noqa: D102

    def encode(self, texts: Iterable[str], **options: Any) -> NDArray[Any]: ...  # noqa: D102


@dataclass(frozen=True)
class Checked:
    """What the check of an export found: in one line for the terminal, and in markdown for its card."""

    line: str
    details: str


@dataclass(frozen=True)
class Target:
    """A format to export to.

    meaning: what runs it, for help and docs. precision: of the weights, or None if the model's own is kept. writes, checks: modules
    that write the format and that load it for the check. refusal: why an embedder cannot be exported, or None; it names the nearest
    design that can. write: writes the files into a folder. check: loads them by their own runtime and compares them with the embedder;
    raises UnmaskError above the tolerance. usage: code for the card.
    """

    name: str
    meaning: str
    precision: str | None
    writes: tuple[str, ...]
    checks: tuple[str, ...]
    refusal: Callable[[Exportable], str | None]
    write: Callable[[Exportable, Path], None]
    check: Callable[[Exportable, Path], Checked]
    usage: Callable[[Exportable], str]
