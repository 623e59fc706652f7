"""The plan of the study of routers: base models, sets of domains with their lessons, seeds, tasks for embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from unmask.errors import UnmaskError, unknown
from unmask.io.files import inside, make_folder
from unmask.io.rows import field, read_rows
from unmask.moe.experts.lessons.lessons import Lesson, keep_lessons, read_seeds, split
from unmask.starter import lessons_file
from unmask.studies.claims.claim import Claim
from unmask.studies.mixtures import LearningPlan
from unmask.studies.plan import PlanTable, read_plan
from unmask.studies.routers.configurations import CONFIGURATIONS, STANDARD, baseline_of

PAPER: Final = "Router configurations"


class LessonSource(PlanTable):
    """The lessons of a domain."""

    file: str
    """Below the data folder, or `starter:NAME`."""
    where: dict[str, tuple[str, ...]] = Field(default={})
    """Values that columns must have."""
    instruction: str | None = None
    """Turns pairs (anchor, positive) into lessons."""
    response: Literal["anchor", "positive"] = "positive"
    """The column of a pair that the expert writes."""


class RoutersPlan(LearningPlan):
    """The settings of the study at one scale."""

    domains: dict[str, dict[str, LessonSource]]
    """Sets of domains by name."""
    seeds: tuple[int, ...] = Field(min_length=1)
    """Of the routers' first weights and of the order of lessons; experts are trained once."""
    fresh_seeds: tuple[int, ...] = ()
    """For the replication: our own structure against the configuration that was best on the other seeds."""
    tasks: tuple[str, ...] = Field(min_length=1)
    """Folders below the data folder, or starter tasks, on which embeddings are scored."""
    embedded_length: int = Field(ge=16)
    """Most tokens of a text there."""
    attn_implementation: Literal["eager", "sdpa"] | None = None
    """As in transformers; None is its own choice."""
    configurations: tuple[str, ...] = tuple(CONFIGURATIONS)
    """What is measured. The configurations that they are compared with must be among them."""
    claims: tuple[Claim, ...] = ()
    """Of papers; their kind is a yardstick of the study."""


def allowed_values(_: RoutersPlan) -> dict[str, list[str]]:
    """What a setting may hold, by the key of the setting."""
    return {"configurations": list(CONFIGURATIONS)}


def load_plan(study: str, scale: str, settings: Iterable[str] = (), _: str | None = None) -> RoutersPlan:
    """The plan at a scale, changed by `key=value` settings. Raises UnmaskError with the name of a wrong key."""
    plan = read_plan(study, RoutersPlan, scale, settings)
    for name in plan.configurations:
        if name not in CONFIGURATIONS:
            raise unknown("configuration", name, CONFIGURATIONS)
        if (baseline := baseline_of(name)) not in plan.configurations:
            raise UnmaskError(f"routers: '{name}' is compared with '{baseline}', so the configurations must have it too.")
    if both := set(plan.seeds) & set(plan.fresh_seeds):
        raise UnmaskError(f"routers: seed {min(both)} is not fresh, because the study uses it too.")
    if STANDARD not in plan.configurations:
        raise UnmaskError(f"routers: the configurations must have '{STANDARD}'.")
    return plan


Lessons = dict[str, list[Lesson]]
_CANDIDATES = 4  # lessons that are read for each one that is needed: some are too long


@dataclass(frozen=True)
class LessonSet:
    """Lessons by domain."""

    learned: Lessons
    """For experts and routers."""
    held_out: Lessons
    """For measurements only."""

    def group(self, experts: int | None) -> Lessons:
        """Lessons to learn, by expert: neighbouring domains share one. None: each domain has its own, under its name."""
        if experts is None:
            return self.learned
        names = list(self.learned)
        size = len(names) // experts
        groups = [names[start : start + size] for start in range(0, len(names), size)]
        return {"-".join(group): [lesson for name in group for lesson in self.learned[name]] for group in groups}


def draw(plan: RoutersPlan, root: Path, folder: Path, tokens: Callable[[Lesson], int]) -> dict[str, LessonSet]:
    """Draw the lessons of every set that a configuration needs. They are drawn once and kept in the folder.

    All prompts have one form, whatever the domain: otherwise a router could recognise domains by the words of a template. Lessons with more
    than `max_length` tokens are left out. Raises UnmaskError for a missing file, and for a domain with too few lessons.
    """
    lesson_sets: dict[str, LessonSet] = {}
    # all are drawn before any is written: a domain that has too few lessons leaves nothing behind
    for name in dict.fromkeys(CONFIGURATIONS[name].domains for name in plan.configurations):
        lesson_sets[name] = LessonSet({}, {})
        for domain, source in plan.domains[name].items():
            lessons = _sample_short_lessons(lessons_of(source, root), plan, tokens, domain)
            lesson_sets[name].learned[domain], lesson_sets[name].held_out[domain] = split(
                lessons, plan.number, plan.held_out, seed=0
            )
    for name, lesson_set in lesson_sets.items():
        make_folder(inside(folder, name))
        for end, by_domain in (("learned", lesson_set.learned), ("held-out", lesson_set.held_out)):
            for domain, lessons in by_domain.items():
                by_domain[domain] = keep_lessons(lessons, inside(inside(folder, name), f"{domain}.{end}.jsonl"))
    return lesson_sets


def _sample_short_lessons(
    lessons: list[Lesson], plan: RoutersPlan, tokens: Callable[[Lesson], int], domain: str
) -> list[Lesson]:
    """A random sample of the lessons that are short enough."""
    needed = plan.number + plan.held_out
    unique = list({lesson.instruction: lesson for lesson in lessons}.values())
    if len(unique) < needed:
        raise UnmaskError(f"The domain '{domain}' has {len(unique)} different lessons, and {needed} are needed.")
    sample, _ = split(unique, min(len(unique), _CANDIDATES * needed), 0, seed=0)
    fitting = [lesson for lesson in sample if tokens(lesson) <= plan.max_length]
    if len(fitting) < needed:
        raise UnmaskError(
            f"The domain '{domain}' has {len(fitting)} lessons of at most {plan.max_length} tokens among {len(sample)}, and {needed} are "
            "needed. Use a larger max_length or a smaller number."
        )
    return fitting[:needed]


def lessons_of(source: LessonSource, root: Path) -> list[Lesson]:
    """All lessons of a source, in the one form of the study: the task as the instruction, and no input. Raises UnmaskError."""
    file = lessons_file(source.file, root)
    rows = list(read_rows(file)) if source.where or source.instruction else []
    selected = [all(field(file, line, row, column) in values for column, values in source.where.items()) for line, row in rows]
    if source.instruction is None:
        lessons = read_seeds(file)
        if source.where:
            lessons = list(compress(lessons, selected))
    else:
        prompt = "positive" if source.response == "anchor" else "anchor"
        lessons = [
            Lesson(
                source.instruction,
                field(file, line, row, source.response),
                field(file, line, row, prompt),
                f"{file.name}:{line}",
            )
            for line, row in compress(rows, selected)
        ]
    # where the file has a question as its input, the instruction before it names the domain and is left out
    prefix = f"{source.instruction}\n" if source.instruction else ""
    return [
        Lesson(prefix + lesson.input if prefix or lesson.input else lesson.instruction, lesson.output, "", lesson.where)
        for lesson in lessons
    ]
