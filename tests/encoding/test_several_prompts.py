"""Several prompts: the features of a text are the mean over the prompts, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from tests.conftest import TEXTS
from tests.families import EACH_KIND, FAMILIES
from tests.proofs import ALL
from unmask.designs.design import Design
from unmask.designs.prompts import Prompts
from unmask.embedder import Embedder
from unmask.encoding import forward_pass
from unmask.encoding.encoder import Tally
from unmask.errors import UnmaskError
from unmask.probing.layers import layer_designs
from unmask.saving.exports.export import export, find_target
from unmask.training.trainee import Trainee
from unmask.ui.routing import routes

if TYPE_CHECKING:
    from unmask.training.recipe import Recipe

OWN = 'The topic of "{text}" is:"'
PROMPTS = ("eol", "echo", OWN)
AVERAGE = Design("causal", PROMPTS, "last")
Make = Callable[..., Embedder]


MEANS = [(family, AVERAGE) for family in (FAMILIES if ALL else EACH_KIND)]
MEANS.append(("llama", Design.parse("causal/echo+eol/mean+last")))


def close(found: Any, expected: Any, within: float = 1e-5) -> None:
    assert np.abs(found - expected).max() <= within * np.abs(expected).max()


@pytest.mark.sample(6)
@pytest.mark.parametrize(("family", "design"), MEANS)
def test_the_vector_is_the_mean_of_those_under_each_prompt(family: str, design: Design, pico: Make) -> None:
    """Each read by its own pooling."""
    embedder = pico(design, family=family)
    parts = [np.asarray(embedder.with_design(design.under(prompt)).encode(TEXTS)) for prompt in design.prompts]
    close(embedder.encode(TEXTS), np.mean(parts, axis=0))
    assert np.abs(parts[0] - parts[1]).max() > 1e-3, "prompts differ"


def test_each_prompt_has_its_own_prefix_and_the_tally_counts_all(pico: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [
        f"{start} of this text, which follows after a long beginning, {{text}}" for start in ("Sum", "The topic in one word")
    ]
    texts, tallies = [f"text {number}" for number in range(20)], [Tally(), Tally(), Tally()]
    each: list[Prompts] = [*long, tuple(long)]
    for prompts, tally in zip(each, tallies, strict=True):
        pico(Design("causal", prompts, "last")).encode(texts, tally=tally)
    cached = Tally(
        *(getattr(tallies[0], name) + getattr(tallies[1], name) for name in ("texts", "truncated", "tokens", "padded"))
    )
    assert (tallies[2].tokens, tallies[2].padded) == (cached.tokens, cached.padded) and tallies[2].texts == 20
    embedder, full = pico(Design("causal", tuple(long), "last")), Tally()
    vectors = embedder.encode(texts)
    monkeypatch.setattr(forward_pass, "find_prefix", lambda *_: None)
    close(vectors, embedder.encode(texts, tally=full))
    assert cached.tokens < 0.5 * full.tokens


def test_a_text_that_one_prompt_cuts_counts_as_cut(pico: Make) -> None:
    embedder, tally = pico("causal/plain+echo/last", max_length=80), Tally()
    with pytest.warns(UserWarning, match="1 of 2 texts was cut"):
        embedder.encode(["short", "x y " * 14], tally=tally)
    assert tally.cut == [1] and tally.truncated == 1
    [text] = embedder.prompts.tokenize(["x y " * 14])
    assert sum(part.truncated for part in text.parts) == 1


def test_an_instruction_goes_to_the_prompts_that_take_one(pico: Make) -> None:
    embedder = pico("causal/instruction+plain/mean")
    parts = [embedder.with_design("causal/instruction/mean").encode(TEXTS, instruction="Find it.")]
    parts.append(embedder.with_design("causal/plain/mean").encode(TEXTS))
    close(embedder.encode(TEXTS, instruction="Find it."), sum(parts) / 2)
    with pytest.raises(UnmaskError, match=r"have no \{instruction\}"):
        pico("causal/eol+plain/mean").encode(TEXTS, instruction="Find it.")


def test_chunks_are_averaged_and_late_chunks_are_refused(pico: Make) -> None:
    embedder, document = pico("causal/eol+plain/last"), "One two three four five six seven eight nine ten. " * 4
    chunks = embedder.encode_chunks([document], 20)
    close(chunks.vectors, embedder.encode(chunks.texts([document])))
    with pytest.raises(UnmaskError, match="Late chunking works with one prompt"):
        embedder.encode_chunks([document], 20, late=True)
    with pytest.raises(UnmaskError, match=r"eol\+plain"):
        embedder.encode_chunks([document], 600)


def test_what_needs_one_prompt_refuses_several_before_it_computes(pico: Make, tmp_path: Path) -> None:
    embedder = pico("causal/eol+style/last", family="olmoe")
    refusing: dict[str, Callable[[], object]] = {
        "An export": lambda: export(embedder, find_target("sentence-transformers"), tmp_path / "out", unchecked=True),
        "The view of routing": lambda: routes(embedder, "a"),
        "Comparing layers": lambda: layer_designs(embedder.design, 3),
        "Training": lambda: Trainee.load(cast("Recipe", None), embedder.design, 0),
    }
    for what, work in refusing.items():
        with pytest.raises(UnmaskError, match=f"{what} works with one prompt, and 'causal/eol.style/last' averages 2"):
            work()
    assert not (tmp_path / "out").exists()
