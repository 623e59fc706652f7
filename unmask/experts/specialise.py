"""Specialise: a base model writes its own lessons for a domain, from a few seeds. Two passes, each batch kept as soon as it is written.

Instructions are brainstormed (3 seeds in context, temperature 1.0, top-p 0.98), then answered (5 seeds, greedily); Self-MoE, arXiv
2406.12034, section 2.1. What a batch holds depends on the run's seed and the batch's number alone, so that a run that was stopped goes
on to the same lessons.
"""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.experts.domain import BLANK, STOP, Domain
from unmask.experts.filters import Novelty, parse_instruction, refuse_instruction, refuse_response
from unmask.experts.generation import Job, Sampling, Text, Writers
from unmask.experts.lessons import Lesson
from unmask.experts.records import content_of, write_or_check
from unmask.experts.seeds import write_lessons
from unmask.files import atomic, write_json

INSTRUCTIONS, RESPONSES, LESSONS, REPORT, RECORD = (
    "instructions.jsonl",
    "responses.jsonl",
    "lessons.jsonl",
    "report.json",
    "specialise.json",
)
FILES = (INSTRUCTIONS, RESPONSES, LESSONS, REPORT, RECORD)
_IN_CONTEXT, _SOLVED = 3, 5


@dataclass(frozen=True)
class Plan:
    """How many lessons are wanted and how they are written.

    number: instructions to keep; batch: texts of one pass; patience: batches of instructions that may be written for each that would do if
    nothing were dropped, before the run ends with fewer.
    """

    number: int = 100
    batch: int = 16
    instruction_tokens: int = 128
    response_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 0.98
    patience: int = 6
    seed: int = 0


@dataclass(frozen=True)
class Yield:
    """What came of it. dropped: by reason; kept: lessons; nearest: mean ROUGE-L of a kept instruction to the nearest other or seed."""

    written: int
    instructions: int
    kept: int
    dropped: dict[str, int]
    nearest: float
    words: float

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def specialise(
    writer: Writers,
    model: str,
    domain: Domain,
    seeds: Sequence[Lesson],
    folder: Path,
    plan: Plan,
    forbidden: Sequence[str] = (),
    progress: Callable[[str, int, int], None] = lambda *_: None,
    weights: Mapping[str, str] | None = None,
) -> Yield:
    """Write lessons of a domain into a folder; go on where that was stopped.

    weights: of the model, as `bases.weights_of` names them.
    forbidden: texts of evaluations, which no instruction may be near to. Raises UnmaskError for fewer than five seeds, and for a
    folder that holds another run.
    """
    if len(seeds) < _SOLVED:
        raise UnmaskError(f"{_SOLVED} seeds stand in each prompt, and there are {len(seeds)}.")
    avoided = hashlib.sha256("\0".join(forbidden).encode()).hexdigest()[:16]
    record = {
        "model": model,
        **(weights or {}),
        "engine": writer.engine,
        "domain": domain.model_dump(mode="json"),
        "seeds": content_of(seeds),
        "plan": asdict(plan),
        "avoided": avoided,
    }
    write_or_check(folder / RECORD, record)
    dropped: Counter[str] = Counter()
    wanted, written = _instructions(writer, domain, seeds, folder / INSTRUCTIONS, plan, forbidden, dropped, progress)
    lessons = _responses(writer, domain, seeds, wanted, folder / RESPONSES, plan, dropped, progress)
    write_lessons(lessons, folder / LESSONS)
    found = Yield(written, len(wanted), len(lessons), dict(dropped), _spread(lessons, seeds), _length(lessons))
    write_json(folder / REPORT, {**record, **found.as_json(), "examples": [asdict(lesson) for lesson in lessons[:5]]})
    return found


def _instructions(
    writer: Writers,
    domain: Domain,
    seeds: Sequence[Lesson],
    file: Path,
    plan: Plan,
    forbidden: Sequence[str],
    dropped: Counter[str],
    progress: Callable[[str, int, int], None],
) -> tuple[list[Lesson], int]:
    novelty, never = Novelty(_asked(seed) for seed in seeds), Novelty(forbidden)
    known = list(_written(file))
    kept: list[Lesson] = []
    limit = plan.patience * -(-plan.number // plan.batch)
    batch = 0
    while len(kept) < plan.number and batch < limit:
        if batch >= len(known):
            wave = range(batch, min(limit, batch + writer.width))
            for texts in writer.write_all([_brainstorm(domain, seeds, plan, number) for number in wave]):
                known.append(texts)
                _append(file, texts)
        for place, text in enumerate(known[batch]):
            lesson = parse_instruction(text.text)
            why = "cut off" if not text.ended else refuse_instruction(lesson, domain, novelty, never)
            if why is not None or lesson is None:
                dropped[why or "unparsable"] += 1
            elif len(kept) < plan.number:
                novelty.add(_asked(lesson))
                kept.append(replace(lesson, where=f"{domain.name}:{batch}.{place}"))
        batch += 1
        progress("instructions", len(kept), plan.number)
    return kept, sum(len(texts) for texts in known[:batch])


def _responses(
    writer: Writers,
    domain: Domain,
    seeds: Sequence[Lesson],
    wanted: Sequence[Lesson],
    file: Path,
    plan: Plan,
    dropped: Counter[str],
    progress: Callable[[str, int, int], None],
) -> list[Lesson]:
    known = list(_written(file))
    kept: list[Lesson] = []
    batches = -(-len(wanted) // plan.batch)
    for batch in range(batches):
        part = _part(wanted, plan, batch)
        if batch >= len(known):
            wave = range(batch, min(batches, batch + writer.width))
            for texts in writer.write_all([_respond(domain, seeds, wanted, plan, number) for number in wave]):
                known.append(texts)
                _append(file, texts)
        for lesson, text in zip(part, known[batch], strict=True):
            why = "cut off" if not text.ended else refuse_response(text.text, domain)
            if why is None:
                kept.append(replace(lesson, output=text.text.strip()))
            else:
                dropped[why] += 1
        progress("responses", min(len(wanted), (batch + 1) * plan.batch), len(wanted))
    return kept


def _brainstorm(domain: Domain, seeds: Sequence[Lesson], plan: Plan, batch: int) -> Job:
    """A batch of instructions, by its number."""
    prompt = domain.brainstorm(_draw(seeds, _IN_CONTEXT, plan.seed, "instructions", batch))
    sampling = Sampling(plan.instruction_tokens, plan.temperature, plan.top_p)
    # the last words belong to the rows: a prefix is what all rows share, and may not be all there is
    rows = ("Instruction:",) * plan.batch
    return Job(
        prompt.removesuffix("Instruction:"), rows, sampling, BLANK, _number(plan.seed, domain.name, "instructions", batch)
    )


def _respond(domain: Domain, seeds: Sequence[Lesson], wanted: Sequence[Lesson], plan: Plan, batch: int) -> Job:
    """A batch of responses, by its number."""
    prompt = domain.respond(_draw(seeds, _SOLVED, plan.seed, "responses", batch))
    rows = tuple(domain.question(lesson) for lesson in _part(wanted, plan, batch))
    return Job(prompt, rows, Sampling(plan.response_tokens), STOP, plan.seed)


def _part(wanted: Sequence[Lesson], plan: Plan, batch: int) -> Sequence[Lesson]:
    return wanted[batch * plan.batch : (batch + 1) * plan.batch]


def _draw(seeds: Sequence[Lesson], number: int, seed: int, what: str, batch: int) -> list[Lesson]:
    return random.Random(f"{seed}:{what}:{batch}").sample(list(seeds), number)


def _number(seed: int, *of: object) -> int:
    return zlib.crc32(f"{seed}:{of}".encode())


def _asked(lesson: Lesson) -> str:
    return f"{lesson.instruction} {lesson.input}".strip()


def _written(file: Path) -> Iterator[list[Text]]:
    """Batches that were written to their end; a line that a kill cut short is written anew."""
    if not file.is_file():
        return
    *whole, _ = file.read_text(encoding="utf-8").split("\n")
    with atomic(file) as scratch:
        scratch.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
    for line in whole:
        yield [Text(**text) for text in json.loads(line)]


def _append(file: Path, texts: Sequence[Text]) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps([asdict(text) for text in texts], ensure_ascii=False) + "\n")


def _spread(lessons: Sequence[Lesson], seeds: Sequence[Lesson]) -> float:
    texts = [_asked(lesson) for lesson in lessons]
    near = [
        Novelty([*texts[:place], *texts[place + 1 :], *map(_asked, seeds)]).nearest(text)
        for place, text in enumerate(texts[:200])
    ]
    return sum(near) / len(near) if near else 0.0


def _length(lessons: Sequence[Lesson]) -> float:
    return sum(len(lesson.output.split()) for lesson in lessons) / len(lessons) if lessons else 0.0
