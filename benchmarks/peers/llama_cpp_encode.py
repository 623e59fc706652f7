"""llama.cpp: `PYTHON llama_cpp_encode.py MODEL.gguf REPEATS < texts.json` prints the best seconds of a mean-pooled encode."""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Load the model, encode the texts, print the seconds."""
    from llama_cpp import LLAMA_POOLING_TYPE_MEAN, Llama  # type: ignore[import-not-found]

    model, repeats, texts = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
    llm = Llama(model, embedding=True, pooling_type=LLAMA_POOLING_TYPE_MEAN, n_ctx=512, n_batch=512, verbose=False)
    best = float("inf")
    for turn in range(repeats + 1):
        begin = time.perf_counter()
        for text in texts:
            llm.embed(text, truncate=True)
        if turn:
            best = min(best, time.perf_counter() - begin)
    print(f"seconds {best}")


if __name__ == "__main__":
    main()
