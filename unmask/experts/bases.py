"""Bases of run records: which model a run was started with, by the content of its weights, wherever the command runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.models.identity import identity_of
from unmask.models.source import Source, lasting_name

WEIGHTS = "base_weights"


def weights_of(source: Source) -> dict[str, str]:
    """What a record says of a model's weights."""
    return {WEIGHTS: identity_of(source).revision}


def require_same_weights(before: Mapping[str, Any], record: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The record of an earlier run as this version would have written it, to be compared with the record of this run.

    Older versions kept the model's name as it was typed, and no weights. Raises UnmaskError if the model's weights have changed since.
    """
    now, then = record.get(WEIGHTS), before.get(WEIGHTS)
    name = next((key for key in ("base", "model") if key in record and key in before), None)
    alike = name is not None and lasting_name(str(before[name])) == lasting_name(str(record[name]))
    if alike and now and then and now != then:
        assert name is not None
        raise UnmaskError(
            f"The model '{record[name]}' has changed since the run in '{folder}' began: its weights were {then} and are {now} now. "
            "Bring the old weights back, or give another folder."
        )
    known = dict(before)
    if now and not then:
        known[WEIGHTS] = now
    if name is not None and (alike or (now and now == then)):
        known[name] = record[name]
    return known
