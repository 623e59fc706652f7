"""Records: what a run was of, so that it is gone on with, taken over, or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.experts.bases import require_same_weights
from unmask.experts.lessons import Lesson
from unmask.files import write_json


def write_or_check(file: Path, record: dict[str, Any]) -> None:
    """Write what a run is of, or raise UnmaskError if the run that was begun here is of something else."""
    said = json.loads(json.dumps(record))
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else said
    if require_same_weights(before, said, file.parent) != said:
        raise UnmaskError(f"'{file.parent}' holds a run of other lessons or settings that was not finished: remove it first.")
    write_json(file, said)


def content_of(lessons: Sequence[Lesson]) -> dict[str, Any]:
    """Lessons by their number and a hash of their texts."""
    digest = hashlib.sha256()
    for lesson in lessons:
        digest.update(repr((lesson.instruction, lesson.input, lesson.output)).encode())
    return {"number": len(lessons), "content": digest.hexdigest()[:16]}
