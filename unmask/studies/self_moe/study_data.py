"""Data of the study: lessons to learn, held-out lessons, and items of ability tests. They are drawn once and kept with the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.experts.abilities.ability_tests import TESTS
from unmask.experts.abilities.harness import Items, draw_tests, find_test, require_code_to_run
from unmask.experts.lessons.domain import load_domain
from unmask.experts.lessons.generation import Writer
from unmask.experts.lessons.lessons import Lesson, read_lessons
from unmask.experts.lessons.seed_lessons import read_seeds, split, write_lessons
from unmask.experts.lessons.specialise import LESSONS, specialise
from unmask.experts.lessons.specialise import SpecialisePlan as Writing
from unmask.io.files import inside
from unmask.io.terminal import say
from unmask.mixture.any_model import load_any_language_model
from unmask.models.identity import identity_of
from unmask.models.loading import Source
from unmask.starter import starter_lessons
from unmask.studies.self_moe.plan import StudyPlan

Lessons = Mapping[str, list[Lesson]]
_SEEDS = 100  # seed lessons from which a model writes its own


@dataclass(frozen=True)
class StudyData:
    """Lessons by domain. learned: to learn, in random order. held_out: for tests only. seeds: the examples for written lessons."""

    learned: Lessons
    held_out: Lessons
    seeds: Lessons

    def first(self, number: int) -> dict[str, list[Lesson]]:
        """The first `number` lessons of each domain. They are a random sample, because the order is random."""
        return {name: lessons[:number] for name, lessons in self.learned.items()}


@dataclass(frozen=True)
class AbilityTests:
    """Ability tests: their items (`Fetched`: the first `limit` that the harness fetches), and whether code may run, also unsandboxed."""

    items: Mapping[str, Items]
    limit: int | None
    run_code: bool
    unsandboxed: bool = False


def draw(plan: StudyPlan, source: Source, root: Path, folder: Path) -> StudyData:
    """Draw the lessons of every domain, or let the model write them. Raises UnmaskError if there are too few lessons."""
    seeds, held_out = {}, {}
    for name, file in plan.seeds.items():
        wanted = plan.number if plan.lessons == "seeds" else _SEEDS
        learned_seeds, tested = split(read_seeds(_file(file, root)), wanted, plan.held_out, plan.seed)
        held_out[name] = _kept(inside(folder, f"{name}.held-out.jsonl"), tested)
        seeds[name] = _kept(inside(folder, f"{name}.seeds.jsonl"), learned_seeds)
    learned = dict(seeds)
    if plan.lessons == "written":
        writer = Writer(*load_any_language_model(source))
        forbidden = [f"{lesson.instruction} {lesson.input}".strip() for lessons in held_out.values() for lesson in lessons]
        for name, own_seeds in seeds.items():
            writing = Writing(plan.number, batch=64, seed=plan.seed)
            outcome = specialise(
                writer,
                source.model,
                load_domain(name),
                own_seeds,
                inside(folder, name),
                writing,
                forbidden,
                weights=identity_of(source).revision,
            )
            say(f"{source.model}: {name}: {outcome.kept} lessons kept, of {outcome.written} written instructions")
            learned[name] = read_lessons(inside(folder, name) / LESSONS)
    return StudyData(learned, held_out, seeds)


def check_tests(plan: StudyPlan, root: Path) -> None:
    """Raise UnmaskError for ability tests that do not exist, lack their files or may not run code. This avoids hours of wasted work."""
    for name, file in plan.abilities.items():
        find_test(name)
        if file and not (root / file).is_file():
            raise UnmaskError(
                f"The file of the ability test '{name}' does not exist: '{root / file}'. Give the folder of the data sets (--data), let "
                f"the harness fetch the data (--set abilities.{name}=''), or leave the test out (--set abilities.{name}=false)."
            )
    if not plan.run_code and (
        code := [name for name, given in plan.requested_abilities.items() if TESTS[name].asked == "code"]
    ):
        raise UnmaskError(
            f"'{code[0]}' runs code that the models write, in a sandbox. Allow it with --set run_code=true, or leave the test out "
            f"(--set abilities.{code[0]}=false)."
        )
    require_code_to_run(plan.requested_abilities, plan.run_code, plan.unsandboxed_code)


def ability_tests(plan: StudyPlan, root: Path, data: StudyData) -> AbilityTests:
    """The ability tests of a plan, without learned items."""
    learned = [lesson for by_domain in (data.learned, data.seeds) for lessons in by_domain.values() for lesson in lessons]
    files = {name: root / file if file else None for name, file in plan.requested_abilities.items()}
    return AbilityTests(draw_tests(files, plan.limit, plan.seed, learned), plan.limit, plan.run_code, plan.unsandboxed_code)


def _file(name_or_path: str, root: Path) -> Path:
    kind, mark, name = name_or_path.partition(":")
    file = starter_lessons(name) if mark and kind == "starter" else root / name_or_path
    if not file.is_file():
        raise UnmaskError(f"'{file}' does not exist. Give the folder of the data sets (--data).")
    return file


def _kept(file: Path, lessons: list[Lesson]) -> list[Lesson]:
    if not file.is_file():
        write_lessons(lessons, file)
    return read_lessons(file)
