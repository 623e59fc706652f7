"""Digests of what results rest on: recipes, designs, configurations. They show when a result is older than the settings of today."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic_core import to_jsonable_python


def digest_of(settings: Any) -> str:
    """A short hash of settings: pydantic models, dataclasses and plain values.

    What is off (None, false, empty) is left out. So a new option that is off by default changes no digest.
    """
    plain = json.dumps(_what_is_on(to_jsonable_python(settings)), sort_keys=True)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _what_is_on(value: Any) -> Any:
    if isinstance(value, list):
        return [_what_is_on(item) for item in value]
    if not isinstance(value, dict):
        return value
    parts = {key: _what_is_on(part) for key, part in value.items()}
    return {key: part for key, part in parts.items() if part is not None and part is not False and part not in ([], {}, "")}
