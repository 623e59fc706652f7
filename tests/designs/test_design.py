"""Designs: every valid design survives its own name, and what cannot change a vector is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.designs import design as vocabulary
from unmask.designs.design import ATTENTIONS, FEATURES, HEADS, POOLINGS, ROUTINGS, Design, parse_designs
from unmask.designs.presets import PRESETS, SETS
from unmask.designs.prompts import PROMPTS
from unmask.encoding.heads import HEADS as BUILT
from unmask.encoding.pooling import POOLINGS as POOLS
from unmask.errors import UnmaskError
from unmask.models.routers import ROUTINGS as ROUTES

ODD = [
    "Topic of: {text}",
    "a/b, c: {text}",
    'say "{text}"',
    "\\{text}\\",
    "日本語: {text}\n",
    "{{{text}}}",
    "@2 ~topk {text}{eos}",
]
TOPIC = 'causal/"The topic of {text}, in = one word:"/last'


def literal() -> st.SearchStrategy[str]:
    return st.text(max_size=12).map(lambda text: text.replace("{", "{{").replace("}", "}}"))


def prompts() -> st.SearchStrategy[str]:
    templates = st.tuples(literal(), literal()).map(lambda around: around[0] + "{text}" + around[1])
    plain = st.sampled_from([*PROMPTS, *ODD]) | templates
    return plain | plain.map(lambda prompt: f"chat:{prompt}")


@st.composite
def designs(draw: st.DrawFn) -> Design:
    pooling = draw(st.sampled_from(POOLINGS))
    allowed = [features for features in FEATURES if features != "lexical" or pooling == "last"]
    features: Any = draw(st.sampled_from(allowed)) if pooling not in HEADS else "hidden"
    if features == "lexical":
        return Design(
            draw(st.sampled_from(ATTENTIONS)),
            draw(prompts()),
            pooling,
            features="lexical",
            transforms=draw(st.sampled_from([(), ("idf",)])),
        )
    layers = st.none() if pooling in ("layer-attention", "compression-tokens") else st.none() | st.integers(1, 200)
    alphas = st.none() | st.just("auto") | st.floats(min_value=0, exclude_min=True, allow_infinity=False)
    options: dict[str, Any] = {
        "layer": None,
        "alpha": draw(alphas) if features == "sum" else None,
        "routing": draw(st.none() | st.sampled_from(ROUTINGS)) if features != "hidden" else None,
    }
    several = st.lists(st.integers(1, 200), min_size=2, max_size=4, unique=True).map(tuple)
    if pooling in HEADS:
        options["layer"] = draw(layers)
    elif features != "routing":
        options["layer"] = draw(layers | several | st.sampled_from(["all", "mean"]))
        if draw(st.booleans()):
            pooling = tuple(draw(st.permutations(("last", "mean", "max")).map(lambda order: order[: draw(st.integers(2, 3))])))
            options["weights"] = draw(st.just(()) | st.tuples(*[st.sampled_from([0.5, 1, 2.25])] * len(pooling)))
    chains: list[tuple[str, ...]] = [("zscore",)]
    if isinstance(pooling, str) and not isinstance(options["layer"], tuple):
        chains += [("whiten",), ("whiten:7",)]
    if features != "routing" and pooling not in HEADS and options["layer"] != "all":
        chains = [*chains, ("filter",), *(chain for kind in chains for chain in (("filter:9", *kind), (*kind, "filter")))]
    options["transforms"] = draw(st.sampled_from([(), *chains]))
    attentions = ("causal",) if pooling == "compression-tokens" else ATTENTIONS
    return Design(draw(st.sampled_from(attentions)), draw(prompts()), pooling, features=features, **options)


@given(designs())
def test_a_design_is_its_name(design: Design) -> None:
    assert Design.parse(design.name) == design
    assert parse_designs(f"{design.name},{design.name}") == {design.name: design}


@given(st.lists(designs(), min_size=2, max_size=2))
def test_different_designs_have_different_names(pair: list[Design]) -> None:
    assert (pair[0].name == pair[1].name) == (pair[0] == pair[1])


@pytest.mark.parametrize(
    ("name", "design"),
    [
        ("causal/plain/mean", Design()),
        ("bidirectional/plain/max@all", Design("bidirectional", pooling="max", layer="all")),
        ("causal/eol/last@25", Design("causal", "eol", "last", 25)),
        ("causal/eol/last/sum:0.5~topk/zscore", Design("causal", "eol", "last", None, "sum", 0.5, "topk", ("zscore",))),
        ("causal/plain/mean@mean", Design(layer="mean")),
        ("causal/plain/mean@2+10", Design(layer=(10, 2))),
        ("causal/eol/last+0.7mean", Design("causal", "eol", ("mean", "last"), weights=(0.7, 1))),
        ("causal/eol/last/zscore/filter:9", Design("causal", "eol", "last", transforms=("zscore", "filter:9"))),
        ("causal/plain/mean/whiten", Design(transforms=("whiten",))),
        ("causal/eol/last@all/concat/whiten:64", Design("causal", "eol", "last", "all", "concat", transforms=("whiten:64",))),
        ("causal/eol/last/lexical", Design("causal", "eol", "last", features="lexical")),
        ("causal/eol/last/lexical/idf", Design("causal", "eol", "last", features="lexical", transforms=("idf",))),
        ('causal/"a/b {text}"/mean/zscore', Design("causal", "a/b {text}", transforms=("zscore",))),
        ('causal/chat:"a/b {text}"/mean', Design("causal", "chat:a/b {text}")),
    ],
)
def test_names_read_as_documented(name: str, design: Design) -> None:
    assert Design.parse(name) == design
    assert design.name == name


def test_a_design_has_other_names_too() -> None:
    assert Design(features="sum", alpha=1, routing="softmax") == Design(features="sum")
    assert Design.parse("causal/plain/mean/hidden") == Design.parse("mean")
    assert Design.parse("causal/plain/2mean+2last") == Design.parse("causal/plain/last+mean")
    assert Design.parse("causal/subject/last") == Design.parse("subject")
    assert Design.parse("causal/Topic: {text}/mean") == Design.parse('causal/"Topic: {text}"/mean')
    for name, preset in PRESETS.items():
        design = Design.parse(preset.design)
        assert Design.parse(name) == Design.parse(design.name) == design


@pytest.mark.parametrize("name", SETS)
def test_a_set_stands_for_its_designs(name: str) -> None:
    labels = [design.partition('="')[0].partition("=causal")[0] for design in SETS[name].designs]
    assert list(parse_designs(f"mean, {name} ,last")) == ["mean", *labels, "last"]
    assert len(parse_designs(name)) == len(SETS[name].designs)  # no two of them are one design


def test_names_are_split_at_the_commas_outside_quotes() -> None:
    found = parse_designs(' mean ,causal/"a, b/c \\", {text}"/mean,, prompteol,')
    assert list(found) == ["mean", 'causal/"a, b/c \\", {text}"/mean', "prompteol"]
    assert list(found.values())[1].prompt == 'a, b/c ", {text}'
    assert parse_designs(found) == found


@pytest.mark.parametrize(("kind", "registry"), [("POOLINGS", {**POOLS, **BUILT}), ("ROUTINGS", ROUTES), ("HEADS", BUILT)])
def test_every_name_of_the_vocabulary_has_its_implementation(kind: str, registry: dict[str, object]) -> None:
    assert sorted(getattr(vocabulary, kind)) == sorted(registry)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        # unknown names
        ("promteol", "Did you mean 'prompteol'"),
        ("casual/plain/mean", "Did you mean 'causal'"),
        ("causal/chat:eoll/mean", "Did you mean 'eol'"),
        ("causal/plain/mean/rooting", "Did you mean 'routing'"),
        ("causal/plain/mean/routing~sofmax", "Did you mean 'softmax'"),
        # names that do not parse
        ("causal/plain", "is not a design"),
        ("causal/plain/mean/zscore/hidden", "Unknown transform 'hidden'"),
        ("causal/plain/mean/whiten:all", "number of dimensions"),
        ("causal/plain/mean/hidden/sum", "does not fit after the pooling"),
        ("causal/plain/mean@last", "1 or more, several of them, such as 20.24, or 'all' or 'mean', not 'last'"),
        ("causal/plain/mean/sum:much", "positive number or 'auto'"),
        ('causal/"{text}" is/mean', "wrong quotes"),
        # values
        ("causal/plain/mean/whiten:0", "keep a number of dimensions, at least 1"),
        ("causal/plain/mean@0", "Layer 0 does not exist"),
        ("causal/plain/mean/sum:nan", "positive number or 'auto'"),
        # options that would change nothing
        ("causal/plain/mean/hidden~softmax", "use no routing weights"),
        ("causal/plain/mean/concat:0.5", "Only features 'sum'"),
        ("causal/plain/mean@all/routing", "would change nothing"),
        ("causal/eol/last/idf", "Only features 'lexical'"),
        ("causal/eol/mean/lexical", "use the pooling 'last', not 'mean'"),
        ("causal/eol/last@3/lexical", "remove '@3'"),
        ("causal/eol+tone/last/lexical", "A lexical vector works with one prompt"),
        ("causal/eol/last/lexical/whiten:8", "only 'idf' keeps it so"),
        ("causal/plain/mean+mean", "name different poolings"),
        ("causal/plain/0.5mean", "Weights are for poolings that are added"),
        ("causal/echo+eol/0.5mean+last", "Weights are for poolings that are added"),
        ("causal/echo+eol/mean+last+max", "3 poolings, and the design has 2 prompts"),
        ("causal/plain/mean@3+3", "two different layers"),
        ("causal/plain/mean/zscore/zscore", "a transform twice"),
        ("causal/plain/mean/whiten/zscore", "'zscore' beside it would change nothing"),
        ("causal/plain/last+mean/whiten", "works with one pooling at one layer"),
        ("causal/plain/last+mean/routing", "Routing weights have one pooling"),
        ("causal/plain/mean@all/filter", "the model's own width"),
        ("causal/plain/mean/zscore:3", "keep a number of dimensions"),
        # heads
        ("causal/plain/cross-attention+mean", "nothing can be added to it"),
        ("causal/plain/cross-attention/routing", "pools hidden states only"),
        ("causal/plain/latent-attention@all", "it uses one layer; 'layer-attention' uses all"),
        ("causal/plain/layer-attention@3", "it uses all layers already"),
    ],
)
def test_what_makes_no_design_is_refused(name: str, message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        Design.parse(name)


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (f"mean, topic = {TOPIC},{TOPIC.replace('topic', 'gist')}", ["mean", "topic", TOPIC.replace("topic", "gist")]),
        ("x=causal/eol/last,prompteol", ["x"]),
        ("moee,mean,causal/eol/last/sum:1,mean,causal/plain/mean", ["moee", "mean"]),
    ],
)
def test_a_design_has_one_label(names: str, labels: list[str]) -> None:
    assert list(parse_designs(names)) == labels


@pytest.mark.parametrize(
    ("names", "message"),
    [
        *((names, "label") for names in ("=causal/eol/last", "echo=causal/eol/last", "moee-ablation=mean")),
        ("x=causal/eol/last,x=causal/eol/mean", "Two designs have the label 'x'"),
        ("a=mean,last,b=causal/plain/mean", "'a' and 'b' are one design, 'causal/plain/mean'. Give it one name"),
    ],
)
def test_labels_that_do_not_name_one_design_are_refused(names: str, message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        parse_designs(names)
