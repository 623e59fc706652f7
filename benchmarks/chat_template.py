"""What a chat template applied by accident costs: one model, one prompt, one data set, three ways to load it.

    python -m benchmarks.chat_template [--model smollm2] [--pairs 1379]

sentence-transformers wraps plain strings in the chat template of a chat model. unmask never does unless a design says `chat:`.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.encode import DATA

DESIGN = "prompteol"


def main() -> None:
    """Print Spearman x 100 of cosine on STSB test for each way."""
    from sentence_transformers import SentenceTransformer

    from unmask import Embedder
    from unmask.models import resolve
    from unmask.prompts import PROMPTS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--pairs", type=int, default=1379)
    given = parser.parse_args()
    rows = [json.loads(line) for line in (DATA / "stsb" / "test.jsonl").open(encoding="utf-8")][: given.pairs]
    texts = [row[side] for side in ("sentence1", "sentence2") for row in rows]
    gold = [row["score"] for row in rows]
    prompted = [PROMPTS["eol"].render(text, None)[0] for text in texts]
    ours = Embedder.from_pretrained(given.model, DESIGN)
    dtype = str(ours.backbone.dtype).removeprefix("torch.")
    theirs = SentenceTransformer(resolve(given.model), model_kwargs={"dtype": dtype})
    print(f"first tokens that sentence-transformers computes: {_first_tokens(theirs, prompted[0])}")
    ways = {
        "sentence-transformers, as it loads the model": theirs.encode(prompted, show_progress_bar=False),
        f"unmask, chat:{PROMPTS['eol'].name}": Embedder.from_model(
            ours.backbone.model, ours.tokenizer, "causal/chat:eol/last"
        ).encode(texts, show_progress=False),
        f"unmask, {DESIGN}": ours.encode(texts, show_progress=False),
    }
    for way, vectors in ways.items():
        print(f"{100 * _spearman(vectors, gold):5.1f}  {way}")


def _first_tokens(model: Any, text: str) -> str:
    ids = model.preprocess([text])["input_ids"][0][:12]
    return repr(model.tokenizer.decode(ids))


def _spearman(vectors: NDArray[Any], gold: list[float]) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    half = len(gold)
    return float(spearmanr((unit[:half] * unit[half:]).sum(axis=1), gold).statistic)


if __name__ == "__main__":
    main()
