"""A design says how an LLM becomes an embedder: attention x prompt x pooling x features. It is one frozen value.

Each design has a readable name, and each name gives the design back: `Design.parse(design.name) == design`. The grammar is

    attention / prompt / pooling[@layer] [/ features[:alpha][~routing]] [/ zscore | whiten[:dimensions] | idf]

    causal/eol/last                    last token of PromptEOL, last layer
    causal/eol/last@25                 the same at layer 25
    causal/plain/mean@all              all layers, each scaled to length 1, one after the other
    causal/plain/mean@mean             the mean over all layers, each at its own length
    causal/eol/last/sum:0.5            MoEE (sum) with alpha 0.5
    causal/eol/last/routing~topk       only the weights of the chosen experts
    causal/eol/last/whiten:64          the 64 directions with the most variance, each scaled to variance 1
    causal/eol/last/lexical            what the model predicts of the text's own words: a sparse vector over the vocabulary
    causal/eol/last/lexical/idf        the same; words that are rare in reference texts weigh more
    causal/"Topic of: {text}"/mean     your own template
    causal/eol+sentiment/last          the mean of the vectors under each of these prompts (MetaEOL, arXiv 2402.18458)
    causal/echo+eol/mean+last          the same, with a pooling for each prompt
    bidirectional/plain/cross-attention    a trained head (heads.py); `unmask train` makes it
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, cast, get_args

from unmask.designs.presets import PRESETS, SETS, design_named
from unmask.designs.prompt_files import members
from unmask.designs.prompts import AND, Prompts, averaged, find_prompt, name_of, prompts_of, split
from unmask.errors import UnmaskError, unknown
from unmask.io.terminal import counted

Attention = Literal["causal", "bidirectional"]
HeadName = Literal[
    "cross-attention", "layer-attention", "latent-attention"
]  # these poolings have parameters, so they need training
Pooling = Literal["last", "first", "mean", "weighted-mean", "max", HeadName]
Poolings = Pooling | tuple[Pooling, ...]
"""A pooling, or one for each prompt."""
Features = Literal["hidden", "routing", "concat", "sum", "lexical"]
RoutingKind = Literal["softmax", "logits", "sigmoid", "topk"]
EveryLayer = Literal["all", "mean"]  # how the layers are combined: concatenated, or averaged

ATTENTIONS: Final = get_args(Attention)
POOLINGS: Final = get_args(Pooling)
HEADS: Final = get_args(HeadName)
FEATURES: Final = get_args(Features)
ROUTINGS: Final = get_args(RoutingKind)
_SCALING: Final = re.compile(r"(zscore|idf|whiten(:.*)?)$")


@dataclass(frozen=True)
class Design:
    """One way to use an LLM as an embedder.

    prompt: one, or several. With several, hidden states and routing weights are averaged over the prompts, before they are standardised.
    Their lengths count: states are not scaled to length 1 first.
    pooling: one, or one for each prompt, in the order of the prompts.
    layer: None is the last layer, after the final norm. A number k from 1 to L is layer k. "all" is all layers, one after the other.
    "mean" is the mean over all layers, the last one after the final norm. States are not scaled first, so long ones count more.
    alpha: weight of the routing similarity in `sum`. "auto" chooses it without labels (see features.balanced_alpha).
    routing: the form of the routing weights. Only features with routing weights have it.
    zscore: standardise each dimension. The mean and the deviation come from reference texts.
    whiten: standardise and decorrelate (arXiv 2103.15316). A number keeps only the directions with the most variance. Hidden states
    and routing weights are whitened separately.
    idf: weigh the words of a lexical vector by how rare they are in reference texts.
    Raises UnmaskError for an unknown name, and for an option that would not change the result.
    """

    attention: Attention = "causal"
    prompt: Prompts = "plain"
    pooling: Poolings = "mean"
    layer: int | EveryLayer | None = None
    features: Features = "hidden"
    alpha: float | Literal["auto"] | None = None
    routing: RoutingKind | None = None
    zscore: bool = False
    whiten: int | Literal["all"] | None = None
    idf: bool = False

    def __post_init__(self) -> None:
        """Check every part, and fill in the defaults of the features."""
        _one_of("attention", self.attention, ATTENTIONS)
        for pooling in self.poolings:
            _one_of("pooling", pooling, POOLINGS)
        if isinstance(self.prompt, str):
            find_prompt(self.prompt)
        if not isinstance(self.pooling, str) and len(self.poolings) != len(self.prompts):
            raise UnmaskError(
                f"'{AND.join(self.poolings)}' is {len(self.poolings)} poolings, and the design has "
                f"{counted(len(self.prompts), 'prompt')}: name one pooling, or one for each prompt."
            )
        if not isinstance(self.prompt, str):
            # several prompts are in the order of their names, and their poolings with them
            poolings = dict(zip(self.prompts, self.poolings, strict=len(self.poolings) > 1))
            object.__setattr__(self, "prompt", averaged(self.prompts))
            if not isinstance(self.pooling, str):
                object.__setattr__(self, "pooling", tuple(poolings[prompt] for prompt in self.prompts))
        if len(set(self.poolings)) == 1:
            object.__setattr__(self, "pooling", self.poolings[0])
        _one_of("features", self.features, FEATURES)
        if self.uses_routing and self.routing is None:
            object.__setattr__(self, "routing", "softmax")
        if self.features == "sum" and self.alpha is None:
            object.__setattr__(self, "alpha", 1.0)
        if isinstance(self.alpha, int | float):
            object.__setattr__(self, "alpha", float(self.alpha))
        self._refuse_idle_options()

    def _refuse_idle_options(self) -> None:
        if self.needs_head:
            self._refuse_with_head()
        if self.is_sparse:
            self._refuse_with_lexical()
        elif self.idf:
            raise UnmaskError(f"Only features 'lexical' have words to weigh by 'idf'; '{self.features}' has none.")
        if self.routing is not None:
            _one_of("routing", self.routing, ROUTINGS)
            if not self.uses_routing:
                raise UnmaskError(
                    f"Features '{self.features}' use no routing weights, so '~{self.routing}' would change nothing: remove it."
                )
        if self.alpha is not None:
            if self.features != "sum":
                raise UnmaskError(f"Only features 'sum' have an alpha, as in 'sum:0.5'; '{self.features}' has none.")
            if self.alpha != "auto" and not 0 < self.alpha < float("inf"):
                raise UnmaskError(f"alpha must be a positive number or 'auto', not {self.alpha}.")
        if self.layer is not None:
            if not self.uses_hidden:
                raise UnmaskError(f"Features 'routing' use all MoE layers, so '@{self.layer}' would change nothing: remove it.")
            if isinstance(self.layer, int) and self.layer < 1:
                raise UnmaskError(f"Layer {self.layer} does not exist: layers count from 1.")
        if self.whiten is not None:
            if self.zscore:
                raise UnmaskError("Whitening standardises too, so 'zscore' before it would change nothing: remove it.")
            if self.whiten != "all" and self.whiten < 1:
                raise UnmaskError(f"Whitening must keep at least 1 dimension, not {self.whiten}.")

    def _refuse_with_head(self) -> None:
        head = next(pooling for pooling in self.poolings if pooling in HEADS)
        if len(self.prompts) > 1:
            raise UnmaskError(f"'{head}' is trained under one prompt: it does not work with {len(self.prompts)} prompts.")
        if self.features != "hidden":
            raise UnmaskError(f"'{head}' pools hidden states only: it does not work with features '{self.features}'.")
        if isinstance(self.layer, str) or (self.layer is not None and head == "layer-attention"):
            raise UnmaskError(f"'{head}' cannot have '@{self.layer}': " + (
                "it uses all layers already." if head == "layer-attention" else "it uses one layer; 'layer-attention' uses all."
            ))  # fmt: skip

    def _refuse_with_lexical(self) -> None:
        self.require_one_prompt("A lexical vector")
        if self.pooling != "last":
            raise UnmaskError(
                f"Features 'lexical' are what the model predicts after the last token: use the pooling 'last', not '{self.pooling}'."
            )
        if self.layer is not None:
            raise UnmaskError(f"Features 'lexical' come from the last layer, which predicts words: remove '@{self.layer}'.")
        if self.zscore or self.whiten is not None:
            raise UnmaskError("A lexical vector is sparse, and 'zscore' or 'whiten' would fill it. Use 'idf', or neither.")

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts: one, or those whose vectors are averaged."""
        return (self.prompt,) if isinstance(self.prompt, str) else self.prompt

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """The pooling, or the pooling of each prompt."""
        return (self.pooling,) if isinstance(self.pooling, str) else self.pooling

    @property
    def one_pooling(self) -> Pooling:
        """The pooling of a design with one prompt."""
        [pooling] = self.poolings
        return pooling

    def under(self, prompt: str) -> Design:
        """The design with one of its prompts alone, and with the pooling of that prompt."""
        index = self.prompts.index(prompt)
        return replace(self, prompt=prompt, pooling=self.poolings[index] if len(self.poolings) > 1 else self.pooling)

    def require_one_prompt(self, operation: str) -> str:
        """The prompt of a design that has one. Raises UnmaskError for several. operation: what works with one prompt only."""
        if not isinstance(self.prompt, str):
            raise UnmaskError(
                f"{operation} works with one prompt, and '{self.name}' averages {len(self.prompt)}. Choose one of them."
            )
        return self.prompt

    def features_under(self, prompt: str) -> tuple[Design, ...]:
        """The designs whose vectors are the features of this design under one of its prompts: hidden states, then routing weights."""
        bare = replace(self.under(prompt), features="hidden", alpha=None, routing=None, zscore=False, whiten=None)
        hidden = [bare] if self.uses_hidden else []
        return *hidden, *([replace(bare, layer=None, features="routing", routing=self.routing)] if self.uses_routing else [])

    @property
    def needs_head(self) -> bool:
        """Whether the pooling has parameters. If so, it needs training before it can make vectors."""
        return any(pooling in HEADS for pooling in self.poolings)

    @property
    def uses_hidden(self) -> bool:
        """Whether the vector contains hidden states."""
        return self.features in ("hidden", "concat", "sum")

    @property
    def uses_routing(self) -> bool:
        """Whether the vector contains routing weights. If so, the model must be a mixture of experts."""
        return self.features in ("routing", "concat", "sum")

    @property
    def is_sparse(self) -> bool:
        """Whether the vector is sparse: a few words of the vocabulary have a value, all others have none."""
        return self.features == "lexical"

    def require_dense(self, operation: str) -> None:
        """Raise UnmaskError if the vectors are sparse, for work that needs dense ones. operation: names the work, as in "An export"."""
        if self.is_sparse:
            raise UnmaskError(
                f"{operation} needs dense vectors, and '{self.name}' gives sparse ones. Use a design without 'lexical'."
            )

    @property
    def needs_fit(self) -> bool:
        """Whether the design needs reference texts, to fit z-scores, whitening, alpha or IDF before the first vector."""
        return self.zscore or self.idf or self.whiten is not None or self.alpha == "auto"

    @property
    def name(self) -> str:
        """The readable name. `Design.parse` turns it back into this design."""
        layer = "" if self.layer is None else f"@{self.layer}"
        parts = [self.attention, name_of(self.prompt), f"{AND.join(self.poolings)}{layer}"]
        if self.features != "hidden":
            alpha = "" if self.alpha is None else f":{self.alpha}".removesuffix(".0")
            routing = "" if self.routing in (None, "softmax") else f"~{self.routing}"
            parts.append(f"{self.features}{alpha}{routing}")
        if self.zscore:
            parts.append("zscore")
        if self.idf:
            parts.append("idf")
        if self.whiten is not None:
            parts.append("whiten" if self.whiten == "all" else f"whiten:{self.whiten}")
        return "/".join(parts)

    @classmethod
    def parse(cls, name: str) -> Design:
        """The design with this readable name, this preset (`echo`), or this prompt of the library (`topic-z`).

        Raises UnmaskError for any other name.
        """
        name = design_named(name)
        parts = split(name, "/")
        if len(parts) == 1:
            raise unknown("design", name, PRESETS)
        if not 3 <= len(parts) <= 5:
            raise UnmaskError(
                f"'{name}' is not a design. A design has the form attention/prompt/pooling[@layer][/features[:alpha]][/zscore|whiten|idf], "
                "for example causal/eol/last."
            )
        attention, prompt, (poolings, _, layer), rest = parts[0], parts[1], parts[2].partition("@"), parts[3:]
        scaling, mark, dimensions = rest.pop().partition(":") if rest and _SCALING.match(rest[-1]) else ("", "", "")
        if mark and not dimensions.isdecimal():
            raise UnmaskError(f"Whitening needs a number of dimensions, such as whiten:64, not '{dimensions}'.")
        if len(rest) > 1:
            raise UnmaskError(
                f"'{'/'.join(parts[3:])}' does not fit after the pooling. Allowed are "
                "features[:alpha][~routing], then zscore, whiten or idf."
            )
        body, _, routing = (rest[0] if rest else "hidden").partition("~")
        features, _, alpha = body.partition(":")
        return cls(
            cast("Attention", attention),
            prompts_of(prompt),
            cast("tuple[Pooling, ...]", tuple(poolings.split(AND))) if AND in poolings else cast("Pooling", poolings),
            _parse_layer(layer),
            features=cast("Features", features),
            alpha=_parse_alpha(alpha),
            routing=cast("RoutingKind", routing) or None,
            zscore=scaling == "zscore",
            whiten=(int(dimensions) if mark else "all") if scaling == "whiten" else None,
            idf=scaling == "idf",
        )


def parse_designs(names: str | Iterable[str]) -> dict[str, Design]:
    """Designs by label, in the given order, without repeats.

    A label is the name of a preset, a readable name, or the user's own (`LABEL=DESIGN`). A string is split at its commas, except
    inside quotes. The name of a set or of a prompt file (FILE.toml) expands to its designs. Raises UnmaskError for a name that is
    not a design, for two designs with one label, for two labels of one design, and for no design at all.
    """
    entries = [name.strip() for name in (split(names, ",") if isinstance(names, str) else names) if name.strip()]
    designs: dict[str, Design] = {}
    for entry in (expanded for name in entries for expanded in (SETS[name].designs if name in SETS else members(name))):
        label, design = _labelled(entry)
        if designs.setdefault(label, design) != design:
            raise UnmaskError(f"Two designs have the label '{label}'. Give each its own label: LABEL=DESIGN.")
    if not designs:
        raise UnmaskError("No design was given. `unmask designs` lists all designs.")
    by_name: dict[str, str] = {}
    user_labels = {name.partition("=")[0].strip() for name in entries if "=" in name}
    for label, design in designs.items():
        if by_name.setdefault(design.name, label) != label and {label, by_name[design.name]} <= user_labels:
            raise UnmaskError(f"'{by_name[design.name]}' and '{label}' are one design, '{design.name}'. Give it one name.")
    return {label: designs[label] for label in by_name.values()}


def labelled_pair(names: str) -> tuple[dict[str, str], tuple[Design, Design]]:
    """The two designs of a command that compares two, and their labels by readable name."""
    designs = parse_designs(names)
    if len(designs) != 2:
        raise UnmaskError(f"This command compares two designs, such as 'prompteol,routing'; {len(designs)} were given.")
    first, second = designs.values()
    return {design.name: label for label, design in designs.items()}, (first, second)


def _labelled(name: str) -> tuple[str, Design]:
    """The label and the design of `LABEL=DESIGN` or of a plain name. Raises UnmaskError for a label that is another design's name."""
    label, mark, rest = name.partition("=")
    label = label.strip()
    if not mark or any(char in label for char in '/"'):
        return name, Design.parse(name)
    if not label or label in SETS or (label in PRESETS and Design.parse(rest.strip()) != Design.parse(label)):
        raise UnmaskError(
            f"'{label}' cannot be the label of '{rest.strip()}': the label is empty, or it is the name of another design or set."
        )
    return label, Design.parse(rest.strip())


def _one_of(kind: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise unknown(kind, value, allowed)


def _parse_layer(layer: str) -> int | EveryLayer | None:
    if layer in get_args(EveryLayer):
        return cast("EveryLayer", layer)
    if AND in layer:
        raise UnmaskError(f"One layer is for all poolings, and it stands after them, as in mean+last@2: '@{layer}' is not one.")
    if layer and not layer.isdecimal():
        raise UnmaskError(f"A layer is a number, 1 or more, or 'all' or 'mean', not '{layer}'.")
    return int(layer) if layer else None


def _parse_alpha(alpha: str) -> float | Literal["auto"] | None:
    if alpha in ("", "auto"):
        return "auto" if alpha else None
    try:
        return float(alpha)
    except ValueError:
        raise UnmaskError(f"alpha must be a positive number or 'auto', not '{alpha}'.") from None


def as_design(design: str | Design) -> Design:
    """A design from its name, or itself."""
    return design if isinstance(design, Design) else Design.parse(design)
