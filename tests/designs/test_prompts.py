"""Prompts: the rules of a template, and what each registered one renders."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.designs.prompts import PROMPTS, find_prompt
from unmask.errors import UnmaskError


@pytest.mark.parametrize("name", PROMPTS)
@settings(max_examples=20)
@given(text=st.text(max_size=20))
def test_every_prompt_renders_the_text_where_it_says(name: str, text: str) -> None:
    rendered, copies = PROMPTS[name].render(text, "Find it")
    assert [rendered[start:end] for start, end in copies] == [text] * PROMPTS[name].template.count("{text}")
    assert rendered == PROMPTS[name].template.format(text=text, instruction="Find it", eos="")


def test_without_an_instruction_the_text_stands_alone() -> None:
    assert PROMPTS["instruction"].without_instruction().render("T", None)[0] == "T"
    assert PROMPTS["instruction-eos"].without_instruction().appends_eos
    assert PROMPTS["gritlm"].without_instruction().render("T", None) == ("<|embed|>\nT", [(10, 11)])
    assert PROMPTS["eol"].without_instruction() is PROMPTS["eol"]


def test_the_fields_of_a_template() -> None:
    for template, instruction, eos in (
        ("{text}{eos}", False, True),
        ("{text}{instruction}{text}", True, False),
        ("{{{text}}}", False, False),
        ("no eos, no instruction: {text} {{eos}}", False, False),
    ):
        prompt = find_prompt(template)
        assert (prompt.takes_instruction, prompt.appends_eos) == (instruction, eos)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Topic of this text:", "must contain {text} once"),
        ("{{text}}", "must contain {text} once"),
        ("{text}{text}{text}", "must contain {text} once"),
        ("{instruction}{instruction}{text}", "{instruction} is allowed once"),
        ("{text}{instruction}{eos}", "{instruction} is allowed once"),
        ("{text}{eos} ", "{eos} is allowed only at the end"),
        ("{text", "has a mistake: "),
        ("{txt}", "Did you mean 'text'"),
        ("{text:>10}", "has ':' or '!' in a field. Write {text} without them"),
        ("a\ud800 {text}", "not valid Unicode"),
    ],
)
def test_a_template_outside_the_rules_is_refused(template: str, message: str) -> None:
    for name in (template, f"chat:{template}"):
        with pytest.raises(UnmaskError) as refused:
            find_prompt(name)
        assert message in str(refused.value) and str(refused.value).encode()
