"""Lessons of the study: for each set of domains, lessons to learn and held-out lessons. They are drawn once and kept with the results.

All prompts have one form, whatever the domain. Otherwise a router could tell domains apart by the words of a template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.files import inside, make_folder
from unmask.io.rows import Row, field, read_rows
from unmask.moe.experts.lessons.lessons import Lesson, keep_lessons, read_seeds, split
from unmask.starter import lessons_file
from unmask.studies.routers.configurations import CONFIGURATIONS
from unmask.studies.routers.plan import LessonSource, RoutersPlan

Lessons = dict[str, list[Lesson]]
_MORE = 4  # lessons that are looked at for each one that is needed: some are too long


@dataclass(frozen=True)
class LessonSet:
    """Lessons by domain. learned: for experts and routers. held_out: for measurements only."""

    learned: Lessons
    held_out: Lessons

    def grouped(self, experts: int | None) -> Lessons:
        """Lessons to learn, by expert: neighbouring domains share one. None: each domain has its own, under its name."""
        if experts is None:
            return self.learned
        names = list(self.learned)
        size = len(names) // experts
        groups = [names[start : start + size] for start in range(0, len(names), size)]
        return {"-".join(group): [lesson for name in group for lesson in self.learned[name]] for group in groups}


def draw(plan: RoutersPlan, root: Path, folder: Path, tokens: Callable[[Lesson], int]) -> dict[str, LessonSet]:
    """Draw the lessons of every set that a configuration needs. Lessons with more than `max_length` tokens are left out.

    Raises UnmaskError for a file that is missing, and for a domain with too few lessons.
    """
    needed = dict.fromkeys(CONFIGURATIONS[name].domains for name in plan.configurations)
    # all are drawn before any is written: a domain that has too few lessons leaves nothing behind
    drawn = {name: _draw_set(plan, plan.domains[name], root, tokens) for name in needed}
    return {name: _kept(lessons, inside(folder, name)) for name, lessons in drawn.items()}


def _draw_set(plan: RoutersPlan, sources: Mapping[str, LessonSource], root: Path, tokens: Callable[[Lesson], int]) -> LessonSet:
    learned, held_out = {}, {}
    for name, source in sources.items():
        lessons = _first_that_fit(lessons_of(source, root), plan, tokens, name)
        learned[name], held_out[name] = split(lessons, plan.number, plan.held_out, seed=0)
    return LessonSet(learned, held_out)


def _kept(drawn: LessonSet, folder: Path) -> LessonSet:
    make_folder(folder)
    return LessonSet(
        {name: keep_lessons(lessons, inside(folder, f"{name}.learned.jsonl")) for name, lessons in drawn.learned.items()},
        {name: keep_lessons(lessons, inside(folder, f"{name}.held-out.jsonl")) for name, lessons in drawn.held_out.items()},
    )


def _first_that_fit(lessons: list[Lesson], plan: RoutersPlan, tokens: Callable[[Lesson], int], name: str) -> list[Lesson]:
    """A random sample of the lessons that are short enough."""
    wanted = plan.number + plan.held_out
    unique = list({lesson.instruction: lesson for lesson in lessons}.values())
    if len(unique) < wanted:
        raise UnmaskError(f"The domain '{name}' has {len(unique)} different lessons, and {wanted} are needed.")
    sample, _ = split(unique, min(len(unique), _MORE * wanted), 0, seed=0)
    fitting = [lesson for lesson in sample if tokens(lesson) <= plan.max_length]
    if len(fitting) < wanted:
        raise UnmaskError(
            f"The domain '{name}' has {len(fitting)} lessons of at most {plan.max_length} tokens among {len(sample)}, and {wanted} are "
            "needed. Use a larger max_length or a smaller number."
        )
    return fitting[:wanted]


def lessons_of(source: LessonSource, root: Path) -> list[Lesson]:
    """All lessons of a source, in the one form of the study: the task as the instruction, and no input. Raises UnmaskError."""
    return [_in_one_form(lesson, source.instruction) for lesson in _lessons_as_they_are(source, root)]


def _in_one_form(lesson: Lesson, instruction: str | None) -> Lesson:
    """Where the file has a question as its input, the instruction before it names the domain. It is left out."""
    task = f"{instruction}\n{lesson.input}" if instruction else lesson.input or lesson.instruction
    return Lesson(task, lesson.output, "", lesson.where)


def _lessons_as_they_are(source: LessonSource, root: Path) -> list[Lesson]:
    file = lessons_file(source.file, root)
    if source.instruction is None and not source.where:
        return read_seeds(file)
    rows = list(read_rows(file))
    if source.instruction is None:
        return [
            lesson for (line, row), lesson in zip(rows, read_seeds(file), strict=True) if _is_wanted(file, line, row, source)
        ]
    wanted = [(line, row) for line, row in rows if _is_wanted(file, line, row, source)]
    given = "positive" if source.response == "anchor" else "anchor"
    return [
        Lesson(
            source.instruction, field(file, line, row, source.response), field(file, line, row, given), f"{file.name}:{line}"
        )
        for line, row in wanted
    ]


def _is_wanted(file: Path, line: int, row: Row, source: LessonSource) -> bool:
    return all(field(file, line, row, column) in values for column, values in source.where.items())
