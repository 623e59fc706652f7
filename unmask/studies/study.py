"""What all studies share: a plan (TOML), cells that are measured once, results, and verdicts on claims.

A paper's package holds its plan (`plan.py`, and a TOML file for each study), what it measures (`run.py`), and its findings and tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic import BaseModel

from unmask.io.files import atomic, write_json
from unmask.runs import runs
from unmask.studies.results import RECORD, REPORT, RESULTS

if TYPE_CHECKING:
    from unmask.models.source import Source
    from unmask.studies.claims.claim import Finding
    from unmask.studies.plan import StudyPlan
    from unmask.studies.sheet import Sheet

PACKAGES: Final = {
    "self-moe": "self_moe",
    "routers": "routers",
    "llm2vec": "embedders",
    "moee": "embedders",
    "pooling-and-attention": "embedders",
}
"""The package of each study. Studies of embedders differ in their plans alone."""


class StudySettings(BaseModel):
    """What a study was started with."""

    study: str
    dtype: str
    plan: dict[str, Any]
    made: dict[str, Any]


class StudyFindings(Protocol):
    """What a study found."""

    @property
    def claims(self) -> Sequence[Finding]:
        """The claims with their verdicts."""

    def as_json(self) -> dict[str, Any]:
        """The numbers of this study, for `results.json`."""

    def tables(self) -> Sequence[Sheet]:
        """The tables of the report, without the one of claims."""

    def terminal_tables(self) -> Sequence[Sheet]:
        """The tables that a terminal shows."""

    def report(self, folder: Path) -> str:
        """The report as Markdown. folder: where it will be; figures go below it."""


def load_plan(study: str, scale: str, settings: Iterable[str] = (), model: str | None = None) -> Any:
    """The plan of a study at a scale, changed by `key=value` settings. Raises UnmaskError with the name of a wrong key.

    model: a base model; the plan is then the part that is measured on it.
    """
    return import_module(f"unmask.studies.{PACKAGES[study]}.plan").load_plan(study, scale, settings, model)


def allowed_values(study: str, plan: StudyPlan) -> dict[str, list[str]]:
    """The names that a setting of a study may hold, by the key of the setting."""
    names: dict[str, list[str]] = import_module(f"unmask.studies.{PACKAGES[study]}.plan").allowed_values(plan)
    return names


@dataclass
class Study:
    """A study on one base model: it holds the folder, checks its record, and writes report and results.

    The same numbers keep the versions, hardware and date of an earlier run.
    """

    name: str
    scale: str
    source: Source
    root: Path
    """The folder that data paths start from."""
    folder: Path
    command: str = ""
    """What started it, for the results."""
    callbacks: Sequence[Any] = ()
    finished_before: bool = field(default=False, init=False)
    _about: dict[str, Any] = field(default_factory=dict, init=False)
    _settings: dict[str, Any] = field(default_factory=dict, init=False)
    _before: dict[str, Any] = field(default_factory=dict, init=False)

    def measure(self, plan: StudyPlan) -> StudyFindings:
        """Run the plan. A stopped study continues. Raises UnmaskError."""
        findings: StudyFindings = import_module(f"unmask.studies.{PACKAGES[self.name]}.run").run_study(plan, self)
        return findings

    @contextmanager
    def open(self, *, plan: Mapping[str, Any], made: Mapping[str, Any] | None = None) -> Iterator[runs.Run]:
        """Hold the folder. Raises UnmaskError if it holds a study with other settings, or of a model with other weights.

        plan: what may not change while the study continues. made: by model, how it is made; a later run may add models.
        """
        from unmask.models.identity import identity_of
        from unmask.models.loading import precision_of

        settings = StudySettings(study=self.name, dtype=precision_of(self.source), plan=dict(plan), made=dict(made or {}))
        inputs = {"base model": identity_of(self.source).revision}
        with runs.open(self.folder, settings, inputs=inputs, may_grow=["made"], record=RECORD) as run:
            yield run

    def start(
        self,
        run: runs.Run,
        settings: Mapping[str, Any],
        *,
        paper: str,
        data: Mapping[str, str],
        rests_on: Mapping[str, str],
    ) -> None:
        """Record the settings of an open run, and what its results say of them.

        data: what is measured on, each with its revision. rests_on: digests of recipes, designs and configurations of the plan, by name.
        """
        from unmask.models.source import lasting_name

        run.start()
        self._settings = {
            "model": lasting_name(self.source.model), "base_weights": run.inputs["base model"], **settings
        }  # fmt: skip
        self._about = {
            "study": self.name, "paper": paper, "command": self.command, "scale": self.scale, "data": dict(data),
            "rests_on": dict(rests_on),
        }  # fmt: skip
        try:
            before = json.loads((self.folder / RESULTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = {}
        if isinstance(before, dict) and {"versions", "hardware", "date"} <= before.keys():
            self._before = before
        self.finished_before = self._before.get("finished", False)

    def publish(self, findings: StudyFindings, *, finished: bool = True, provenance: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the report and the results. provenance: of each number, if it is kept: a study may continue on another machine."""
        from unmask.models.loading import pick_device
        from unmask.models.provenance import hardware, versions

        tables = findings.tables()
        report = findings.report(self.folder)
        with atomic(self.folder / REPORT) as scratch:
            scratch.write_text(report, encoding="utf-8")
        numbers = json.loads(json.dumps({**self._settings, **findings.as_json()}))
        metadata = {
            "versions": versions(),
            "hardware": hardware(pick_device(self.source.device)),
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
        }
        if json.dumps(numbers) == json.dumps({name: self._before.get(name) for name in numbers}):
            metadata = {name: self._before[name] for name in metadata}
        else:
            machines = sorted({part["hardware"] for part in provenance if "hardware" in part})
            libraries: dict[str, set[str]] = {}
            for part in provenance:
                for name, version in part.get("versions", {}).items():
                    libraries.setdefault(name, set()).add(version)
            if machines:
                metadata["hardware"] = ", ".join(machines)
            if libraries:
                metadata["versions"] = {name: ", ".join(sorted(used)) for name, used in libraries.items()}
        content = {
            **numbers,
            "claims": [finding.model_dump(mode="json") for finding in findings.claims],
            "tables": [vars(table) for table in tables],
            "finished": finished,
            **self._about,
            **metadata,
        }
        write_json(self.folder / RESULTS, content)
