"""Encoder: a loaded decoder and its tokenizer. Texts in, the vectors of any number of designs out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unmask.designs.design import Attention, Design
from unmask.designs.prompts import Prompts
from unmask.encoding.backbone import Backbone
from unmask.encoding.batching import collate, default_batch_tokens, padded_tokens, plan, share, shares, steps_of
from unmask.encoding.dedup import UniqueTexts
from unmask.encoding.features import Fit, Raw, check_corpus, fit, joined
from unmask.encoding.forward_pass import ForwardPass, Vectors, after_prefixes, group_by_pass, require_finite
from unmask.encoding.replicas import in_parallel, threads_for
from unmask.encoding.shared_prefix import (
    Progress,
    PromptBatch,
    SharedResult,
    encode_with_shared_prefix,
    group_by_shared_prefix,
)
from unmask.encoding.tokenization import MAX_LENGTH, DesignTokenizer, TokenizedText, tokenizer_of
from unmask.errors import UnmaskError
from unmask.models.identity import attention_implementation, identity_of_loaded
from unmask.models.loading import dtype_name
from unmask.models.provenance import hardware, versions
from unmask.models.source import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_NAMED = 5  # texts that a warning lists
OnError = Callable[[Design, UnmaskError], None]
"""Takes a design that cannot be fitted, and the reason."""


@dataclass
class Tally:
    """Counts of encoding: texts, truncated texts, tokens computed, and tokens including padding.

    cut: indices of the truncated texts, counted over all texts of the tally. by_prompt: tokens by prompt, for a design with several prompts
    in a comparison.
    """

    texts: int = 0
    truncated: int = 0
    tokens: int = 0
    padded: int = 0
    cut: list[int] = field(default_factory=list)
    by_prompt: dict[str, int] = field(default_factory=dict)

    def count(self, texts: Sequence[TokenizedText]) -> None:
        """Add texts."""
        cut = [self.texts + index for index, text in enumerate(texts) if text.truncated]
        self.texts += len(texts)
        self.truncated += len(cut)
        self.cut += cut

    def count_batch(self, texts: Sequence[TokenizedText], prompts: int) -> None:
        """Add the tokens of a batch, with one forward pass per prompt."""
        self.tokens += sum(len(text.ids) for text in texts)
        longest = (max(len(text.part(index).ids) for text in texts) for index in range(prompts))
        self.padded += len(texts) * sum(longest)


def warn_of_truncation(indices: Sequence[int], texts: int, limit: int) -> None:
    """Warn, at the user's call site, which texts were truncated, if any, and say what to do."""
    if not indices:
        return
    listed = ", ".join(map(str, indices[:_MAX_NAMED])) + (
        f" and {len(indices) - _MAX_NAMED} more" if len(indices) > _MAX_NAMED else ""
    )
    verb = "was" if len(indices) == 1 else "were"
    warnings.warn(
        f"{len(indices)} of {texts} texts {verb} cut to {limit} tokens: text {listed} (counted from 0). "
        "A larger max_length (--max-length) keeps more of a text, up to the model's own limit.",
        stacklevel=3,
    )


@dataclass(frozen=True, eq=False)
class Encoder:
    """A loaded decoder and its tokenizer. Encodes texts by any number of designs, computing each distinct token sequence once.

    Embeddings do not depend on the rest of the batch, nor on the number of threads (up to 1e-5 in fp32; in bf16, up to its rounding).
    """

    backbone: Backbone
    """The model under its first attention, with the trained head if there is one."""
    tokenizer: PreTrainedTokenizerBase
    source: Source
    max_length: int = MAX_LENGTH
    """Most tokens of one text with its prompt; fewer if the model has fewer positions (`token_limit`)."""
    batch_tokens: int = 0
    """Most tokens of one batch, padding included. 0 chooses by device."""
    language_model: Any = None
    """The model with its output layer, for probes that read its predictions."""
    _backbones: dict[Attention, Backbone] = field(default_factory=dict, repr=False)
    _tokenizers: dict[tuple[Prompts, int], DesignTokenizer] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Choose the size of batches."""
        if not self.batch_tokens:
            object.__setattr__(self, "batch_tokens", default_batch_tokens(self.backbone))
        self._backbones.setdefault(self.backbone.attention, self.backbone)

    def under(self, attention: Attention) -> Encoder:
        """The same model under an attention. Raises AttentionError."""
        if attention == self.backbone.attention:
            return self
        backbone = self._backbones.get(attention)
        if backbone is None or backbone.attention != attention:  # training switches the attention of a backbone
            backbone = self._backbones[attention] = self.backbone.under(attention)
        return replace(self, backbone=backbone)

    @property
    def token_limit(self) -> int:
        """Most tokens of one text with its prompt: max_length, or what the model has positions for."""
        return self.backbone.within_positions(self.max_length)

    def prompt_tokenizer(self, prompt: Prompts) -> DesignTokenizer:
        """The tokenizer of a prompt, or of several."""
        key = prompt, self.max_length
        if key not in self._tokenizers:
            self._tokenizers[key] = tokenizer_of(self.tokenizer, prompt, self.token_limit, self.backbone.vocabulary)
        return self._tokenizers[key]

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the model comes from, the proof of its attention, and the hardware and libraries that computed."""
        model = self.backbone.model
        identity = identity_of_loaded(model)
        return {
            **asdict(self.source),
            "attn_implementation": attention_implementation(model),
            "dtype": dtype_name(model),
            "weights": identity.revision,
            "identity": identity.as_json(),
            "proof": self.backbone.proof.summary,
            "hardware": hardware(self.backbone.device),
            "versions": versions(),
        }

    def check(self, designs: Iterable[Design]) -> None:
        """Raise UnmaskError or AttentionError for a design that the model cannot serve, before anything is computed."""
        designs = list(designs)
        for design in designs:
            self.backbone.check(design)
        for attention in dict.fromkeys(design.attention for design in designs):
            self.under(attention)

    def forward_pass(self, designs: Mapping[Design, Fit]) -> ForwardPass:
        """The forward pass of designs that share an attention and a prompt."""
        [(attention, prompt)] = group_by_pass(designs)
        return ForwardPass(self.under(attention).backbone, self.prompt_tokenizer(prompt), designs)

    def encode(
        self,
        texts: Sequence[str],
        designs: Mapping[Design, Fit],
        *,
        instruction: str | None = None,
        tally: Tally | None = None,
        progress: Progress | None = None,
        share_text: bool = False,
    ) -> dict[Design, Vectors]:
        """Vectors of every design, each float32 of shape (text, dim), in the order of the texts.

        Designs that share attention and prompt share the forward passes. Causal designs of the last token also share the reading of a text
        if their prompts start the same way, with `share_text`: vectors then differ by rounding.

        Args:
            texts: any strings; equal texts are computed once.
            designs: each with its fit (`fit`, or `Fit()` for a design that needs none).
            instruction: for prompts with `{instruction}`.
            tally: counts texts and tokens of each forward pass; not with share_text.
            progress: called after every batch, with the texts done since the last call; each forward pass counts all texts.

        Raises UnmaskError for a design that the model cannot serve, before any text is computed, and for a vector that is not finite.
        """
        self.check(designs)
        groups = group_by_pass(designs)
        vectors: dict[Design, Vectors] = {}
        for keys in group_by_shared_prefix(groups, self.prompt_tokenizer) if share_text else [[key] for key in groups]:
            batches = [
                PromptBatch(
                    self.forward_pass({design: designs[design] for design in groups[key]}),
                    list(self.prompt_tokenizer(key[1]).tokenize(texts, instruction)),
                )
                for key in keys
            ]
            if share_text:
                results = self.encode_prompts(batches, progress).vectors
            else:
                results = [
                    self.encode_tokenized(batch.texts, batch.forward.fits, tally=tally, progress=progress) for batch in batches
                ]
            vectors |= {design: values for result in results for design, values in result.items()}
        return vectors

    def encode_prompts(self, batches: Sequence[PromptBatch], progress: Progress | None = None) -> SharedResult:
        """Vectors of the same texts in several prompts, from one reading of each text where that is faster."""
        result = encode_with_shared_prefix(batches, self.batch_tokens, progress)
        if result is not None:
            return result
        vectors, tokens = [], []
        for batch in batches:
            tally = Tally()
            vectors.append(self.encode_tokenized(batch.texts, batch.forward.fits, tally=tally, progress=progress))
            tokens.append(tally.tokens)
        return SharedResult(vectors, tokens, sum(tokens))

    def encode_tokenized(
        self,
        texts: Sequence[TokenizedText],
        designs: Mapping[Design, Fit],
        *,
        names: Sequence[int] | None = None,
        tally: Tally | None = None,
        progress: Progress | None = None,
        fixed_batches: bool = False,
        allow_nan: bool = False,
    ) -> dict[Design, Vectors]:
        """As `encode`, for texts that the tokenizer of the designs' prompt has tokenized. A text with spans has a vector for each.

        Args:
            names: the number by which an error names each text; by default its index.
            fixed_batches: on a CPU, make the same batches whatever the number of cores, and compute each on one core. With few texts,
                cores stay idle.
            allow_nan: do not raise for vectors that are not finite.
        """
        forward = self.forward_pass(designs)
        backbone, distinct = forward.backbone, UniqueTexts(texts, by_words=any(design.is_sparse for design in designs))
        if tally is not None:
            tally.count(texts)
        prefixes = forward.find_prefixes(distinct.texts)
        skipped, appended = [prefix.length if prefix else 0 for prefix in prefixes], backbone.appended
        rests = [after_prefixes(text, skipped) for text in distinct.texts]
        lengths = [text.longest + appended for text in rests]
        tokens = sum(lengths)
        threads = threads_for(backbone) if fixed_batches else threads_for(backbone, tokens)
        budget = self.batch_tokens if fixed_batches else share(self.batch_tokens, tokens, threads)
        added = [count + appended for count in skipped]
        batches = plan(lengths, budget, max(skipped), [steps_of(map(add, text.lengths, added)) for text in rests])

        def compute(replica: Backbone, batch: list[int]) -> dict[Design, Vectors]:
            return forward.vectors([rests[index] for index in batch], prefixes, replica)

        results: dict[Design, Vectors] = {}
        progress_shares = shares(len(texts), padded_tokens(batches, lengths))
        computed_batches = in_parallel(backbone, batches, threads, compute)
        for batch, computed, texts_done in zip(batches, computed_batches, progress_shares, strict=True):
            if tally is not None:
                tally.count_batch([rests[index] for index in batch], prompts=len(prefixes))
            for design, values in computed.items():
                if not allow_nan:
                    indices = [int(distinct.first[index]) for index in batch for _ in distinct.rows_of([index])]
                    require_finite(values, indices if names is None else [names[index] for index in indices], backbone.dtype)
                if design not in results:
                    results[design] = np.empty((distinct.rows, values.shape[1]), np.float32)
                results[design][distinct.rows_of(batch)] = values
            if progress:
                progress(texts_done)
        if not results:
            return {design: np.empty((0, forward.width(design)), np.float32) for design in designs}
        return {design: distinct.expand(values) for design, values in results.items()}

    def fit(self, designs: Iterable[Design], texts: Sequence[str], *, on_error: OnError | None = None) -> dict[Design, Fit]:
        """Fit what the designs need (standardisation, whitening, alpha, idf) on reference texts. Designs of one prompt share a pass.

        A corpus that is too small for a design is noticed before the pass. on_error: takes a design that cannot be fitted, and the reason,
        and the other designs are still fitted; without it, UnmaskError is raised.
        """
        fits = {design: Fit() for design in designs}
        for group in group_by_pass([design for design in fits if design.needs_fit]).values():
            fitted = dict(self._fit_group(group, texts, on_error))
            fits = {
                design: fitted.get(design, value) for design, value in fits.items() if design in fitted or design not in group
            }
        return fits

    def _fit_group(self, designs: list[Design], texts: Sequence[str], on_error: OnError | None) -> Iterator[tuple[Design, Fit]]:
        forward = self.forward_pass(dict.fromkeys(designs, Fit()))
        tokenized = list(forward.tokenizer.tokenize(texts))
        sample = forward.features(tokenized[:1] or list(forward.tokenizer.tokenize(["a"])))
        order: list[int] = []
        raws: dict[Design, list[Raw]] = {}
        for design in designs:
            try:
                check_corpus(design, sample[design], len(texts))
                raws[design] = []
            except UnmaskError as error:
                if on_error is None:
                    raise
                on_error(design, error)
        for batch in plan([text.longest for text in tokenized], self.batch_tokens) if raws else ():
            order.extend(batch)
            for design, raw in forward.features([tokenized[index] for index in batch], designs=raws).items():
                raws[design].append(
                    Raw(*(None if part is None else part.cpu() for part in (raw.hidden, raw.routing, raw.lexical)))
                )
        for design, parts in raws.items():
            try:
                raw = joined(parts)
                for values in raw.parts:
                    require_finite(values.float().numpy(), order, forward.backbone.dtype, "reference text")
                weights = forward.backbone.output_layer.weight.cpu() if design.uses_output_layer else None
                yield design, fit(design, raw, weights)
            except UnmaskError as error:
                if on_error is None:
                    raise
                on_error(design, error)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def layer_states(
        self, texts: Sequence[str], prompt: Prompts, instruction: str | None = None
    ) -> Float[Tensor, "text layer dim"]:
        """The input of a head over layers: the pooled states of each text by layer, on the model's device."""
        tokenizer, reads = self.prompt_tokenizer(prompt), self.backbone.layer_reads()
        tokenized = list(tokenizer.tokenize(texts, instruction))
        states: list[Tensor] = [torch.empty(0)] * len(texts)
        for batch in plan([len(text.ids) for text in tokenized], self.batch_tokens):
            values = self.backbone.read(collate([tokenized[index] for index in batch], tokenizer.pad_id), reads)
            stacked = torch.stack([values[item] for item in reads], dim=1)
            require_finite(stacked.flatten(1).cpu().numpy(), batch, self.backbone.dtype)
            for index, layers in zip(batch, stacked, strict=True):
                states[index] = layers
        return torch.stack(states)
