"""Routing records that no model made, with a known answer, and their atlases: a plain one, and one whose texts no page should trust."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unmask.io.files import atomic_folder
from unmask.io.seals import seal
from unmask.moe.atlas.page import write_atlas
from unmask.moe.routing.measures import load_or_measure_routing
from unmask.moe.routing.record import RECORD, Choices, Label, Point, RecordSettings, Texts, part_folder, read_record, write_part
from unmask.moe.routing.text_bootstrap import Draws

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Locator, Page

SCRIPT = "<script>alert(1)</script>"
HOSTILE = "</script><img src=x onerror=alert(1)> \u202eabc\u202c \x1b[31m \x00 {{ 7*7 }} &amp; 'quoted\" 👩‍👩‍👧 שלום \u2028 end"
WORDS = {
    "code": "return def class import loop array",
    "law": "court clause judge appeal treaty statute",
    "science": "cell protein energy orbit gene light",
    "sports": "goal team coach match league medal",
}
COMMON = ["the", "of", "and", "to", "in", "is"]


@dataclass(frozen=True)
class Made:
    """A record to make. named: experts have names. tags: words have labels. biased: the first choice is not the most probable expert.

    strange: the first text, a domain and the model's name are hostile. Three of five tokens go to an expert of their text's domain.
    """

    texts: int = 40
    points: int = 4
    experts: int = 8
    chosen: int = 2
    named: bool = False
    strange: bool = False
    tags: bool = False
    labelled: bool = True
    biased: bool = False

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(sorted((*WORDS, SCRIPT) if self.strange else WORDS))

    def write(self, folder: Path) -> Path:
        """Two parts, or one for a single text."""
        random, domains = np.random.default_rng(0), self.domains
        bounds = [0, self.texts // 2, self.texts] if self.texts > 1 else [0, 1]
        labels = (Label(name="domain", of="text", values=domains),) if self.labelled else ()
        if self.tags:
            labels = (*labels, Label(name="word", of="token", values=("common", "special")))
        words = []
        for n in range(self.texts):
            special = WORDS.get(domains[n % len(domains)], SCRIPT).split()
            words.append([str(random.choice(special if random.random() < 0.6 else COMMON)) for _ in range(20 + n % 5)])
        if self.strange:
            words[0] = HOSTILE.split(" ")
        total = sum(map(len, words))
        settings = RecordSettings(
            model=SCRIPT if self.strange else "made", weights="memory-0", attention="causal", dtype="float32", max_length=512,
            batch_tokens=1024, data="made", sources=("made",), texts=self.texts, truncated=0, tokens=total, tokens_of_texts=total,
            sample=None, seed=0, labels=labels, dim=16, part_tokens=4096, parts=len(bounds) - 1, provenance={},
            experts=tuple(f"expert-{number}" for number in range(self.experts)) if self.named else None,
            points=tuple(
                Point(name=f"layers.{index}.gate", layer=index + 1, experts=self.experts, chosen=self.chosen)
                for index in range(self.points)
            ),
        )  # fmt: skip
        settings.write(folder / RECORD)
        vocabulary = sorted({word for text in words for word in text})
        for part, (first, last) in enumerate(pairwise(bounds)):
            own, numbers = words[first:last], np.arange(first, last)
            sizes = np.array(list(map(len, own)))
            domain = np.repeat(numbers % len(domains), sizes)
            common = np.array([word in COMMON for text in own for word in text])
            probabilities, chosen = [], []
            for point in range(self.points):
                scores = random.normal(0, 1, (len(domain), self.experts))
                knows = (random.random(len(domain)) < 0.6) & ~common
                scores[np.arange(len(domain)), (domain + point) % self.experts] += 4.0 * knows
                shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
                best = np.argsort(-shares, axis=1)[:, : self.chosen]
                probabilities.append(shares.astype(np.float16))
                chosen.append((best[:, ::-1] if self.biased else best).astype(np.int16))
            spans = []
            for sentence in own:  # each word with the blank before it, as tokenizers have it
                ends = np.cumsum([len(word) + 1 for word in sentence]) - 1
                spans.append(np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).astype(np.int32))
            choices = Choices(
                np.repeat(numbers, sizes).astype(np.int32),
                np.concatenate([np.arange(size) for size in sizes]).astype(np.int32),
                np.array([vocabulary.index(word) for text in own for word in text], np.int32),
                {"word": np.where(common, 0, 1).astype(np.int16)} if self.tags else {},
                probabilities,
                chosen,
                [np.ones(of_point.shape, np.float16) for of_point in chosen],
            )
            of_texts = {"domain": (numbers % len(domains)).astype(np.int16)} if self.labelled else {}
            texts = Texts([" ".join(text) for text in own], sizes.astype(np.int32), of_texts)
            hidden = random.normal(0, 1, (len(own), 16)).astype(np.float32)
            with atomic_folder(part_folder(folder, part)) as scratch:
                write_part(scratch, settings, first, texts, spans, hidden, choices)
                seal(scratch)
        return folder


@pytest.fixture(scope="session")
def small_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Made(tags=True).write(tmp_path_factory.mktemp("small-record"))
    load_or_measure_routing(read_record(folder), Draws(20, 10, 10))
    return folder


@pytest.fixture(scope="session")
def small_atlas(small_record: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_atlas(small_record, tmp_path_factory.mktemp("small-atlas"))


@pytest.fixture(scope="session")
def strange_atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strange")
    return write_atlas(Made(strange=True, named=True, texts=20).write(folder / "record"), folder)


class Look:
    """An atlas in a real browser, under observation."""

    def __init__(self, page: Page, atlas: Path) -> None:
        self.page = page
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(atlas.as_uri())

    def _dismiss(self, dialog: Dialog) -> None:
        self.problems.append(dialog.message)
        dialog.dismiss()

    def view(self, name: str) -> Locator:
        return self.page.locator(f"#{name} .pane")

    def told(self, name: str) -> str:
        return self.view(name).locator(".told").inner_text().replace("\u00a0", " ")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


@pytest.fixture
def look(browser: Browser) -> Iterator[Any]:
    """Open an atlas. At the end, it has shown no problem and requested nothing but its own file."""
    opened: list[tuple[Any, Look]] = []

    def at(atlas: Path, width: int = 1280, **options: Any) -> Look:
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **options)
        opened.append((context, Look(context.new_page(), atlas)))
        return opened[-1][1]

    yield at
    for context, seen in opened:
        assert seen.problems == [] and len(seen.requests) == 1 and seen.requests[0].startswith("file:")
        context.close()
