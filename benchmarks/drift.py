"""How much a vector depends on the other texts of its batch, by design and precision: not at all in fp32, by rounding in bf16.

python -m benchmarks.drift [--model smollm2] [--texts 200] [--smoke]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._common import head, row, start, texts
from unmask import Embedder


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare each text alone with the same text in a batch: smallest cosine, and largest difference as a share of the largest value."""
    args = start(__file__, __doc__, arguments, texts=(200, 4))
    sentences = texts(2 * args.texts, args.smoke)["sentences"]
    head("design", "precision", "smallest cosine", "largest difference")
    for dtype in ("float32", "bfloat16"):
        for design in ("mean", "prompteol", "bidirectional-mean"):
            embedder = Embedder.from_pretrained(args.model, design, dtype=dtype)
            together = embedder.encode(sentences, show_progress=False)
            alone = np.concatenate([embedder.encode([text]) for text in sentences])
            cosines = Embedder.similarity_pairwise(together, alone)
            difference = np.abs(together - alone).max() / np.abs(alone).max()
            row(f"`{design}`", dtype, f"{cosines.min():.6f}", f"{difference:.1e}")


if __name__ == "__main__":
    main()
