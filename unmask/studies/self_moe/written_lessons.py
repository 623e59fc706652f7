"""Written lessons: lessons of every domain that a model writes for the study, from seed lessons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.io.files import inside
from unmask.io.terminal import counted, say
from unmask.models.identity import identity_of
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.lessons.domain import load_domain
from unmask.moe.experts.lessons.generation import Writer
from unmask.moe.experts.lessons.lessons import Lesson, read_lessons
from unmask.moe.experts.lessons.specialise import LESSONS, SpecialisePlan, Yield, specialise

SEEDS = 100  # seed lessons of a domain, as in the paper (section 2.1)


@dataclass(frozen=True)
class WrittenLessons:
    """Lessons by domain, and what became of all that the model wrote for them."""

    lessons: dict[str, list[Lesson]]
    yields: dict[str, Yield]


def write(
    source: Source,
    seeds: Mapping[str, Sequence[Lesson]],
    held_out: Mapping[str, Sequence[Lesson]],
    folder: Path,
    plan: SpecialisePlan,
) -> WrittenLessons:
    """Let a model write lessons, one folder a domain. Domains that are written are not written again, and a stopped one continues.

    Instructions near a held-out lesson of any domain are dropped. A domain may end up without lessons. Raises UnmaskError as `specialise`.
    """
    writer = Writer(*load_language_model(source))
    weights = identity_of(source).revision
    forbidden = [lesson.question for of_domain in held_out.values() for lesson in of_domain]
    lessons, yields = {}, {}
    for name, own_seeds in seeds.items():
        place = inside(folder, name)
        done = specialise(writer, source.model, load_domain(name), own_seeds[:SEEDS], place, plan, forbidden, weights=weights)
        say(f"{source.model}: {name}: {counted(done.kept, 'lesson')} kept, of {counted(done.written, 'written instruction')}")
        lessons[name], yields[name] = read_lessons(place / LESSONS) if done.kept else [], done
    return WrittenLessons(lessons, yields)
