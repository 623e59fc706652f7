"""A page of a dense pico model, of a pico mixture of experts, and a small corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.ui.running import Client, running
from unmask.embedder import Embedder
from unmask.ui.corpus_map import Corpus

HOSTILE = (
    "<script>window.ran = 1</script>",
    '<img src=x onerror="window.ran = 1">',
    "admin\u202egnp.exe",
    "nul\0 and bell\x07",
    "[bold]x[/bold] {text} ${1} ]]>",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 combined e\u0301 שלום",
)
"""Texts that a page could take for something else. Each is distinct, and none is blank."""


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """Texts of two topics in turn, and hostile ones under a hostile label."""
    music = [f"{word} number {number} of the band" for number in range(10) for word in ("song", "choir")]
    sport = [f"{word} number {number} of the team" for number in range(10) for word in ("goal", "race")]
    texts = [*music, *sport, *HOSTILE]
    labels = ["music"] * len(music) + ["sport"] * len(sport) + ["<b>odd</b>"] * len(HOSTILE)
    return Corpus("texts <i>.jsonl", tuple(texts), tuple(labels), len(texts))


@pytest.fixture(scope="session")
def dense(pico: Callable[..., Embedder], corpus: Corpus) -> Iterator[Client]:
    """The page of a dense model."""
    with running(pico("causal/plain/mean", max_length=64), corpus=corpus) as client:
        yield client


@pytest.fixture(scope="session")
def routed(pico: Callable[..., Embedder]) -> Iterator[Client]:
    """The page of a mixture of experts, without a corpus."""
    with running(pico("causal/plain/mean", family="olmoe"), "mean,prompteol") as client:
        yield client
