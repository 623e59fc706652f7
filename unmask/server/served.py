"""Served models: several designs of one model, loaded once, each under its own name."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.designs.design import Design, parse_designs
from unmask.designs.presets import DEFAULT_DESIGN
from unmask.embedder import Embedder
from unmask.encoding.batching import steps_of
from unmask.encoding.dedup import UniqueTexts
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import ForwardPass
from unmask.encoding.replicas import replica, threads_for
from unmask.encoding.tokenization import TokenizedText
from unmask.errors import UnmaskError
from unmask.io.paths import expanded
from unmask.models.bundled import HUB, is_path
from unmask.models.source import as_adapters
from unmask.saving.folder import read_saved, read_settings


@dataclass(frozen=True)
class ServedModel:
    """A design under the name that requests give it. dim: of its vectors."""

    name: str
    embedder: Embedder
    dim: int

    @property
    def group(self) -> Hashable:
        """Attention and prompt. Texts of models that share both can share a forward pass."""
        return self.embedder.design.attention, self.embedder.design.prompt

    def instruction(self, instruction: str | None, input_type: str | None) -> str | None:
        """The instruction of a request: its own, or the embedder's for this type of input, if it has one.

        Raises UnmaskError for an instruction that the prompt does not take, or that leaves no room for a text.
        """
        if instruction is None:
            return self.embedder.instructions.get(input_type or "")
        if input_type is not None:
            raise UnmaskError("Give an instruction or an input_type, not both.")
        prompts = self.embedder.prompts
        if not prompts.takes_instruction:
            raise UnmaskError(f"The prompt '{prompts.name}' has no {{instruction}}, so an instruction would change nothing.")
        if prompts.room(instruction) < 1:
            raise UnmaskError(f"The instruction leaves no room for a text within {prompts.max_length} tokens.")
        return instruction


class ServedModels(Mapping[str, ServedModel]):
    """Served models by name, all of one load.

    model_name: an alias of the first model; `model_name:NAME` refers to any of them. Names of models take precedence.
    """

    def __init__(self, embedders: Mapping[str, Embedder], model_name: str = "") -> None:
        """Fit what the designs need and compute a first vector with each, so that no request waits for that. Raises UnmaskError."""
        names = (
            {model_name: next(iter(embedders), "")} | {f"{model_name}:{name}": name for name in embedders} if model_name else {}
        )
        self._aliases = {alias: name for alias, name in names.items() if alias not in embedders and model_name != name}
        self._models = {name: ServedModel(name, embedder, embedder.dim) for name, embedder in embedders.items()}
        self._fits = {embedder.design: embedder.fitted for embedder in embedders.values()}
        self._groups = {model.group: model.embedder for model in self._models.values()}
        backbones = {group: embedder.backbone for group, embedder in self._groups.items()}
        self.workers = min(threads_for(backbone) for backbone in backbones.values())
        self._backbones = (
            [backbones]
            if self.workers == 1
            else [{group: replica(backbone) for group, backbone in backbones.items()} for _ in range(self.workers)]
        )
        self._shared = _SharedCores() if self.workers > 1 else nullcontext()

    def __getitem__(self, name: str) -> ServedModel:
        """The model of a name or an alias."""
        return self._models[self._aliases.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._models)

    def __len__(self) -> int:
        """Number of models."""
        return len(self._models)

    def aliases(self, name: str) -> list[str]:
        """Other names of a model."""
        return [alias for alias, canonical in self._aliases.items() if canonical == name]

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a batch."""
        return next(iter(self._groups.values())).batch_tokens

    def compute(self, worker: int, group: Hashable, texts: Sequence[tuple[Design, TokenizedText]]) -> list[NDArray[np.float32]]:
        """The vector of each text by its design, from ONE forward pass a prompt. Equal texts are computed once. A vector may be not finite.

        Texts that would change each other's vectors (`steps_of`) get separate forward passes: under several prompts, the queue does
        not see the length of each. worker: from 0, one of as many as may compute at the same time.
        """
        unique = UniqueTexts([text for _, text in texts])
        by_step: dict[tuple[int, ...], list[int]] = {}
        for index, text in enumerate(unique.texts):
            by_step.setdefault(steps_of(text.lengths), []).append(index)
        fits: dict[Design, Fit] = {design: self._fits[design] for design, _ in texts}
        forward = ForwardPass(self._backbones[worker][group], self._groups[group].prompts, fits)
        vectors: dict[tuple[Design, int], NDArray[np.float32]] = {}
        with self._shared:
            for indices in by_step.values():
                for design, values in forward.vectors([unique.texts[index] for index in indices]).items():
                    vectors |= {(design, index): value for index, value in zip(indices, values, strict=True)}
        return [vectors[design, int(index)] for (design, _), index in zip(texts, unique.inverse, strict=True)]


class _SharedCores:
    """Cores of the CPU, shared by the threads that compute just now: a lone batch takes all of them."""

    def __init__(self) -> None:
        self._cores, self._busy, self._lock = torch.get_num_threads(), 0, Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._busy += 1
            torch.set_num_threads(max(1, self._cores // self._busy))  # of this thread

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._busy -= 1


def load_models(model: str, designs: str | None = None, **options: Any) -> ServedModels:
    """Load a model once, for several designs. designs: as in `parse_designs`; their labels are the names of the served models.

    Without designs, a saved embedder is served under the name of its folder, and any other model by its default design. The name of the
    model, or of its folder, is an alias. options: of `Embedder.from_pretrained`. Raises UnmaskError.
    """
    saved = read_saved(model, options.get("revision"), options.get("adapter"), names_design=bool(designs))
    requested = parse_designs(designs or (saved.design if saved else DEFAULT_DESIGN))
    adapters = reversed(as_adapters(options.get("adapter")))
    source = next((adapter for adapter in adapters if read_settings(adapter)), model)
    if saved and not designs:
        requested = {expanded(source).resolve().name: next(iter(requested.values()))}
    for design in requested.values():
        design.require_dense("A server")
    loaded = Embedder.from_pretrained(model, None if saved else next(iter(requested.values())), **options)
    model_name = expanded(source).resolve().name if is_path(source) or expanded(source).is_dir() else source.removeprefix(HUB)
    return ServedModels({name: loaded.with_design(design) for name, design in requested.items()}, model_name)
