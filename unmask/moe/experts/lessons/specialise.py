"""Specialise: a base model writes its own lessons for a domain, from a few seed lessons (Self-MoE, arXiv 2406.12034, section 2.1).

First it invents instructions: it sees three seed lessons and samples a new instruction (temperature 1, top-p 0.98). Then it answers each
instruction: it sees five seed lessons and answers greedily. Each batch is saved immediately. A batch depends only on the seed
of the run and its own number, so a run that was stopped continues to the same lessons.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from unmask.errors import UnmaskError, first_problem, unknown
from unmask.io.files import append_line, atomic, check_output, only_run_in, refuse_foreign, write_json
from unmask.io.records import Record
from unmask.io.seals import CHECKSUM, Damaged, open_line, sealed_line
from unmask.io.terminal import progress_lines
from unmask.models.identity import identity_of
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
from unmask.moe.experts.records import LessonsRecord, RunRecord, another_run

INSTRUCTIONS, RESPONSES, LESSONS, REPORT, RECORD = (
    "instructions.jsonl",
    "responses.jsonl",
    "lessons.jsonl",
    "report.json",
    "specialise.json",
)
FILES = (INSTRUCTIONS, RESPONSES, LESSONS, REPORT, RECORD)
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


class SpecialiseRecord(RunRecord):
    """The content of `specialise.json`: all that the lessons of a run depend on. avoided: a hash of the texts of evaluations."""

    base: str = Field(alias="model")
    engine: str
    domain: Domain
    seeds: LessonsRecord
    plan: SpecialisePlan
    avoided: str

    @property
    def run(self) -> str:
        """The name of the run in its batches. The weights identify a model, since its name can be typed in several ways."""
        content = self.as_json()
        del content["base_weights" if self.base_weights is None else "model"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class BatchRecord(Record):
    """A line of the files of batches: its texts, the run that it belongs to, and the instructions that it responds to."""

    run: str
    answered: str
    texts: tuple[Text, ...]


@dataclass(frozen=True)
class Yield:
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

    def as_json(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)

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
    workers: int = 1,
    ray_address: str | None = None,
) -> Yield:
    """`specialise` from files, with a writer for the engine. The run is checked before the model is loaded."""
    for name in FILES:
        check_output(output / name, [seeds, *avoid])
    seed_lessons, parsed_domain = read_seeds(seeds), load_domain(domain)
    forbidden = [lesson.question for file in avoid for lesson in read_seeds(file)]
    weights = identity_of(source).revision
    check_run(output, record_of(source.model, engine, parsed_domain, seed_lessons, plan, forbidden, weights))
    writer = open_writer(source, engine, workers, ray_address)
    return specialise(writer, source.model, parsed_domain, seed_lessons, output, plan, forbidden=forbidden, weights=weights)


def open_writer(source: Source, engine: str, workers: int, ray_address: str | None) -> Writers:
    """The model that writes: in this process, in several processes with Ray, or in vLLM."""
    if engine not in ("transformers", "vllm"):
        raise unknown("engine", engine, ["transformers", "vllm"])
    is_parallel = workers > 1 or ray_address is not None
    if engine == "vllm":
        from unmask.moe.experts.lessons.engines import Engine

        if is_parallel:
            raise UnmaskError("vLLM batches texts by itself: leave --workers and --ray out.")
        return Engine(source)
    if is_parallel:
        from unmask.moe.experts.lessons.engines import WriterPool

        return WriterPool(source, workers, ray_address or "local", gpus=1 if source.device.startswith("cuda") else 0)
    from unmask.models.loading import load_language_model
    from unmask.moe.experts.lessons.generation import Writer

    return Writer(*load_language_model(source))


def specialise(
    writer: Writers,
    model: str,
    domain: Domain,
    seeds: Sequence[Lesson],
    folder: Path,
    plan: SpecialisePlan,
    forbidden: Sequence[str] = (),
    weights: str | None = None,
) -> Yield:
    """Write lessons of a domain into a folder. A run that was stopped there continues.

    weights: the model's weights, named by their content. forbidden: texts of evaluations; instructions near to one are dropped. Raises
    UnmaskError for fewer than five seeds, and for a folder that holds another run.
    """
    record = record_of(model, writer.engine, domain, seeds, plan, forbidden, weights)
    with only_run_in(folder):
        check_run(folder, record)
        record.write(folder / RECORD)
        batches = Batches(folder, record.run)
        dropped: Counter[str] = Counter()
        instructions, texts_written = _instructions(writer, domain, seeds, batches, plan, forbidden, dropped)
        lessons = _responses(writer, domain, seeds, instructions, batches, plan, dropped)
        write_lessons(lessons, folder / LESSONS)
        words = sum(len(lesson.output.split()) for lesson in lessons) / len(lessons) if lessons else 0.0
        outcome = Yield(texts_written, len(instructions), len(lessons), dict(dropped), _spread(lessons, seeds), words)
        write_json(
            folder / REPORT, {**record.as_json(), **outcome.as_json(), "examples": [asdict(lesson) for lesson in lessons[:5]]}
        )
    return outcome


def record_of(
    model: str,
    engine: str,
    domain: Domain,
    seeds: Sequence[Lesson],
    plan: SpecialisePlan,
    forbidden: Sequence[str],
    weights: str | None = None,
) -> SpecialiseRecord:
    """The record of a run: all that its lessons depend on. Raises UnmaskError for fewer than five seeds."""
    if len(seeds) < FEWEST_SEEDS:
        raise UnmaskError(f"Each prompt shows {FEWEST_SEEDS} seed lessons, but only {len(seeds)} were given. Add seed lessons.")
    return SpecialiseRecord(
        model=model,
        base_weights=weights,
        engine=engine,
        domain=domain,
        seeds=LessonsRecord.of(seeds),
        plan=plan,
        avoided=hashlib.sha256("\0".join(forbidden).encode()).hexdigest()[:16],
    )


def check_run(folder: Path, record: SpecialiseRecord) -> None:
    """Raise UnmaskError if a folder holds batches of another run. Changes nothing."""
    if not (folder / RECORD).exists():
        _refuse_foreign(folder)
    file, before = folder / INSTRUCTIONS, SpecialiseRecord.read(folder / RECORD)
    if not file.is_file() or not file.stat().st_size:
        return  # the earlier run wrote nothing, so nothing can be mixed up
    if before is not None:
        record.require_same(before, folder)
    next(Batches(folder, record.run).read(INSTRUCTIONS, repair=False), None)


def _refuse_foreign(folder: Path) -> None:
    """Raise UnmaskError if a run would overwrite a foreign file. Batches show a run that lost its record."""
    for name in (INSTRUCTIONS, RESPONSES):
        refuse_foreign(folder / name, [CHECKSUM])
    if not (folder / INSTRUCTIONS).is_file():
        for name in (LESSONS, REPORT):
            refuse_foreign(folder / name, [])


@dataclass(frozen=True)
class Batches:
    """The batches that a run has written: one on each line, with its checksum and the run that it belongs to."""

    folder: Path
    run: str

    def read(self, name: str, answered: str = "", repair: bool = True) -> Iterator[Sequence[Text]]:
        """The complete batches. A damaged batch is removed with all later ones, to be written again.

        answered: identifies the instructions that the batches respond to. Responses to other instructions are removed as well. Raises
        UnmaskError for batches of another run.
        """
        file = self.folder / name
        lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
        for number, line in enumerate(lines):
            try:
                texts = self._texts(line, answered)
            except Damaged as error:
                if repair:
                    warnings.warn(
                        f"'{file}', line {number + 1}: {error}. It is written again, with all later ones.", stacklevel=2
                    )
                    with atomic(file) as scratch:
                        scratch.write_bytes(b"".join(intact + b"\n" for intact in lines[:number]))
                return
            yield texts

    def add(self, name: str, texts: Sequence[Text], answered: str = "") -> None:
        """Append a batch, durably."""
        batch = BatchRecord(run=self.run, answered=answered, texts=tuple(texts))
        append_line(self.folder / name, sealed_line(batch.as_json()))

    def _texts(self, line: bytes, answered: str) -> Sequence[Text]:
        try:
            batch = BatchRecord.model_validate(open_line(line))
        except ValidationError as error:
            raise Damaged(f"it is damaged ({first_problem(error)})") from error
        if batch.run != self.run:
            raise another_run(self.folder)
        if batch.answered != answered:
            raise Damaged("it responds to other instructions")
        return batch.texts


def _instructions(
    writer: Writers,
    domain: Domain,
    seeds: Sequence[Lesson],
    batches: Batches,
    plan: SpecialisePlan,
    forbidden: Sequence[str],
    dropped: Counter[str],
) -> tuple[list[Lesson], int]:
    novelty, never = Novelty(seed.question for seed in seeds), Novelty(forbidden)
    batches_read, tell_done = list(batches.read(INSTRUCTIONS)), progress_lines("instructions", plan.number)
    accepted: list[Lesson] = []
    limit = plan.patience * -(-plan.number // plan.batch)
    batch = 0
    while len(accepted) < plan.number and batch < limit:
        if batch >= len(batches_read):
            wave = range(batch, min(limit, batch + writer.width))
            for texts in writer.write_all([_brainstorm(domain, seeds, plan, number) for number in wave]):
                batches_read.append(texts)
                batches.add(INSTRUCTIONS, texts)
        for index, text in enumerate(batches_read[batch]):
            lesson = parse_instruction(text.text)
            why = "cut off" if not text.ended else refuse_instruction(lesson, domain, novelty, never)
            if why is not None or lesson is None:
                dropped[why or "unparsable"] += 1
            elif len(accepted) < plan.number:
                novelty.add(lesson.question)
                accepted.append(replace(lesson, where=f"{domain.name}:{batch}.{index}"))
        batch += 1
        tell_done(len(accepted))
    return accepted, sum(len(texts) for texts in batches_read[:batch])


def _responses(
    writer: Writers,
    domain: Domain,
    seeds: Sequence[Lesson],
    instructions: Sequence[Lesson],
    batches: Batches,
    plan: SpecialisePlan,
    dropped: Counter[str],
) -> list[Lesson]:
    answered = LessonsRecord.of(instructions).content
    batches_read, tell_done = list(batches.read(RESPONSES, answered)), progress_lines("responses", len(instructions))
    accepted: list[Lesson] = []
    count = -(-len(instructions) // plan.batch)
    for batch in range(count):
        of_batch = _instructions_of(instructions, plan, batch)
        if batch >= len(batches_read):
            wave = range(batch, min(count, batch + writer.width))
            for texts in writer.write_all([_respond(domain, seeds, instructions, plan, number) for number in wave]):
                batches_read.append(texts)
                batches.add(RESPONSES, texts, answered)
        for lesson, text in zip(of_batch, batches_read[batch], strict=True):
            why = "cut off" if not text.ended else refuse_response(text.text, domain)
            if why is None:
                accepted.append(replace(lesson, output=text.text.strip()))
            else:
                dropped[why] += 1
        tell_done(min(len(instructions), (batch + 1) * plan.batch))
    return accepted


def _brainstorm(domain: Domain, seeds: Sequence[Lesson], plan: SpecialisePlan, batch: int) -> GenerationJob:
    """The job that writes a batch of instructions, by the number of the batch."""
    prompt = domain.brainstorm(_draw(seeds, _IN_CONTEXT, plan.seed, "instructions", batch))
    sampling = Sampling(plan.instruction_tokens, plan.temperature, plan.top_p)
    # the last word goes to the rows: the prefix is shared, and no row may be empty
    rows = ("Instruction:",) * plan.batch
    return GenerationJob(
        prompt.removesuffix("Instruction:"),
        rows,
        sampling,
        BLANK,
        zlib.crc32(f"{plan.seed}:{(domain.name, 'instructions', batch)}".encode()),
    )


def _respond(
    domain: Domain, seeds: Sequence[Lesson], instructions: Sequence[Lesson], plan: SpecialisePlan, batch: int
) -> GenerationJob:
    """The job that writes a batch of responses, by the number of the batch."""
    prompt = domain.respond(_draw(seeds, FEWEST_SEEDS, plan.seed, "responses", batch))
    rows = tuple(domain.question(lesson) for lesson in _instructions_of(instructions, plan, batch))
    return GenerationJob(prompt, rows, Sampling(plan.response_tokens), STOP, plan.seed)


def _instructions_of(instructions: Sequence[Lesson], plan: SpecialisePlan, batch: int) -> Sequence[Lesson]:
    return instructions[batch * plan.batch : (batch + 1) * plan.batch]


def _draw(seeds: Sequence[Lesson], number: int, seed: int, stage: str, batch: int) -> list[Lesson]:
    return random.Random(f"{seed}:{stage}:{batch}").sample(list(seeds), number)


def _spread(lessons: Sequence[Lesson], seeds: Sequence[Lesson]) -> float:
    texts = [lesson.question for lesson in lessons]
    near = [
        Novelty([*texts[:index], *texts[index + 1 :], *(seed.question for seed in seeds)]).nearest(text)
        for index, text in enumerate(texts[:_COMPARED])
    ]
    return sum(near) / len(near) if near else 0.0
