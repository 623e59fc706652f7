"""Manifests: everything that vectors depend on, for the record beside them, and what two runs have to share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unmask.bulk.job import Job
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import dtype_name
from unmask.models.provenance import versions

if TYPE_CHECKING:
    from unmask.embedder import Embedder
    from unmask.encoding.features import Fit

_SHARED = ("model.fingerprint", "design", "prompt", "max_length", "alpha", "fit", "dtype", "options", "dim")
"""What all vectors of one folder have to share. Device, batches and versions change their rounding only; those of the last run are kept."""


def describe(embedder: Embedder, job: Job, dim: int) -> dict[str, Any]:
    """Everything that the vectors depend on beside the texts, as JSON. dim: dimensions of a vector."""
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


def shared_part(description: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs have to share, so that their vectors may lie in one folder: plain values by dotted name."""
    flat = dict(_flat(description))
    return {name: value for name, value in flat.items() if any(name == part or name.startswith(f"{part}.") for part in _SHARED)}


def key_of(description: Mapping[str, Any]) -> str:
    """A short name of what two runs have to share."""
    plain = json.dumps(shared_part(description), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first thing that two runs do not share, in words; None if they share all."""
    old, new = shared_part(before), shared_part(now)
    for name in [*new, *(name for name in old if name not in new)]:
        if old.get(name) != new.get(name):
            return f"{name} was {_shown(old.get(name))} and is {_shown(new.get(name))}"
    return None


def _flat(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _shown(value: Any) -> str:
    return "not set" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def _standardisation(fit: Fit) -> str | None:
    """A hash of the means, deviations and whitenings that were fitted."""
    digest = hashlib.sha256(b"".join(part.float().cpu().numpy().tobytes() for part in fit.tensors.values()))
    return digest.hexdigest()[:16] if fit.tensors else None
