"""Differences between unmask's and sentence-transformers' vectors of one saved embedder, by design and precision.

python -m benchmarks.both_libraries [--model smollm2] [--texts 100] [--smoke]
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _inputs
from benchmarks.encode import texts

DESIGNS = ("causal/plain/mean", "causal/plain/last", "prompteol")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the differences with the default batches of both libraries, with one text in each batch, and with both in fp32."""
    from unmask import Embedder

    parser = _inputs.parser(__doc__)
    parser.add_argument("--texts", type=int, default=100)
    given = parser.parse_args(arguments)
    some = ["", *texts(2 * (4 if given.smoke else given.texts), given.smoke)["sentences"]][: 4 if given.smoke else given.texts]
    for dtype in ("float32", "bfloat16"):
        for design in DESIGNS:
            with tempfile.TemporaryDirectory() as folder:
                ours = Embedder.from_pretrained(_inputs.model_of(given), design, dtype=dtype, device="cpu")
                ours.save_pretrained(f"{folder}/saved")
                theirs = _theirs(f"{folder}/saved")
                _print(f"{dtype}, {design}", ours.encode(some, show_progress=False), theirs.encode(some))
                alone = np.concatenate([ours.encode([text]) for text in some])
                _print("  a text alone", alone, theirs.encode(some, batch_size=1))
                if dtype != "float32":
                    ours = Embedder.from_pretrained(f"{folder}/saved", dtype="float32", device="cpu")
                    theirs = _theirs(f"{folder}/saved", model_kwargs={"dtype": "float32"})
                    _print("  loaded as float32", ours.encode(some, show_progress=False), theirs.encode(some))


def _theirs(folder: str, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu", trust_remote_code=True, **options)


def _print(what: str, ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    cosine = (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    largest = np.abs(ours - theirs).max()
    print(
        f"{what:28} smallest cosine {cosine.min():.6f}, largest difference {largest:.2g} of values up to {np.abs(ours).max():.3g}"
    )


if __name__ == "__main__":
    main()
