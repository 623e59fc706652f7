"""The cost of a chat template that is applied by accident. One model, one prompt, one data set, three ways to load the model.

    python -m benchmarks.chat_template [--model smollm2] [--pairs 1379] [--keep FILE] [--smoke]

sentence-transformers puts plain strings into the chat template of a chat model. unmask does so only if the design says `chat:`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks import _inputs, _report
from benchmarks._report import Report

DESIGN, CHAT = "prompteol", "causal/chat:eol/last"


def main(arguments: Sequence[str] | None = None) -> None:
    """Report Spearman x 100 on the STSB test set for each way."""
    parser = _report.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=1379)
    given = parser.parse_args(arguments)
    rows = _inputs.rows("stsb/test.jsonl", given.smoke)[: 20 if given.smoke else given.pairs]
    with tempfile.TemporaryDirectory() as folder, Report(__file__, arguments) as report:
        compare_ways(report, _pico_with_template(Path(folder)) if given.smoke else _inputs.model_of(given), rows)


def compare_ways(report: Report, model: str, rows: Sequence[dict[str, Any]]) -> None:
    """Score the pairs in all three ways."""
    from sentence_transformers import SentenceTransformer

    from unmask import Embedder
    from unmask.designs.prompts import PROMPTS
    from unmask.models.bundled import resolve

    texts = [row[side] for side in ("sentence1", "sentence2") for row in rows]
    gold = [row["score"] for row in rows]
    prompted = [PROMPTS["eol"].render(text, None)[0] for text in texts]
    ours = Embedder.from_pretrained(model, DESIGN)
    dtype = str(ours.backbone.dtype).removeprefix("torch.")
    theirs = SentenceTransformer(resolve(model), model_kwargs={"dtype": dtype})
    report.note(f"First tokens in sentence-transformers: `{_first_tokens(theirs, prompted[0])}`")
    ways = {
        "sentence-transformers, as it loads the model": theirs.encode(prompted, show_progress_bar=False),
        f"unmask, `{CHAT}`": Embedder.from_model(ours.backbone.model, ours.tokenizer, CHAT).encode(texts, show_progress=False),
        f"unmask, `{DESIGN}`": ours.encode(texts, show_progress=False),
    }
    table = report.table(f"{len(rows)} pairs of STSB", {"loaded by": "{}", "Spearman x 100": "{:.1f}"})
    for way, vectors in ways.items():
        table.add(way, 100 * _spearman(vectors, gold))


def _pico_with_template(folder: Path) -> str:
    """The pico model as a chat model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from unmask.models.bundled import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("pico"))
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] | trim }}</s>{% endfor %}"
    tokenizer.save_pretrained(folder)
    AutoModelForCausalLM.from_pretrained(resolve("pico")).save_pretrained(folder)
    return str(folder)


def _first_tokens(model: Any, text: str) -> str:
    ids = model.preprocess([text])["input_ids"][0][:12]
    return repr(model.tokenizer.decode(ids))


def _spearman(vectors: NDArray[Any], gold: list[float]) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    half = len(gold)
    return float(spearmanr((unit[:half] * unit[half:]).sum(axis=1), gold).statistic)


if __name__ == "__main__":
    main()
