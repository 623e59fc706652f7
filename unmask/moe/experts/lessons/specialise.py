"""Specialise: a base model writes its own lessons for a domain, from a few seed lessons (Self-MoE, arXiv 2406.12034, section 2.1).

First it invents instructions: it sees three seed lessons and samples a new instruction (temperature 1, top-p 0.98). Then it answers each
instruction: it sees five seed lessons and answers greedily. Each batch is saved immediately, as a step of the run. A batch depends only on
the seed of the run and its own number, so a run that was stopped continues to the same lessons.
"""

from __future__ import annotations

import hashlib
import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError, unknown
from unmask.io.files import write_json
from unmask.io.records import Record
from unmask.io.terminal import progress_lines
from unmask.models.identity import BASE_MODEL, identity_of
from unmask.models.source import Source
from unmask.moe.experts.lessons.domain import (
    BLANK,
    STOP,
    Domain,
    load_domain,
    parse_instruction,
    refuse_instruction,
    refuse_response,
)
from unmask.moe.experts.lessons.generation import GenerationJob, Sampling, Text, Writers
from unmask.moe.experts.lessons.lessons import Lesson, Novelty, read_seeds, write_lessons
from unmask.moe.experts.records import LessonsRecord
from unmask.runs import runs

LESSONS, REPORT, RECORD = "lessons.jsonl", "report.json", "specialise.json"
_IN_CONTEXT, FEWEST_SEEDS = 3, 5
_COMPARED = 200  # lessons whose nearest other is looked for


@dataclass(frozen=True)
class SpecialisePlan:
    """How many lessons are wanted, and how they are written.

    number: instructions to keep. batch: texts of one pass. patience: the run gives up after this many times the batches that it would
    need if it kept every instruction.
    """

    number: int = 100
    batch: int = 16
    instruction_tokens: int = 128
    response_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 0.98
    patience: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UnmaskError for numbers that make no sense."""
        for name in ("number", "batch", "instruction_tokens", "response_tokens", "patience"):
            if getattr(self, name) < 1:
                raise UnmaskError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1 and self.seed >= 0):
            raise UnmaskError("temperature and seed must be at least 0, and top_p above 0 and at most 1.")


class SpecialiseSettings(Record):
    """The settings in `specialise.json`. avoided: a hash of the texts of evaluations."""

    engine: str
    domain: Domain
    seeds: LessonsRecord
    plan: SpecialisePlan
    avoided: str


class Yield(Record):
    """The outcome of a run.

    kept: number of lessons. dropped: number of texts by reason. nearest: for each of the first 200 lessons the highest ROUGE-L of its
    instruction to any other or to a seed, averaged. words: mean length of a response.
    """

    written: int
    instructions: int
    kept: int
    dropped: dict[str, int]
    nearest: float
    words: float

    def require_lessons(self, folder: Path) -> None:
        """Raise UnmaskError if no lesson was kept."""
        if not self.kept:
            raise UnmaskError(
                f"No lesson was kept, so there is nothing to learn in {folder}. See above why texts were dropped. Try another model, or, "
                "in a new folder, other --seeds or longer texts (--response-tokens)."
            )


def specialise_files(
    source: Source,
    domain: str,
    seeds: Path,
    output: Path,
    plan: SpecialisePlan,
    *,
    avoid: Sequence[Path] = (),
    engine: str = "transformers",
) -> Yield:
    """`specialise` from files, with a writer for the engine: transformers or vllm."""
    if engine not in ("transformers", "vllm"):
        raise unknown("engine", engine, ["transformers", "vllm"])

    @cache
    def writer() -> Writers:
        if engine == "vllm":
            from unmask.moe.experts.lessons.vllm_engine import Engine

            return Engine(source)
        from unmask.models.loading import load_language_model
        from unmask.moe.experts.lessons.generation import Writer

        return Writer(*load_language_model(source))

    forbidden = [lesson.question for file in avoid for lesson in read_seeds(file)]
    return specialise(
        writer, load_domain(domain), read_seeds(seeds), output, plan,
        model=source.model, weights=identity_of(source).revision, forbidden=forbidden, engine=engine,
    )  # fmt: skip


def specialise(
    writer: Callable[[], Writers],
    domain: Domain,
    seeds: Sequence[Lesson],
    folder: Path,
    plan: SpecialisePlan,
    *,
    model: str,
    weights: str | None = None,
    forbidden: Sequence[str] = (),
    engine: str = "transformers",
) -> Yield:
    """Write lessons of a domain into a folder. A run that was stopped there continues.

    writer: loads the model; called only if a batch is missing. weights: the model's weights, named by their content. forbidden: texts of
    evaluations; instructions near to one are dropped. engine: of the writer; two writers of one engine write the same texts. Raises
    UnmaskError for fewer than five seeds, and for a folder that holds another run.
    """
    if len(seeds) < FEWEST_SEEDS:
        raise UnmaskError(f"Each prompt shows {FEWEST_SEEDS} seed lessons, but only {len(seeds)} were given. Add seed lessons.")
    settings = SpecialiseSettings(
        engine=engine,
        domain=domain,
        seeds=LessonsRecord.of(seeds),
        plan=plan,
        avoided=hashlib.sha256("\0".join(forbidden).encode()).hexdigest()[:16],
    )
    with runs.open(folder, settings, inputs={BASE_MODEL: weights}, record=RECORD) as run:
        dropped: Counter[str] = Counter()
        instructions, total = _instructions(_Batches(run, writer), domain, seeds, plan, forbidden, dropped)
        lessons = _responses(_Batches(run, writer), domain, seeds, instructions, plan, dropped)
        write_lessons(lessons, folder / LESSONS)
        words = sum(len(lesson.output.split()) for lesson in lessons) / len(lessons) if lessons else 0.0
        questions = [lesson.question for lesson in lessons]
        similarities = [
            Novelty([*questions[:index], *questions[index + 1 :], *(seed.question for seed in seeds)]).nearest(question)
            for index, question in enumerate(questions[:_COMPARED])
        ]
        outcome = Yield(
            written=total,
            instructions=len(instructions),
            kept=len(lessons),
            dropped=dict(dropped),
            nearest=sum(similarities) / len(similarities) if similarities else 0.0,
            words=words,
        )
        examples = [asdict(lesson) for lesson in lessons[:5]]
        write_json(folder / REPORT, {"model": model, **settings.as_json(), **outcome.as_json(), "examples": examples})
        run.finish(outcome)
    return outcome


@dataclass(frozen=True)
class _Batches:
    """The batches of a run, each a step that is computed once."""

    run: runs.Run
    writer: Callable[[], Writers]

    def texts(self, names: Sequence[str], job: Callable[[int], GenerationJob]) -> Iterator[list[Text]]:
        """The texts of each batch, in order. As many batches are written at a time as the writer takes. job: by the number of a batch."""
        for number, name in enumerate(names):
            if not self.run.is_done(name):
                writer = self.writer()
                wave = range(number, min(len(names), number + writer.width))
                missing = [index for index in wave if not self.run.is_done(names[index])]
                for index, texts in zip(missing, writer.write_all([job(index) for index in missing]), strict=True):
                    self.run.step(names[index], partial(_as_json, texts))
            yield [Text(**text) for text in self.run.step(name, partial(_as_json, ()))]


def _as_json(texts: Sequence[Text], _: Path) -> list[dict[str, Any]]:
    return [asdict(text) for text in texts]


def _instructions(
    batches: _Batches,
    domain: Domain,
    seeds: Sequence[Lesson],
    plan: SpecialisePlan,
    forbidden: Sequence[str],
    dropped: Counter[str],
) -> tuple[list[Lesson], int]:
    """The instructions that are kept, and how many were written."""

    def job(batch: int) -> GenerationJob:
        prompt = domain.brainstorm(_draw(seeds, _IN_CONTEXT, plan.seed, "instructions", batch))
        # the last word goes to the rows: the prefix is shared, and no row may be empty
        return GenerationJob(
            prompt.removesuffix("Instruction:"),
            ("Instruction:",) * plan.batch,
            Sampling(plan.instruction_tokens, plan.temperature, plan.top_p),
            stop=BLANK,
            seed=zlib.crc32(f"{plan.seed}:{(domain.name, 'instructions', batch)}".encode()),
        )

    novelty, never = Novelty(seed.question for seed in seeds), Novelty(forbidden)
    log_done = progress_lines("instructions", plan.number)
    accepted: list[Lesson] = []
    total = 0
    names = [f"batches/instructions-{batch}" for batch in range(plan.patience * -(-plan.number // plan.batch))]
    for batch, texts in enumerate(batches.texts(names, job)):
        total += len(texts)
        for index, text in enumerate(texts):
            lesson = parse_instruction(text.text)
            why = "cut off" if not text.ended else refuse_instruction(lesson, domain, novelty, never)
            if why is not None or lesson is None:
                dropped[why or "unparsable"] += 1
            elif len(accepted) < plan.number:
                novelty.add(lesson.question)
                accepted.append(replace(lesson, where=f"{domain.name}:{batch}.{index}"))
        log_done(len(accepted))
        if len(accepted) == plan.number:
            break
    return accepted, total


def _responses(
    batches: _Batches,
    domain: Domain,
    seeds: Sequence[Lesson],
    instructions: Sequence[Lesson],
    plan: SpecialisePlan,
    dropped: Counter[str],
) -> list[Lesson]:
    parts = [instructions[start : start + plan.batch] for start in range(0, len(instructions), plan.batch)]

    def job(batch: int) -> GenerationJob:
        prompt = domain.respond(_draw(seeds, FEWEST_SEEDS, plan.seed, "responses", batch))
        rows = tuple(domain.question(lesson) for lesson in parts[batch])
        return GenerationJob(prompt, rows, Sampling(plan.response_tokens), stop=STOP, seed=plan.seed)

    log_done = progress_lines("responses", len(instructions))
    accepted: list[Lesson] = []
    responses = 0
    # named after what they respond to: another engine may not write damaged instructions again word by word
    names = [f"batches/responses-{batch}-{LessonsRecord.of(part).content}" for batch, part in enumerate(parts)]
    for part, texts in zip(parts, batches.texts(names, job), strict=True):
        for lesson, text in zip(part, texts, strict=True):
            why = "cut off" if not text.ended else refuse_response(text.text, domain)
            if why is None:
                accepted.append(replace(lesson, output=text.text.strip()))
            else:
                dropped[why] += 1
        responses += len(part)
        log_done(responses)
    return accepted


def _draw(seeds: Sequence[Lesson], number: int, seed: int, stage: str, batch: int) -> list[Lesson]:
    return random.Random(f"{seed}:{stage}:{batch}").sample(list(seeds), number)
