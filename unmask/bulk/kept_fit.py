"""Kept fit: what a design was fitted to, saved once in a folder of vectors. Every process and every later run reads it from there.

Two devices, or two sizes of batches, fit a design to numbers that differ in their last bits, and all vectors of a folder need the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.bulk.job import EmbedderArguments
from unmask.encoding.features import Fit
from unmask.io.files import make_folder, remove
from unmask.io.seals import Damaged, load_tensors, save_tensors
from unmask.models.identity import identity_of_loaded
from unmask.models.loading import dtype_name

if TYPE_CHECKING:
    from unmask.embedder import Embedder

_PATTERN = "fit-*.safetensors"
_LOCK = ".fit.lock"
_ALPHA = "alpha"


def load_with_kept_fit(
    arguments: EmbedderArguments, folder: Path, check: Callable[[Embedder], object]
) -> tuple[Embedder, str | None]:
    """The embedder with the fit of a folder, and the name of its file there; None if no fit is needed.

    The first process fits and saves, the others wait and read. A saved embedder that brings a fit keeps its own. check: raises UnmaskError
    for an embedder that cannot do the work; its fit is not saved. Raises UnmaskError.
    """
    from filelock import FileLock

    from unmask.starter import reference_texts

    fit_texts = arguments.texts_to_fit()
    embedder = replace(arguments, fit_on=None).load()
    if fit_texts is None and (embedder.is_fitted or not embedder.design.needs_fit):
        return embedder, None
    texts = reference_texts() if fit_texts is None else fit_texts
    arguments.require_fit(embedder)
    file = folder / f"fit-{_key(embedder, texts)}.safetensors"
    make_folder(folder)
    with FileLock(folder / _LOCK):
        if (fit := read_fit(file)) is None:
            fit = embedder.fit(texts).fitted
            check(embedder)
            save_fit(file, fit)
    return embedder.use_fit(fit), file.name


def save_fit(file: Path, fit: Fit) -> None:
    """Write a fit, whole and durable."""
    import torch

    alpha = {} if fit.alpha is None else {_ALPHA: torch.tensor(fit.alpha, dtype=torch.float64)}
    save_tensors(file, fit.tensors | alpha)


def read_fit(file: Path) -> Fit | None:
    """What `save_fit` wrote; None if there is no such file, or a damaged one."""
    try:
        tensors = load_tensors(file) if file.is_file() else None
    except Damaged:
        return None
    if tensors is None:
        return None
    alpha = tensors.pop(_ALPHA, None)
    return Fit(None if alpha is None else float(alpha), **tensors)


def remove_fits(folder: Path, but: str | None) -> None:
    """Remove all fits of a folder but one."""
    for file in folder.glob(_PATTERN):
        if file.name != but:
            remove(file)


def _key(embedder: Embedder, texts: Sequence[str]) -> str:
    """A hash of everything that a fit depends on, up to rounding."""
    fields = [
        identity_of_loaded(embedder.backbone.model).revision,
        embedder.design.name,
        embedder.prompts.template,
        embedder.max_length,
        dtype_name(embedder.backbone.model),
        *texts,
    ]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
