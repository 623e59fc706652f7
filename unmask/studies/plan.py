"""Plans of studies: a TOML file with a table `[scale.NAME]` of overrides for that scale, and `key=value` settings on top."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from unmask.errors import UnmaskError, first_problem, unknown
from unmask.training.recipe import merge_tables, parse_setting


class PlanTable(BaseModel):
    """A table of a plan. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StudyPlan(PlanTable):
    """Fields common to the plans of every study."""

    models: tuple[str, ...] = Field(min_length=1)
    """Base models."""

    def fixed_settings(self, *extended: str) -> dict[str, Any]:
        """The settings that may not change while a study on one base model goes on.

        Left out are words, and `extended`: what may change when a finished study is extended.
        """
        return self.model_dump(mode="json", exclude={"models", "claims", *extended})


Plan = TypeVar("Plan", bound=StudyPlan)


def plan_tables(study: str) -> dict[str, Any]:
    """The parsed TOML file of a study. `scale` holds the overrides of each scale."""
    [file] = Path(__file__).parent.glob(f"*/{study}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def read_plan(study: str, kind: type[Plan], scale: str, settings: Iterable[str] = ()) -> Plan:
    """The plan at a scale, changed by settings. Raises UnmaskError for an unknown key."""
    tables = plan_tables(study)
    scales = tables.pop("scale")
    if scale not in scales:
        raise unknown("scale", scale, scales)
    tables = merge_tables(tables, scales[scale])
    for setting in settings:
        tables = merge_tables(tables, parse_setting(setting))
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        extra = [
            problem["loc"][0] for problem in error.errors() if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1
        ]
        if extra:
            raise unknown("setting", str(extra[0]), kind.model_fields) from error
        raise UnmaskError(f"{study}: {first_problem(error)}.") from error


def digest_of(settings: Any) -> str:
    """A short hash of settings: pydantic models, dataclasses and plain values.

    Digests of recipes, designs and configurations show when a result is older than the settings of today. What is off (None, false, empty)
    is left out, so a new option that is off by default changes no digest.
    """
    plain = json.dumps(_without_defaults(to_jsonable_python(settings)), sort_keys=True)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _without_defaults(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, dict):
        return value
    parts = {key: _without_defaults(part) for key, part in value.items()}
    return {key: part for key, part in parts.items() if part is not None and part is not False and part not in ([], {}, "")}
