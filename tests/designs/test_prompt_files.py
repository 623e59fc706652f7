"""Prompt files: each prompt is the design that its template spells out, and what is wrong is told by file and name."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.designs.design import Design, parse_designs
from unmask.designs.prompt_files import LIBRARY, PromptEntry, read_prompts
from unmask.designs.prompts import Prompt
from unmask.errors import UnmaskError


def written(folder: Path, text: str) -> Path:
    file = folder / "own.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_library_has_many_prompts_and_no_two_are_alike() -> None:
    prompts = {name: entry for name, entry in read_prompts(LIBRARY).items() if isinstance(entry, PromptEntry)}
    assert len(prompts) >= 40
    assert len({entry.whole for entry in prompts.values()}) == len(prompts)
    assert any(entry.examples for entry in prompts.values())
    assert list(parse_designs("prompts")) == list(read_prompts(LIBRARY)) and len(read_prompts(LIBRARY)) > len(prompts)
    for name, design in (parse_designs("prompts") | parse_designs("prompts-z")).items():
        assert Design.parse(name) == design and parse_designs(name) == {name: design}


def test_a_file_stands_for_its_designs_under_their_names(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [topic]
        template = 'Topic of "{text}":"'
        [all-tokens]
        template = "Text: {text}"
        pooling = "mean"
        zscore = true
        """,
    )
    assert parse_designs(f"mean,{file},last") == {
        "mean": Design(),
        "topic": Design("causal", 'Topic of "{text}":"', "last"),
        "all-tokens": Design("causal", "Text: {text}", "mean", transforms=("zscore",)),
        "last": Design(pooling="last"),
    }


def test_solved_examples_stand_before_the_text_in_the_same_form(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [topic]
        template = 'Topic of "{text}":"'
        examples = [{ text = "A {song}", answer = "music" }, { text = "A goal", answer = "{sport}" }]
        """,
    )
    (entry,) = read_prompts(file).values()
    assert isinstance(entry, PromptEntry)
    rendered, copies = Prompt("topic", entry.whole).render("Rates rose", None)
    assert rendered == 'Topic of "A {song}":"music"\nTopic of "A goal":"{sport}"\nTopic of "Rates rose":"'
    assert [rendered[start:end] for start, end in copies] == ["Rates rose"], "only the text itself is embedded"


def test_an_average_has_the_prompts_of_the_file_and_registered_ones(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [both]
        average = ["topic", "eol", "style"]
        zscore = true
        [each]
        average = ["style", "echo"]
        pooling = ["last", "mean"]
        [topic]
        template = 'Topic of "{text}":"'
        examples = [{ text = "a", answer = "b" }]
        pooling = "mean"
        [style]
        template = "Style: {text}"
        """,
    )
    found = parse_designs(str(file))
    assert found["both"] == Design(
        "causal", (found["topic"].prompts[0], "eol", "Style: {text}"), "last", transforms=("zscore",)
    )
    assert found["each"] == Design("causal", ("Style: {text}", "echo"), ("last", "mean"))
    assert Design.parse(found["both"].name) == found["both"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompt"),
        ("[topic", "is not valid TOML"),
        ("[topic]\ntemplate = 'no field'", "prompt 'topic': .*must contain {text} once"),
        ("[topic]\ntemplate = '{text}'\npoling = 'last'", "prompt 'topic': .*poling"),
        ("['a/b']\ntemplate = '{text}'", "'a/b' is not a valid prompt name"),
        ("[topic]\ntemplate = '{text} {text}'\nexamples = [{ text = 'a', answer = 'b' }]", "{text} once and no other field"),
        ("[topic]\ntemplate = '{text}'\nexamples = [{ text = 'a' }]", "prompt 'topic': .*answer"),
        ("[both]\naverage = ['eol']", "prompt 'both': An average needs two prompts"),
        ("[both]\naverage = ['eol', 'oel']", "prompt 'both': .*oel"),
        (
            "[both]\naverage = ['eol', 'plain']\npooling = ['last']",
            "prompt 'both': 1 pooling for 2 prompts: give one, or one each",
        ),
    ],
)
def test_what_is_wrong_is_told_by_file_and_name(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=message) as error:
        parse_designs(str(written(tmp_path, text)))
    assert "own.toml" in str(error.value)
