"""Plans of studies: a TOML file with a table `[scale.NAME]` of what differs at that scale, and `key=value` settings over it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.errors import UnmaskError, first_problem, unknown
from unmask.training.difference import Difference
from unmask.training.recipe import merged, parse_setting


class PlanTable(BaseModel):
    """A table of a plan. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WholePlan(PlanTable):
    """What every plan of a study has. models: base models. differences: from the paper's own evaluation, at the scale `paper`."""

    models: tuple[str, ...] = Field(min_length=1)
    differences: tuple[Difference, ...] = ()

    def settled(self, *extended: str) -> dict[str, Any]:
        """The settings that may not change while a study on one base model goes on.

        Left out are words, and `extended`: what may change when a finished study is extended.
        """
        return self.model_dump(mode="json", exclude={"models", "differences", "claims", *extended})


Plan = TypeVar("Plan", bound=WholePlan)


def scales_of(file: Path) -> list[str]:
    """The names of the scales of a plan, such as `smoke`."""
    return list(tomllib.loads(file.read_text(encoding="utf-8"))["scale"])


def read_plan(file: Path, kind: type[Plan], scale: str, settings: Iterable[str] = ()) -> Plan:
    """The plan at a scale, changed by settings. Raises UnmaskError for a key that is unknown."""
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    known = tables.pop("scale")
    if scale not in known:
        raise unknown("scale", scale, known)
    tables = merged(tables, known[scale])
    for setting in settings:
        tables = merged(tables, parse_setting(setting))
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        if extra := [one["loc"][0] for one in error.errors() if one["type"] == "extra_forbidden" and len(one["loc"]) == 1]:
            raise unknown("setting", str(extra[0]), kind.model_fields) from error
        raise UnmaskError(f"{file.stem.replace('_', '-')}: {first_problem(error)}.") from error
