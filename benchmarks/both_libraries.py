"""Differences between the vectors of one saved embedder in unmask and in sentence-transformers, by design and precision.

python -m benchmarks.both_libraries [--model smollm2] [--texts 100] [--smoke]
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import numpy as np

from benchmarks._common import head, row, start, texts
from unmask import Embedder


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the default batches of both libraries, and each text alone."""
    from sentence_transformers import SentenceTransformer

    args = start(__file__, __doc__, arguments, texts=(100, 4))
    sentences = ["", *texts(2 * args.texts, args.smoke)["sentences"]][: args.texts]
    head("design", "precision", "batches", "smallest cosine", "largest difference", "of values up to")
    for dtype in ("float32", "bfloat16"):
        for design in ("causal/plain/mean", "causal/plain/last", "prompteol"):
            ours = Embedder.from_pretrained(args.model, design, dtype=dtype, device="cpu")
            with tempfile.TemporaryDirectory() as folder:
                ours.save_pretrained(f"{folder}/saved")
                theirs = SentenceTransformer(f"{folder}/saved", device="cpu", trust_remote_code=True)
            alone = np.concatenate([ours.encode([text]) for text in sentences])
            for batches, our_vectors, their_vectors in (
                ("default", ours.encode(sentences, show_progress=False), theirs.encode(sentences)),
                ("one text", alone, theirs.encode(sentences, batch_size=1)),
            ):
                cosines = Embedder.similarity_pairwise(our_vectors, their_vectors)
                difference, largest = np.abs(our_vectors - their_vectors).max(), np.abs(our_vectors).max()
                row(f"`{design}`", dtype, batches, f"{cosines.min():.6f}", f"{difference:.2g}", f"{largest:.3g}")


if __name__ == "__main__":
    main()
