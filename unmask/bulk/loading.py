"""Loading the embedder of a job, with the fit that a folder of vectors stores, and describing everything that its vectors depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.bulk.job import EmbedJob
from unmask.encoding.features import Fit
from unmask.errors import UnmaskError
from unmask.io.files import make_folder, remove
from unmask.io.records import Record
from unmask.io.rows import field as value_of
from unmask.io.rows import read_rows
from unmask.io.seals import Damaged
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import dtype_name
from unmask.models.provenance import versions

if TYPE_CHECKING:
    from unmask.embedder import Embedder


@dataclass(frozen=True)
class EmbedderArguments:
    """How a process loads the embedder. options: for `Embedder.from_pretrained`; fit_on: texts to fit the design on."""

    model: str
    design: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    fit_on: Path | None = None

    def check(self) -> None:
        """Raise UnmaskError if the texts to fit on cannot be read, or if the model needs the name of a design."""
        from unmask.saving.folder import read_saved

        self.texts_to_fit()
        if not self.design:
            read_saved(self.model, self.options.get("revision"), self.options.get("adapter"), names_design=False)

    def load(self) -> Embedder:
        """The embedder. Raises UnmaskError."""
        from unmask.embedder import Embedder

        texts = self.texts_to_fit()
        embedder = Embedder.from_pretrained(self.model, self.design, **self.options)
        self.require_fit(embedder)
        return embedder if texts is None else embedder.fit(texts)

    def texts_to_fit(self) -> list[str] | None:
        """The texts to fit the design on; None if none are given. Raises UnmaskError."""
        file = self.fit_on
        return None if file is None else [value_of(file, line, row, "text") for line, row in read_rows(file)]

    def require_fit(self, embedder: Embedder) -> None:
        """Raise UnmaskError if there are texts to fit on, and the design has nothing to fit."""
        if self.fit_on is not None and not embedder.design.needs_fit:
            raise UnmaskError(f"'{embedder.design.name}' has nothing to fit, so --fit-on would change nothing.")


def load_with_stored_fit(
    arguments: EmbedderArguments, folder: Path, check: Callable[[Embedder], object]
) -> tuple[Embedder, str | None]:
    """The embedder with the fit of a folder, and the name of its file there; None if no fit is needed.

    Two devices, or two batch sizes, fit a design to numbers that differ in their last bits, and all vectors of a folder need the same fit:
    the first process fits and saves, all others read. A saved embedder with a fit keeps it. check: raises UnmaskError for an embedder that
    cannot do the work; its fit is not saved. Raises UnmaskError.
    """
    from filelock import FileLock

    from unmask.starter import reference_texts

    texts = arguments.texts_to_fit()
    embedder = replace(arguments, fit_on=None).load()
    if texts is None and (embedder.is_fitted or not embedder.design.needs_fit):
        return embedder, None
    arguments.require_fit(embedder)
    texts = reference_texts() if texts is None else texts
    content = [
        identity_of_loaded(embedder.backbone.model).revision,
        embedder.design.name,
        embedder.prompts.template,
        embedder.max_length,
        dtype_name(embedder.backbone.model),
        *texts,
    ]
    file = folder / f"fit-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}.safetensors"
    make_folder(folder)
    with FileLock(folder / ".fit.lock"):
        try:
            fit = Fit.load(file)
        except (FileNotFoundError, Damaged):
            fit = embedder.fit(texts).fitted
            check(embedder)
            fit.save(file)
    return embedder.use_fit(fit), file.name


def remove_fits(folder: Path, but: str | None) -> None:
    """Remove all fits of a folder but one."""
    for file in folder.glob("fit-*.safetensors"):
        if file.name != but:
            remove(file)


class VectorSettings(Record):
    """What all vectors of a folder share. Device, batches and versions, which a description has too, change their rounding only."""

    fingerprint: str
    """Digest of the model's weights."""
    design: str
    prompt: str
    max_length: int
    alpha: float | None
    fit: str | None
    dtype: str
    options: dict[str, Any]
    dim: int


def describe(embedder: Embedder, job: EmbedJob, dim: int) -> dict[str, Any]:
    """The description of vectors: everything except the texts that they depend on, as JSON. dim: dimensions of a vector."""
    identity, model, fit = identity_of_loaded(embedder.backbone.model), embedder.backbone.model, embedder.fitted
    fit_bytes = b"".join(part.float().cpu().numpy().tobytes() for part in fit.tensors.values())
    return {
        "model": asdict(embedder.source) | {"fingerprint": identity.revision, "identity": identity.as_json()},
        "design": embedder.design.name,
        "prompt": embedder.prompts.template,
        "attention": embedder.backbone.proof.summary,
        "max_length": embedder.max_length,
        "batch_tokens": embedder.batch_tokens,
        "alpha": fit.alpha,
        "fit": hashlib.sha256(fit_bytes).hexdigest()[:16] if fit.tensors else None,
        "dtype": dtype_name(model),
        "attn_implementation": attention_implementation(model),
        "device": str(embedder.backbone.device),
        "options": job.options,
        "dim": dim,
        "versions": versions(),
    }


def vector_settings(description: Mapping[str, Any]) -> VectorSettings:
    """The settings in a description: what all vectors of a folder share."""
    values = {name: description[name] for name in VectorSettings.model_fields if name != "fingerprint"}
    return VectorSettings(fingerprint=description["model"]["fingerprint"], **values)


def settings_digest(description: Mapping[str, Any]) -> str:
    """The digest of the settings in a description."""
    plain = json.dumps(vector_settings(description).as_json(), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]
