"""Prompt names: one prompt or several, with quotes around own templates, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.designs.design import Design
from unmask.designs.prompts import PROMPTS, name_of, prompts_of
from unmask.errors import UnmaskError

ODD = st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]) | st.sampled_from('"+/\\,:@~=')).map(
    lambda text: text + "{text}"
)


@given(st.lists(ODD | st.sampled_from(sorted(PROMPTS)), min_size=2, max_size=4, unique=True), st.booleans())
def test_every_name_gives_its_prompts_back_in_one_order(prompts: list[str], chat: bool) -> None:
    given_prompts = ["chat:" + prompt for prompt in prompts] if chat else prompts
    try:
        design = Design(prompt=tuple(given_prompts))
    except UnmaskError as error:
        assert "are the same" in str(error), "plain is {text}"
        return
    assert Design.parse(design.name) == design
    assert Design(prompt=tuple(reversed(given_prompts))) == design
    assert sorted(design.prompts) == sorted(given_prompts)
    assert prompts_of(name_of(design.prompt)) == design.prompt


def test_a_plus_in_a_template_is_a_character() -> None:
    for name in ('causal/"1+1: {text}"/mean', 'causal/"\\"a {text}\\"+\\"b {text}\\""/mean', "causal/C++: {text}/mean"):
        assert isinstance(Design.parse(name).prompt, str)
    assert Design.parse('causal/style+"A+B: {text}"+chat:eol/last').prompts == ("A+B: {text}", "chat:eol", "style")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("causal/eol+eol/last", "eol and eol are the same"),
        ('causal/plain+"{text}"/last', "are the same"),
        ("causal/eol+plain/last+cross-attention", "'cross-attention' is trained under one prompt"),
        ("causal/eol+plain/last+mean+last", "is 3 poolings, and the design has 2 prompts"),
        ("causal/eol+plain/last@2+mean", "It stands after all poolings"),
    ],
)
def test_what_cannot_be_averaged_is_refused(name: str, message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        Design.parse(name)


def test_poolings_follow_their_prompts() -> None:
    one = Design.parse("causal/tone+eol/mean+last@2/zscore")
    assert one == Design("causal", ("tone", "eol"), ("mean", "last"), 2, transforms=("zscore",))
    assert (one.prompts, one.poolings, one.name) == (("eol", "tone"), ("last", "mean"), "causal/eol+tone/last+mean@2/zscore")
    assert one.under("tone") == Design("causal", "tone", "mean", 2, transforms=("zscore",))
    assert Design.parse("causal/tone+eol/mean+mean") == Design.parse("causal/eol+tone/mean"), "one pooling has one name"
