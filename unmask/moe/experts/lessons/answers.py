"""Answers of a language model to texts, for training on what it would answer (LLM2Vec-Gen, arXiv 2603.10913)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from unmask.io.files import atomic
from unmask.moe.experts.lessons.generation import GenerationJob, Sampling, Writers
from unmask.moe.experts.lessons.lessons import WITHOUT_INPUT

_STOP = "###"  # the next heading: a base model would write another instruction


def write_answers(writer: Writers, texts: Sequence[str], file: Path, *, max_new_tokens: int = 128, batch: int = 8) -> None:
    """Write each text with the answer that the model gives to it, greedily, as jsonl with the columns `text` and `answer`.

    The text is the instruction of the prompt that lessons have. An answer that reaches max_new_tokens is cut there. Raises UnmaskError
    for a text that is too long for the model.
    """
    prefix, after = WITHOUT_INPUT.split("{instruction}")
    rows = [tuple(text + after for text in texts[start : start + batch]) for start in range(0, len(texts), batch)]
    jobs = [GenerationJob(prefix, row, Sampling(max_new_tokens), _STOP, seed=0) for row in rows]
    with atomic(file) as scratch, scratch.open("w", encoding="utf-8") as lines:
        done = 0
        for start in range(0, len(jobs), writer.width):
            for written in writer.write_all(jobs[start : start + writer.width]):
                for answer in written:
                    lines.write(json.dumps({"text": texts[done], "answer": answer.text.strip()}, ensure_ascii=False) + "\n")
                    done += 1
