"""Difference: where the scale `paper` of a recipe or a study is not the paper."""

from __future__ import annotations

from pydantic import Field

from unmask.training.stages.stage import Table


class Difference(Table):
    """A row: a difference between the scale `paper` and the paper. what: the setting; paper, here: its values; why: the reason."""

    what: str = Field(min_length=1)
    paper: str = Field(min_length=1)
    here: str = Field(min_length=1)
    why: str = Field(min_length=1)
