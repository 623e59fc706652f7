"""Mixing: experts and lessons -> a mixture on disk, resumable while its router learns."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.experts.learning import Learning
from unmask.experts.lessons import Lesson
from unmask.experts.records import content_of, write_or_check
from unmask.experts.router import LEARNING, train_router
from unmask.files import write_json
from unmask.loading import Source, is_mixture
from unmask.mixture.experts import read_expert
from unmask.mixture.folder import build_mixture, save_mixture
from unmask.mixture.gating import Routing
from unmask.persistence import versions

RECORD = "mixing.json"


@dataclass(frozen=True)
class Mixed:
    """A mixture that was made: its folder and the loss of each step that was logged."""

    folder: Path
    losses: tuple[float, ...]


def mix(
    experts: Sequence[Path],
    domains: Mapping[str, Sequence[Lesson]],
    folder: Path,
    routing: Routing,
    source: Source,
    *,
    learning: Learning = LEARNING,
    train_top_k: int | None = None,
    callbacks: Sequence[Any] = (),
) -> Mixed:
    """Put experts into their base and train the router; in a folder where that was begun before, go on.

    source: how the base is loaded, and which one if the experts do not say (an empty model). Raises UnmaskError for a folder that holds
    something else, and as building and training do.
    """
    found = [read_expert(one) for one in experts]
    if found and not source.model:
        source = replace(source, model=found[0].base)
    record = {
        "base": source.model,
        "experts": {one.name: _weights(one.folder) for one in found},
        "domains": {name: content_of(lessons) for name, lessons in domains.items()},
        "routing": asdict(routing),
        "train_top_k": train_top_k,
        "learning": asdict(learning),
    }
    if folder.exists():
        return _taken_over(folder, record)
    work = folder.with_name(f".{folder.name}-mixing")
    write_or_check(work / RECORD, record)
    mixture, tokenizer = build_mixture(experts, routing, source, learning.seed)
    losses = train_router(mixture, tokenizer, domains, work, learning=learning, train_top_k=train_top_k, callbacks=callbacks)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    scratch.chmod(0o755)
    save_mixture(mixture, scratch)
    write_json(scratch / RECORD, {**record, "losses": losses, "versions": versions()})
    scratch.replace(folder)
    shutil.rmtree(work)
    return Mixed(folder, losses)


def _taken_over(folder: Path, record: dict[str, Any]) -> Mixed:
    if not is_mixture(folder) or not (folder / RECORD).is_file():
        raise UnmaskError(f"'{folder}' exists and is no mixture that was made here, so it is not overwritten.")
    done = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    if {name: done[name] for name in record} != json.loads(json.dumps(record)):
        raise UnmaskError(f"'{folder}' holds a mixture of other experts, lessons or settings: give another folder.")
    return Mixed(folder, tuple(done["losses"]))


def _weights(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()[:16]
