"""An error of a name says what was given, the nearest match and everything that is allowed; an error of an option is one sentence."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from unmask.errors import (
    UnmaskError,
    cause_of,
    first_problem,
    in_one_sentence,
    not_installed,
    require_counts,
    require_package,
    unknown,
)


class Options(BaseModel):
    steps: int = Field(default=1, ge=1)
    stage: Literal["mntp", "simcse"] = "mntp"


class Names(BaseModel):
    model_config = ConfigDict(extra="forbid")
    names: tuple[str, ...] = Field(min_length=2)

    @field_validator("names")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError(f"'{names[0]}' stands there twice.")
        return names


def test_an_unknown_name_is_answered_by_the_nearest_and_by_all() -> None:
    assert (
        str(unknown("stage", "simcs", ["mntp", "simcse"]))
        == "Unknown stage 'simcs'. Did you mean 'simcse'? Allowed: mntp, simcse."
    )
    assert str(unknown("stage", "zzz", iter(["b", "a"]))) == "Unknown stage 'zzz'. Allowed: a, b."
    assert str(unknown("stage", "z\n\x1b[2J", ["a"])) == r"Unknown stage 'z\n\x1b[2J'. Allowed: a.", "it stays one line"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"steps": 0}, "steps should be greater than or equal to 1, not 0."),
        ({"stage": "no"}, "stage should be 'mntp' or 'simcse', not 'no'."),
    ],
)
def test_a_wrong_option_is_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UnmaskError) as raised, in_one_sentence():
        Options.model_validate(values)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "names: it is missing"),
        ({"names": ["a", "b"], "name": "a"}, "name: this name is unknown"),
        ({"names": ["a", "a"]}, "names: 'a' stands there twice"),
    ],
)
def test_a_problem_of_a_file_is_told_in_plain_words(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Names.model_validate(values)
    assert first_problem(raised.value) == said


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("sklearn.metrics", "This needs scikit-learn, which is not installed: pip install 'unmask[compare]'."),
        ("lm_eval", "This needs lm-eval, which is not installed: pip install 'unmask[experts]'."),
        ("ray", "This needs ray, which is not installed: pip install 'unmask[ray]'."),
    ],
)
def test_a_missing_package_is_answered_by_the_command_that_installs_it(module: str, said: str) -> None:
    assert str(not_installed(module)) == said


def test_a_package_that_no_extra_installs_is_no_mistake_of_the_user() -> None:
    assert not_installed("torch") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        require_package("no_such_module")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("Error(s) in loading:\n\tsize mismatch"), "Error(s) in loading: size mismatch"),
        (KeyError("su"), "KeyError: 'su'"),
    ],
)
def test_the_cause_in_a_librarys_message_is_kept(error: Exception, message: str) -> None:
    assert cause_of(error) == message


def test_a_long_message_of_a_library_keeps_its_beginning_and_its_end() -> None:
    shown = cause_of(ValueError("first " + "x" * 5000 + " last"))
    assert shown.startswith("first ") and shown.endswith(" last") and len(shown) < 700


@pytest.mark.parametrize("value", [0, -5, 3.5, "64", True])
def test_a_number_that_counts_nothing_is_refused_by_name(value: Any) -> None:
    require_counts(max_length=1, batch_tokens=None)
    with pytest.raises(UnmaskError, match=re.escape(f"max_length is {value!r}: give a whole number from 1 on.")):
        require_counts(max_length=value)
