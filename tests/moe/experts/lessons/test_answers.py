"""Answers are written beside their texts, in order, in the form that training reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.moe.experts.lessons.answers import write_answers
from unmask.moe.experts.lessons.generation import GenerationJob, Text
from unmask.training.data import DataSource, read_answers


class Parrot:
    """Answers with the instruction that it was given, in capitals."""

    width = 2

    def write_all(self, jobs: Sequence[GenerationJob]) -> list[list[Text]]:
        return [[Text((job.prefix + row).split("\n")[3].upper() + " \n", True) for row in job.rows] for job in jobs]


def test_training_reads_the_answers_that_were_written(tmp_path: Path) -> None:
    texts = [f"question {number}" for number in range(7)]
    write_answers(Parrot(), texts, tmp_path / "answers.jsonl", batch=2)
    data = read_answers("answers", DataSource(path="answers.jsonl"), tmp_path, 0)
    assert [example.texts for example in data.examples] == [(text, text.upper()) for text in texts]
