"""Prompts: the rules of a template, and what each registered one renders."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.designs.prompts import PROMPTS, Prompt, find_prompt
from unmask.errors import UnmaskError


@pytest.mark.parametrize("name", PROMPTS)
@settings(max_examples=20)
@given(text=st.text(max_size=20))
def test_every_prompt_renders_the_text_where_it_says(name: str, text: str) -> None:
    rendered, copies = PROMPTS[name].render(text, "Find it")
    assert [rendered[start:end] for start, end in copies] == [text] * PROMPTS[name].template.count("{text}")
    assert rendered == PROMPTS[name].template.format(text=text, instruction="Find it", eos="")


@pytest.mark.parametrize(
    ("name", "rendered"),
    [
        ("plain", "T"),
        ("eos", "T"),
        ("eol", 'This sentence : "T" means in one word:"'),
        ("echo", "Rewrite the sentence: T\nRewritten sentence: T"),
        ("instruction", "Instruct: I\nQuery: T"),
        ("instruction-eos", "Instruct: I\nQuery: T"),
    ],
)
def test_the_published_prompts_are_as_published(name: str, rendered: str) -> None:
    assert PROMPTS[name].render("T", "I")[0] == rendered


@pytest.mark.parametrize(
    ("template", "instruction", "eos"),
    [
        ("{text}", False, False),
        ("{text}{eos}", False, True),
        ("a {instruction} b {text} c", True, False),
        ("{instruction}{text}{text}{eos}", True, True),
        ("{text}{instruction}{text}", True, False),
        ("{{{text}}}", False, False),
        ("no eos, no instruction: {text} {{eos}}", False, False),
    ],
)
def test_a_template_within_the_rules_is_taken(template: str, instruction: bool, eos: bool) -> None:
    prompt = find_prompt(template)
    assert (prompt.takes_instruction, prompt.appends_eos) == (instruction, eos)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("", "must contain {text} once"),
        ("no field", "must contain {text} once"),
        ("{{text}}", "must contain {text} once"),
        ("{text}{text}{text}", "must contain {text} once"),
        ("{instruction}{instruction}{text}", "{instruction} is allowed once"),
        ("{text}{instruction}", "{instruction} is allowed once"),
        ("{text} {instruction} .", "{instruction} is allowed once"),
        ("{text}{instruction}{eos}", "{instruction} is allowed once"),
        ("{eos}{text}", "{eos} is allowed only at the end"),
        ("{text}{eos} ", "{eos} is allowed only at the end"),
        ("{text}{eos}{eos}", "{eos} is allowed only at the end"),
        ("{text", "has a mistake: "),
        ("text}", "has a mistake: "),
        ("{txt}", "Did you mean 'text'"),
        ("{text}{}", "Unknown field"),
        ("{text:>10}", "has ':' or '!' in a field. Write {text} without them"),
        ("{text!r}", "has ':' or '!' in a field. Write {text} without them"),
    ],
)
def test_a_template_outside_the_rules_is_refused(template: str, says: str) -> None:
    with pytest.raises(UnmaskError) as refused:
        Prompt("own", template)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "template", ["Topic of this text:", "", "Summarise.", "one word", "a\ud800 {text}", "chat:What is it?"]
)
def test_a_template_without_its_text_is_a_template_and_no_unknown_name(template: str) -> None:
    with pytest.raises(UnmaskError) as refused:
        find_prompt(template)
    assert "does not work: it" in str(refused.value)
    assert str(refused.value).encode()


def test_without_an_instruction_the_text_stands_alone() -> None:
    assert PROMPTS["instruction"].without_instruction().render("T", None)[0] == "T"
    assert PROMPTS["instruction-eos"].without_instruction().appends_eos
    assert PROMPTS["eol"].without_instruction() is PROMPTS["eol"]
