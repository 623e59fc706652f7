"""Lessons of the study: what is learned and what is held out, drawn once and kept beside the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from unmask.experts.records import weights_of
from unmask.io.files import inside
from unmask.mixture.any_model import load_any_language_model
from unmask.models.loading import Source
from unmask.starter import starter_lessons
from unmask.studies.self_moe.plan import StudyPlan

Lessons = Mapping[str, list[Lesson]]
_SEEDS = 100  # that a model's own lessons begin from


@dataclass(frozen=True)
class StudyData:
    """Lessons by domain, in an order such that the first of them are a sample as well; those that nothing learns; what all began from."""

    learned: Lessons
    held_out: Lessons
    seeds: Lessons

    def first(self, number: int) -> dict[str, list[Lesson]]:
        """So many lessons of each domain."""
        return {name: lessons[:number] for name, lessons in self.learned.items()}


@dataclass(frozen=True)
class AbilityTests:
    """Tests of ability: their items (`Fetched`: the harness's own, the first `limit`), and whether code may run, and without a sandbox."""

    items: Mapping[str, Items]
    limit: int | None
    run_code: bool
    unsandboxed: bool = False


def draw(plan: StudyPlan, source: Source, root: Path, folder: Path, say: Callable[[str], None]) -> StudyData:
    """Draw the lessons of every domain, or let the model write them. Raises UnmaskError for data that are not there or too few."""
    given, held_out = {}, {}
    for name, file in plan.seeds.items():
        wanted = plan.number if plan.lessons == "seeds" else _SEEDS
        seeds, tested = split(read_seeds(_file(file, root)), wanted, plan.held_out, plan.seed)
        held_out[name] = _kept(inside(folder, f"{name}.held-out.jsonl"), tested)
        given[name] = _kept(inside(folder, f"{name}.seeds.jsonl"), seeds)
    learned = dict(given)
    if plan.lessons == "written":
        writer = Writer(*load_any_language_model(source))
        forbidden = [f"{one.instruction} {one.input}".strip() for some in held_out.values() for one in some]
        for name, seeds in given.items():
            writing = Writing(plan.number, batch=64, seed=plan.seed)
            found = specialise(
                writer,
                source.model,
                load_domain(name),
                seeds,
                inside(folder, name),
                writing,
                forbidden,
                weights=weights_of(source),
            )
            say(f"{name}: {found.kept} lessons of {found.written} instructions that were written")
            learned[name] = read_lessons(inside(folder, name) / LESSONS)
    return StudyData(learned, held_out, given)


def check_tests(plan: StudyPlan, root: Path) -> None:
    """Raise UnmaskError, before hours of work, for tests that there are not, lack their files or may not run code."""
    for name, given in plan.abilities.items():
        find_test(name)
        if given and not (root / given).is_file():
            raise UnmaskError(
                f"There is no '{root / given}' for the ability '{name}'. Give the folder of the data sets (--data), have the harness "
                f"fetch its own (--set abilities.{name}=''), or leave the test out (--set abilities.{name}=false)."
            )
    if not plan.run_code and (code := [name for name, given in plan.asked.items() if TESTS[name].asked == "code"]):
        raise UnmaskError(
            f"'{code[0]}' runs code that the models write, in a sandbox: allow it with --set run_code=true, or leave it out "
            f"(--set abilities.{code[0]}=false)."
        )
    require_code_to_run(plan.asked, plan.run_code, plan.unsandboxed_code)


def ask(plan: StudyPlan, root: Path, drawn: StudyData) -> AbilityTests:
    """Items of the tests of ability, without those that were learned."""
    learned = [lesson for some in (drawn.learned, drawn.seeds) for lessons in some.values() for lesson in lessons]
    files = {name: root / given if given else None for name, given in plan.asked.items()}
    return AbilityTests(draw_tests(files, plan.limit, plan.seed, learned), plan.limit, plan.run_code, plan.unsandboxed_code)


def _file(given: str, root: Path) -> Path:
    kind, mark, name = given.partition(":")
    file = starter_lessons(name) if mark and kind == "starter" else root / given
    if not file.is_file():
        raise UnmaskError(f"There is no '{file}': give the folder of the data sets (--data).")
    return file


def _kept(file: Path, lessons: list[Lesson]) -> list[Lesson]:
    if not file.is_file():
        write_lessons(lessons, file)
    return read_lessons(file)
