"""How much a vector depends on the batch of its text. In fp32 it should not; in bf16 there is rounding.

python -m benchmarks.drift [--model smollm2] [--texts 200] [--smoke]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import _inputs
from benchmarks.encode import texts


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare each text alone with the same text in a batch. Print the smallest cosine and the largest difference."""
    from unmask import Embedder

    parser = _inputs.parser(__doc__)
    parser.add_argument("--texts", type=int, default=200)
    given = parser.parse_args(arguments)
    some = texts(2 * (4 if given.smoke else given.texts), given.smoke)["sentences"]
    for dtype in ("float32", "bfloat16"):
        for design in ("mean", "prompteol", "bidirectional-mean"):
            embedder = Embedder.from_pretrained(_inputs.model_of(given), design, dtype=dtype)
            together = embedder.encode(some, show_progress=False)
            alone = np.concatenate([embedder.encode([text]) for text in some])
            cosine = (together * alone).sum(1) / np.linalg.norm(together, axis=1) / np.linalg.norm(alone, axis=1)
            moved = np.abs(together - alone).max() / np.abs(alone).max()
            print(
                f"{dtype:9} {design:18} smallest cosine {cosine.min():.6f}, largest difference {moved:.1e} of the largest value"
            )


if __name__ == "__main__":
    main()
