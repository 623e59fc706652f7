"""Data of the study: lessons to learn, held-out lessons, and items of ability tests. They are drawn once and kept with the results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.files import inside
from unmask.models.loading import Source
from unmask.moe.experts.abilities.ability_tests import TESTS, Item
from unmask.moe.experts.abilities.answer_likelihood import Choice, draw_choices, require_answers, require_multiple_choice
from unmask.moe.experts.abilities.harness import Items, draw_items, draw_tests, find_test, learned_of, require_code_to_run
from unmask.moe.experts.lessons.lessons import Lesson, keep_lessons, read_seeds, split_apart
from unmask.moe.experts.lessons.specialise import SpecialisePlan, Yield
from unmask.starter import lessons_file
from unmask.studies.self_moe.plan import StudyPlan
from unmask.studies.self_moe.written_lessons import SEEDS, write

Lessons = Mapping[str, list[Lesson]]
Number = int | Mapping[str, int]
"""A number of lessons: the same of each domain, or one by domain."""
_SPARE = 1.5  # instructions for each lesson that is wanted: of SmolLM2-135M, 85 to 98 % of the answers have the right form
_AT_ONCE = 32  # texts that are written at once: the states of 64 prompts can take more memory than a laptop has


@dataclass(frozen=True)
class StudyData:
    """Lessons by domain. learned: to learn, in random order. held_out: for tests only. seeds: the examples for written lessons.

    yields: what became of all that a model wrote, if the lessons to learn are written.
    """

    learned: Lessons
    held_out: Lessons
    seeds: Lessons
    yields: Mapping[str, Yield] = field(default_factory=dict)

    def first(self, number: Number) -> dict[str, list[Lesson]]:
        """The first `number` lessons of each domain. They are a random sample, because the order is random."""
        return {name: lessons[: number_of(name, number)] for name, lessons in self.learned.items()}


def number_of(domain: str, number: Number) -> int:
    """The number of lessons of one domain."""
    return number if isinstance(number, int) else number[domain]


@dataclass(frozen=True)
class AbilityTests:
    """Ability tests: their items (`Fetched`: the first `limit` that the harness fetches), and whether code may run, also unsandboxed.

    answers: the items whose right answers are measured by likelihood. choices: the questions that are asked as a choice.
    """

    items: Mapping[str, Items]
    limit: int | None
    run_code: bool
    unsandboxed: bool = False
    answers: Mapping[str, Sequence[Item]] = field(default_factory=dict)
    choices: Mapping[str, Sequence[Choice]] = field(default_factory=dict)


def draw(plan: StudyPlan, source: Source, root: Path, folder: Path) -> StudyData:
    """Draw the lessons of every domain, or let the model write them. Raises UnmaskError if there are too few lessons."""
    wanted = plan.number if plan.lessons == "seeds" else SEEDS
    # all domains are drawn before any is written: one that has too few lessons leaves nothing behind
    every = {name: read_seeds(lessons_file(file, root)) for name, file in plan.seeds.items()}
    drawn = split_apart(every, wanted, plan.held_out, plan.seed)
    seeds = {name: keep_lessons(learned, inside(folder, f"{name}.seeds.jsonl")) for name, (learned, _) in drawn.items()}
    held_out = {name: keep_lessons(tested, inside(folder, f"{name}.held-out.jsonl")) for name, (_, tested) in drawn.items()}
    if plan.lessons == "written":
        writing = SpecialisePlan(math.ceil(_SPARE * plan.number), batch=64, seed=plan.seed)
        written = write(source, seeds, held_out, folder, writing)
        if none := [name for name, lessons in written.lessons.items() if not lessons]:
            raise UnmaskError(f"{source.model} wrote no lesson of '{none[0]}' that passes the filters. Use a larger model.")
        return StudyData(_first(plan.number, written.lessons), held_out, seeds, written.yields)
    return StudyData(seeds, held_out, seeds)


def draw_written(plan: StudyPlan, source: Source, data: StudyData, folder: Path) -> StudyData:
    """The data of the comparison with lessons that a model writes: `plan.written` of each domain, fewer where it wrote fewer.

    source: the model that writes.
    """
    writing = SpecialisePlan(math.ceil(_SPARE * plan.written), batch=_AT_ONCE, seed=plan.seed)
    written = write(source, data.seeds, data.held_out, folder, writing)
    return StudyData(_first(plan.written, written.lessons), data.held_out, data.seeds, written.yields)


def _first(number: int, lessons: Lessons) -> Lessons:
    return {name: passed[:number] for name, passed in lessons.items()}


def check_tests(plan: StudyPlan, root: Path) -> None:
    """Raise UnmaskError for ability tests that do not exist, lack their files or may not run code. This avoids hours of wasted work."""
    for name, file in plan.abilities.items():
        find_test(name)
        if file and not (root / file).is_file():
            raise UnmaskError(
                f"The file of the ability test '{name}' does not exist: '{root / file}'. Give the folder of the data sets (--data), let "
                f"the harness fetch the data (--set abilities.{name}=''), or leave the test out (--set abilities.{name}=false)."
            )
    for name, file in plan.requested_answers.items():
        find_test(name)
        if not file or not (root / file).is_file():
            raise UnmaskError(
                f"The answers of the ability test '{name}' need a file, and '{root / file}' is none. Give the folder of the data sets "
                f"(--data), or leave the test out (--set answers.{name}=false)."
            )
    for name, file in plan.requested_choices.items():
        require_multiple_choice(name)
        if not _sampled(file, root)[0].is_file():
            raise UnmaskError(
                f"The multiple choice of the ability test '{name}' needs a file, and '{_sampled(file, root)[0]}' is none. Give the folder "
                f"of the data sets (--data), or leave the test out (--set multiple_choice.{name}=false)."
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
    """The ability tests of a plan, without learned items. Raises UnmaskError for answers that an item lacks."""
    learned = [lesson for by_domain in (data.learned, data.seeds) for lessons in by_domain.values() for lesson in lessons]
    files = {name: root / file if file else None for name, file in plan.requested_abilities.items()}
    items = draw_tests(files, plan.limit, plan.seed, learned)
    known = learned_of(learned)
    answers = {
        name: draw_items(name, root / file, plan.limit, plan.seed, known) for name, file in plan.requested_answers.items()
    }
    require_answers(answers)
    choices = {
        name: draw_choices(name, *_sampled(file, root), plan.seed, known) for name, file in plan.requested_choices.items()
    }
    return AbilityTests(items, plan.limit, plan.run_code, plan.unsandboxed_code, answers, choices)


def _sampled(file: str, root: Path) -> tuple[Path, int | None]:
    """A file below the data folder, and how many items of it are drawn: `#64` behind its name."""
    path, mark, number = file.partition("#")
    if mark and not (number.isdecimal() and int(number)):
        raise UnmaskError(f"'{file}': a number of items stands behind '#', as in '{path}#64'.")
    return root / path, int(number) if mark else None
