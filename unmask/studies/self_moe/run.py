"""Runs the study on one base model, in the order of the paper's tables. After each table it writes the report again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from unmask.experts.records import LessonsRecord, RunRecord, write_or_check
from unmask.io.files import only_run_in
from unmask.io.seals import read_record, write_record
from unmask.models.identity import identity_of
from unmask.models.loading import Source, pick_device
from unmask.models.source import lasting_name
from unmask.statistics.domain_differences import ModelScores, compare_by_domain
from unmask.studies.results import RECORD
from unmask.studies.results_file import ResultsFile
from unmask.studies.self_moe.builder import Builder
from unmask.studies.self_moe.measurements import Measurements, Values
from unmask.studies.self_moe.overhead import measure_overhead
from unmask.studies.self_moe.paper_claims import verdicts
from unmask.studies.self_moe.plan import CHOICES, MIXSE, PAPER, RENORMALISED, VARIANTS, StudyPlan
from unmask.studies.self_moe.study_data import ability_tests, check_tests, draw
from unmask.studies.sheet import Sheet

_MORE = ("abilities", "limit", "run_code", "unsandboxed_code")  # these may change when a finished study is extended
BASE, ORACLE, INSTANCE = "base", "oracle routing", "instance merging"


class StudyRecord(RunRecord):
    """The content of `study.json`: the settings that may not change while a study is extended, and its lessons by domain."""

    base: str = Field(alias="model")
    plan: dict[str, Any]
    learned: dict[str, LessonsRecord]
    held_out: dict[str, LessonsRecord]

    @property
    def data(self) -> dict[str, str]:
        """What the study measures on."""
        parts = {"learned": self.learned, "held out": self.held_out}
        return {f"{domain}, {part}": lessons.words for part, of in parts.items() for domain, lessons in of.items()}


@dataclass
class Findings:
    """The findings so far. Each table holds rows by name. A row holds likelihoods by domain, one for each lesson.

    usage: the usage of experts, by mixture. growing: mixtures of 0, 1, .. experts. sizes: instance merging and MiXSE, by number of
    lessons. abilities: for each row of any table, which items were answered correctly.
    """

    main: dict[str, Values] = field(default_factory=dict)
    ablations: dict[str, Values] = field(default_factory=dict)
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)
    growing: dict[str, Values] = field(default_factory=dict)
    sizes: dict[int, dict[str, Values]] = field(default_factory=dict)
    overhead: dict[str, Any] = field(default_factory=dict)
    abilities: dict[str, Values] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, Values]:
        """Every row that a claim can name."""
        fewest = {f"{MIXSE}, fewest lessons": self.sizes[min(self.sizes)][MIXSE]} if len(self.sizes) > 1 else {}
        return {**self.main, **self.ablations, **self.growing, **fewest}

    def as_json(self) -> dict[str, Any]:
        """Means, differences and intervals of every table."""
        sized = {f"{name}, {number} lessons": values for number, rows in self.sizes.items() for name, values in rows.items()}
        tables = {"main": self.main, "ablations": self.ablations, "experts": self.growing, "lessons": sized}
        return {
            "unit": "nats per response token of held-out lessons; differences with 95 % intervals (paired bootstrap over lessons)",
            **{name: [asdict(row) for row in rows_of(self, values)] for name, values in tables.items()},
            "abilities": [asdict(row) for row in compare_by_domain(self.abilities, BASE)] if self.abilities else [],
            "routing": self.usage,
            "overhead": self.overhead,
        }


def is_complete(findings: Findings, plan: StudyPlan) -> bool:
    """Whether all tables are there: the last one ends with the full number of lessons."""
    return plan.number in findings.sizes


def rows_of(findings: Findings, values: dict[str, Values], against: str = BASE) -> list[ModelScores]:
    """The rows of a table, in its order. Each is compared with one row of the main table."""
    compared = {row.model: row for row in compare_by_domain({against: findings.main[against]} | values, against)}
    return [compared[name] for name in values]


def study(
    plan: StudyPlan,
    source: Source,
    root: Path,
    folder: Path,
    write: Callable[[Findings, Path], Sequence[Sheet]],
    callbacks: Sequence[Any] = (),
    command: str = "",
    scale: str = "",
) -> Findings:
    """Run the plan on one base model. A stopped study continues. Raises UnmaskError.

    write: writes the report, and gives its tables. command, scale: what started the run, for the results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with only_run_in(folder):
        check_tests(plan, root)
        data = draw(plan, source, root, folder / "lessons")
        record = StudyRecord(
            model=lasting_name(source.model),
            base_weights=identity_of(source).revision,
            plan=plan.model_dump(mode="json", exclude={"models", "ablations", "sizes", "claims", *_MORE}),
            learned={name: LessonsRecord.of(lessons) for name, lessons in data.learned.items()},
            held_out={name: LessonsRecord.of(lessons) for name, lessons in data.held_out.items()},
        )
        write_or_check(folder / RECORD, record)
        results = ResultsFile(
            folder, record, pick_device(source.device), study="self-moe", paper=PAPER, command=command, scale=scale,
            data=record.data,
        )  # fmt: skip
        builder = Builder(plan, source, data, folder, callbacks)
        measurements = Measurements(source, data.held_out, plan.max_length, folder / "values", ability_tests(plan, root, data))
        findings = Findings()
        for _ in _tables(plan, builder, measurements, findings):
            findings.abilities = measurements.abilities()
            claims = verdicts(plan.claims, findings.rows)
            results.write(findings.as_json(), claims, write(findings, folder), finished=is_complete(findings, plan))
        return findings


def _tables(plan: StudyPlan, builder: Builder, measurements: Measurements, findings: Findings) -> Iterator[None]:
    """Fill the findings, table by table."""
    experts = builder.experts(plan.number)
    findings.main[BASE] = measurements.model(BASE, None)
    own = {name: measurements.model(f"expert {name}", place) for name, place in experts.items()}
    findings.main |= {f"expert {name}": values for name, values in own.items()}
    findings.main[ORACLE] = measurements.oracle(own)
    findings.main[INSTANCE] = measurements.model(INSTANCE, builder.instance(plan.number))
    places = list(experts.values())
    findings.main["TIES"] = measurements.merged("TIES", places, "ties", plan.ties_density)
    findings.main["DARE"] = measurements.merged("DARE", places, "dare", plan.dare_density)
    findings.main["linear"] = measurements.merged("linear", places, "linear")
    yield
    mixture = builder.mixture(MIXSE, plan.number)
    findings.main[MIXSE] = measurements.model(MIXSE, mixture)
    used = measurements.choices(MIXSE, mixture, CHOICES, abilities=True)
    findings.main[f"{MIXSE}, {RENORMALISED}"] = used.pop(RENORMALISED)
    findings.ablations |= {f"{MIXSE}, {choice}": values for choice, values in used.items()}
    findings.usage[MIXSE] = measurements.usage(MIXSE)
    findings.overhead = _overhead(builder.folder, mixture, builder.source)
    yield
    for name in plan.ablations:
        place = builder.mixture(name, plan.number)
        findings.ablations[name] = measurements.model(name, place)
        # renormalised: the expert gets weight 1. This compares the choice of experts alone: some routers give larger weights than others
        used = measurements.choices(name, place, [RENORMALISED])
        findings.ablations[f"{name}, {RENORMALISED}"] = used[RENORMALISED]
        findings.usage[name] = measurements.usage(name)
        yield
    for number, values in _growing(builder, measurements, plan, findings, own):
        findings.growing[number] = values
        yield
    for size in sorted(plan.sizes):
        findings.sizes[size] = {
            INSTANCE: measurements.model(f"{INSTANCE} {size}", builder.instance(size)),
            MIXSE: measurements.model(f"{MIXSE} {size}", builder.mixture(MIXSE, size)),
        }
        yield
    findings.sizes[plan.number] = {name: findings.main[name] for name in (INSTANCE, MIXSE)}
    yield


def _growing(
    builder: Builder, measurements: Measurements, plan: StudyPlan, findings: Findings, own: dict[str, Values]
) -> Iterator[tuple[str, Values]]:
    """Mixtures of the first 0, 1, 2, .. experts. Each router is trained on the lessons of its experts."""
    domains = list(own)
    yield "0: base", findings.main[BASE]
    yield f"1: {domains[0]}", own[domains[0]]
    for number in range(2, len(domains)):
        row = f"{MIXSE} of {number}"
        yield (
            f"{number}: and {domains[number - 1]}",
            measurements.model(row, builder.mixture(MIXSE, plan.number, domains[:number])),
        )
    yield f"{len(domains)}: and {domains[-1]}", findings.main[MIXSE]


def _overhead(folder: Path, mixture: Path, source: Source) -> dict[str, Any]:
    file = folder / "values" / "overhead.json"
    overhead = read_record(file)
    if overhead is None:
        overhead = measure_overhead(mixture, source).as_json()
        write_record(file, overhead)
    return overhead


def about(row: str) -> str:
    """A short description of a row of the ablations."""
    return VARIANTS[row].about if row in VARIANTS else ""
