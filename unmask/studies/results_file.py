"""Writes `results.json`: the numbers of a study, and after them what every study says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from unmask.io.files import write_json
from unmask.models.provenance import hardware, versions
from unmask.moe.experts.records import RunRecord
from unmask.studies.claims.claim import Finding
from unmask.studies.results import RESULTS
from unmask.studies.sheet import Sheet


class ResultsFile:
    """The results of a study while it runs. What an earlier run left is kept in mind: the same numbers keep versions, hardware and date.

    study: its name. paper: what is studied. command: what started the run. scale: of its plan. data: what is measured on, each with its
    revision. rests_on: digests of the recipes, designs and configurations of its plan, by name. finished_before: whether an earlier run
    in this folder was finished.
    """

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        device: torch.device,
        *,
        study: str,
        paper: str,
        command: str,
        scale: str,
        data: Mapping[str, str],
        rests_on: Mapping[str, str],
    ) -> None:
        self._file = folder / RESULTS
        self._settings = record.as_json()
        self._about = {
            "study": study, "paper": paper, "command": command, "scale": scale, "data": dict(data), "rests_on": dict(rests_on)
        }  # fmt: skip
        self._computed = {"versions": versions(), "hardware": hardware(device), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        self._before = _read(self._file)
        self.finished_before: bool = self._before.get("finished", False)

    def write(
        self,
        numbers: Mapping[str, Any],
        claims: Sequence[Finding],
        tables: Sequence[Sheet],
        *,
        finished: bool = True,
        provenance: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write what was found so far. numbers: of this study. tables: of its report, without the one of claims.

        provenance: of each number, if it is kept: a study that was begun on one machine may go on on another.
        """
        measured = json.loads(json.dumps({**self._settings, **numbers}))
        same = json.dumps(measured) == json.dumps({name: self._before.get(name) for name in measured})
        content = {
            **measured,
            "claims": [finding.model_dump(mode="json") for finding in claims],
            "tables": [vars(table) for table in tables],
            "finished": finished,
            **self._about,
            **({name: self._before[name] for name in self._computed} if same else self._computed | _joined(provenance)),
        }
        write_json(self._file, content)


def _joined(provenance: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The hardware and the versions of everything that was measured. Nothing, if that was not kept."""
    machines = sorted({one["hardware"] for one in provenance if "hardware" in one})
    used: dict[str, set[str]] = {}
    for one in provenance:
        for name, version in one.get("versions", {}).items():
            used.setdefault(name, set()).add(version)
    found = {"hardware": ", ".join(machines), "versions": {name: ", ".join(sorted(of)) for name, of in used.items()}}
    return {name: value for name, value in found.items() if value}


def _read(file: Path) -> dict[str, Any]:
    """What a file holds; nothing if it is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and {"versions", "hardware", "date"} <= content.keys() else {}
