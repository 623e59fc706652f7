"""The module that sentence-transformers loads for designs that its own modules cannot express.

`SentenceTransformer(folder, trust_remote_code=True)`: the flag is what sentence-transformers asks for whenever a module comes
from another package. No code of ours is stored in the folder; a model with Python code of its own brings that along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from unmask.embedder import Embedder
from unmask.embedder_module import EmbedderModule
from unmask.encoding.batching import collate
from unmask.errors import UnmaskError


def _followed(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the options of sentence-transformers say about loading, as `Embedder.from_pretrained` takes it. Raises UnmaskError."""
    model = dict(options.get("model_kwargs") or {})
    dtypes = [model.pop(name) for name in ("dtype", "torch_dtype") if name in model]
    attention = model.pop("attn_implementation", None)
    rest = {"model_kwargs": model, **{name: options.get(name) for name in ("processor_kwargs", "config_kwargs")}}
    for name, values in rest.items():
        if values:
            raise UnmaskError(
                f"{name} '{next(iter(values))}' would change nothing here: this embedder follows the model_kwargs dtype and "
                "attn_implementation, and its folder decides the rest."
            )
    if (backend := options.get("backend") or "torch") != "torch":
        raise UnmaskError(f"This embedder runs on the backend 'torch' only, not on '{backend}'.")
    dtype = next((dtype for dtype in dtypes if dtype is not None), "auto")
    return {"dtype": str(dtype).removeprefix("torch."), "attn_implementation": attention}


class UnmaskModule(EmbedderModule, InputModule):  # type: ignore[misc]
    """An embedder as the only module of a SentenceTransformer."""

    def __init__(self, embedder: Embedder) -> None:
        """Wrap an embedder. Raises UnmaskError for sparse vectors."""
        embedder.design.require_dense("SentenceTransformer")
        super().__init__(embedder)
        self.tokenizer = embedder.tokenizer

    @classmethod
    def load(cls, model_name_or_path: str, **options: Any) -> UnmaskModule:
        """Load from a folder that `Embedder.save_pretrained` wrote.

        `trust_remote_code` also runs Python code that the folder holds. Of sentence-transformers' `model_kwargs`, `dtype` (or
        `torch_dtype`) and `attn_implementation` are followed. Raises UnmaskError for any other, and for options of the tokenizer and
        the config, since the folder decides those.
        """
        from sentence_transformers.util import load_dir_path

        loading = _followed(options)
        names = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        location = {name: options[name] for name in names if options.get(name) is not None}
        # the whole path: a folder here may have the name of a bundled model
        folder = Path(load_dir_path(model_name_or_path, **{"subfolder": "", **location})).resolve()
        # a config may name code that transformers has itself: then the folder holds none
        trusted = bool(options.get("trust_remote_code")) and any(folder.glob("*.py"))
        return cls(Embedder.from_pretrained(folder, device="cpu", trust_remote_code=trusted, **loading))

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Save as `Embedder.save_pretrained` does; sentence-transformers then writes its own files over ours."""
        from unmask.saving.folder import write_over

        write_over(self.embedder, Path(output_path))

    @property
    def max_seq_length(self) -> int:
        """Most tokens of a text with its prompt: the limit of the embedder, which is set too. Never more than the model has positions."""
        return self.embedder.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        if not isinstance(value, int) or value < 1:
            raise UnmaskError(f"max_seq_length should be a whole number of at least 1, not {value!r}.")
        self.embedder.encoder = replace(self.embedder.encoder, max_length=value)

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **others: Any) -> dict[str, Tensor]:
        """Tokenize a batch; the prompt of sentence-transformers is the instruction. Raises UnmaskError for any other option."""
        others.pop("task", None)  # it chooses among modules, and this is the only one
        if refused := [name for name, value in others.items() if value]:
            raise UnmaskError(
                f"'{refused[0]}' would change nothing here: this embedder's folder decides how a text becomes tokens. The property "
                "max_seq_length sets the limit."
            )
        texts = self.embedder.prompts
        tokenized = list(texts.tokenize(inputs, prompt or None))
        # all texts in one prompt after the other
        batch = collate([text.part(index) for index in range(len(texts.parts)) for text in tokenized], texts.pad_id)
        return {"input_ids": batch.ids, "attention_mask": batch.attention_mask.long(), "pooling_mask": batch.pooling_mask}

    def get_embedding_dimension(self) -> int:
        """Number of dimensions of a vector."""
        with torch.inference_mode():
            return int(self.forward(self.preprocess(["a"]))["sentence_embedding"].shape[1])
