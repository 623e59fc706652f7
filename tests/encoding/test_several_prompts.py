"""Several prompts: the features of a text are the mean over the prompts, whatever else is in the batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from tests.conftest import TEXTS
from tests.families import EACH_KIND, FAMILIES
from tests.proofs import ALL
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding import forward_pass
from unmask.encoding.encoder import Tally
from unmask.encoding.prefix_cache import find_prefix
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


def alone(embedder: Embedder, design: Design) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(embedder.with_design(design.under(prompt)).encode(TEXTS)) for prompt in design.prompts]


def close(found: Any, expected: Any, within: float = 1e-5) -> None:
    assert np.abs(found - expected).max() <= within * np.abs(expected).max()


@pytest.mark.sample(6)
@pytest.mark.parametrize("family", FAMILIES if ALL else EACH_KIND)
def test_the_vector_is_the_mean_of_those_under_each_prompt(family: str, pico: Make) -> None:
    embedder = pico(AVERAGE, family=family)
    parts = alone(embedder, AVERAGE)
    close(embedder.encode(TEXTS), sum(parts) / 3)
    assert np.abs(parts[0] - parts[1]).max() > 1e-3, "prompts differ"


def test_each_prompt_is_read_by_its_own_pooling(pico: Make) -> None:
    embedder = pico("causal/echo+eol/mean+last")
    echo, eol = (np.asarray(embedder.with_design(name).encode(TEXTS)) for name in ("causal/echo/mean", "causal/eol/last"))
    close(embedder.encode(TEXTS), (echo + eol) / 2)
    other = np.asarray(embedder.with_design("causal/echo+eol/last+mean").encode(TEXTS))
    assert np.abs(other - embedder.encode(TEXTS)).max() > 1e-3, "poolings differ"


def test_the_order_of_the_prompts_changes_no_bit(pico: Make) -> None:
    for name, again in (
        ("causal/eol+style+tone/last", "causal/tone+eol+style/last"),
        ("causal/eol+style+tone/last+mean+max", "causal/tone+eol+style/max+last+mean"),
    ):
        one, other = pico(name), pico(again)
        assert np.array_equal(one.encode(TEXTS), other.encode(TEXTS))
        assert one.design.name == other.design.name == name


def test_each_prompt_shares_its_own_beginning(pico: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [
        f'"{start} of this text, which follows after a long beginning, {{text}}"' for start in ("Sum", "The topic in one word")
    ]
    embedder, texts = pico(f"causal/{'+'.join(long)}/last"), [f"text {place}" for place in range(20)]
    lengths, find = list[int](), find_prefix

    def noting(*given: Any) -> Any:
        found = find(*given)
        lengths.append(found.length if found else 0)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(forward_pass, "find_prefix", lambda *_: None)
        whole, cost = Tally(), embedder.encode(texts[:1])
        expected = embedder.encode(texts, tally=whole)
    monkeypatch.setattr(forward_pass, "find_prefix", noting)
    tally = Tally()
    close(embedder.encode(texts, tally=tally), expected)
    close(expected[:1], cost)
    assert len(lengths) == 2 and lengths[0] != lengths[1] and min(lengths) > 10
    assert tally.tokens == whole.tokens - 20 * sum(lengths)


def test_the_tally_counts_every_prompt(pico: Make) -> None:
    texts = ["one text", "another text that is longer", "one text"]
    tallies = {prompts: Tally() for prompts in (("eol",), ("echo",), ("eol", "echo"))}
    for prompts, tally in tallies.items():
        pico(Design("causal", prompts if len(prompts) > 1 else prompts[0], "last")).encode(texts, tally=tally)
    one, other, both = tallies.values()
    assert both.tokens == one.tokens + other.tokens
    assert both.padded == one.padded + other.padded
    assert both.texts == one.texts == 3


def test_a_text_that_one_prompt_cuts_counts_as_cut(pico: Make) -> None:
    embedder, tally = pico("causal/plain+echo/last", max_length=80), Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        embedder.encode(["short", "x y " * 14], tally=tally)
    assert tally.cut == [1] and tally.truncated == 1
    [text] = embedder.prompts.tokenize(["x y " * 14])
    assert [part.truncated for part in text.parts].count(True) == 1


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
