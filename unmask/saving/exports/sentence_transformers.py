"""Export to sentence-transformers: the folder that every saved embedder is."""

from __future__ import annotations

import warnings
from pathlib import Path

from unmask.models.loading import dtype_name
from unmask.saving.exports.target import Checked, Exportable, Target, check_vectors
from unmask.saving.folder import beyond_plain_modules, sentence_transformers_modules, write

# of a number at unit length; in low precision the texts of a batch move each other's vectors
_TOLERANCE = {"float32": 1e-4}
_LOW_PRECISION_TOLERANCE = 5e-2
_SERVED = ("first", "last", "mean")
"""Poolings of vLLM and of Text Embeddings Inference."""


def _write(embedder: Exportable, folder: Path) -> None:
    reason = beyond_plain_modules(embedder)
    if reason is not None:
        warnings.warn(
            f"sentence-transformers has no module for {reason}: SentenceTransformer loads this export by a module of unmask, and vLLM and "
            "Text Embeddings Inference would leave it out (docs/export.md, Serve elsewhere).",
            stacklevel=2,
        )
    elif embedder.design.pooling not in _SERVED:
        warnings.warn(
            f"vLLM and Text Embeddings Inference do not have the pooling {embedder.design.pooling}, and vLLM silently takes another one.",
            stacklevel=2,
        )
    write(embedder, folder)


def _check(embedder: Exportable, folder: Path) -> Checked:
    from sentence_transformers import SentenceTransformer

    trusted = sentence_transformers_modules(embedder) != "plain"
    model = SentenceTransformer(str(folder), device=str(embedder.backbone.device), trust_remote_code=trusted)
    return check_vectors(
        embedder,
        lambda texts, instruction: model.encode(list(texts), prompt=instruction, show_progress_bar=False, batch_size=8),
        _TOLERANCE.get(dtype_name(embedder.backbone.model), _LOW_PRECISION_TOLERANCE),
    )


def _usage(embedder: Exportable) -> str:
    trust = "" if sentence_transformers_modules(embedder) == "plain" else ", trust_remote_code=True"
    note = "" if not trust else "  # needs unmask installed: sentence-transformers has no module for this design"
    return (
        "from sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("FOLDER"{trust}){note}\nvectors = model.encode(["A man plays a guitar."])'
    )


SENTENCE_TRANSFORMERS = Target(
    name="sentence-transformers",
    meaning="SentenceTransformer(FOLDER), and every library that builds on it",
    precision=None,
    writes=(),
    checks=("sentence_transformers",),
    refusal=lambda _: None,
    write=_write,
    check=_check,
    usage=_usage,
)
