"""Routing records that no model made, with a known answer: tokens of a domain like the expert of their domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.io.files import atomic_folder
from unmask.io.seals import seal
from unmask.moe.routing.record import RECORD, Choices, Label, Point, RecordSettings, Texts, part_folder, write_part

SCRIPT = "<script>alert(1)</script>"
HOSTILE = "</script><img src=x onerror=alert(1)> \u202eabc\u202c \x1b[31m \x00 {{ 7*7 }} &amp; 'quoted\" 👩‍👩‍👧 שלום \u2028 end"
_WORDS = {
    "sports": "goal team coach match league medal race ball referee stadium",
    "code": "return def class import loop array index string lambda print",
    "science": "cell protein energy orbit gene light atom carbon neuron fossil",
    "law": "court clause judge appeal treaty statute claim party contract tort",
}
_COMMON = ["the", "of", "and", "to", "in", "is", "that", "for", "it", "was"]


@dataclass(frozen=True)
class Made:
    """What to make. known: the share of tokens that go to an expert of their text's domain. named: experts have names.

    strange: a text, a label value and a model's name that no page should trust. biased: the first choice is not the most probable expert.
    The last expert of the first point is never chosen.
    """

    texts: int = 40
    points: int = 4
    experts: int = 8
    chosen: int = 2
    length: int = 24
    known: float = 0.6
    named: bool = False
    strange: bool = False
    tags: bool = False
    unlabelled: bool = False
    biased: bool = False
    parts: int = 2
    dim: int = 16
    seed: int = 0
    model: str = "made"

    @property
    def domains(self) -> tuple[str, ...]:
        """Values of the label, in order."""
        return tuple(sorted((*_WORDS, SCRIPT) if self.strange else _WORDS))

    @property
    def labels(self) -> tuple[Label, ...]:
        """The label of texts, and of tokens."""
        if self.unlabelled:
            return ()
        word = Label(name="word", of="token", values=("common", "special"))
        return (Label(name="domain", of="text", values=self.domains), *((word,) if self.tags else ()))

    def settings(self, tokens: int) -> RecordSettings:
        """The settings of the record."""
        return RecordSettings(
            model=SCRIPT if self.strange else self.model,
            weights="memory-0",
            attention="causal",
            dtype="float32",
            max_length=512,
            batch_tokens=1024,
            data=f"made of {self.texts} texts of {self.length} words",
            sources=("made",),
            texts=self.texts,
            truncated=0,
            tokens=tokens,
            tokens_of_texts=tokens,
            sample=None,
            seed=self.seed,
            labels=self.labels,
            experts=tuple(f"expert-{number}" for number in range(self.experts)) if self.named else None,
            points=tuple(
                Point(name=f"layers.{place}.gate", layer=place + 1, experts=self.experts, chosen=self.chosen)
                for place in range(self.points)
            ),
            dim=self.dim,
            part_tokens=4096,
            parts=self.parts,
            provenance={"versions": {"torch": "2.13.0"}, "hardware": "made"},
        )


def write_made(folder: Path, made: Made | None = None) -> Path:
    """Write a made record."""
    made = made or Made()
    random = np.random.default_rng(made.seed)
    bounds = np.linspace(0, made.texts, made.parts + 1).astype(int)
    texts = [_text(made, number, random) for number in range(made.texts)]
    settings = made.settings(sum(len(words) for words, _ in texts))
    settings.write(folder / RECORD)
    for part, (first, last) in enumerate(pairwise(bounds)):
        with atomic_folder(part_folder(folder, part)) as scratch:
            _write(scratch, made, settings, texts, range(first, last), random)
            seal(scratch)
    return folder


def _text(made: Made, number: int, random: np.random.Generator) -> tuple[list[str], int]:
    """Words of a text, and its domain."""
    domain = number % len(made.domains)
    if made.strange and number == 0:
        return HOSTILE.split(" "), domain
    own = _WORDS.get(made.domains[domain], SCRIPT).split()
    length = made.length + number % 5
    return [str(random.choice(own if random.random() < 0.6 else _COMMON)) for _ in range(length)], domain


def _write(
    scratch: Path,
    made: Made,
    settings: RecordSettings,
    texts: Sequence[tuple[list[str], int]],
    here: range,
    random: np.random.Generator,
) -> None:
    vocabulary = {word: at for at, word in enumerate(sorted({word for words, _ in texts for word in words}))}
    own = [texts[number] for number in here]
    sizes = [len(words) for words, _ in own]
    tokens = sum(sizes)
    domains = np.repeat([domain for _, domain in own], sizes)
    common = np.array([word in _COMMON for words, _ in own for word in words])
    probabilities, chosen, gates = [], [], []
    for point in range(made.points):
        scores = random.normal(0, 1, (tokens, made.experts))
        knows = (random.random(tokens) < made.known) & ~common
        scores[np.arange(tokens), (domains + point) % made.experts] += 4.0 * knows
        scores[:, -1] -= 50.0 * (point == 0)
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        best = np.argsort(-shares, axis=1)[:, : made.chosen]
        best = best[:, ::-1] if made.biased else best
        probabilities.append(shares.astype(np.float16))
        chosen.append(best.astype(np.int16))
        gates.append(np.take_along_axis(shares, best, axis=1).astype(np.float16))
    choices = Choices(
        np.repeat(np.array(here, np.int32), sizes),
        np.concatenate([np.arange(size) for size in sizes]).astype(np.int32),
        np.array([vocabulary[word] for words, _ in own for word in words], np.int32),
        {"word": np.where(common, 0, 1).astype(np.int16)} if made.tags and not made.unlabelled else {},
        probabilities,
        chosen,
        gates,
    )
    centres = np.random.default_rng(9).normal(0, 2, (len(made.domains), made.dim))
    hidden = (centres[[domain for _, domain in own]] + random.normal(0, 1, (len(own), made.dim))).astype(np.float32)
    labels = {} if made.unlabelled else {"domain": np.array([domain for _, domain in own], np.int16)}
    of_texts = Texts([" ".join(words) for words, _ in own], np.array(sizes, np.int32), labels)
    write_part(scratch, settings, here.start, of_texts, [_spans(words) for words, _ in own], hidden, choices)


def _spans(words: Sequence[str]) -> NDArray[np.int32]:
    """Each word with the blank before it, as tokenizers have it."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).astype(np.int32)
