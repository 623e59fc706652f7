"""Heads: poolings with parameters. They turn token states into one vector for each text, and training fits them.

`head(states, mask)` gives one fp32 vector for each text, not normalised. A head ignores masked positions, in values and in gradients.
They may hold anything, even NaN, and may be on either side. tests/encoding/test_heads.py checks this for every head in HEADS. A text
without unmasked positions gives NaN, never a plausible vector.

A new head is close to mean pooling of layer-normalised states (latent attention: of the states themselves). For this, the value projection
starts with orthogonal rows, and the output projection as its transpose. Latents and the MLP's output start small, and by default no linear
layer has a bias. Large latents or biases would add the same constant to every vector. All cosines would then be near 1, and a short
training would spend most of its steps on removing that constant. Compression tokens are not like this: their vectors are copied from a
teacher.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn import functional

from unmask.errors import UnmaskError, unknown


class HeadOptions(BaseModel):
    """Sizes and parts of a head.

    latents: number r of trainable queries (cross-attention and layer-attention; None is 8), or of trainable keys (latent-attention;
    None is 512, as in NV-Embed), or of trained tokens (compression-tokens; None is 20). heads: attention heads. dim: inner width of the
    attention, or the width of the vectors (compression-tokens: that of the teacher's); None is the hidden size. mlp: width of
    the GEGLU as a multiple of the hidden size; 0 disables it. mlp_bias: biases in the GEGLU, as in the weights of NV-Embed. layer_matrix:
    add a trainable vector to each layer (layer-attention only). centred: training starts the layer matrix at minus the mean of each layer
    over the reference texts. conditioned: queries depend on the instruction and other tokens before the text (not in latent-attention: its
    queries are the tokens). read: the number of trained tokens that are read, the last ones (compression-tokens only; None is half of
    them).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    latents: int | None = None
    heads: int = 8
    dim: int | None = None
    mlp: float = 1.0
    mlp_bias: bool = False
    layer_matrix: bool = True
    centred: bool = False
    conditioned: bool = False
    read: int | None = None


DEFAULTS = HeadOptions()


class Head(nn.Module):
    """The common part of all heads.

    options: all options, with the defaults filled in. A saved head therefore states its sizes: `build_head(head.kind, hidden, depth,
    head.options)` makes a head that fits its state_dict.
    """

    kind: ClassVar[str]
    default_latents: ClassVar[int] = 8

    def __init__(self, hidden: int, depth: int, options: HeadOptions) -> None:
        """Make a head with new parameters, in fp32. Raises UnmaskError for options that do not work."""
        super().__init__()
        latents = self.default_latents if options.latents is None else options.latents
        dim = hidden if options.dim is None else options.dim
        self.options = options.model_copy(update={"latents": latents, "dim": dim})
        self.hidden, self.depth = hidden, depth
        for name, size in {"latents": latents, "heads": options.heads, "dim": dim}.items():
            if size < 1:
                raise UnmaskError(f"A head needs {name} of at least 1, not {size}.")
        self._check_options(latents, dim)
        self.latents = nn.Parameter(torch.empty(latents, hidden, dtype=torch.float32).normal_(std=0.02))

    def _check_options(self, latents: int, dim: int) -> None:
        raise NotImplementedError

    def forward(
        self,
        states: Float[Tensor, "text position dim"],
        mask: Bool[Tensor, "text position"],
        condition: Float[Tensor, "text dim"] | None = None,
    ) -> Float[Tensor, "text width"]:
        """One vector for each text. Always fp32, also with a bf16 model and under autocast.

        states: of tokens, or of layers (layer-attention). mask: the positions to pool. condition: mean state of the tokens before the
        text, such as an instruction or a BOS; zeros for a text without such tokens; only for a conditioned head. Raises UnmaskError if
        these do not fit the head.
        """
        with torch.autocast(states.device.type, enabled=False):
            return self._pool(self._checked(states, mask, condition), mask, condition)

    def attention(
        self,
        states: Float[Tensor, "text position dim"],
        mask: Bool[Tensor, "text position"],
        condition: Float[Tensor, "text dim"] | None = None,
    ) -> Float[Tensor, "text head latent position"]:
        """The attention of each latent to each position. It sums to 1; masked positions get 0. Raises UnmaskError as forward does."""
        with torch.autocast(states.device.type, enabled=False):
            return self._weights(self._checked(states, mask, condition), mask, condition)

    def _pool(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _weights(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _checked(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        """The states in fp32, 0 at masked positions: before everything else, since NaN * 0 is NaN, in the backward pass too."""
        if states.shape[-1] != self.hidden:
            raise UnmaskError(f"This {self.kind} head is for states of {self.hidden} dimensions, not {states.shape[-1]}.")
        if self.options.conditioned and condition is None:
            raise UnmaskError(
                "This head is conditioned: it needs the mean state of the tokens before each text, or zeros if there are none."
            )
        if not self.options.conditioned and condition is not None:
            raise UnmaskError(
                "This head is not conditioned, so a condition would change nothing: build it with conditioned=True."
            )
        return states.float().masked_fill(~mask.unsqueeze(-1), 0.0)


class _AttentionHead(Head):
    """Attention of latents and positions, and an MLP."""

    def __init__(self, hidden: int, depth: int, options: HeadOptions) -> None:
        super().__init__(hidden, depth, options)
        self.latent_norm = nn.LayerNorm(hidden, dtype=torch.float32)
        self.state_norm = nn.LayerNorm(hidden, dtype=torch.float32)
        self.attend = Attend(hidden, self.options.dim or hidden, options.heads)
        self.mlp = GEGLU(hidden, round(options.mlp * hidden), options.mlp_bias) if options.mlp else None

    def _check_options(self, latents: int, dim: int) -> None:
        options = self.options
        if dim % options.heads:
            divisors = [str(count) for count in range(1, min(dim, 64) + 1) if dim % count == 0]
            raise UnmaskError(
                f"dim {dim} is not divisible by {options.heads} heads. Possible numbers of heads: {', '.join(divisors)}."
            )
        if options.mlp < 0 or (options.mlp > 0 and round(options.mlp * self.hidden) < 1):
            raise UnmaskError(
                f"mlp={options.mlp} is not a valid width for {self.hidden} dimensions. "
                f"Use 0 for no MLP, or at least {1 / self.hidden:.4f}."
            )
        if options.mlp_bias and not options.mlp:
            raise UnmaskError("mlp_bias=True changes nothing without an MLP.")
        over_layers = isinstance(self, LayerAttention)
        if not options.layer_matrix and not over_layers:
            raise UnmaskError(f"layer_matrix=False changes nothing for {self.kind}: only layer-attention has a layer matrix.")
        if options.centred and not (options.layer_matrix and over_layers):
            raise UnmaskError("centred=True changes nothing without a layer matrix, which only layer-attention has.")
        if options.conditioned and isinstance(self, LatentAttention):
            raise UnmaskError("conditioned=True changes nothing for latent-attention: its queries are the tokens themselves.")
        if options.read is not None:
            raise UnmaskError(f"read={options.read} changes nothing for {self.kind}: only compression-tokens are read in part.")
        if over_layers and self.depth < 2:
            raise UnmaskError(
                f"layer-attention needs a model with at least 2 layers, not {self.depth}: with one layer its attention is always 1."
            )

    def _transformed(self, states: Tensor) -> Tensor:
        return states if self.mlp is None else states + self.mlp(states)


class _TrainableQueries(_AttentionHead):
    """Trainable latents attend over positions. The vector is the mean of their outputs."""

    def __init__(self, hidden: int, depth: int, options: HeadOptions) -> None:
        super().__init__(hidden, depth, options)
        # C starts at zero: training starts from the unconditioned head. It has no bias: a text with no token before it, not even a
        # BOS, keeps the unconditioned queries
        self.conditioning = nn.Parameter(torch.zeros(hidden, hidden, dtype=torch.float32)) if options.conditioned else None

    def _positions(self, states: Tensor) -> Tensor:
        return states

    def _queries(self, condition: Tensor | None) -> Tensor:
        queries = self.latent_norm(self.latents).unsqueeze(0)
        if self.conditioning is None or condition is None:
            return queries
        # scaled to unit size; zeros stay zeros. The states of an LLM have norms in the hundreds: the latents would be lost in them
        scaled = functional.layer_norm(condition.float(), (self.hidden,))
        return queries + (scaled @ self.conditioning.T).unsqueeze(1)

    def _weights(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        queries = self._queries(condition).expand(states.shape[0], -1, -1)
        return self.attend.weights(queries, self.state_norm(self._positions(states)), mask)

    def _pool(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        attended = self.attend.gather(self._weights(states, mask, condition), self.state_norm(self._positions(states)))
        # the residual is the latents alone: the instruction says where to look, but is not part of the vector
        return self._transformed(self.latents + attended).mean(dim=1)


class CrossAttention(_TrainableQueries):
    """Cross-attention of r latents over the tokens of the last layer, designs 2 and 4 of arXiv 2409.02727.

    X = LN(states), A = softmax(Wq (LN(latents) + C LN(condition)) . Wk X / sqrt(head size)) over the unmasked tokens,
    Y = latents + Wo A Wv X, vector = mean over latents of Y + GEGLU(LN(Y)). The paper's code attends to the last token only, so its
    softmax is always 1. This head attends to all unmasked tokens.
    """

    kind = "cross-attention"


class LayerAttention(_TrainableQueries):
    """Cross-attention of r latents over the layers, designs 3 and 5 of arXiv 2409.02727.

    states: (text, layer, dim), already pooled in each layer. The formula is CrossAttention's with X = LN(states + W). The layer matrix
    W in R^{L x d} tells the layers apart. The norm comes after the sum because the norms of layers differ by orders of magnitude.
    """

    kind = "layer-attention"

    def __init__(self, hidden: int, depth: int, options: HeadOptions) -> None:
        """As Head; depth is the number of layers, L."""
        super().__init__(hidden, depth, options)
        self.layers: nn.Parameter | None = None
        if options.layer_matrix:
            self.layers = nn.Parameter(torch.empty(depth, hidden, dtype=torch.float32).normal_(std=0.02))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def centre(self, states: Float[Tensor, "text layer dim"]) -> None:
        """Set the layer matrix to minus the mean of each layer over reference texts. LN then sees only how texts differ.

        A few dimensions of a trained LLM are very large and equal in all texts. LN keeps their share, so untrained vectors are nearly
        parallel. W can remove these dimensions, and the formula stays the same. Measured on SmolLM2-135M, the mean cosine of 20
        sentences falls from 0.94 to 0.03 (bidirectional, mean) and from 0.98 to 0.01 (causal, last). The paper does not do this.
        For a head with a layer matrix only.
        """
        assert self.layers is not None and len(self.layers) == states.shape[1]
        self.layers.copy_(-states.float().mean(dim=0))

    def _checked(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        if states.shape[1] != self.depth:
            raise UnmaskError(f"This layer-attention head is for {self.depth} layers, not {states.shape[1]}.")
        return super()._checked(states, mask, condition)

    def _positions(self, states: Tensor) -> Tensor:
        return states if self.layers is None else states + self.layers


class LatentAttention(_AttentionHead):
    """NV-Embed's latent attention (arXiv 2405.17428): tokens attend to a trainable dictionary.

    A = softmax(Wq LN(states) . Wk LN(latents) / sqrt(head size)) over the latents, Y = states + Wo A Wv LN(latents),
    vector = mean over the unmasked tokens of Y + GEGLU(LN(Y)).
    """

    kind = "latent-attention"
    default_latents = 512

    def _pool(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        latents = self.latent_norm(self.latents).unsqueeze(0).expand(states.shape[0], -1, -1)
        tokens = self._transformed(states + self.attend.all_keys(self.state_norm(states), latents))
        weights = mask.float() / mask.sum(dim=1, keepdim=True)
        return torch.bmm(weights.unsqueeze(1), tokens).squeeze(1)

    def _weights(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        raise UnmaskError(
            "latent-attention has no weights over tokens: its tokens attend to its latents, then it takes their mean."
        )


class CompressionTokens(Head):
    """LLM2Vec-Gen's trained tokens (arXiv 2603.10913): they follow a text in a frozen LLM, and the states of the last `read` are pooled.

    The first ones only give the model room ("thought tokens"); the last ones are read ("compression tokens"). With their states h_i,
    vector = alignment(mean over i of reconstruction(h_i)), two linear layers with bias. The reconstructed states are also a soft prompt
    from which the LLM can write its answer to the text. Both layers in a row, as in the published code.
    """

    kind = "compression-tokens"
    default_latents = 20

    def __init__(self, hidden: int, depth: int, options: HeadOptions) -> None:
        """As Head; `latents` are the embeddings of the trained tokens."""
        super().__init__(hidden, depth, options)
        self.read = (len(self.latents) + 1) // 2 if options.read is None else options.read
        self.options = self.options.model_copy(update={"read": self.read})
        self.reconstruction = nn.Linear(hidden, hidden, dtype=torch.float32)
        self.alignment = nn.Linear(hidden, self.options.dim or hidden, dtype=torch.float32)

    def _check_options(self, latents: int, dim: int) -> None:
        given = self.options.model_dump(exclude={"latents", "dim", "read"})
        for name, value in given.items():
            if value != HeadOptions.model_fields[name].default:
                raise UnmaskError(f"{name}={value} changes nothing for {self.kind}: it has latents, read and dim.")
        if self.options.read is not None and not 1 <= self.options.read <= latents:
            raise UnmaskError(f"Of {latents} trained tokens, 1 to {latents} can be read, not {self.options.read}.")

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def start(self, embeddings: Float[Tensor, "token dim"]) -> None:
        """Draw the trained tokens around the mean of a model's embeddings, with their spread: others would be no tokens to the model."""
        spread, mean = torch.std_mean(embeddings.float(), dim=0)
        self.latents.copy_(mean + spread * torch.randn_like(self.latents))

    def _pool(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        weights = mask.float() / mask.sum(dim=1, keepdim=True)
        mean = torch.bmm(weights.unsqueeze(1), states).squeeze(1)
        return self.alignment(self.reconstruction(mean))  # type: ignore[no-any-return]

    def _weights(self, states: Tensor, mask: Tensor, condition: Tensor | None) -> Tensor:
        raise UnmaskError("compression-tokens have no weights: the vector is a mean of their states.")


HEADS: dict[str, type[Head]] = {
    head.kind: head for head in (CrossAttention, LayerAttention, LatentAttention, CompressionTokens)
}


class Attend(nn.Module):
    """Multi-head attention: the weights, the weighted sum, and both at once where the weights are not needed."""

    def __init__(self, hidden: int, dim: int, heads: int) -> None:
        """Projections from hidden to dim, and back. The output map starts as the transpose of the value map."""
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, dim, bias=False, dtype=torch.float32) for _ in range(3))
        self.output = nn.Linear(dim, hidden, bias=False, dtype=torch.float32)
        for projection in (self.query, self.key, self.value):
            nn.init.orthogonal_(projection.weight)
        with torch.no_grad():
            self.output.weight.copy_(self.value.weight.T)

    def weights(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """softmax(q k / sqrt(head size)) over the unmasked keys, shape (text, head, query, key)."""
        scores = self._split(self.query(queries)) @ self._split(self.key(keys)).transpose(2, 3)
        scores = scores * (self.query.out_features // self.heads) ** -0.5
        return scores.masked_fill(~mask[:, None, None, :], float("-inf")).softmax(dim=-1)

    def gather(self, weights: Tensor, keys: Tensor) -> Tensor:
        """Weighted sum of the values of the keys, projected back, shape (text, query, hidden)."""
        return self._join(weights @ self._split(self.value(keys)))

    def all_keys(self, queries: Tensor, keys: Tensor) -> Tensor:
        """gather(weights(...)) with all keys unmasked. It never holds the weights (text, head, query, key) in memory."""
        attended = functional.scaled_dot_product_attention(
            self._split(self.query(queries)), self._split(self.key(keys)), self._split(self.value(keys))
        )
        return self._join(attended)

    def _split(self, values: Tensor) -> Tensor:
        return values.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _join(self, values: Tensor) -> Tensor:
        return self.output(values.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class GEGLU(nn.Module):
    """Pre-norm gated MLP (arXiv 2002.05202): down(gelu(gate(LN x)) * up(LN x)). The caller adds the residual."""

    def __init__(self, hidden: int, width: int, bias: bool) -> None:
        """The output starts small, so the random MLP does not dominate a new head."""
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=torch.float32)
        self.gate, self.up = (nn.Linear(hidden, width, bias=bias, dtype=torch.float32) for _ in range(2))
        self.down = nn.Linear(width, hidden, bias=bias, dtype=torch.float32)
        nn.init.xavier_normal_(self.down.weight, gain=0.1)

    def forward(self, states: Tensor) -> Tensor:
        """Apply to the last dimension."""
        normed = self.norm(states)
        return self.down(functional.gelu(self.gate(normed)) * self.up(normed))  # type: ignore[no-any-return]


def build_head(kind: str, hidden: int, depth: int, options: HeadOptions = DEFAULTS) -> Head:
    """A head with new parameters, for a model with this hidden size and this number of layers (depth). torch.manual_seed seeds it.

    Raises UnmaskError for an unknown kind, sizes that do not fit, and an option that would change nothing for the kind.
    """
    if kind not in HEADS:
        raise unknown("head", kind, HEADS)
    return HEADS[kind](hidden, depth, options)


def load_head(kind: str, hidden: int, depth: int, options: HeadOptions, weights: dict[str, Tensor]) -> Head:
    """A head with these fp32 weights. Raises as build_head, and RuntimeError if the weights do not fit."""
    with torch.device("meta"):  # orthogonal rows of NV-Embed's size would take minutes
        head = build_head(kind, hidden, depth, options)
    head.load_state_dict(weights, assign=True)
    for weight in head.parameters():
        if weight.data_ptr() % 64:  # as a file holds them: on some processors the last bits of a product depend on it
            weight.data = weight.data.clone()
    return head


def count_parameters(head: Head) -> dict[str, int]:
    """Number of parameters by part, and their `total`."""
    names = {
        "latents": "latents",
        "attend": "attention",
        "mlp": "mlp",
        "layers": "layer matrix",
        "conditioning": "conditioning",
        "reconstruction": "reconstruction layer",
        "alignment": "alignment layer",
    }
    parts: Counter[str] = Counter()
    for name, parameter in head.named_parameters():
        parts[names.get(name.split(".")[0], "norms")] += parameter.numel()
    return {**parts, "total": parts.total()}
