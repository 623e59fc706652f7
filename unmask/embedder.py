"""The embedder: a decoder LLM, read by one design."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from unmask.designs.design import Design, as_design
from unmask.designs.presets import DEFAULT_DESIGN
from unmask.designs.prompts import takes_instruction
from unmask.encoding.backbone import Backbone
from unmask.encoding.chunking import UNITS, Chunking, Chunks, Unit, Units, encode_chunks
from unmask.encoding.encoder import Encoder, Tally, warn_of_truncation
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import Vectors
from unmask.encoding.heads import Head
from unmask.encoding.lexical import unpacked
from unmask.encoding.quantization import (
    AnyVectors,
    Precision,
    as_floats,
    finish,
    normalized,
    require_signs,
    require_width,
    unit_cosines,
)
from unmask.encoding.sentence_transformers_aliases import INSTEAD, refuse_unknown
from unmask.encoding.tokenization import MAX_LENGTH, DesignTokenizer, PromptTokenizer, digest_of_tokens
from unmask.errors import UnmaskError, require_counts, unknown
from unmask.io.paths import cache_folder, expanded
from unmask.io.seals import Damaged
from unmask.io.terminal import progress_bar
from unmask.io.threads import lock_of
from unmask.models.decoder import without_head
from unmask.models.digests import digest_of_tensors
from unmask.models.loading import Source, dtype_name
from unmask.models.placement import as_device_map
from unmask.models.source import as_adapters, short_name

if TYPE_CHECKING:
    import torch
    from scipy.sparse import csr_array
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_COSINES = 2**24  # that top_k holds at once


class Nearest(NamedTuple):
    """The nearest texts of each query, best first: their indices and cosines, both of shape (query, k)."""

    indices: NDArray[np.intp]
    cosines: Vectors


class Embedder:
    """Texts in, vectors out: an encoder, one design and its fit.

    Threads may share an embedder, and embedders may share a model: their batches take turns.

    Args:
        encoder: the loaded model.
        design: how the model is read.
        instructions: by name, for prompts with `{instruction}`; "query" and "document" serve encode_query and encode_document.
        fit: what was fitted on reference texts.
    """

    def __init__(
        self,
        encoder: Encoder,
        design: Design,
        *,
        instructions: Mapping[str, str] | None = None,
        fit: Fit | None = None,
    ) -> None:
        """Assemble an embedder from loaded parts. Raises UnmaskError for a design that the model cannot serve."""
        self.encoder, self.design, self.instructions = encoder.under(design.attention), design, dict(instructions or {})
        if self.instructions and not self.prompts.takes_instruction:
            raise UnmaskError(f"The prompt of '{design.name}' has no {{instruction}}, so instructions would change nothing.")
        self.backbone.check(design)
        self._fit = fit or Fit()

    def __repr__(self) -> str:
        """Model, design, limit, precision and device."""
        settings = f"design='{self.design.name}', max_length={self.max_length}, dtype='{dtype_name(self.backbone.model)}'"
        return f"Embedder('{self.source.model}', {settings}, device='{self.device}')"

    if not TYPE_CHECKING:  # type checkers know the attributes that exist

        def __getattr__(self, name: str) -> NoReturn:
            """Name the counterpart of an attribute of sentence-transformers."""
            raise AttributeError(f"Embedder has no '{name}'. {INSTEAD.get(name, '')}".rstrip(), name=name, obj=self)

    @property
    def backbone(self) -> Backbone:
        """The model under the attention of the design."""
        return self.encoder.backbone

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model."""
        return self.encoder.tokenizer

    @property
    def source(self) -> Source:
        """Where the model comes from."""
        return self.encoder.source

    @property
    def batch_tokens(self) -> int:
        """Most tokens of one batch, padding included."""
        return self.encoder.batch_tokens

    @property
    def prompts(self) -> DesignTokenizer:
        """The tokenizer of the prompt, or of the several prompts that the design averages."""
        return self.encoder.prompt_tokenizer(self.design.prompt)

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        self._check_vectors(None, "float32")
        return self.encoder.forward_pass({self.design: self.fitted}).width(self.design)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.backbone.device

    @property
    def prompt(self) -> PromptTokenizer:
        """The tokenizer of the prompt. Raises UnmaskError for a design that averages several; `prompts` serves every design."""
        self.design.require_one_prompt("This")
        [prompt] = self.prompts.parts
        return prompt

    @property
    def max_length(self) -> int:
        """Most tokens of one text with its prompt; longer texts are cut."""
        return self.prompts.max_length

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        design: str | Design | None = None,
        *,
        adapter: str | Path | Sequence[str | Path] | None = None,
        merge: bool = False,
        revision: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        device_map: str | Mapping[str, str | int] | None = None,
        quantize: str | None = None,
        attn_implementation: str | None = None,
        trust_remote_code: bool = False,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        instructions: Mapping[str, str] | None = None,
    ) -> Embedder:
        """Load an embedder from a hub id, a folder (a model, a PEFT adapter or a saved embedder) or a bundled name.

        Args:
            design: a preset, a readable name or a Design. Default: that of a saved embedder (model or adapter), else `subject-mean-z`.
                A model that sentence-transformers saved has a design, too, unless its modules compute what no design expresses.
            adapter: one PEFT adapter, or several that were trained on top of each other, the lowest first; several are merged into the
                weights in this order.
            device_map: in place of a device, spread the model over GPUs, main memory and disk: "auto", "balanced", or a table of modules
                and devices.
            quantize: hold the weights of linear layers in "8bit" (package torchao) or "4bit" (package bitsandbytes).
            merge: merge an adapter into the weights.
            revision: branch, tag or commit of the model on the hub.
            dtype: "float32", "bfloat16", "float16", or "auto": bfloat16 if the device is fast at it, else float32.
            device: "cpu", "cuda", "cuda:1", "mps", or "auto".
            attn_implementation: "sdpa" or "eager". Default: sdpa if supported.
            trust_remote_code: run Python code that comes with the model.
            max_length: most tokens of one text with its prompt. Default: the limit of a saved embedder, else 512.
            batch_tokens: most tokens of one batch, padding included.
            instructions: by name, for prompts with `{instruction}`.

        Raises UnmaskError, saying what was tried, and AttentionError for a model that does not attend as the design says.
        """
        from unmask.saving.folder import read_saved
        from unmask.saving.load_model import load_with

        adapters = as_adapters(adapter)
        source = Source(
            str(model),
            revision,
            adapters,
            merge,
            dtype=dtype,
            device=device,
            device_map=as_device_map(device_map),
            quantize=quantize,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
        )
        require_counts(max_length=max_length, batch_tokens=batch_tokens)
        saved = read_saved(source.model, revision, adapters, names_design=bool(design))
        parsed = as_design(design or (saved.design if saved else DEFAULT_DESIGN))
        encoder = load_with(saved, source, parsed.attention, max_length=max_length, batch_tokens=batch_tokens)
        if saved is None:
            return cls(encoder, parsed, instructions=instructions)
        if instructions is None and takes_instruction(parsed.prompts):
            instructions = saved.instructions
        fit = saved.fit_for(parsed, encoder.source)
        return cls(replace(encoder, source=saved.origin(encoder.source)), parsed, instructions=instructions, fit=fit)

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        design: str | Design,
        *,
        source: Source | None = None,
        max_length: int = MAX_LENGTH,
        batch_tokens: int | None = None,
        instructions: Mapping[str, str] | None = None,
        fit: Fit | None = None,
        head: Head | None = None,
    ) -> Embedder:
        """Make an embedder of a decoder that is loaded already. Raises UnmaskError for a model with its language-model head."""
        design = as_design(design)
        require_counts(max_length=max_length, batch_tokens=batch_tokens)
        backbone = Backbone(without_head(model), design.attention)
        encoder = Encoder(
            backbone if head is None else backbone.with_head(head),
            tokenizer,
            source or Source(getattr(model, "name_or_path", "") or type(model).__name__),
            max_length,
            batch_tokens or 0,
        )
        return cls(encoder, design, instructions=instructions, fit=fit)

    def with_design(self, design: str | Design) -> Embedder:
        """The same loaded model, read by another design. Instructions go along if its prompt takes them. Raises UnmaskError."""
        design = as_design(design)
        if design == self.design:
            return self
        return Embedder(self.encoder, design, instructions=self.instructions if takes_instruction(design.prompts) else None)

    def fit(self, texts: Iterable[str]) -> Embedder:
        """Fit standardisation and alpha on reference texts, as far as the design needs it. Returns the embedder itself."""
        self._fit = self.encoder.fit([self.design], _as_texts(texts))[self.design]
        return self

    def use_fit(self, fit: Fit) -> Embedder:
        """Use an earlier fit of this model and design. Returns the embedder itself."""
        self._fit = fit
        return self

    @property
    def is_fitted(self) -> bool:
        """Whether the design has been fitted, or the embedder was loaded with a fit."""
        return self._fit != Fit()

    @property
    def fitted(self) -> Fit:
        """The fit of the design; on first use, a design that needs one is fitted on the reference texts of this package.

        That fit of a model on disk is cached: reading the reference texts takes longer than embedding a few texts.
        """
        if self.design.needs_fit and self._fit == Fit():
            with lock_of(self):
                if self._fit == Fit():  # another thread may have been faster
                    self._fit = self._reference_fit()
        return self._fit

    def _reference_fit(self) -> Fit:
        from unmask.models.identity import IN_MEMORY, identity_of_loaded
        from unmask.starter import reference_texts

        texts, model, head = reference_texts(), self.backbone.model, self.backbone.head
        identity = identity_of_loaded(model).revision
        if identity.startswith(IN_MEMORY):
            return self.encoder.fit([self.design], texts)[self.design]
        trained = digest_of_tensors(head.state_dict()) if head is not None else ""
        tokens = digest_of_tokens(self.prompts)
        conditions = [identity, self.design.name, tokens, dtype_name(model), self.device.type, *texts, trained]
        file = cache_folder() / "fits" / f"{hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:32]}.safetensors"
        with suppress(FileNotFoundError, Damaged):
            return Fit.load(file)
        fit = self.encoder.fit([self.design], texts)[self.design]
        with suppress(OSError):  # a cache that cannot be written costs time only
            file.parent.mkdir(parents=True, exist_ok=True)
            fit.save(file)
        return fit

    def encode(
        self,
        texts: Iterable[str],
        *,
        instruction: str | None = None,
        instruction_name: str | None = None,
        dim: int | None = None,
        normalize: bool = False,
        precision: Precision = "float32",
        show_progress: bool | None = None,
        tally: Tally | None = None,
        **kwargs: object,
    ) -> AnyVectors:
        """Vectors of texts, shape (text, dim), in their order.

        Args:
            texts: a list, or any iterable of strings with an order.
            instruction: for the prompt's `{instruction}`.
            instruction_name: the name of an instruction in `instructions`.
            dim: keep the first dimensions only (for Matryoshka-trained models).
            normalize: scale vectors to unit length.
            precision: float16; int8, in which each vector is scaled by its largest value, so that cosines survive; or binary, the signs,
                eight dimensions in a byte (uint8).
            show_progress: None shows a bar on a terminal.
            tally: counts texts and tokens.

        Warns which texts were cut to max_length. Raises UnmaskError before computing for an unknown option (naming the right one), for
        texts that are not strings, and for an impossible dim or precision. `mteb.evaluate(embedder, tasks)` calls this method too, with
        batches of texts and mteb's options.
        """
        if "task_metadata" in kwargs:
            return self._encode_for_mteb(texts, **kwargs, dim=dim, normalize=normalize, precision=precision)
        refuse_unknown(kwargs)
        texts = _as_texts(texts)
        self._check_vectors(dim, precision)
        vectors, cut = self._encode(texts, self._instruction(instruction, instruction_name), show_progress, tally or Tally())
        warn_of_truncation(cut, len(texts), self.max_length)
        return finish(vectors, dim, normalize, precision)

    def _encode(
        self, texts: Sequence[str], instruction: str | None, show_progress: bool | None, tally: Tally
    ) -> tuple[Vectors, list[int]]:
        """Vectors of texts before `finish`, and the indices of the texts that were cut."""
        texts_before, cuts_before = tally.texts, len(tally.cut)
        with progress_bar("embedding", len(texts), show_progress) as advance:
            vectors = self.encoder.encode(
                texts, {self.design: self.fitted}, instruction=instruction, tally=tally, progress=advance
            )
        return vectors[self.design], [index - texts_before for index in tally.cut[cuts_before:]]

    def encode_sparse(
        self,
        texts: Iterable[str],
        *,
        instruction: str | None = None,
        instruction_name: str | None = None,
        show_progress: bool | None = None,
        tally: Tally | None = None,
    ) -> csr_array:
        """Sparse vectors of texts by a lexical design: a SciPy matrix of shape (text, vocabulary), float32.

        A column is a token of the model, and the dot product of two rows is their similarity. Options are as in `encode`. Raises
        UnmaskError for a design whose vectors are dense.
        """
        if not self.design.is_sparse:
            raise UnmaskError(
                f"The vectors of '{self.design.name}' are dense: use encode, or a design such as causal/eol/last/lexical."
            )
        texts = _as_texts(texts)
        packed, cut = self._encode(texts, self._instruction(instruction, instruction_name), show_progress, tally or Tally())
        warn_of_truncation(cut, len(texts), self.max_length)
        return unpacked(packed, self.backbone.output_layer.vocabulary)

    def encode_chunks(
        self,
        texts: Iterable[str],
        size: int,
        overlap: int = 0,
        *,
        late: bool = False,
        instruction: str | None = None,
        instruction_name: str | None = None,
        dim: int | None = None,
        normalize: bool = False,
        precision: Precision = "float32",
        show_progress: bool | None = None,
        tally: Tally | None = None,
    ) -> Chunks:
        """Split long texts into chunks of at most `size` tokens, and give each chunk a vector. Other options are as in `encode`.

        Args:
            overlap: most tokens that a chunk shares with the previous one.
            late: read each text once, then pool each chunk from its tokens (arXiv 2409.04701); texts longer than max_length are read in
                windows. Otherwise a chunk is embedded like a text.

        Raises UnmaskError before computing for sizes that do not work, for chunks that leave no room for the prompt, and for a design that
        cannot chunk late.
        """
        chunking, documents = Chunking(size, overlap, late), _as_texts(texts)
        self._check_vectors(dim, precision)
        tally = tally or Tally()
        texts_before, cuts_before = tally.texts, len(tally.cut)
        chunks = encode_chunks(
            self.encoder,
            {self.design: self.fitted},
            documents,
            chunking,
            instruction=self._instruction(instruction, instruction_name),
            tally=tally,
            show_progress=show_progress,
        )[self.design]
        warn_of_truncation([index - texts_before for index in tally.cut[cuts_before:]], len(documents), self.max_length)
        return replace(chunks, vectors=finish(np.asarray(chunks.vectors, np.float32), dim, normalize, precision))

    def encode_tokens(
        self,
        texts: Iterable[str],
        unit: Unit = "token",
        *,
        instruction: str | None = None,
        instruction_name: str | None = None,
        normalize: bool = False,
        show_progress: bool | None = None,
    ) -> Chunks:
        """A vector for each token or word of each text, from one reading of the text. Other options are as in `encode`.

        `chunks.texts(texts)` are the tokens or words as characters of the texts. A word is what stands between white space; its vector is
        pooled over its tokens by the pooling of the design. Texts longer than max_length are read in windows. Raises UnmaskError for a
        design that continues after the text or repeats it.
        """
        if unit not in UNITS:
            raise unknown("unit", unit, UNITS)
        documents = _as_texts(texts)
        chunks = encode_chunks(
            self.encoder,
            {self.design: self.fitted},
            documents,
            Units(unit),
            instruction=self._instruction(instruction, instruction_name),
            show_progress=show_progress,
        )[self.design]
        return replace(chunks, vectors=finish(np.asarray(chunks.vectors, np.float32), None, normalize, "float32"))

    def encode_query(self, texts: Iterable[str], **options: object) -> AnyVectors:
        """As encode, with the instruction named "query" if there is one."""
        return self._encode_as("query", texts, options)

    def encode_document(self, texts: Iterable[str], **options: object) -> AnyVectors:
        """As encode, with the instruction named "document" if there is one."""
        return self._encode_as("document", texts, options)

    @staticmethod
    def similarity(a: NDArray[np.generic], b: NDArray[np.generic]) -> Vectors:
        """Cosine of every vector of `a` with every vector of `b`, float32 of shape (n, m); without an axis for a single vector.

        Vectors may have any precision. Of two binary vectors it is 1 - 2 Hamming distance / dimensions.
        """
        cosines = unit_cosines(_rows_of_unit_length(a), _rows_of_unit_length(b))
        return cosines.reshape((*np.shape(a)[:-1], *np.shape(b)[:-1]))

    @staticmethod
    def similarity_pairwise(a: NDArray[np.generic], b: NDArray[np.generic]) -> Vectors:
        """Cosine of each vector of `a` with the same row of `b`, float32 of shape (n,)."""
        return np.asarray((_rows_of_unit_length(a) * _rows_of_unit_length(b)).sum(axis=1), np.float32)

    @staticmethod
    def top_k(queries: NDArray[np.generic], texts: NDArray[np.generic], k: int = 10) -> Nearest:
        """The k texts with the highest cosine for each query: best first, ties in their order. Takes vectors as of `encode`, or one."""
        if k < 1:
            raise UnmaskError(f"k must be at least 1, not {k}.")
        unit_queries, unit_texts = _rows_of_unit_length(queries), _rows_of_unit_length(texts)
        rows, best = [], []
        for block in np.array_split(unit_queries, 1 + len(unit_queries) * len(unit_texts) // _COSINES):
            cosines = unit_cosines(block, unit_texts)
            rows.append(np.argsort(-cosines, axis=1, kind="stable")[:, :k].copy())  # a view would keep all of them
            best.append(np.take_along_axis(cosines, rows[-1], axis=1))
        return Nearest(np.concatenate(rows), np.concatenate(best))

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb asks of a model: its name, everything that its vectors depend on, its size, and the data it was trained on."""
        from unmask.models.identity import identity_of_loaded, loaded_from
        from unmask.saving.folder import training_sets
        from unmask.tasks.mteb.protocol import model_meta

        weights = {**self.fitted.tensors, **(self.backbone.head.state_dict() if self.backbone.head else {})}
        settings = {
            "design": self.design.name,
            "max_length": self.max_length,
            "tokens": digest_of_tokens(self.prompts),
            "dtype": dtype_name(self.backbone.model),
            "alpha": self.fitted.alpha,
            "fitted": digest_of_tensors(weights) if weights else None,
        }
        name, model = short_name(loaded_from(self.backbone.model, self.source).model), self.backbone.model
        declared = {
            "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
            "n_embedding_parameters": model.get_input_embeddings().weight.numel(),
            "max_tokens": self.max_length,
            "embed_dim": None if self.design.is_sparse else self.dim,
            "framework": ["PyTorch"],
            "model_type": ["sparse" if self.design.is_sparse else "dense"],
            "use_instructions": self.prompts.takes_instruction,
            "training_datasets": training_sets(self.source),
        }
        return model_meta(name, identity_of_loaded(model).revision, settings, declared)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save everything that the vectors depend on to a folder that Embedder and SentenceTransformer load."""
        from unmask.models.identity import note_saved
        from unmask.saving.folder import save

        save(self, expanded(folder))
        note_saved(self.backbone.model, expanded(folder))

    def _encode_as(self, name: str, texts: Iterable[str], options: dict[str, object]) -> AnyVectors:
        if name in self.instructions and "instruction" not in options:
            options = {"instruction_name": name, **options}
        return self.encode(texts, **options)  # type: ignore[arg-type]

    def _encode_for_mteb(self, batches: Any, task_metadata: Any, prompt_type: Any = None, **options: Any) -> AnyVectors:
        """Vectors of mteb's batches. As in a comparison, a prompt that takes an instruction gets the task's, except for documents."""
        from unmask.tasks.mteb.protocol import OWN_OPTIONS, instruction_of, is_document, texts_of

        asks = self.prompts.takes_instruction and not is_document(prompt_type)
        options = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
        instruction = instruction_of(task_metadata) if asks else None
        vectors = self.encode(texts_of(batches), instruction=instruction, show_progress=False, **options)
        return as_floats(vectors) if vectors.dtype == np.uint8 else vectors  # mteb would take packed bits for numbers

    def _check_vectors(self, dim: int | None, precision: Precision) -> None:
        """Raise UnmaskError for vectors that cannot be, before texts are computed."""
        if self.design.is_sparse:
            raise UnmaskError(
                f"The vectors of '{self.design.name}' are sparse: use Embedder.encode_sparse, or a design without 'lexical'."
            )
        require_signs(self.design, precision)
        if dim is not None or precision not in ("float32", "float16", "int8"):
            require_width(dim, self.dim, precision)

    def _instruction(self, instruction: str | None, name: str | None) -> str | None:
        if name is None:
            return instruction
        if instruction is not None:
            raise UnmaskError("Give an instruction or its name, not both.")
        if name not in self.instructions:
            raise unknown("instruction", name, self.instructions or ["(this embedder has none)"])
        return self.instructions[name]


def _as_texts(texts: Iterable[str]) -> Sequence[str]:
    """Texts as a list, of anything that yields strings in an order: a generator, an array, a column of a table.

    Raises UnmaskError for anything without an order, for values that are not strings, and for a single string.
    """
    if isinstance(texts, (str, bytes)):
        raise UnmaskError("encode takes a list of texts, not one string: encode([text]).")
    # of these, Python would take the keys, the names of the columns, or any order
    if not isinstance(texts, Iterable) or isinstance(texts, (Mapping, Set)) or getattr(texts, "ndim", 1) != 1:
        raise UnmaskError(f"encode takes a list of texts, not {type(texts).__name__}: encode([text, text]).")
    listed = texts if isinstance(texts, (list, tuple)) else list(texts)
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise UnmaskError(f"Text {index} is {type(text).__name__}, not str.")
    return listed


def _rows_of_unit_length(vectors: NDArray[np.generic]) -> Vectors:
    return normalized(np.atleast_2d(as_floats(vectors)))
