"""Manifests: a record of everything that vectors depend on, stored next to them, and what two runs must share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unmask.bulk.job import Job
from unmask.io.records import Record
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import dtype_name
from unmask.models.provenance import versions

if TYPE_CHECKING:
    from unmask.embedder import Embedder
    from unmask.encoding.features import Fit


class VectorSettings(Record):
    """What all vectors of a folder have to share. Device, batches and versions change their rounding only; the last run's are kept."""

    fingerprint: str
    """Of the model's weights."""
    design: str
    prompt: str
    max_length: int
    alpha: float | None
    fit: str | None
    dtype: str
    options: dict[str, Any]
    dim: int


def describe(embedder: Embedder, job: Job, dim: int) -> dict[str, Any]:
    """Everything except the texts that the vectors depend on, as JSON. dim: dimensions of a vector."""
    identity = identity_of_loaded(embedder.backbone.model)
    return {
        "model": asdict(embedder.source) | {"fingerprint": identity.revision, "identity": identity.as_json()},
        "design": embedder.design.name,
        "prompt": embedder.prompts.template,
        "attention": embedder.backbone.proof.summary,
        "max_length": embedder.max_length,
        "batch_tokens": embedder.batch_tokens,
        "alpha": embedder.fitted.alpha,
        "fit": _standardisation(embedder.fitted),
        "dtype": dtype_name(embedder.backbone.model),
        "attn_implementation": attention_implementation(embedder.backbone.model),
        "device": str(embedder.backbone.device),
        "options": job.options,
        "dim": dim,
        "versions": versions(),
    }


def settings_of(description: Mapping[str, Any]) -> VectorSettings:
    """The part of a description that two runs have to share."""
    values = {name: description[name] for name in VectorSettings.model_fields if name != "fingerprint"}
    return VectorSettings(fingerprint=description["model"]["fingerprint"], **values)


def key_of(description: Mapping[str, Any]) -> str:
    """A short name of the settings in a description."""
    plain = json.dumps(settings_of(description).as_json(), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _standardisation(fit: Fit) -> str | None:
    """A hash of the means, deviations and whitenings that were fitted."""
    digest = hashlib.sha256(b"".join(part.float().cpu().numpy().tobytes() for part in fit.tensors.values()))
    return digest.hexdigest()[:16] if fit.tensors else None
