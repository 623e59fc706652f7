"""How much a vector depends on the batch of its text. In fp32 it should not; in bf16 there is rounding.

python -m benchmarks.drift [--model smollm2] [--texts 200] [--keep FILE] [--smoke]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import _inputs, _report
from benchmarks._report import Report
from benchmarks.encode import texts


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare each text alone with the same text in a batch. Report the smallest cosine and the largest difference."""
    parser = _report.parser(__doc__)
    parser.add_argument("--texts", type=int, default=200)
    given = parser.parse_args(arguments)
    some = texts(2 * (4 if given.smoke else given.texts), given.smoke)["sentences"]
    with Report(__file__, arguments) as report:
        measure(report, _inputs.model_of(given), some)


def measure(report: Report, model: str, some: Sequence[str]) -> None:
    """A row for each precision and design."""
    from unmask import Embedder

    report.note(f"{model}, {len(some)} sentences of STSB, each alone and with the others.")
    columns = {"design": "`{}`", "precision": "{}", "smallest cosine": "{:.6f}", "largest difference": "{:.1e}"}
    table = report.table(
        "Each vector alone and in a batch, with the largest difference as a share of the largest value", columns
    )
    for dtype in ("float32", "bfloat16"):
        for design in ("mean", "prompteol", "bidirectional-mean"):
            embedder = Embedder.from_pretrained(model, design, dtype=dtype)
            together = embedder.encode(some, show_progress=False)
            alone = np.concatenate([embedder.encode([text]) for text in some])
            cosine = (together * alone).sum(1) / np.linalg.norm(together, axis=1) / np.linalg.norm(alone, axis=1)
            moved = np.abs(together - alone).max() / np.abs(alone).max()
            table.add(design, dtype, float(cosine.min()), float(moved))


if __name__ == "__main__":
    main()
