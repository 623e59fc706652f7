"""A design says how an LLM becomes an embedder: attention x prompt x pooling x features. It is one frozen value.

Each design has a readable name, and each name gives the design back: `Design.parse(design.name) == design`. The grammar is

    attention[+rerouting] / prompt / pooling[@layer] [/ features[:alpha][~routing]] [/ transform ...]

    causal/eol/last                    last token of PromptEOL, last layer
    causal/eol/last@25                 the same at layer 25
    causal/eol/last@26+28+30           the sum of three layers, each scaled to length 1
    causal/eol/last+0.7mean            the sum of two poolings of one pass, each scaled to length 1, the second weighted by 0.7
    causal/plain/mean@all              all layers, each scaled to length 1, one after the other
    causal/plain/mean@mean             the mean over all layers, each at its own length
    causal/eol/last/sum:0.5            MoEE (sum) with alpha 0.5
    causal/eol/last/routing~topk       only the weights of the chosen experts
    causal/eol/last/whiten:64          the 64 directions with the most variance, each scaled to variance 1
    causal/eol/last/zscore/filter:448  standardised, then without the directions that write frequent tokens (EmbedFilter, arXiv 2606.07502)
    causal/eol/last/lexical            what the model predicts of the text's own words: a sparse vector over the vocabulary
    causal/eol/last/lexical/idf        the same; words that are rare in reference texts weigh more
    causal/"Topic of: {text}"/mean     your own template
    causal/eol+sentiment/last          the mean of the vectors under each of these prompts (MetaEOL, arXiv 2402.18458)
    causal/echo+eol/mean+last          the same, with a pooling for each prompt
    causal+kv@13-17/eol/last           every token also sees the key and the value of the last one (models/rerouting.py)
    bidirectional/plain/cross-attention    a trained head (heads.py); `unmask train` makes it
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal, cast, get_args

from unmask.designs.presets import PRESETS, SETS, design_named
from unmask.designs.prompt_files import library_templates, members
from unmask.designs.prompts import AND, Prompts, averaged, find_prompt, name_of, prompts_of, split
from unmask.errors import UnmaskError, unknown
from unmask.io.terminal import counted

Attention = str
"""`causal` or `bidirectional`; causal attention may have a rerouting (models/rerouting.py), as in `causal+kv@13-17`."""
HeadName = Literal[
    "cross-attention", "layer-attention", "latent-attention", "compression-tokens"
]  # these poolings have parameters, so they need training
Pooling = Literal["last", "first", "mean", "weighted-mean", "max", HeadName]
Poolings = Pooling | tuple[Pooling, ...]
"""One pooling. Of several prompts: or one for each. Of one prompt: or several that are added."""
Features = Literal["hidden", "routing", "concat", "sum", "lexical"]
RoutingKind = Literal["softmax", "logits", "sigmoid", "topk"]
EveryLayer = Literal["all", "mean"]  # how the layers are combined: concatenated, or averaged
Layers = int | tuple[int, ...] | EveryLayer

ATTENTIONS: Final = ("causal", "bidirectional")
POOLINGS: Final = get_args(Pooling)
HEADS: Final = get_args(HeadName)
FEATURES: Final = get_args(Features)
ROUTINGS: Final = get_args(RoutingKind)
TRANSFORMS: Final = ("zscore", "whiten", "filter", "dense", "idf")
_WEIGHTED: Final = re.compile(r"(\d+(?:\.\d+)?)?(.*)")


@dataclass(frozen=True)
class Design:
    """One way to use an LLM as an embedder.

    prompt: one, or several. With several, hidden states and routing weights are averaged over the prompts, before they are transformed.
    Their lengths count: states are not scaled to length 1 first.
    pooling: one. With several prompts, one for each is possible, in the order of the prompts. With one prompt, several are added.
    weights: of poolings that are added; empty for equal weights. Routing weights beside them have the first pooling, in the order of
    POOLINGS.
    layer: None is the last layer, after the final norm. A number k from 1 to L is layer k; several numbers are added. "all" is all layers,
    one after the other. "mean" is the mean over all layers, the last one after the final norm; states are not scaled first, so long ones
    count more.
    alpha: weight of the routing similarity in `sum`. "auto" chooses it without labels (see features.balanced_alpha).
    routing: the form of the routing weights. Only features with routing weights have it.
    transforms: applied one after the other. "zscore" standardises each dimension; mean and deviation come from reference texts. "whiten"
    standardises and decorrelates (arXiv 2103.15316); "whiten:64" keeps the 64 directions with the most variance. "filter" keeps the middle
    of the spectrum of the output layer, by default half of it (EmbedFilter, arXiv 2606.07502); "filter:448" keeps 448 dimensions. "dense"
    is a linear layer that comes with a trained model. "idf" weighs the words of a lexical vector by how rare they are in reference texts.
    Hidden states and routing weights are transformed separately, and so are poolings and layers that are added: each is transformed, scaled
    to length 1, and then added.
    Raises UnmaskError for an unknown name, and for an option that would not change the result.
    """

    attention: Attention = "causal"
    prompt: Prompts = "plain"
    pooling: Poolings = "mean"
    layer: Layers | None = None
    features: Features = "hidden"
    alpha: float | Literal["auto"] | None = None
    routing: RoutingKind | None = None
    transforms: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check every part, and fill in the defaults of the features."""
        _one_of("attention", plain_attention(self.attention), ATTENTIONS)
        if AND in self.attention and not self.attention.startswith("causal"):
            raise UnmaskError(
                f"'{self.attention}' does not work: under bidirectional attention, early tokens see the whole text already."
            )
        for pooling in self.poolings:
            _one_of("pooling", pooling, POOLINGS)
        if isinstance(self.prompt, str):
            find_prompt(self.prompt)
        if len(self.prompts) > 1 and len(self.poolings) not in (1, len(self.prompts)):
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
        self._order_terms()
        _one_of("features", self.features, FEATURES)
        if self.uses_routing and self.routing is None:
            object.__setattr__(self, "routing", "softmax")
        if self.features == "sum" and self.alpha is None:
            object.__setattr__(self, "alpha", 1.0)
        if isinstance(self.alpha, int | float):
            object.__setattr__(self, "alpha", float(self.alpha))
        self._refuse_idle_options()

    def _order_terms(self) -> None:
        """Poolings and layers that are added, in one order: their sum is the same in any."""
        if self.adds_poolings:
            weights = self.weights or (1.0,) * len(self.poolings)
            if len(set(self.poolings)) < len(self.poolings) or len(weights) != len(self.poolings) or not min(weights) > 0:
                raise UnmaskError(
                    f"'{AND.join(self.poolings)}' cannot be added: name different poolings, each with a positive weight or none."
                )
            ordered = sorted(zip(self.poolings, map(float, weights), strict=True), key=lambda pair: POOLINGS.index(pair[0]))
            object.__setattr__(self, "pooling", tuple(pooling for pooling, _ in ordered))
            even = len(set(weights)) == 1
            object.__setattr__(self, "weights", () if even else tuple(weight for _, weight in ordered))
        elif self.weights:
            raise UnmaskError(
                "Weights are for poolings that are added, as in 'last+0.7mean'; with one of them, remove its weight."
            )
        if isinstance(self.layer, tuple):
            if len(set(self.layer)) != len(self.layer) or len(self.layer) < 2:
                raise UnmaskError(f"'@{_layer_name(self.layer)}' must name two different layers or more.")
            object.__setattr__(self, "layer", tuple(sorted(self.layer)))

    def _refuse_idle_options(self) -> None:
        if self.needs_head:
            self._refuse_with_head()
        if self.is_sparse:
            self._refuse_with_lexical()
        elif "idf" in self.transforms:
            raise UnmaskError(f"Only features 'lexical' have words to weigh by 'idf'; '{self.features}' has none.")
        self._check_transforms()
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
        if not self.uses_hidden and self.adds_poolings:
            raise UnmaskError(f"Routing weights have one pooling: '{AND.join(self.poolings)}' cannot be added.")
        if self.layer is not None:
            if not self.uses_hidden:
                raise UnmaskError(
                    f"Features 'routing' use all MoE layers, so '@{_layer_name(self.layer)}' would change nothing: remove it."
                )
            if not isinstance(self.layer, str) and min(self.numbered_layers) < 1:
                raise UnmaskError(f"Layer {min(self.numbered_layers)} does not exist: layers count from 1.")

    def _check_transforms(self) -> None:
        kinds = [transform_parts(transform) for transform in self.transforms]
        for kind, keep in kinds:
            _one_of("transform", kind, TRANSFORMS)
            if keep is not None and (kind not in ("whiten", "filter") or keep < 1):
                raise UnmaskError(
                    f"'{kind}:{keep}' does not work: 'whiten' and 'filter' keep a number of dimensions, at least 1."
                )
        names = [kind for kind, _ in kinds]
        if len(set(names)) < len(names):
            raise UnmaskError(f"'{'/'.join(self.transforms)}' names a transform twice.")
        if {"zscore", "whiten"} <= set(names):
            raise UnmaskError("Whitening standardises too, so 'zscore' beside it would change nothing: remove it.")
        if "whiten" in names and self.terms > 1:
            raise UnmaskError("'whiten' works with one pooling at one layer: use 'zscore' where several are added.")
        if "filter" in names and (self.layer == "all" or not self.uses_hidden):
            raise UnmaskError("'filter' acts on hidden states of the model's own width: not on '@all', nor on routing weights.")
        if "filter" in names and self.needs_head:
            raise UnmaskError("'filter' acts on the model's states, and a trained head writes other ones.")

    def _refuse_with_head(self) -> None:
        head = next(pooling for pooling in self.poolings if pooling in HEADS)
        if len(self.prompts) > 1:
            raise UnmaskError(f"'{head}' is trained under one prompt: it does not work with {len(self.prompts)} prompts.")
        if len(self.poolings) > 1 or isinstance(self.layer, tuple):
            raise UnmaskError(f"'{head}' is trained alone: nothing can be added to it.")
        if self.features != "hidden":
            raise UnmaskError(f"'{head}' pools hidden states only: it does not work with features '{self.features}'.")
        if head == "compression-tokens" and (self.attention != "causal" or self.layer is not None):
            raise UnmaskError(
                f"'{head}' follow a text in a model as it is: they need causal attention without rerouting, and read the last layer."
            )
        if isinstance(self.layer, str) or (self.layer is not None and head == "layer-attention"):
            raise UnmaskError(f"'{head}' cannot have '@{self.layer}': " + (
                "it uses all layers already." if head == "layer-attention" else "it uses one layer; 'layer-attention' uses all."
            ))  # fmt: skip

    def _refuse_with_lexical(self) -> None:
        self.require_one_prompt("A lexical vector")
        if self.pooling != "last":
            raise UnmaskError(
                "Features 'lexical' are what the model predicts after the last token: use the pooling 'last', "
                f"not '{AND.join(self.poolings)}'."
            )
        if self.layer is not None:
            raise UnmaskError(f"Features 'lexical' come from the last layer, which predicts words: remove '@{self.layer}'.")
        if set(self.transforms) - {"idf"}:
            raise UnmaskError("A lexical vector is sparse, and only 'idf' keeps it so: remove the other transforms.")

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts: one, or those whose vectors are averaged."""
        return (self.prompt,) if isinstance(self.prompt, str) else self.prompt

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """The pooling; with several prompts, or the pooling of each; with one prompt, or those that are added."""
        return (self.pooling,) if isinstance(self.pooling, str) else self.pooling

    @property
    def one_pooling(self) -> Pooling:
        """The pooling of a design that adds no others."""
        [pooling] = self.poolings
        return pooling

    @property
    def adds_poolings(self) -> bool:
        """Whether several poolings of one prompt are added."""
        return len(self.prompts) == 1 and len(self.poolings) > 1

    @property
    def numbered_layers(self) -> tuple[int, ...]:
        """The layers that are named by number."""
        return self.layer if isinstance(self.layer, tuple) else (self.layer,) if isinstance(self.layer, int) else ()

    @property
    def term_weights(self) -> tuple[float, ...]:
        """The weight of each hidden state that is added: of each pooling at each layer."""
        poolings = self.weights or (1.0,) * (len(self.poolings) if self.adds_poolings else 1)
        return tuple(weight for weight in poolings for _ in self.numbered_layers or [None])

    @property
    def terms(self) -> int:
        """Number of hidden states that are added, each a pooling at a layer."""
        return len(self.term_weights)

    def under(self, prompt: str) -> Design:
        """The design with one of its prompts alone, and with the pooling of that prompt."""
        each = len(self.prompts) > 1 and len(self.poolings) > 1
        return replace(self, prompt=prompt, pooling=self.poolings[self.prompts.index(prompt)] if each else self.pooling)

    def require_one_prompt(self, operation: str) -> str:
        """The prompt of a design that has one. Raises UnmaskError for several. operation: what works with one prompt only."""
        if not isinstance(self.prompt, str):
            raise UnmaskError(
                f"{operation} works with one prompt, and '{self.name}' averages {len(self.prompt)}. Choose one of them."
            )
        return self.prompt

    def features_under(self, prompt: str) -> tuple[Design, ...]:
        """The designs whose vectors are the features of this design under one of its prompts: hidden states, then routing weights."""
        bare = replace(self.under(prompt), features="hidden", alpha=None, routing=None, transforms=())
        hidden = [replace(bare, layer=layer) for layer in self.numbered_layers or [self.layer]] if self.uses_hidden else []
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
        """Whether transforms or alpha must be fitted, on reference texts or on the output layer, before the first vector."""
        return bool(self.transforms) or self.alpha == "auto"

    @property
    def uses_output_layer(self) -> bool:
        """Whether the vectors depend on the weights that predict tokens."""
        return self.is_sparse or any(transform_parts(transform)[0] == "filter" for transform in self.transforms)

    @property
    def name(self) -> str:
        """The readable name. `Design.parse` turns it back into this design."""
        layer = "" if self.layer is None else f"@{_layer_name(self.layer)}"
        weights = (
            "" if weight == 1 else f"{weight}".removesuffix(".0") for weight in self.weights or (1,) * len(self.poolings)
        )
        poolings = AND.join(f"{weight}{pooling}" for weight, pooling in zip(weights, self.poolings, strict=True))
        parts = [self.attention, name_of(self.prompt), f"{poolings}{layer}"]
        if self.features != "hidden":
            alpha = "" if self.alpha is None else f":{self.alpha}".removesuffix(".0")
            routing = "" if self.routing in (None, "softmax") else f"~{self.routing}"
            parts.append(f"{self.features}{alpha}{routing}")
        return "/".join([*parts, *self.transforms])

    @classmethod
    def parse(cls, name: str) -> Design:
        """The design with this readable name, this preset (`echo`), or this prompt of the library (`topic-z`).

        Raises UnmaskError for any other name.
        """
        name = design_named(name)
        parts = split(name, "/")
        if len(parts) == 1:
            raise unknown("design", name, PRESETS)
        if len(parts) < 3:
            raise UnmaskError(
                f"'{name}' is not a design. A design has the form attention/prompt/pooling[@layer][/features[:alpha]][/transforms], "
                "for example causal/eol/last/zscore."
            )
        attention, prompt, (poolings, _, layer), rest = parts[0], parts[1], parts[2].partition("@"), parts[3:]
        first = next((index for index, part in enumerate(rest) if part.partition(":")[0] in TRANSFORMS), len(rest))
        if first > 1:
            raise UnmaskError(
                f"'{'/'.join(rest)}' does not fit after the pooling. Allowed are features[:alpha][~routing], then "
                f"{', '.join(TRANSFORMS[:-1])} or {TRANSFORMS[-1]}."
            )
        body, _, routing = (rest[0] if first else "hidden").partition("~")
        features, _, alpha = body.partition(":")
        weighted = [_WEIGHTED.fullmatch(pooling) for pooling in poolings.split(AND)]
        weights, names = zip(*((match[1], match[2]) for match in weighted if match is not None), strict=True)
        return cls(
            attention,
            library_templates(prompts_of(prompt)),
            cast("tuple[Pooling, ...]", names) if len(names) > 1 else cast("Pooling", names[0]),
            _parse_layer(layer),
            features=cast("Features", features),
            alpha=_parse_alpha(alpha),
            routing=cast("RoutingKind", routing) or None,
            transforms=tuple(rest[first:]),
            weights=tuple(float(weight or 1) for weight in weights) if any(weights) else (),
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


def plain_attention(attention: Attention) -> str:
    """The attention without its rerouting."""
    return attention.partition(AND)[0]


def transform_parts(transform: str) -> tuple[str, int | None]:
    """The name of a transform, and the number of dimensions that it keeps, if it says one. Raises UnmaskError."""
    kind, mark, keep = transform.partition(":")
    if mark and not keep.isdecimal():
        raise UnmaskError(f"'{kind}' needs a number of dimensions, such as {kind}:64, not '{keep}'.")
    return kind, int(keep) if mark else None


def _layer_name(layer: Layers) -> str:
    return AND.join(map(str, layer)) if isinstance(layer, tuple) else str(layer)


def _parse_layer(layer: str) -> Layers | None:
    if layer in get_args(EveryLayer):
        return cast("EveryLayer", layer)
    numbers = layer.split(AND)
    if layer and not all(number.isdecimal() for number in numbers):
        raise UnmaskError(
            f"A layer is a number, 1 or more, several of them, such as 20+24, or 'all' or 'mean', not '{layer}'. It stands after all "
            "poolings, as in mean+last@2."
        )
    layers = tuple(map(int, numbers)) if layer else ()
    return layers if len(layers) > 1 else layers[0] if layers else None


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
