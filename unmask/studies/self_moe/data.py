"""Data of the study: lessons to learn, held-out lessons, written lessons, and items of ability tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.files import inside
from unmask.io.terminal import counted, say
from unmask.models.identity import identity_of
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.abilities.ability_tests import TESTS, Item
from unmask.moe.experts.abilities.answer_likelihood import Choice, draw_choices, require_answers, require_multiple_choice
from unmask.moe.experts.abilities.harness import (
    TestItems,
    draw_items,
    draw_tests,
    find_test,
    learned_filter,
    require_code_to_run,
)
from unmask.moe.experts.lessons.domain import load_domain
from unmask.moe.experts.lessons.generation import Writer
from unmask.moe.experts.lessons.lessons import Lesson, keep_lessons, read_lessons, read_seeds, split_apart
from unmask.moe.experts.lessons.specialise import LESSONS, SpecialisePlan, Yield, specialise
from unmask.starter import lessons_file
from unmask.studies.self_moe.plan import SelfMoEPlan

Lessons = Mapping[str, list[Lesson]]
Number = int | Mapping[str, int]
"""A number of lessons: the same of each domain, or one by domain."""
_SEEDS = 100  # seed lessons of a domain, as in the paper (section 2.1)
_SPARE = 1.5  # instructions for each requested lesson: of SmolLM2-135M, 85 to 98 % of the answers have the right form
_BATCH = 32  # texts that are written together: the states of 64 prompts can take more memory than a laptop has


@dataclass(frozen=True)
class StudyData:
    """Lessons by domain."""

    learned: Lessons
    """To learn, in random order."""
    held_out: Lessons
    """For tests only."""
    seeds: Lessons
    """The examples for written lessons."""
    yields: Mapping[str, Yield] = field(default_factory=dict)
    """The yield of each domain, if a model wrote the lessons to learn."""

    def first(self, number: Number) -> dict[str, list[Lesson]]:
        """The first `number` lessons of each domain. They are a random sample, because the order is random."""
        return {name: lessons[: number_of(name, number)] for name, lessons in self.learned.items()}


def number_of(domain: str, number: Number) -> int:
    """The number of lessons of one domain."""
    return number if isinstance(number, int) else number[domain]


@dataclass(frozen=True)
class AbilityTests:
    """Items of ability tests."""

    items: Mapping[str, TestItems]
    """`HarnessItems`: the first `limit` that the harness fetches."""
    limit: int | None
    run_code: bool
    unsandboxed: bool = False
    answers: Mapping[str, Sequence[Item]] = field(default_factory=dict)
    """The items whose right answers are measured by likelihood."""
    choices: Mapping[str, Sequence[Choice]] = field(default_factory=dict)
    """The questions that are asked as a choice."""


def draw(plan: SelfMoEPlan, source: Source, root: Path, folder: Path) -> StudyData:
    """Draw the lessons of every domain, or let the model write them. They are drawn once and kept in the folder.

    Raises UnmaskError if there are too few lessons.
    """
    number = plan.number if plan.lessons == "seeds" else _SEEDS
    # all domains are drawn before any is written: one that has too few lessons leaves nothing behind
    lessons = {name: read_seeds(lessons_file(file, root)) for name, file in plan.seeds.items()}
    splits = split_apart(lessons, number, plan.held_out, plan.seed)
    seeds = {name: keep_lessons(learned, inside(folder, f"{name}.seeds.jsonl")) for name, (learned, _) in splits.items()}
    held_out = {name: keep_lessons(tested, inside(folder, f"{name}.held-out.jsonl")) for name, (_, tested) in splits.items()}
    data = StudyData(seeds, held_out, seeds)
    if plan.lessons == "seeds":
        return data
    generated = write_lessons(source, data, folder, plan.number, batch=64, seed=plan.seed)
    if empty := [name for name, lessons in generated.learned.items() if not lessons]:
        raise UnmaskError(f"{source.model} wrote no lesson of '{empty[0]}' that passes the filters. Use a larger model.")
    return generated


def write_lessons(source: Source, data: StudyData, folder: Path, number: int, *, batch: int = _BATCH, seed: int) -> StudyData:
    """Let a model write lessons from the seeds of a study, one folder a domain: `number` of each, fewer where it wrote fewer.

    Domains that are written are not written again, and a stopped one continues. Instructions near a held-out lesson of any domain are
    dropped. A domain may end up without lessons. Raises UnmaskError as `specialise`.
    """
    writing = SpecialisePlan(math.ceil(_SPARE * number), batch=batch, seed=seed)
    writer, weights = cache(lambda: Writer(*load_language_model(source))), identity_of(source).revision
    forbidden = [lesson.question for of_domain in data.held_out.values() for lesson in of_domain]
    generated, yields = dict[str, list[Lesson]](), dict[str, Yield]()
    for name, seeds in data.seeds.items():
        of_domain = inside(folder, name)
        report = specialise(
            writer,
            load_domain(name),
            seeds[:_SEEDS],
            of_domain,
            writing,
            model=source.model,
            weights=weights,
            forbidden=forbidden,
        )
        say(
            f"{source.model}: {name}: {counted(report.kept, 'lesson')} kept, of {counted(report.written, 'written instruction')}"
        )
        generated[name], yields[name] = read_lessons(of_domain / LESSONS)[:number] if report.kept else [], report
    return StudyData(generated, data.held_out, data.seeds, yields)


def check_tests(plan: SelfMoEPlan, root: Path) -> None:
    """Raise UnmaskError for ability tests that do not exist, lack their files or may not run code. This avoids hours of wasted work."""
    for table, files, check in (
        ("abilities", plan.abilities, find_test),
        ("answers", plan.requested_answers, find_test),
        ("multiple_choice", plan.requested_choices, require_multiple_choice),
    ):
        for name, file in files.items():
            check(name)
            path = _file_and_sample_size(file, root)[0] if file else None
            if (path is None and table == "abilities") or (path is not None and path.is_file()):
                continue  # abilities without a file: the harness fetches the data
            fetched = f", let the harness fetch the data (--set abilities.{name}='')" * (table == "abilities")
            raise UnmaskError(
                f"The file of the ability test '{name}' ({table}) does not exist: '{path or root}'. Give the folder of the data sets "
                f"(--data){fetched}, or leave the test out (--set {table}.{name}=false)."
            )
    if not plan.run_code and (code := [name for name in plan.requested_abilities if TESTS[name].asked == "code"]):
        raise UnmaskError(
            f"'{code[0]}' runs code that the models write, in a sandbox. Allow it with --set run_code=true, or leave the test out "
            f"(--set abilities.{code[0]}=false)."
        )
    require_code_to_run(plan.requested_abilities, plan.run_code, plan.unsandboxed_code)


def ability_tests(plan: SelfMoEPlan, root: Path, data: StudyData) -> AbilityTests:
    """The ability tests of a plan, without learned items. Raises UnmaskError for answers that an item lacks."""
    learned = [lesson for by_domain in (data.learned, data.seeds) for lessons in by_domain.values() for lesson in lessons]
    files = {name: root / file if file else None for name, file in plan.requested_abilities.items()}
    items = draw_tests(files, plan.limit, plan.seed, learned)
    training_texts = learned_filter(learned)
    answers = {
        name: draw_items(name, root / file, plan.limit, plan.seed, training_texts)
        for name, file in plan.requested_answers.items()
    }
    require_answers(answers)
    choices = {
        name: draw_choices(name, *_file_and_sample_size(file, root), plan.seed, training_texts)
        for name, file in plan.requested_choices.items()
    }
    return AbilityTests(items, plan.limit, plan.run_code, plan.unsandboxed_code, answers, choices)


def _file_and_sample_size(file: str, root: Path) -> tuple[Path, int | None]:
    """A file below the data folder, and how many items of it are drawn: `#64` behind its name."""
    path, mark, number = file.partition("#")
    if mark and not (number.isdecimal() and int(number)):
        raise UnmaskError(f"'{file}': a number of items must follow '#', as in '{path}#64'.")
    return root / path, int(number) if mark else None
