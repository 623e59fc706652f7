"""What experts and mixtures record about their training: the lessons, and the losses."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from unmask.io.records import Record
from unmask.models.provenance import versions
from unmask.models.source import Source, lasting_name
from unmask.moe.experts.lessons.lessons import Lesson


class LessonsRecord(Record):
    """Lessons by their number and a hash of their texts."""

    number: int
    content: str

    @classmethod
    def of(cls, lessons: Sequence[Lesson]) -> LessonsRecord:
        """The record of these lessons."""
        digest = hashlib.sha256()
        for lesson in lessons:
            digest.update(repr((lesson.instruction, lesson.input, lesson.output)).encode())
        return cls(number=len(lessons), content=digest.hexdigest()[:16])

    @property
    def words(self) -> str:
        """The record in words."""
        return f"{self.number} lessons, {self.content}"


class LearningResult(Record):
    """What came of a training on lessons. losses: of each logged step."""

    base: str
    losses: tuple[float, ...]
    versions: dict[str, str]

    @classmethod
    def of(cls, source: Source, log: Sequence[Mapping[str, Any]]) -> LearningResult:
        """The result of a training with this log."""
        losses = tuple(entry["loss"] for entry in log if "loss" in entry)
        return cls(base=lasting_name(source.model), losses=losses, versions=versions())
