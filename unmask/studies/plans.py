"""Plans of studies: a TOML file with a table `[scale.NAME]` of what differs at that scale, and `key=value` settings over it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from unmask.errors import UnmaskError, first_problem, unknown
from unmask.training.recipe import merged, parse_setting


class PlanTable(BaseModel):
    """A table of a plan. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Plan = TypeVar("Plan", bound=PlanTable)


def scales_of(file: Path) -> list[str]:
    """The names of the scales of a plan, such as `smoke`."""
    return list(tomllib.loads(file.read_text(encoding="utf-8"))["scale"])


def read_plan(file: Path, kind: type[Plan], scale: str, settings: Iterable[str] = ()) -> Plan:
    """The plan at a scale, changed by settings. Raises UnmaskError with the name of a wrong key."""
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
        raise UnmaskError(f"{file.stem.replace('_', '-')}: {first_problem(error)}.") from error
