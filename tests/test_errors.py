"""An error of a name says what was given, the nearest match and everything that is allowed; an error of an option is one sentence."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, Field

from unmask.errors import UnmaskError, in_one_sentence, unknown


class Options(BaseModel):
    steps: int = Field(default=1, ge=1)
    stage: Literal["mntp", "simcse"] = "mntp"


def test_an_unknown_name_is_answered_by_the_nearest_and_by_all() -> None:
    assert (
        str(unknown("stage", "simcs", ["mntp", "simcse"]))
        == "Unknown stage 'simcs'. Did you mean 'simcse'? Allowed: mntp, simcse."
    )
    assert str(unknown("stage", "zzz", iter(["b", "a"]))) == "Unknown stage 'zzz'. Allowed: a, b."


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


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), in_one_sentence():
        raise KeyError("mine")
