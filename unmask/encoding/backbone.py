"""Backbone: a loaded decoder with a proven attention. Token batches in, pooled states and routing weights out.

States are pooled inside forward hooks, so that reading every layer never holds (layers, texts, tokens, dims) in memory. Logits are computed
only for the words of a text, and only for lexical designs. Layers above the last one that is read are not computed.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.designs.design import Attention, Design, plain_attention
from unmask.designs.prompts import AND
from unmask.encoding.features import Raw
from unmask.encoding.heads import CompressionTokens, Head
from unmask.encoding.lexical import lexical_vectors
from unmask.encoding.pooling import POOLINGS, Pool
from unmask.errors import AttentionError, UnmaskError
from unmask.models.attention import AttentionProof, attention_kept, hidden_of, prove_attention, set_attention
from unmask.models.decoder import (
    find_layers,
    first_position,
    has_hooks,
    model_lock,
    no_dropout,
    positions_of,
    require_headless,
    restore_rotary,
    sparse_limit,
    vocabulary_of,
)
from unmask.models.identity import attention_implementation
from unmask.models.output_layer import OutputLayer, find_output_layer
from unmask.models.placement import main_device
from unmask.models.rerouting import Placeholders, Rerouting, reroute
from unmask.models.routers import ROUTINGS, Router, verify_routers, why_no_routers
from unmask.models.soft_prompt import SoftPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PrefixCache:
    """Keys and values of tokens that precede the texts of a batch, computed once under causal attention.

    attention_mask: positions that hold a token. One row for all texts, or one row per text, padded on the left.
    """

    attention_mask: Bool[Tensor, "text token"]
    cache: Any

    @property
    def length(self) -> int:
        """Positions before each text, padding included."""
        return int(self.attention_mask.shape[1])

    def repeated(self, texts: int) -> tuple[Bool[Tensor, "text token"], Any]:
        """The mask and a copy of the keys and values for a batch of texts. The forward pass appends to the copy."""
        cache = deepcopy(self.cache)
        if len(self.attention_mask) == 1:
            cache.batch_repeat_interleave(texts)
        return self.attention_mask.expand(texts, -1), cache


@dataclass(frozen=True)
class Spans:
    """Ranges of tokens that are pooled in place of the embedded span: text of the batch, first position, and position after the last."""

    texts: Int[Tensor, " span"]
    first: Int[Tensor, " span"]
    stop: Int[Tensor, " span"]

    def gather(self, states: Float[Tensor, "text token dim"]) -> tuple[Tensor, Tensor]:
        """The states of each span, padded to the longest, and their mask."""
        texts, first, stop = (part.to(states.device)[:, None] for part in (self.texts, self.first, self.stop))
        positions = first + torch.arange(int((stop - first).max()), device=states.device)
        return states[texts, positions.clamp(max=states.shape[1] - 1)], positions < stop


@dataclass(frozen=True)
class TokenBatch:
    """Tokens of several texts, padded to one length on either side."""

    ids: Int[Tensor, "text token"]
    attention_mask: Bool[Tensor, "text token"]
    """Positions that hold a token."""
    pooling_mask: Bool[Tensor, "text token"]
    """Positions that are pooled (the embedded span)."""
    prefix: PrefixCache | None = None
    """Cached tokens before each text."""
    spans: Spans | None = None
    """Ranges that are pooled in place of `pooling_mask`, each to a vector."""
    word_ids: Sequence[Sequence[int]] | None = None
    """The tokens of each text's words, for lexical designs."""
    placeholders: Placeholders | None = None
    """Tokens before the embedded spans whose states a rerouting sets."""
    appended: SoftPrompt | None = None
    """Trained tokens after each text."""

    def with_placeholders(self, block: int | None) -> TokenBatch:
        """The batch with more tokens before each embedded span: one, or one for each block of this many tokens.

        They are attended to, and not pooled. Raises UnmaskError for spans.
        """
        if self.spans is not None:
            raise UnmaskError("Parts of a text have no vectors of their own if a placeholder precedes the whole text.")
        texts, tokens = self.ids.shape
        positions = torch.arange(tokens, device=self.ids.device)
        start = self.pooling_mask.int().argmax(dim=1, keepdim=True)
        end = torch.where(self.attention_mask, positions, -1).amax(dim=1, keepdim=True) + 1
        count = (end - start + block - 1) // block if block else torch.ones_like(start)
        place = torch.arange(tokens + int(count.max()), device=self.ids.device).expand(texts, -1)
        is_placeholder = (place >= start) & (place < start + count)
        source = torch.where(place < start, place, place - count)
        exists = (source < tokens) & ~is_placeholder
        ids, attention, pooling = (
            part.gather(1, source.clamp(0, tokens - 1)) for part in (self.ids, self.attention_mask, self.pooling_mask)
        )
        rows, columns = is_placeholder.nonzero(as_tuple=True)
        number = columns - start[rows, 0]
        last = torch.minimum(start[rows, 0] + (number + 1) * (block or tokens), end[rows, 0]) - 1
        return replace(
            self,
            ids=ids,
            attention_mask=(attention & exists) | is_placeholder,
            pooling_mask=pooling & exists,
            placeholders=Placeholders(rows, columns, last + count[rows, 0]),
        )

    def with_appended(self, embeddings: Float[Tensor, "new dim"]) -> TokenBatch:
        """The batch with trained tokens right after each text. They are attended to, and not pooled. Raises UnmaskError for spans."""
        if self.spans is not None:
            raise UnmaskError("Parts of a text have no vectors of their own where trained tokens follow the whole text.")
        (texts, tokens), count, device = self.ids.shape, len(embeddings), self.ids.device
        stop = torch.where(self.attention_mask, torch.arange(1, tokens + 1, device=device), 0).amax(dim=1, keepdim=True)
        positions = torch.arange(tokens + count, device=device).expand(texts, -1)
        here = (positions >= stop) & (positions < stop + count)
        before = torch.where(positions < stop, positions, positions - count).clamp(0, tokens - 1)
        ids, attention, pooling = (part.gather(1, before) for part in (self.ids, self.attention_mask, self.pooling_mask))
        return replace(
            self,
            ids=ids.masked_fill(here, 0),
            attention_mask=attention | here,
            pooling_mask=pooling & ~here,
            appended=SoftPrompt(stop + torch.arange(count, device=device), embeddings),
        )

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch on a device."""
        return replace(
            self,
            ids=self.ids.to(device),
            attention_mask=self.attention_mask.to(device),
            pooling_mask=self.pooling_mask.to(device),
            appended=self.appended and self.appended.to(device),
        )

    def pooled(self, pool: Pool, states: Tensor) -> Tensor:
        """A vector for each text, or for each span if there are any, on the batch's device: layers may lie on other devices."""
        if self.spans is not None:
            return pool(*self.spans.gather(states)).to(self.ids.device)
        return pool(states, self.pooling_mask.to(states.device)).to(self.ids.device)


@dataclass(frozen=True)
class HiddenRead:
    """Read the pooled output of layer k (1..L; layer L after the final norm)."""

    layer: int
    pool: Pool


@dataclass(frozen=True)
class RoutingRead:
    """Read the pooled routing weights of every MoE layer, concatenated over the layers."""

    kind: str
    pool: Pool


Read = HiddenRead | RoutingRead


UNSUPPORTED_CACHE = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)
"""Raised by architectures that return no KV cache, or accept none."""


class _DeepEnough(Exception):
    """Raised in the last layer that is read, to end the forward pass there."""


class Backbone:
    """A decoder under a proven attention, which it keeps even if other backbones or threads use the same model.

    `model` has no language-model head and is in evaluation mode; `proof` holds the measurements of its attention.
    """

    head: Head | None = None
    """The trained pooling, if the design has one."""
    rerouting: Rerouting | None = None
    """What its attention shows to early tokens besides what is before them."""
    autocast: torch.dtype | None = None
    """Precision of products while weights of another precision train."""
    _output: OutputLayer | None = None

    def __init__(self, model: PreTrainedModel, attention: Attention) -> None:
        """Wrap a loaded model, set its attention and prove it.

        Raises AttentionError if the proof fails, and UnmaskError for a model with its language-model head.
        """
        require_headless(model)
        self.layers = find_layers(model)
        restore_rotary(model)  # a cast of the whole model has rounded them
        self.model = model.eval()
        self.vocabulary = vocabulary_of(model)
        self._parameters = frozenset(inspect.signature(model.forward).parameters)
        self.set_attention(attention)  # first: a model that it refuses may not run at all
        with self.turn():
            self.routers: list[Router] = verify_routers(model)
            self._first_position = first_position(model)

    def set_attention(self, attention: Attention) -> None:
        """Switch the attention and prove it again. Raises AttentionError and then leaves the model unchanged."""
        attention, _, name = attention.partition(AND)
        rerouting = Rerouting.parse(name) if name else None
        if rerouting is not None:
            rerouting.require_layers(self.depth)
        with model_lock(self.model):
            with attention_kept(self.model):
                set_attention(self.model, attention)
                self.proof: AttentionProof = self._prove(attention)
            set_attention(self.model, attention)
            self.attention: Attention = f"{attention}{AND}{name}" if name else attention
            self.rerouting = rerouting
        if self.proof.hybrid:
            warnings.warn(f"{type(self.model).__name__} is {self.proof.summary}.", stacklevel=3)

    def _prove(self, attention: Attention) -> AttentionProof:
        """Prove the attention; if the model disobeys, with eager attention, which the model then keeps.

        Nemotron and StableLM do not tell the sdpa kernel that they are bidirectional, so it attends causally where nothing is padded.
        """
        try:
            return prove_attention(self.model, self.layers, attention)
        except AttentionError as error:
            implementation = attention_implementation(self.model)
            if attention == "causal" or implementation in ("eager", None) or not self.model._can_set_attn_implementation():
                raise
            try:
                self.model.set_attn_implementation("eager")
                proof = prove_attention(self.model, self.layers, attention)
            except (UnmaskError, ValueError):
                self.model.set_attn_implementation(implementation)
                raise error from None
        warnings.warn(
            f"{type(self.model).__name__} is {attention} only with eager attention, not with {implementation}, so it uses eager attention. "
            "That is slower on long texts. To choose it yourself: --attn eager, in Python attn_implementation='eager'.",
            stacklevel=4,
        )
        return proof

    def under(self, attention: Attention) -> Backbone:
        """This backbone, or a second one of the same model, under an attention. Raises AttentionError."""
        if attention == self.attention:
            return self
        backbone = copy(self)
        with model_lock(self.model), attention_kept(self.model):
            backbone.set_attention(attention)
        return backbone

    def with_head(self, head: Head) -> Backbone:
        """A new backbone of the same model with a trained head. This backbone does not change."""
        backbone = copy(self)
        backbone.head = head.to(self.device)
        return backbone

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Exclusive use of the model, under the attention of this backbone. Every forward pass runs inside a turn.

        Several backbones may share a model, and attention and hooks are state of the model, so threads take turns, and each turn restores
        the attention. Without gradients, dropout is off.
        """
        with model_lock(self.model), attention_kept(self.model), no_dropout(self.model):
            set_attention(self.model, plain_attention(self.attention))
            yield

    @property
    def device(self) -> torch.device:
        """The device of token ids and pooled states: that of the model, or of its embeddings if it is spread over several devices."""
        return main_device(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next(self.model.parameters()).dtype

    @property
    def depth(self) -> int:
        """Number of layers, L."""
        return len(self.layers)

    @property
    def appended(self) -> int:
        """Number of trained tokens that the head adds to a text."""
        return len(self.head.latents) if isinstance(self.head, CompressionTokens) else 0

    def within_positions(self, max_length: int) -> int:
        """The limit, or the number of tokens that the model has positions for, or reads without selecting, if that is smaller."""
        positions = positions_of(self.model)
        limit = min(max_length, positions - self._first_position - self.appended) if positions else max_length
        if (sparse := sparse_limit(self.model)) is None or limit <= (sparse := sparse - self.appended):
            return limit
        warnings.warn(
            f"{type(self.model).__name__} reads at most {sparse} tokens of a text, not {limit}: beyond that, its indexer selects the "
            "tokens that are attended to, and embeddings would depend on the batch. Longer texts are cut: chunk them, or set max_length to "
            f"{sparse}.",
            stacklevel=3,
        )
        return sparse

    def reads(self, design: Design) -> tuple[list[HiddenRead], RoutingRead | None]:
        """The reads of a design in the forward pass of one prompt. Raises UnmaskError if the model lacks the layer or the routers."""
        self._require_parts(design)
        layers = range(1, self.depth + 1) if isinstance(design.layer, str) else design.numbered_layers or [self.depth]
        hidden = [HiddenRead(layer, POOLINGS[pooling]) for pooling in design.poolings for layer in layers]
        routing = RoutingRead(design.routing or "softmax", POOLINGS[design.poolings[0]]) if design.uses_routing else None
        return hidden if design.uses_hidden or design.is_sparse else [], routing

    def check(self, design: Design) -> None:
        """Raise UnmaskError for a design that this model, with its head, cannot serve."""
        self._require_parts(design)
        if design.is_sparse:  # a filter needs the output layer only to be fitted, and a saved one is
            _ = self.output_layer

    @property
    def output_layer(self) -> OutputLayer:
        """The layer that predicts tokens, looked up on first use. Raises UnmaskError for a model without one."""
        if self._output is None:
            self._output = find_output_layer(self.model)
        return self._output

    def _require_parts(self, design: Design) -> None:
        if design.needs_head and not self._serves(design):
            raise UnmaskError(f"'{design.name}' needs a trained head. Train an embedder with it: `unmask train`.")
        if design.uses_routing and not self.routers:
            raise UnmaskError(
                f"'{design.name}' uses routing weights, but {type(self.model).__name__} {why_no_routers(self.model)}. "
                "Features 'hidden' work on every model."
            )
        if max(design.numbered_layers, default=0) > self.depth:
            raise UnmaskError(
                f"'{design.name}' reads layer {max(design.numbered_layers)}, but this model has {self.depth} layers."
            )

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def cache_prefix(self, prefixes: Sequence[Sequence[int]]) -> PrefixCache | None:
        """The KV cache of one prefix for all texts, or of one prefix per text; None if this model cannot reuse it.

        It cannot if tokens attend to what follows, if a head or foreign hooks read all tokens of a text, or if the model's cache cannot be
        repeated.
        """
        if self.attention != "causal" or self.head is not None:
            return None
        longest = max(map(len, prefixes))
        # padding is on the left: between prefix and text it would use up positions of a sliding window
        ids = torch.tensor([[0] * (longest - len(ids)) + list(ids) for ids in prefixes], device=self.device)
        attention_mask = torch.arange(longest) >= torch.tensor([[longest - len(ids)] for ids in prefixes])
        with self.computing():
            if has_hooks(self.model):  # inside the turn: outside of it, other threads have hooks on the model
                return None
            try:
                output = self.model(input_ids=ids, use_cache=True, **self._positions(attention_mask.to(self.device)))
            except torch.OutOfMemoryError:
                raise
            except UNSUPPORTED_CACHE:
                return None
        cache = getattr(output, "past_key_values", None)
        # a state of linear attention cannot be repeated, and the padding before a shorter text would be in it
        parts = (cache, *getattr(cache, "layers", ()))
        return (
            PrefixCache(attention_mask.to(self.device), cache)
            if all(hasattr(part, "batch_repeat_interleave") for part in parts)
            else None
        )

    def raw(self, batch: TokenBatch, designs: Iterable[Design]) -> dict[Design, Raw]:
        """The features of each design, from ONE pass over a batch. Designs may differ in pooling, layer and features.

        `@all` concatenates the vectors of every layer at unit length. Its cosine is the mean of the layers' cosines. `@mean` averages them.
        """
        designs = list(designs)
        if isinstance(self.head, CompressionTokens) and any(map(self._serves, designs)):
            batch = batch.with_appended(self.head.latents)  # under causal attention, nothing that other designs read changes
        headed = {design: self._head_reads(design, batch) for design in designs if self._serves(design)}
        plans = {design: self.reads(design) for design in designs if design not in headed}
        reads: set[Read] = {item for hidden, _ in plans.values() for item in hidden}
        reads |= {routing for _, routing in plans.values() if routing}
        values = self.read(batch, reads | {item for head_reads, _ in headed.values() for item in head_reads})
        raws = {design: Raw(pool(values)) for design, (_, pool) in headed.items()}
        for design, (hidden, routing) in plans.items():
            layers = [values[item] for item in hidden]
            if design.is_sparse:
                if batch.word_ids is None:
                    raise UnmaskError(
                        "A lexical design needs the words of each text, and here are only tokens. Use another design."
                    )
                raws[design] = Raw(lexical=lexical_vectors(layers[0], batch.word_ids, self.output_layer))
            else:
                raws[design] = Raw(_joined(layers, design) if layers else None, values[routing] if routing else None)
        return raws

    def _serves(self, design: Design) -> bool:
        return self.head is not None and design.pooling == self.head.kind

    def layer_reads(self) -> list[HiddenRead]:
        """The reads of a head over layers: every layer, pooled as in Pooling and Attention (designs 3 and 5).

        That is the last token under causal attention, and the mean under bidirectional attention.
        """
        pool = POOLINGS["last" if self.attention == "causal" else "mean"]
        return [HiddenRead(layer, pool) for layer in range(1, self.depth + 1)]

    def _head_reads(self, design: Design, batch: TokenBatch) -> tuple[list[Read], Callable[[dict[Read, Tensor]], Tensor]]:
        """The reads of the head in a pass, and the function that turns their values into vectors.

        A head over tokens runs inside the read, so that its states do not stay in memory. The condition of a conditioned head is the mean
        state of every token before the embedded span, since a batch does not say which of them belong to the instruction. So with a BOS
        or a chat header, a text without an instruction has a condition too.
        """
        head = self.head
        assert head is not None
        if isinstance(head, CompressionTokens):
            compressed = self._compressed(head, batch)
            assert batch.appended is not None
            exists = batch.appended.positions[:, -head.read :] >= 0  # all; a trace would hold the number of texts of torch.ones

            def pool_compressed(values: dict[Read, Tensor]) -> Tensor:
                states = values[compressed].unflatten(1, (head.read, -1))
                return head(states, exists.to(states.device))  # type: ignore[no-any-return]

            return [compressed], pool_compressed
        before = (batch.attention_mask & ~batch.pooling_mask) if head.options.conditioned else None
        if design.pooling != "layer-attention":

            def pool_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
                hidden, mask = hidden.to(self.device), mask.to(self.device)
                return head(hidden, mask, _mean_or_zero(hidden, before))  # type: ignore[no-any-return]

            last = HiddenRead(design.layer if isinstance(design.layer, int) else self.depth, pool_tokens)
            return [last], lambda values: values[last]
        layers = self.layer_reads()
        condition = HiddenRead(self.depth, lambda hidden, _: _mean_or_zero(hidden, before))

        def pool_layers(values: dict[Read, Tensor]) -> Tensor:
            states = torch.stack([values[layer] for layer in layers], dim=1)
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
            return head(states, mask, values.get(condition))  # type: ignore[no-any-return]

        return [*layers, *([condition] if before is not None else [])], pool_layers

    def _compressed(self, head: CompressionTokens, batch: TokenBatch) -> HiddenRead:
        """The read of the last states of the compression tokens, one after the other."""
        assert batch.appended is not None
        positions = batch.appended.positions[:, -head.read :, None]
        return HiddenRead(
            self.depth,
            lambda hidden, _: hidden.float().gather(1, positions.to(hidden.device).expand(-1, -1, hidden.shape[2])).flatten(1),
        )

    def compress(self, batch: TokenBatch) -> Float[Tensor, "text token dim"]:
        """The last states of the compression tokens after each text, in fp32. For a model whose head has such tokens."""
        assert isinstance(self.head, CompressionTokens)
        batch = batch.with_appended(self.head.latents)
        item = self._compressed(self.head, batch)
        return self.read(batch, [item])[item].unflatten(1, (self.head.read, -1))

    def read(self, batch: TokenBatch, reads: Iterable[Read]) -> dict[Read, Float[Tensor, "text dim"]]:
        """Run one pass and return the value of each read, in fp32 on the model's device, with gradients where they are enabled."""
        values: dict[Read, Tensor] = {}
        routing: dict[RoutingRead, list[Tensor]] = {}
        by_layer: dict[int, list[HiddenRead]] = {}
        for item in reads:
            if isinstance(item, HiddenRead):
                by_layer.setdefault(item.layer, []).append(item)
            else:
                routing[item] = []
        self._require_embeddings(batch)
        batch = batch.to(self.device)
        if self.rerouting is not None and self.rerouting.kind == "prepend":
            batch = batch.with_placeholders(self.rerouting.block)
        stop = None if routing else max(by_layer)

        def pool_states(layer: int, _: nn.Module, __: Any, output: Any) -> None:
            hidden = hidden_of(output)
            with torch.autocast(hidden.device.type, enabled=False):  # poolings compute in fp32
                for item in by_layer[layer]:
                    values[item] = batch.pooled(item.pool, hidden)
            if layer == stop:
                raise _DeepEnough

        def pool_weights(router: Router, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            output = router.add_scores((*args, *kwargs.values()), output)
            weights = {kind: ROUTINGS[kind](router, output) for kind in {item.kind for item in routing}}
            for item, pooled in routing.items():
                pooled.append(batch.pooled(item.pool, weights[item.kind].reshape(*batch.ids.shape, -1)))

        with self.turn(), ExitStack() as hooks:
            for layer in by_layer.keys() - {self.depth}:
                handle = self.layers[layer - 1].register_forward_hook(partial(pool_states, layer))
                hooks.callback(handle.remove)
            for router in self.routers if routing else []:
                handle = router.module.register_forward_hook(partial(pool_weights, router), with_kwargs=True)
                hooks.callback(handle.remove)
            reached = hooks.enter_context(self._rerouted(batch))
            if batch.appended is not None:
                hooks.enter_context(batch.appended.inside(self.model))
            final = self._forward(batch)
        if self.rerouting is not None:
            expected = range(self.rerouting.first, min(self.rerouting.last, stop or self.depth) + 1)
            if missing := set(expected) - reached:
                raise UnmaskError(
                    f"{type(self.model).__name__} did not reroute layer {min(missing)}: it attends in a way of its own."
                )
        for item in by_layer.get(self.depth, []):
            assert final is not None
            values[item] = batch.pooled(item.pool, final)
        if any(not pooled for pooled in routing.values()):
            raise UnmaskError("Routing weights cannot be read: no router ran, because the experts are switched off.")
        return values | {item: torch.cat(pooled, dim=1) for item, pooled in routing.items()}

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A turn for computing. During training, LoRA in fp32 on top of weights in bf16 multiplies in bf16."""
        with self.turn(), torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            yield

    def _require_embeddings(self, batch: TokenBatch) -> None:
        """Raise UnmaskError for a token without an embedding, before a GPU meets it, where no later call would work.

        Prompts refuse such a text by name (`PromptTokenizer`). Probes tokenize in other ways.
        """
        if torch.jit.is_tracing() or batch.ids.device.type != "cpu":
            return
        beyond = batch.ids[batch.attention_mask & (batch.ids >= self.vocabulary)]
        if len(beyond):
            raise UnmaskError(
                f"A text holds token {int(beyond[0])}, and the model has embeddings of tokens 0 to {self.vocabulary - 1}. Remove the token "
                "from the text, or use the tokenizer that the model was trained with."
            )

    def _forward(self, batch: TokenBatch) -> Tensor | None:
        # a tokenizer may pad with a token that the model has no embedding of
        ids = batch.ids.where(batch.attention_mask | (batch.ids < self.vocabulary), 0)
        inputs: dict[str, Any] = {"input_ids": ids, "use_cache": False}
        before, attention_mask = 0, batch.attention_mask
        if batch.prefix is not None:
            before = batch.prefix.length
            mask_before, inputs["past_key_values"] = batch.prefix.repeated(len(attention_mask))
            attention_mask = torch.cat([mask_before, attention_mask], dim=1)
        inputs |= self._positions(attention_mask, before)
        try:
            with self.computing():
                return self.model(**inputs).last_hidden_state  # type: ignore[no-any-return]
        except _DeepEnough:
            return None

    def _rerouted(self, batch: TokenBatch) -> AbstractContextManager[set[int]]:
        """The rerouting of the attention, if it has one, and the layers that it has reached so far."""
        if self.rerouting is None:
            return nullcontext(set())
        positions = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        last = torch.where(batch.attention_mask, positions, -1).argmax(dim=1)
        return reroute(self.model, self.layers, self.rerouting, last, batch.placeholders)

    def _positions(self, attention_mask: Bool[Tensor, "text token"], before: int = 0) -> dict[str, Tensor]:
        """Mask and position ids of tokens that follow `before` cached ones; nothing for texts without cache and padding.

        A model that counts positions itself gets the mask alone.
        """
        # a graph that is being exported serves batches with padding and without
        if not before and not torch.jit.is_tracing() and attention_mask.all():
            return {}
        inputs = {"attention_mask": attention_mask.long()}
        if "position_ids" in self._parameters and not self._first_position:
            # without position ids, GPT-2 counts positions from the left edge of the padding
            inputs["position_ids"] = (attention_mask.long().cumsum(dim=1) - 1).clamp_min(0)[:, before:]
        return inputs


def _mean_or_zero(hidden: Tensor, mask: Tensor | None) -> Tensor | None:
    """Mean state of the tokens of a mask; zero for a text without such tokens."""
    if mask is None:
        return None
    weights = mask.to(hidden.device, torch.float32)
    total = torch.bmm(weights.unsqueeze(1), hidden.float().masked_fill(~weights.bool().unsqueeze(-1), 0.0)).squeeze(1)
    return total / weights.sum(dim=1, keepdim=True).clamp_min(1.0)


def _joined(layers: list[Tensor], design: Design) -> Tensor:
    """The hidden states of a design: of every pooling at every layer, one after the other."""
    if isinstance(design.layer, int | tuple) or design.layer is None:
        return torch.cat(layers, dim=1) if len(layers) > 1 else layers[0]
    depth = len(layers) // len(design.poolings) if design.adds_poolings else len(layers)
    return torch.cat(
        [
            torch.cat([nn.functional.normalize(layer, dim=1) for layer in of_pooling], dim=1)
            if design.layer == "all"
            else torch.stack(of_pooling).mean(0)
            for of_pooling in (layers[start : start + depth] for start in range(0, len(layers), depth))
        ],
        dim=1,
    )
