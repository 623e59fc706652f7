"""Runs the study on one base model, in the order of the paper's tables. After each table it writes the report again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.files import inside, only_run_in
from unmask.io.seals import read_record, write_record
from unmask.io.terminal import say
from unmask.models.identity import identity_of
from unmask.models.loading import Source, pick_device, precision_of
from unmask.models.source import lasting_name
from unmask.moe.experts.abilities.answer_likelihood import chance
from unmask.moe.experts.lesson_training import share_of
from unmask.moe.experts.lessons.specialise import Yield
from unmask.moe.experts.records import LessonsRecord, write_or_check
from unmask.moe.names import Method
from unmask.statistics.domain_differences import ModelScores, compare_by_domain, share_of_gain
from unmask.statistics.intervals import Estimate
from unmask.studies.learning_plan import LearningRecord
from unmask.studies.results import RECORD
from unmask.studies.results_file import ResultsFile
from unmask.studies.self_moe.builder import Builder, fewer
from unmask.studies.self_moe.measurements import Choices, Measurements, Speaker, Values
from unmask.studies.self_moe.overhead import measure_overhead
from unmask.studies.self_moe.paper_claims import verdicts
from unmask.studies.self_moe.plan import CHOICES, MIXSE, PAPER, RENORMALISED, VARIANTS, StudyPlan, rests_on
from unmask.studies.self_moe.study_data import Number, StudyData, ability_tests, check_tests, draw, draw_written
from unmask.studies.sheet import Sheet

# these may change when a finished study is extended
_MORE = (
    "ablations", "sizes", "fewer_experts", "abilities", "limit", "run_code", "unsandboxed_code", "answers", "multiple_choice",
    "written", "writer",
)  # fmt: skip
CHOICE_PARTS = ("right", "behind", "nats")
BASE, ORACLE, INSTANCE = "base", "oracle routing", "instance merging"
HUMAN, SELF = "human lessons", "self-written"


class StudyRecord(LearningRecord):
    """The content of `study.json`: the settings that may not change while a study is extended, and its lessons by domain."""

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
    lessons. abilities: for each row of any table, which items were answered correctly. answers: likelihoods of right answers, by ability
    test. multiple_choice: choices between answers. chance: the percentage of right ones by chance, by test. written: what learned
    lessons that a model wrote, and as many human ones. writer: the name of the former in the rows. yields: what became of all that a
    model wrote, by domain.
    """

    main: dict[str, Values] = field(default_factory=dict)
    ablations: dict[str, Values] = field(default_factory=dict)
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)
    growing: dict[str, Values] = field(default_factory=dict)
    sizes: dict[int, dict[str, Values]] = field(default_factory=dict)
    overhead: dict[str, Any] = field(default_factory=dict)
    abilities: dict[str, Values] = field(default_factory=dict)
    answers: dict[str, Values] = field(default_factory=dict)
    multiple_choice: dict[str, Choices] = field(default_factory=dict)
    chance: dict[str, float] = field(default_factory=dict)
    written: dict[str, Values] = field(default_factory=dict)
    yields: Mapping[str, Yield] = field(default_factory=dict)
    writer: str = SELF

    @property
    def rows(self) -> dict[str, Values]:
        """Every row that a claim can name."""
        fewest = {f"{MIXSE}, fewest lessons": self.sizes[min(self.sizes)][MIXSE]} if len(self.sizes) > 1 else {}
        answers = {f"{row}, answers": values for row, values in self.answers.items()}
        choices = {f"{row}, multiple choice": chosen.behind for row, chosen in self.multiple_choice.items()}
        return {**self.main, **self.ablations, **self.growing, **fewest, **answers, **choices, **self.written}

    def chosen(self, part: str) -> dict[str, Values]:
        """One part of every row of multiple choice: `right`, `behind` or `nats`."""
        return {row: getattr(chosen, part) for row, chosen in self.multiple_choice.items()}

    @property
    def shares(self) -> dict[str, Estimate | None]:
        """For each row of written lessons, the share of the gain of as many human lessons that it reaches; of an expert, on its domain."""
        shares = {}
        for row, values in self.written.items():
            model, _, lessons = row.rpartition(", ")
            if lessons == self.writer:
                on = [name for name in values if model == f"expert {name}"] or list(values)
                rows = (self.main[BASE], values, self.written[f"{model}, {HUMAN}"])
                start, part, whole = ({name: one[name] for name in on} for one in rows)
                shares[row] = share_of_gain(start, part, whole)
        return shares

    def as_json(self) -> dict[str, Any]:
        """Means, differences and intervals of every table."""
        sized = {f"{name}, {number} lessons": values for number, rows in self.sizes.items() for name, values in rows.items()}
        tables = {
            "main": self.main, "ablations": self.ablations, "experts": self.growing, "lessons": sized, "written": self.written,
        }  # fmt: skip
        return {
            "unit": "nats per response token of held-out lessons; differences with 95 % intervals (paired bootstrap over lessons)",
            **{name: [asdict(row) for row in rows_of(self, values)] for name, values in tables.items()},
            "abilities": [asdict(row) for row in compare_by_domain(self.abilities, BASE)] if self.abilities else [],
            "answers": [asdict(row) for row in compare_by_domain(self.answers, BASE)] if self.answers else [],
            "multiple choice": {
                "chance": self.chance,
                **{
                    part: [asdict(row) for row in compare_by_domain(self.chosen(part), BASE)]
                    for part in CHOICE_PARTS
                    if self.multiple_choice
                },
            },
            "shares": {row: asdict(share) if share else None for row, share in self.shares.items()},
            "yields": {name: one.as_json() for name, one in self.yields.items()},
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
    _require_training(plan, source)
    folder.mkdir(parents=True, exist_ok=True)
    with only_run_in(folder):
        check_tests(plan, root)
        data = draw(plan, source, root, folder / "lessons")
        _require_lessons(plan, data)
        record = StudyRecord(
            model=lasting_name(source.model),
            base_weights=identity_of(source).revision,
            dtype=precision_of(source),
            plan=plan.settled(*_MORE),
            learned={name: LessonsRecord.of(lessons) for name, lessons in data.learned.items()},
            held_out={name: LessonsRecord.of(lessons) for name, lessons in data.held_out.items()},
        )
        write_or_check(folder / RECORD, record)
        results = ResultsFile(
            folder, record, pick_device(source.device), study="self-moe", paper=PAPER, command=command, scale=scale,
            data=record.data, rests_on=rests_on((MIXSE, *plan.ablations)),
        )  # fmt: skip
        # this reads the files of the tests, so a mistake in them is found before hours of writing
        measurements = Measurements(source, data.held_out, plan.max_length, folder / "values", ability_tests(plan, root, data))
        # before the training: a model that cannot write says so at once
        written = _write_lessons(plan, source, data, folder) if plan.written else None
        builder = Builder(plan, source, data, folder, callbacks)
        findings = Findings(yields=written.data.yields if written else data.yields, writer=written.writer if written else SELF)
        for _ in _tables(plan, builder, measurements, findings, written):
            complete = is_complete(findings, plan)
            if results.finished_before and not complete:
                continue  # a finished report is not replaced by a part of it
            findings.abilities = measurements.abilities()
            claims = verdicts(plan.claims, findings.rows)
            results.write(findings.as_json(), claims, write(findings, folder), finished=complete)
        return findings


def _require_training(plan: StudyPlan, source: Source) -> None:
    """Raise UnmaskError for a device or a batch that the training refuses. A model may write lessons for hours before it trains."""
    plan.expert_learning(plan.number, plan.seed).require_first_gpu(source.device)
    if any(VARIANTS[name].options.joint for name in plan.ablations):
        share_of(plan.batch, plan.seeds)  # the batch of the plan, as it is; other routers round theirs


def _require_lessons(plan: StudyPlan, data: StudyData) -> None:
    """Raise UnmaskError for a number of lessons that a domain does not have, because a model wrote fewer."""
    fewest = min(data.learned, key=lambda name: len(data.learned[name]))
    number = len(data.learned[fewest])
    if large := [size for size in plan.sizes if size >= number]:
        raise UnmaskError(
            f"sizes names {large[0]}, and the model wrote {number} lessons of '{fewest}' that pass the filters. Name smaller numbers: "
            "--set sizes=[], say. What is written is kept."
        )


@dataclass(frozen=True)
class _Written:
    """Lessons that a model wrote for the study. writer: its name in the rows. folder: of the lessons, and of what is made of them."""

    data: StudyData
    writer: str
    folder: Path

    @property
    def number(self) -> dict[str, int]:
        return {domain: len(lessons) for domain, lessons in self.data.learned.items()}


def _write_lessons(plan: StudyPlan, source: Source, data: StudyData, folder: Path) -> _Written:
    """Let a model write lessons from the seeds of the study. Lessons that are there are not written again."""
    writer = replace(source, model=plan.writer, revision=None) if plan.writer else source
    name = Path(lasting_name(writer.model)).name
    own = lasting_name(writer.model) == lasting_name(source.model)
    place = inside(folder / "written", f"{name}-{plan.written}")
    lessons = draw_written(plan, writer, data, place / "lessons")
    written = _Written(lessons, SELF if own else f"written by {name}", place)
    if all(written.number.values()):
        counts = ", ".join(f"{domain} {count}" for domain, count in written.number.items())
        say(f"{source.model}: experts and MiXSE will learn lessons that {name} wrote ({counts}), in {place}")
    else:
        say(f"{name} wrote no lesson of a domain that passes the filters, so no expert learns from written lessons.")
    return written


def _tables(
    plan: StudyPlan, builder: Builder, measurements: Measurements, findings: Findings, written: _Written | None
) -> Iterator[None]:
    """Fill the findings, table by table."""
    experts = builder.experts(plan.number)
    _experts_and_merges(plan, builder, measurements, findings, experts)
    yield
    mixture = builder.mixture(MIXSE, plan.number)
    _mixture(builder, measurements, findings, mixture)
    yield
    instance = builder.instance(plan.number)
    if plan.requested_answers:
        compared = {BASE: None, INSTANCE: instance, MIXSE: mixture}
        findings.answers = {row: measurements.answers(row, place) for row, place in compared.items()}
        yield
    if plan.requested_choices:
        findings.chance = {name: chance(choices) for name, choices in measurements.ability_tests.choices.items()}
        speakers = _speakers(plan, measurements, experts, instance, mixture)
        findings.multiple_choice = {row: measurements.multiple_choice(row, speaker) for row, speaker in speakers.items()}
        yield
    for name in plan.ablations:
        _ablation(name, builder.mixture(name, plan.number), measurements, findings)
        yield
    if plan.fewer_experts:
        for number, values in _growing(builder, measurements, plan, findings):
            findings.growing[number] = values
            yield
    for size in sorted(plan.sizes):
        findings.sizes[size] = {
            INSTANCE: measurements.model(f"{INSTANCE} {size}", builder.instance(size)),
            MIXSE: measurements.model(f"{MIXSE} {size}", builder.mixture(MIXSE, size)),
        }
        yield
    if written and all(written.number.values()):
        findings.written = _written(written, builder, measurements)
        yield
    findings.sizes[plan.number] = {name: findings.main[name] for name in (INSTANCE, MIXSE)}
    yield


def _experts_and_merges(
    plan: StudyPlan, builder: Builder, measurements: Measurements, findings: Findings, experts: Mapping[str, Path]
) -> None:
    """The base, each expert, each domain with its own expert, instance merging, and merges of weights."""
    findings.main[BASE] = measurements.model(BASE, None)
    own = {name: measurements.model(f"expert {name}", place) for name, place in experts.items()}
    findings.main |= {f"expert {name}": values for name, values in own.items()}
    findings.main[ORACLE] = measurements.oracle(own)
    findings.main[INSTANCE] = measurements.model(INSTANCE, builder.instance(plan.number))
    places = list(experts.values())
    findings.main |= {row: measurements.merged(row, places, method, density) for row, method, density in _merges(plan)}


def _mixture(builder: Builder, measurements: Measurements, findings: Findings, mixture: Path) -> None:
    """MiXSE, with its other choices of experts, its routing and its cost."""
    findings.main[MIXSE] = measurements.model(MIXSE, mixture)
    used = measurements.choices(MIXSE, mixture, CHOICES, abilities=True)
    findings.main[f"{MIXSE}, {RENORMALISED}"] = used.pop(RENORMALISED)
    findings.ablations |= {f"{MIXSE}, {choice}": values for choice, values in used.items()}
    findings.usage[MIXSE] = measurements.usage(MIXSE)
    findings.overhead = _overhead(builder.folder, mixture, builder.source)


def _speakers(
    plan: StudyPlan, measurements: Measurements, experts: Mapping[str, Path], instance: Path, mixture: Path
) -> dict[str, Speaker]:
    """What chooses between answers, by its row."""
    return {
        BASE: measurements.loading(None),
        **{f"expert {name}": measurements.loading(place) for name, place in experts.items()},
        INSTANCE: measurements.loading(instance),
        "TIES": measurements.merging(list(experts.values()), "ties", plan.ties_density),
        MIXSE: measurements.loading(mixture),
        f"{MIXSE}, {RENORMALISED}": measurements.loading(mixture, RENORMALISED),
    }


def _ablation(name: str, mixture: Path, measurements: Measurements, findings: Findings) -> None:
    """A mixture of another configuration: as it is, and renormalised.

    Renormalised, the expert gets weight 1. This compares the choice of experts alone: some routers give larger weights than others.
    """
    findings.ablations[name] = measurements.model(name, mixture)
    used = measurements.choices(name, mixture, [RENORMALISED])
    findings.ablations[f"{name}, {RENORMALISED}"] = used[RENORMALISED]
    findings.usage[name] = measurements.usage(name)


def _written(written: _Written, builder: Builder, measurements: Measurements) -> dict[str, Values]:
    """What learns lessons that a model wrote, and what learns as many human ones."""
    own = Measurements(builder.source, written.data.held_out, builder.plan.max_length, written.folder / "values")
    learned = _arm(replace(builder, data=written.data, folder=written.folder), own, written.number, f", {written.writer}")
    human = _arm(builder, measurements, written.number)
    return {f"{row}, {of}": values for of, rows in ((written.writer, learned), (HUMAN, human)) for row, values in rows.items()}


def _arm(builder: Builder, measurements: Measurements, number: Mapping[str, int], end: str = "") -> dict[str, Values]:
    """What learns a number of lessons by domain: the experts, each domain with its own expert, instance merging, merges, and MiXSE.

    end: of the names of their files. Without it, they end with the number of lessons if that is below the plan's.
    """
    experts = builder.experts(number)

    def called(model: str, number: Number) -> str:
        few = "" if end else fewer(number, builder.plan.number)
        return f"{model} {few}" if few else f"{model}{end}"

    own = {name: measurements.model(called(f"expert {name}", number[name]), place) for name, place in experts.items()}
    rows = {**{f"expert {name}": values for name, values in own.items()}, ORACLE: measurements.oracle(own)}
    rows[INSTANCE] = measurements.model(called(INSTANCE, number), builder.instance(number))
    for row, method, density in _merges(builder.plan):
        rows[row] = measurements.merged(called(row, number), list(experts.values()), method, density)
    return rows | {MIXSE: measurements.model(called(MIXSE, number), builder.mixture(MIXSE, number))}


def _merges(plan: StudyPlan) -> Sequence[tuple[str, Method, float | None]]:
    """How the weights of experts are merged: the row, the method and its density."""
    return ("TIES", "ties", plan.ties_density), ("DARE", "dare", plan.dare_density), ("linear", "linear", None)


def _growing(builder: Builder, measurements: Measurements, plan: StudyPlan, findings: Findings) -> Iterator[tuple[str, Values]]:
    """Mixtures of the first 0, 1, 2, .. experts. Each router is trained on the lessons of its experts."""
    domains = list(builder.data.learned)
    yield "0: base", findings.main[BASE]
    yield f"1: {domains[0]}", findings.main[f"expert {domains[0]}"]
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
