"""Features: turn the hidden states and routing weights of a text into its vector.

`sum` is MoEE's similarity as ONE vector. With v = [HS/|HS| ; sqrt(alpha) RW/|RW|], v.v' = cos(HS) + alpha cos(RW) and
|v|^2 = 1 + alpha. So the cosine of v is the paper's similarity divided by (1 + alpha). Such a vector also works for clustering,
classification and any vector index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unmask.designs.design import transform_parts
from unmask.encoding.lexical import inverse_frequencies, weighted
from unmask.errors import UnmaskError
from unmask.io.seals import load_tensors, save_tensors

if TYPE_CHECKING:
    from unmask.designs.design import Design


_ROUNDING = 1e-6  # relative variation in fp32 below this is rounding
_ROWS = 2**14  # of an output layer, at once in float64
_COSINES = 2**22  # of pairs of reference texts, at once in memory


@dataclass(frozen=True)
class Raw:
    """The features of a batch of texts: pooled hidden states, pooled routing weights, and lexical vectors. Each may be absent."""

    hidden: Float[Tensor, "text dim"] | None = None
    routing: Float[Tensor, "text expert"] | None = None
    lexical: Float[Tensor, "text packed"] | None = None

    @property
    def parts(self) -> list[Tensor]:
        """The features that are there."""
        return [part for part in (self.hidden, self.routing, self.lexical) if part is not None]

    def select(self, rows: Tensor | slice) -> Raw:
        """The features of some rows."""
        return Raw(*(None if part is None else part[rows] for part in (self.hidden, self.routing, self.lexical)))


def joined(raws: Sequence[Raw]) -> Raw:
    """The features of several batches, one after the other."""
    batches = ([getattr(raw, name) for raw in raws] for name in ("hidden", "routing", "lexical"))
    return Raw(*(None if parts[0] is None else torch.cat(parts) for parts in batches))


def mean_of(raws: Sequence[Raw]) -> Raw:
    """The mean of features of the same texts in several prompts. Its bits do not depend on other texts.

    A lexical design has one prompt, so its vectors do not change.
    """

    def mean(parts: list[Any]) -> Tensor | None:
        return None if parts[0] is None else sum(parts[1:], parts[0]) / len(parts)

    return Raw(mean([raw.hidden for raw in raws]), mean([raw.routing for raw in raws]), raws[0].lexical)


@dataclass(frozen=True)
class Fit:
    """Values that were fitted on reference texts. They are saved with the embedder."""

    alpha: float | None = None
    hidden_mean: Tensor | None = None
    hidden_std: Tensor | None = None
    routing_mean: Tensor | None = None
    routing_std: Tensor | None = None
    hidden_whitening: Tensor | None = None
    routing_whitening: Tensor | None = None
    idf: Tensor | None = None
    filter: Tensor | None = None
    dense: Tensor | None = None
    dense_bias: Tensor | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fitted tensors by name; alpha is not among them."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def save(self, file: Path) -> None:
        """Write the values as safetensors with a checksum, whole and durable. An alpha is a tensor of one number."""
        alpha = {} if self.alpha is None else {"alpha": torch.tensor(self.alpha, dtype=torch.float64)}
        save_tensors(file, self.tensors | alpha)

    @classmethod
    def load(cls, file: Path) -> Fit:
        """What `save` wrote. Raises FileNotFoundError and Damaged."""
        tensors = load_tensors(file)
        alpha = tensors.pop("alpha", None)
        return cls(None if alpha is None else float(alpha), **tensors)

    def transform(self, design: Design, raw: Raw) -> Raw:
        """The features after the transforms of a design, as far as they have been fitted."""
        for transform in design.transforms:
            raw = self._transform(transform, raw)
        return raw

    def linear(self, design: Design, dim: int) -> tuple[Tensor, Tensor]:
        """The transforms of a design with one hidden state as one linear layer: a weight of shape (out, dim), and a bias."""
        bias = _present(self.transform(design, Raw(torch.zeros(1, dim, dtype=torch.float64))).hidden)
        weight = _present(self.transform(design, Raw(torch.eye(dim, dtype=torch.float64))).hidden) - bias
        return weight.T.float().contiguous(), bias[0].float()

    def _transform(self, transform: str, raw: Raw) -> Raw:
        kind, _ = transform_parts(transform)
        if kind == "filter":
            return replace(raw, hidden=_each_term(raw.hidden, self.filter))
        if kind == "dense":
            dense = _each_term(raw.hidden, self.dense)
            return replace(
                raw, hidden=dense if self.dense_bias is None else _present(dense) + self.dense_bias.to(_present(dense))
            )
        if kind == "idf":
            return replace(raw, lexical=weighted(_present(raw.lexical), self.idf)) if self.idf is not None else raw
        return Raw(
            _standardise(raw.hidden, self.hidden_mean, self.hidden_std, self.hidden_whitening),
            _standardise(raw.routing, self.routing_mean, self.routing_std, self.routing_whitening),
        )


def vectors(design: Design, raw: Raw, fit: Fit) -> Float[Tensor, "text dim"]:
    """The vectors of a design, from the features of the texts. Raises UnmaskError if the design must be fitted first."""
    if any(getattr(fit, name) is None for name in _fitted_parts(design)):
        raise UnmaskError(f"'{design.name}' must be fitted on reference texts first: call Embedder.fit(texts).")
    raw = fit.transform(design, raw)
    if design.is_sparse:
        return _present(raw.lexical)
    hidden = None if raw.hidden is None else added(raw.hidden, design.term_weights)
    routing = raw.routing
    if design.features == "hidden":
        return _present(hidden)
    if design.features == "routing":
        return _present(routing)
    if design.features == "concat":
        return torch.cat([_present(hidden), _present(routing)], dim=1)
    alpha = fit.alpha if design.alpha == "auto" else design.alpha
    return weighted_sum(_present(hidden), _present(routing), float(alpha or 0))


def _fitted_parts(design: Design) -> Iterator[str]:
    """The fields of `Fit` that the vectors of a design need."""
    if design.alpha == "auto":
        yield "alpha"
    for kind, _ in map(transform_parts, design.transforms):
        yield {"zscore": "{}_mean", "whiten": "{}_whitening"}.get(kind, kind).format(
            "hidden" if design.uses_hidden else "routing"
        )


def added(states: Float[Tensor, "text terms_dim"], weights: Sequence[float]) -> Float[Tensor, "text dim"]:
    """The sum of the states that stand side by side, each scaled to length 1 and weighted. A single one is not scaled."""
    if len(weights) == 1:
        return states
    terms = normalize(states.unflatten(1, (len(weights), -1)), dim=2)
    return (terms * torch.tensor(weights, dtype=terms.dtype, device=terms.device)[:, None]).sum(dim=1)


def weighted_sum(hidden: Tensor, routing: Tensor, alpha: float) -> Tensor:
    """[HS/|HS| ; sqrt(alpha) RW/|RW|], the one vector of MoEE (sum)."""
    return torch.cat([normalize(hidden, dim=1), alpha**0.5 * normalize(routing, dim=1)], dim=1)


def fit(design: Design, raw: Raw, output_weights: Tensor | None = None) -> Fit:
    """Fit what the design needs, on the features of reference texts. Raises UnmaskError if they are too few.

    output_weights: of the output layer, for designs with a filter, shape (token, dim).
    """
    fitted = Fit()
    check_corpus(design, raw, len(raw.parts[0]))
    before = raw
    for transform in design.transforms:
        kind, keep = transform_parts(transform)
        if kind == "idf":
            fitted = replace(fitted, idf=inverse_frequencies([_present(before.lexical)]))
        elif kind == "filter":
            fitted = replace(fitted, filter=middle_directions(_present(output_weights), keep))
        elif kind == "dense":
            raise UnmaskError(f"'{design.name}' has a linear layer that comes with a trained model: nothing else can fit it.")
        elif kind == "zscore":
            names = ("hidden_mean", "hidden_std", "routing_mean", "routing_std")
            moments = (*_moments(before.hidden), *_moments(before.routing))
            fitted = replace(fitted, **dict(zip(names, moments, strict=True)))
        else:
            (hidden_mean, hidden), (routing_mean, routing) = (whitening(part, keep) for part in (before.hidden, before.routing))
            fitted = replace(
                fitted, hidden_mean=hidden_mean, routing_mean=routing_mean, hidden_whitening=hidden, routing_whitening=routing
            )
        before = fitted._transform(transform, before)
    if design.alpha == "auto":
        hidden = added(_present(before.hidden), design.term_weights)
        fitted = replace(fitted, alpha=balanced_alpha(hidden, _present(before.routing)))
    return fitted


def middle_directions(weights: Float[Tensor, "token dim"], keep: int | None) -> Float[Tensor, "dim kept"]:
    """The right singular vectors of an output layer without both edges of the spectrum (EmbedFilter, arXiv 2606.07502).

    The edges write frequent tokens, which say little of a text. The columns are orthonormal, by falling singular value. keep: their
    number; None keeps half. Raises UnmaskError for more dimensions than a state has.
    """
    dim = weights.shape[1]
    kept = dim // 2 if keep is None else keep
    if kept > dim:
        raise UnmaskError(f"The filter cannot keep {kept} dimensions of states that have {dim}.")
    # the eigenvectors of W'W are the right singular vectors of W: dim x dim, whatever the vocabulary
    gram = sum((part.double().T @ part.double() for part in weights.split(_ROWS)), torch.zeros((), dtype=torch.float64))
    directions = torch.linalg.eigh(gram).eigenvectors.flip(1)
    edge = (dim - kept) // 2
    return directions[:, edge : edge + kept].float().contiguous()


def check_corpus(design: Design, raw: Raw, texts: int) -> None:
    """Raise UnmaskError if a design needs more reference texts. raw: features of any text; only their width counts."""
    least = 3 if design.alpha == "auto" else 2  # alpha is a ratio of deviations over pairs, and two texts are one pair
    if texts < least:
        raise UnmaskError(f"'{design.name}' needs at least {least} reference texts, not {texts}.")
    for kind, keep in map(transform_parts, design.transforms):
        for part in (raw.hidden, raw.routing):
            if kind == "whiten" and part is not None:
                _kept_dimensions(texts, part.shape[1], keep)


def balanced_alpha(hidden: Tensor, routing: Tensor) -> float:
    """The alpha that gives both similarities the same weight: std of cos(HS) over std of cos(RW), over all pairs of texts.

    The paper optimises alpha on the test set. This alpha needs no labels and no test texts, only reference texts.
    """
    deviations = [_spread_of_cosines(part) for part in (hidden, routing)]
    for name, deviation in zip(("hidden states", "routing weights"), deviations, strict=True):
        if not deviation > _ROUNDING:
            raise UnmaskError(f"The {name} of all reference texts are the same, so alpha cannot be fitted. Use other texts.")
    return float(deviations[0] / deviations[1])


def _spread_of_cosines(part: Tensor) -> float:
    """The sample deviation of the cosines of each pair of rows, computed block by block to bound memory."""
    unit = normalize(part, dim=1)
    rows = max(1, _COSINES // len(unit))
    count, mean, squares = 0, 0.0, 0.0
    for start in range(0, len(unit) - 1, rows):
        block = unit[start : start + rows] @ unit[start:].T
        cosines = block[torch.ones_like(block, dtype=torch.bool).triu(1)].double()
        new, gap = len(cosines), cosines.mean().item() - mean
        # squared deviations of two sets: within each set, plus both means from the common mean (Chan et al.)
        squares += cosines.var(correction=0).item() * new + gap**2 * count * new / (count + new)
        mean += gap * new / (count + new)
        count += new
    return float((squares / max(count - 1, 1)) ** 0.5)


def _present(part: Tensor | None) -> Tensor:
    if part is None:
        raise UnmaskError("This design uses routing weights, but the model is not a mixture of experts and has no router.")
    return part


def _moments(part: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    # a dimension that never varies (an expert that is never used) is only centred, not divided by zero or by rounding
    if part is None:
        return None, None
    mean, deviation = part.mean(dim=0), part.std(dim=0)
    return mean, torch.where(deviation > _ROUNDING * mean.abs(), deviation, torch.ones_like(deviation))


def whitening(part: Tensor | None, keep: int | None) -> tuple[Tensor | None, Tensor | None]:
    """The mean, and W = U diag(1 / sqrt(lambda + eps)) of shape (dim, kept). (x - mean) W is uncorrelated, with variance 1.

    U, lambda: eigenvectors and eigenvalues of the covariance, largest first (Su et al., arXiv 2103.15316). eps is a millionth of the
    median of the retained eigenvalues: without it, whitening would amplify rounding in directions without variance (the routing weights
    of a layer sum to 1). Raises UnmaskError unless there are more texts than retained dimensions: with fewer, some directions have no
    variance, and all texts would be at equal distances.
    """
    if part is None:
        return None, None
    texts, dim = part.shape
    dims = _kept_dimensions(texts, dim, keep)
    wide = part.double()
    mean = wide.mean(dim=0)
    # eigenvalues ascend
    values, directions = torch.linalg.eigh((wide - mean).T @ (wide - mean) / (texts - 1))
    values, directions = values.flip(0)[:dims].clamp_min(0), directions.flip(1)[:, :dims]
    eps = 1e-6 * values.median()
    if not eps > 0:
        raise UnmaskError(
            f"The reference texts vary in fewer than half of the {dims} dimensions that whitening would keep. Keep fewer (whiten:N)."
        )
    # contiguous, as after reading from a file: products with another memory layout have other last bits
    return mean.float(), (directions / (values + eps).sqrt()).float().contiguous()


def _kept_dimensions(texts: int, dim: int, keep: int | None) -> int:
    """The number of kept dimensions. Raises UnmaskError if the vectors have fewer, or if there are too few texts to fit them."""
    dims = dim if keep is None else keep
    if dims > dim:
        raise UnmaskError(f"Whitening cannot keep {dims} dimensions of vectors that have {dim}.")
    if texts <= dims:
        raise UnmaskError(
            f"Whitening to {dims} dimensions needs more than {dims} reference texts, not {texts}. "
            "Give more texts (--fit-on), or keep fewer dimensions (whiten:N)."
        )
    return dims


def _standardise(part: Tensor | None, mean: Tensor | None, std: Tensor | None, whiten: Tensor | None) -> Tensor | None:
    if part is None or mean is None:
        return part
    centred = part - mean.to(part)
    if whiten is not None:
        return centred @ whiten.to(part)
    return centred if std is None else centred / std.to(part)


def _each_term(states: Tensor | None, matrix: Tensor | None) -> Tensor | None:
    """The product of each of the states that stand side by side with a matrix of their width."""
    if states is None or matrix is None:
        return states
    return (states.unflatten(1, (-1, len(matrix))) @ matrix.to(states)).flatten(1)
