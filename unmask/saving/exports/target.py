"""Target: a format that an embedder is exported to, and what an embedder must offer for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unmask.errors import UnmaskError
from unmask.saving.folder import Saveable
from unmask.starter import reference_texts

Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str], "str | None"], Vectors]
"""Texts and an instruction (or None) to vectors of shape (text, dim)."""


class Exportable(Saveable, Protocol):
    """What an export reads of an embedder."""

    batch_tokens: int

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


TEXTS = 200
INSTRUCTION = "Given a question, find the texts that answer it."
_STRANGE = ["", "naïve café, 日本語, \u0645\u0631\u062d\u0628\u0627, 🎉👩‍👧 e\u0301 ﬁ", " two words\n", "x"]


def check_texts(embedder: Exportable) -> list[str]:
    """200 texts: the reference texts of this package, an empty one, one that is longer than the limit, spaces and other scripts.

    One contains the name of the end-of-sequence token, if the tokenizer has one. The empty text is left out if it has no tokens.
    """
    sentences, limit = reference_texts(), embedder.prompt.max_length
    long = " ".join(sentences * (1 + limit // 2000))[: 8 * limit]
    strange = _STRANGE if embedder.prompt.layout["empty"] is not None else _STRANGE[1:]
    if eos := embedder.tokenizer.eos_token:
        strange = [*strange, f"a {eos} b{eos}"]
    return [*sentences[: TEXTS - len(strange) - 1], *strange, long]


def check_vectors(embedder: Exportable, encode: Encode, tolerance: float, texts: Sequence[str] | None = None) -> Checked:
    """Compare vectors at unit length, of the check's texts or of these. Raises UnmaskError above the tolerance.

    A prompt that takes an instruction is checked with one and without.
    """
    texts = check_texts(embedder) if texts is None else texts
    instructions = [None, INSTRUCTION] if embedder.prompt.prompt.takes_instruction else [None]
    differences, cosines = [], []
    for instruction in instructions:
        expected, exported = our_vectors(embedder, texts, instruction), unit(encode(texts, instruction))
        if expected.shape != exported.shape:
            raise UnmaskError(
                f"The exported model gives vectors of shape {exported.shape}, not {expected.shape}. Nothing is written."
            )
        differences.append(float(np.abs(expected - exported).max()))
        cosines.append(float((expected.astype(np.float64) * exported).sum(axis=1).min()))
    difference, cosine = max(differences), min(cosines)
    if not difference <= tolerance:  # NaN too
        raise UnmaskError(
            f"The exported model differs from the embedder by {difference:.1e} at unit length (smallest cosine {cosine:.6f}), which is "
            f"above the tolerance of {tolerance:.0e}. Nothing is written."
        )
    line = f"largest difference {difference:.1e}, smallest cosine {cosine:.6f} (tolerance {tolerance:.0e})"
    details = (
        f"{len(texts)} texts were embedded by the embedder and by the exported model: sentences, an empty text, one that is cut, one "
        "with a special token, and several scripts. Vectors at unit length:\n\n| | |\n|---|--:|\n"
        f"| largest difference of a number | {difference:.1e} |\n"
        f"| smallest cosine | {cosine:.7f} |\n| tolerance (a larger difference is refused) | {tolerance:.0e} |\n"
    )
    return Checked(line, details)


def our_vectors(embedder: Exportable, texts: Sequence[str], instruction: str | None = None) -> Vectors:
    """The embedder's own vectors at unit length, without its note on texts that are cut."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* cut to .* tokens")
        return unit(embedder.encode(texts, instruction=instruction, show_progress=False))


def unit(vectors: Vectors) -> Vectors:
    """Vectors at unit length; a zero vector stays zero."""
    lengths = np.linalg.norm(np.asarray(vectors, np.float64), axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-30), np.float32)
