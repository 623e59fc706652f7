"""Runs the study of Self-MoE on one base model, in the order of the paper's tables. After each table it writes the report again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.files import inside
from unmask.io.seals import read_record, write_record
from unmask.io.terminal import say
from unmask.models.loading import precision_of
from unmask.models.source import lasting_name
from unmask.moe.experts.abilities.answer_likelihood import chance
from unmask.moe.experts.lesson_training import share_of
from unmask.moe.experts.lessons.lessons import Lesson
from unmask.moe.experts.mixing import Ingredients
from unmask.moe.experts.records import LessonsRecord
from unmask.moe.names import MergeMethod
from unmask.studies.mixtures import MixtureBuilder, lessons_record
from unmask.studies.self_moe.data import Number, StudyData, ability_tests, check_tests, draw, number_of, write_lessons
from unmask.studies.self_moe.findings import BASE, INSTANCE, ORACLE, SelfMoEFindings
from unmask.studies.self_moe.measurements import Measurements, Values, measure_overhead
from unmask.studies.self_moe.plan import CHOICES, HUMAN, MIXSE, PAPER, RENORMALISED, SELF, VARIANTS, SelfMoEPlan, rests_on
from unmask.studies.self_moe.plan import INSTANCE as INSTANCE_FOLDER
from unmask.studies.study import Study

# these may change when a finished study is extended
_EXTENDED = (
    "ablations", "sizes", "fewer_experts", "abilities", "limit", "run_code", "unsandboxed_code", "answers", "multiple_choice",
    "written", "writer",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SelfMoEBuilder(MixtureBuilder):
    """Trains the experts, instance merging, and every mixture of the study."""

    plan: SelfMoEPlan
    data: StudyData

    def experts(self, number: Number) -> dict[str, Path]:
        """The folder of an expert for each domain, trained on `number` lessons."""
        return {name: self._expert(name, lessons, number_of(name, number)) for name, lessons in self.data.first(number).items()}

    def instance(self, number: Number) -> Path:
        """One LoRA trained on all lessons together (instance merging), with the same data and steps."""
        all_lessons = [lesson for lessons in self.data.first(number).values() for lesson in lessons]
        return self._expert(INSTANCE_FOLDER, all_lessons, number)

    def mixture(self, variant: str, number: Number, domains: Sequence[str] | None = None) -> Path:
        """A mixture of the experts of some domains (default: all). Its router is trained on the lessons of these domains."""
        settings = VARIANTS[variant]
        names = list(domains or self.data.learned)
        lessons = {name: self.data.first(number)[name] for name in names}
        end = "" if len(names) == len(self.data.learned) else f"-{len(names)}"

        def ingredients() -> Ingredients:
            experts = self.experts(number)
            return Ingredients(tuple(experts[name] for name in names), self.instance(number) if settings.shared else None)

        trained = not settings.untrained and len(names) > 1
        return self.train_mixture(
            self.plan, self._folder("mixtures", f"{variant.replace(' ', '-')}{end}", number), lessons, settings.routing, settings.options,
            learning=self.plan.router_learning(settings.average, len(lessons), trained=trained, seed=self.plan.seed),
            ingredients=ingredients,
        )  # fmt: skip

    def _expert(self, name: str, lessons: Sequence[Lesson], number: Number) -> Path:
        return self.train_expert(self.plan, self._folder("experts", name, number), lessons, self.plan.seed)

    def _folder(self, kind: str, name: str, number: Number) -> Path:
        suffix = size_suffix(number, self.plan.number)
        return inside(self.folder / (f"{kind}-{suffix}" if suffix else kind), name)


def size_suffix(number: Number, full: int) -> str:
    """A number of lessons below the full number: "33", or "33-14-33" if domains differ. Empty for the full number."""
    numbers = [number] if isinstance(number, int) else list(number.values())
    return "-".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1])) if min(numbers) < full else ""


def run_study(plan: SelfMoEPlan, study: Study) -> SelfMoEFindings:
    """Run the plan on one base model. A stopped study continues. Raises UnmaskError."""
    source = study.source
    # a model may write lessons for hours before it trains, so what the training refuses is found now
    plan.expert_learning(plan.number, plan.seed).require_first_gpu(source.device)
    if any(VARIANTS[name].options.joint for name in plan.ablations):
        share_of(plan.batch, plan.seeds)  # the batch of the plan, unchanged; other routers round theirs
    fixed = plan.fixed_settings(*_EXTENDED)
    with study.open(plan=fixed) as run:
        check_tests(plan, study.root)
        data = draw(plan, source, study.root, study.folder / "lessons")
        fewest = min(data.learned, key=lambda name: len(data.learned[name]))
        number = len(data.learned[fewest])
        if large := [
            size for size in plan.sizes if size >= number
        ]:  # a model may have written fewer lessons than the plan asks for
            raise UnmaskError(
                f"sizes names {large[0]}, and the model wrote {number} lessons of '{fewest}' that pass the filters. Name smaller numbers: "
                "--set sizes=[], say. What is written is kept."
            )
        settings: dict[str, Any] = {"plan": fixed, "dtype": precision_of(source)}
        lessons: dict[str, str] = {}
        for part, key, by_domain in (("learned", "learned", data.learned), ("held out", "held_out", data.held_out)):
            words = {domain: LessonsRecord.of(of_domain).words for domain, of_domain in by_domain.items()}
            lessons |= {f"{domain}, {part}": of_domain for domain, of_domain in words.items()}
            settings[key] = {domain: lessons_record(of_domain) for domain, of_domain in words.items()}
        run.check(lessons)
        study.start(run, settings, paper=PAPER, data=lessons, rests_on=rests_on((MIXSE, *plan.ablations)))
        # this reads the files of the tests, so a mistake in them is found before hours of writing
        tests = ability_tests(plan, study.root, data)
        measurements = Measurements(source, data.held_out, plan.max_length, study.folder / "values", tests)
        # before the training: a model that cannot write says so at once
        generated = _write_lessons(plan, study, data) if plan.written else None
        builder = SelfMoEBuilder(plan=plan, source=source, data=data, folder=study.folder, callbacks=study.callbacks)
        yields, writer = (generated.data.yields, generated.writer) if generated else (data.yields, SELF)
        findings = SelfMoEFindings(plan, source.model, yields=yields, writer=writer)
        for _ in _fill_tables(plan, builder, measurements, findings, generated):
            if study.finished_before and not findings.is_complete:
                continue  # a finished report is not replaced by a part of it
            findings.abilities = measurements.abilities()
            study.publish(findings, finished=findings.is_complete)
        return findings


@dataclass(frozen=True)
class _WrittenLessons:
    """Lessons that a model wrote for the study."""

    data: StudyData
    writer: str
    """The name of the model in the rows."""
    folder: Path
    """Of the lessons, and of the models that learn them."""

    @property
    def number(self) -> dict[str, int]:
        return {domain: len(lessons) for domain, lessons in self.data.learned.items()}


def _write_lessons(plan: SelfMoEPlan, study: Study, data: StudyData) -> _WrittenLessons:
    writer = replace(study.source, model=plan.writer, revision=None) if plan.writer else study.source
    name = Path(lasting_name(writer.model)).name
    is_base = lasting_name(writer.model) == lasting_name(study.source.model)
    folder = inside(study.folder / "written", f"{name}-{plan.written}")
    lessons = write_lessons(writer, data, folder / "lessons", plan.written, seed=plan.seed)
    generated = _WrittenLessons(lessons, SELF if is_base else f"written by {name}", folder)
    if all(generated.number.values()):
        counts = ", ".join(f"{domain} {count}" for domain, count in generated.number.items())
        say(f"{study.source.model}: experts and MiXSE will learn lessons that {name} wrote ({counts}), in {folder}")
    else:
        say(f"{name} wrote no lesson of a domain that passes the filters, so no expert learns from written lessons.")
    return generated


def _fill_tables(
    plan: SelfMoEPlan,
    builder: SelfMoEBuilder,
    measurements: Measurements,
    findings: SelfMoEFindings,
    generated: _WrittenLessons | None,
) -> Iterator[None]:
    """Fill the findings, table by table."""
    experts = builder.experts(plan.number)
    findings.main[BASE] = measurements.measure_model(BASE, None)
    of_experts = {name: measurements.measure_model(f"expert {name}", folder) for name, folder in experts.items()}
    findings.main |= {f"expert {name}": values for name, values in of_experts.items()}
    findings.main[ORACLE] = measurements.oracle(of_experts)
    instance = builder.instance(plan.number)
    findings.main[INSTANCE] = measurements.measure_model(INSTANCE, instance)
    folders = list(experts.values())
    findings.main |= {
        row: measurements.measure_merge(row, folders, method, density) for row, method, density in _merge_methods(plan)
    }
    yield
    mixture = builder.mixture(MIXSE, plan.number)
    findings.main[MIXSE] = measurements.measure_model(MIXSE, mixture)
    by_choice = measurements.measure_choices(MIXSE, mixture, CHOICES, abilities=True)
    findings.main[f"{MIXSE}, {RENORMALISED}"] = by_choice.pop(RENORMALISED)
    findings.ablations |= {f"{MIXSE}, {choice}": values for choice, values in by_choice.items()}
    findings.usage[MIXSE] = measurements.usage(MIXSE)
    overhead_file = builder.folder / "values" / "overhead.json"
    if (overhead := read_record(overhead_file)) is None:
        overhead = measure_overhead(mixture, builder.source)
        write_record(overhead_file, overhead)
    findings.overhead = overhead
    yield
    if plan.requested_answers:
        compared = {BASE: None, INSTANCE: instance, MIXSE: mixture}
        findings.answers = {row: measurements.measure_answers(row, folder) for row, folder in compared.items()}
        yield
    if plan.requested_choices:
        findings.chance = {name: chance(choices) for name, choices in measurements.ability_tests.choices.items()}
        models = {
            BASE: measurements.open_model(None),
            **{f"expert {name}": measurements.open_model(folder) for name, folder in experts.items()},
            INSTANCE: measurements.open_model(instance),
            "TIES": measurements.open_merge(folders, "ties", plan.ties_density),
            MIXSE: measurements.open_model(mixture),
            f"{MIXSE}, {RENORMALISED}": measurements.open_model(mixture, RENORMALISED),
        }
        findings.multiple_choice = {row: measurements.measure_multiple_choice(row, model) for row, model in models.items()}
        yield
    for name in plan.ablations:
        folder = builder.mixture(name, plan.number)
        findings.ablations[name] = measurements.measure_model(name, folder)
        # renormalised, the expert gets weight 1: this compares the choice of experts alone, since some routers give larger weights
        renormalised = measurements.measure_choices(name, folder, [RENORMALISED])[RENORMALISED]
        findings.ablations[f"{name}, {RENORMALISED}"] = renormalised
        findings.usage[name] = measurements.usage(name)
        yield
    if plan.fewer_experts:
        domains = list(builder.data.learned)
        findings.growing |= {"0: base": findings.main[BASE], f"1: {domains[0]}": findings.main[f"expert {domains[0]}"]}
        yield
        for number in range(2, len(domains)):  # each router is trained on the lessons of its experts
            folder = builder.mixture(MIXSE, plan.number, domains[:number])
            findings.growing[f"{number}: and {domains[number - 1]}"] = measurements.measure_model(
                f"{MIXSE} of {number}", folder
            )
            yield
        findings.growing[f"{len(domains)}: and {domains[-1]}"] = findings.main[MIXSE]
        yield
    for size in sorted(plan.sizes):
        findings.sizes[size] = {
            INSTANCE: measurements.measure_model(f"{INSTANCE} {size}", builder.instance(size)),
            MIXSE: measurements.measure_model(f"{MIXSE} {size}", builder.mixture(MIXSE, size)),
        }
        yield
    if generated and all(generated.number.values()):
        of_written = Measurements(builder.source, generated.data.held_out, plan.max_length, generated.folder / "values")
        learner = replace(builder, data=generated.data, folder=generated.folder)
        arms = {
            generated.writer: _measure_learners(learner, of_written, generated.number, f", {generated.writer}"),
            HUMAN: _measure_learners(builder, measurements, generated.number),
        }
        findings.written = {f"{row}, {lessons}": values for lessons, rows in arms.items() for row, values in rows.items()}
        yield
    findings.sizes[plan.number] = {name: findings.main[name] for name in (INSTANCE, MIXSE)}
    yield


def _measure_learners(
    builder: SelfMoEBuilder, measurements: Measurements, number: Mapping[str, int], end: str = ""
) -> dict[str, Values]:
    """What learns a number of lessons by domain: the experts, each domain with its own expert, instance merging, merges, and MiXSE.

    end: of the names of their files. Without it, they end with the number of lessons if that is below the plan's.
    """
    experts = builder.experts(number)

    def row_name(model: str, number: Number) -> str:
        suffix = "" if end else size_suffix(number, builder.plan.number)
        return f"{model} {suffix}" if suffix else f"{model}{end}"

    of_experts = {
        name: measurements.measure_model(row_name(f"expert {name}", number[name]), folder) for name, folder in experts.items()
    }
    rows = {**{f"expert {name}": values for name, values in of_experts.items()}, ORACLE: measurements.oracle(of_experts)}
    rows[INSTANCE] = measurements.measure_model(row_name(INSTANCE, number), builder.instance(number))
    for row, method, density in _merge_methods(builder.plan):
        rows[row] = measurements.measure_merge(row_name(row, number), list(experts.values()), method, density)
    return rows | {MIXSE: measurements.measure_model(row_name(MIXSE, number), builder.mixture(MIXSE, number))}


def _merge_methods(plan: SelfMoEPlan) -> Sequence[tuple[str, MergeMethod, float | None]]:
    """How the weights of experts are merged: the row, the method and its density."""
    return ("TIES", "ties", plan.ties_density), ("DARE", "dare", plan.dare_density), ("linear", "linear", None)
