"""Lessons of the study: what is learned and what is held out, drawn once and kept beside the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.experts.domain import load_domain
from unmask.experts.generation import Writer
from unmask.experts.lessons import Lesson, read_lessons
from unmask.experts.seeds import read_seeds, split, write_lessons
from unmask.experts.speakers import load_speaker
from unmask.experts.specialise import LESSONS, specialise
from unmask.experts.specialise import Plan as Writing
from unmask.loading import Source
from unmask.starter import starter_lessons
from unmask.studies.self_moe.plan import Plan

Lessons = Mapping[str, list[Lesson]]
_SEEDS = 100  # that a model's own lessons begin from


@dataclass(frozen=True)
class Drawn:
    """Lessons by domain, in an order such that the first of them are a sample as well; and those that nothing learns."""

    learned: Lessons
    held_out: Lessons

    def first(self, number: int) -> dict[str, list[Lesson]]:
        """So many lessons of each domain."""
        return {name: lessons[:number] for name, lessons in self.learned.items()}


def draw(plan: Plan, source: Source, root: Path, folder: Path, say: Callable[[str], None]) -> Drawn:
    """Draw the lessons of every domain, or let the model write them. Raises UnmaskError for data that are not there or too few."""
    learned, held_out = {}, {}
    for name, given in plan.seeds.items():
        wanted = plan.number if plan.lessons == "seeds" else _SEEDS
        seeds, tested = split(read_seeds(_file(given, root)), wanted, plan.held_out, plan.seed)
        held_out[name] = _kept(folder / f"{name}.held-out.jsonl", tested)
        learned[name] = _kept(folder / f"{name}.seeds.jsonl", seeds)
    if plan.lessons == "written":
        writer = Writer(*load_speaker(source))
        forbidden = [f"{one.instruction} {one.input}".strip() for some in held_out.values() for one in some]
        for name, seeds in learned.items():
            writing = Writing(plan.number, batch=64, seed=plan.seed)
            found = specialise(writer, source.model, load_domain(name), seeds, folder / name, writing, forbidden)
            say(f"{name}: {found.kept} lessons of {found.written} instructions that were written")
            learned[name] = read_lessons(folder / name / LESSONS)
    return Drawn(learned, held_out)


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
