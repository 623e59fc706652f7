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
        return Design(draw(st.sampled_from(ATTENTIONS)), draw(prompts()), pooling, features="lexical", idf=draw(st.booleans()))
    layers = st.none() if pooling == "layer-attention" else st.none() | st.integers(1, 200)
    alphas = st.none() | st.just("auto") | st.floats(min_value=0, exclude_min=True, allow_infinity=False)
    options: dict[str, Any] = {
        "layer": draw(layers if pooling in HEADS else layers | st.sampled_from(["all", "mean"]))
        if features != "routing"
        else None,
        "alpha": draw(alphas) if features == "sum" else None,
        "routing": draw(st.none() | st.sampled_from(ROUTINGS)) if features != "hidden" else None,
        **draw(st.sampled_from([{}, {"zscore": True}, {"whiten": "all"}, {"whiten": 7}])),
    }
    return Design(draw(st.sampled_from(ATTENTIONS)), draw(prompts()), pooling, features=features, **options)


@given(designs())
def test_a_design_is_its_name(design: Design) -> None:
    assert Design.parse(design.name) == design
    assert parse_designs(f"{design.name},{design.name}") == {design.name: design}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_its_design_by_either_name(preset: str) -> None:
    design = Design.parse(PRESETS[preset].design)
    assert Design.parse(preset) == Design.parse(design.name) == design


@given(st.lists(designs(), min_size=2, max_size=2))
def test_different_designs_have_different_names(pair: list[Design]) -> None:
    assert (pair[0].name == pair[1].name) == (pair[0] == pair[1])


@pytest.mark.parametrize(
    ("name", "design"),
    [
        ("causal/plain/mean", Design()),
        ("bidirectional/plain/max@all", Design("bidirectional", pooling="max", layer="all")),
        ("causal/eol/last@25", Design("causal", "eol", "last", 25)),
        ("causal/eol/last/sum:0.5~topk/zscore", Design("causal", "eol", "last", None, "sum", 0.5, "topk", True)),
        ("causal/plain/mean@mean", Design(layer="mean")),
        ("causal/plain/mean/whiten", Design(whiten="all")),
        ("causal/eol/last@all/concat/whiten:64", Design("causal", "eol", "last", "all", "concat", whiten=64)),
        ("causal/eol/last/lexical", Design("causal", "eol", "last", features="lexical")),
        ("causal/eol/last/lexical/idf", Design("causal", "eol", "last", features="lexical", idf=True)),
        ('causal/"a/b {text}"/mean/zscore', Design("causal", "a/b {text}", zscore=True)),
        ('causal/chat:"a/b {text}"/mean', Design("causal", "chat:a/b {text}")),
    ],
)
def test_names_read_as_documented(name: str, design: Design) -> None:
    assert Design.parse(name) == design
    assert design.name == name


def test_defaults_are_written_out_and_so_are_equal() -> None:
    assert Design(features="sum", alpha=1, routing="softmax") == Design(features="sum")
    assert Design.parse("causal/plain/mean/hidden") == Design.parse("mean")
    assert Design.parse("causal/Topic: {text}/mean") == Design.parse('causal/"Topic: {text}"/mean')


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("promteol", "'prompteol'"),
        ("casual/plain/mean", "'causal'"),
        ("causal/plian/mean", "'plain'"),
        ("causal/chat:eoll/mean", "'eol'"),
        ("causal/plain/meen", "'mean'"),
        ("causal/plain/mean/rooting", "'routing'"),
        ("causal/plain/mean/routing~sofmax", "'softmax'"),
        ("causal/{txt}/mean", "'text'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_match(name: str, hint: str) -> None:
    with pytest.raises(UnmaskError, match=f"Did you mean {hint}"):
        Design.parse(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is not a design"),
        ("causal/plain", "is not a design"),
        ("causal/plain/mean/sum/zscore/zscore", "is not a design"),
        ("causal/plain/mean/hidden/hidden", "'hidden/hidden' does not fit after the pooling"),
        ("causal/plain/mean/zscore/hidden", "'zscore/hidden' does not fit after the pooling"),
        ("causal/plain/mean/zscore/whiten", "Unknown features 'zscore'"),
        ("causal/plain/mean/whiten:", "number of dimensions"),
        ("causal/plain/mean/whiten:all", "number of dimensions"),
        ("causal/plain/mean/whiten:0", "at least 1 dimension, not 0"),
        ("causal/plain/mean@last", "1 or more, or 'all' or 'mean', not 'last'"),
        ("causal/plain/mean@-1", "1 or more, or 'all' or 'mean', not '-1'"),
        ("causal/plain/mean@0", "Layer 0 does not exist"),
        ("causal/plain/mean/sum:much", "positive number or 'auto'"),
        ("causal/plain/mean/sum:0", "positive number or 'auto'"),
        ("causal/plain/mean/sum:-1", "positive number or 'auto'"),
        ("causal/plain/mean/sum:nan", "positive number or 'auto'"),
        ("causal/plain/mean/sum:inf", "positive number or 'auto'"),
        ('causal/"plain/mean', "wrong quotes"),
        ('causal/"{text}" is/mean', "wrong quotes"),
    ],
)
def test_what_does_not_parse_is_refused(name: str, says: str) -> None:
    with pytest.raises(UnmaskError, match=says):
        Design.parse(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("causal/plain/mean/hidden~softmax", "use no routing weights"),
        ("causal/plain/mean/hidden:0.5", "Only features 'sum'"),
        ("causal/plain/mean/concat:0.5", "Only features 'sum'"),
        ("causal/plain/mean/routing:auto", "Only features 'sum'"),
        ("causal/plain/mean@2/routing", "would change nothing"),
        ("causal/plain/mean@all/routing", "would change nothing"),
        ("causal/eol/mean/lexical", "use the pooling 'last', not 'mean'"),
        ("causal/eol/last@all/lexical", "remove '@all'"),
        ("causal/eol/last@3/lexical", "remove '@3'"),
        ("causal/eol+tone/last/lexical", "A lexical vector works with one prompt"),
        ("causal/eol/last/lexical/zscore", "'zscore' or 'whiten' would fill it"),
        ("causal/eol/last/lexical/whiten:8", "'zscore' or 'whiten' would fill it"),
        ("causal/eol/last/lexical:0.5", "Only features 'sum'"),
        ("causal/eol/last/lexical~topk", "use no routing weights"),
        ("causal/eol/last/idf", "Only features 'lexical'"),
        ("causal/eol/last/concat/idf", "Only features 'lexical'"),
        ("causal/eol/cross-attention/lexical", "pools hidden states only"),
    ],
)
def test_an_option_that_changes_nothing_is_refused(name: str, says: str) -> None:
    with pytest.raises(UnmaskError, match=says):
        Design.parse(name)


@pytest.mark.parametrize(
    ("name", "hidden", "routing", "fit"),
    [
        ("causal/plain/mean", True, False, False),
        ("causal/plain/mean/zscore", True, False, True),
        ("causal/plain/mean/routing", False, True, False),
        ("causal/plain/mean/concat", True, True, False),
        ("causal/plain/mean/sum:auto", True, True, True),
        ("causal/plain/mean/whiten:2", True, False, True),
        ("causal/eos/cross-attention/zscore", True, False, True),
        ("causal/eol/last/lexical", False, False, False),
        ("causal/eol/last/lexical/idf", False, False, True),
    ],
)
def test_a_design_knows_what_it_reads(name: str, hidden: bool, routing: bool, fit: bool) -> None:
    design = Design.parse(name)
    assert (design.uses_hidden, design.uses_routing, design.needs_fit) == (hidden, routing, fit)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("causal/plain/cross-attention/routing", "pools hidden states only"),
        ("causal/plain/latent-attention@all", "it uses one layer; 'layer-attention' uses all"),
        ("causal/plain/latent-attention@mean", "it uses one layer; 'layer-attention' uses all"),
        ("causal/plain/layer-attention@mean", "it uses all layers already"),
        ("causal/plain/layer-attention@all", "it uses all layers already"),
        ("causal/plain/layer-attention@3", "it uses all layers already"),
    ],
)
def test_a_head_refuses_what_it_would_not_read(name: str, why: str) -> None:
    with pytest.raises(UnmaskError, match=why):
        Design.parse(name)


def test_work_that_needs_dense_vectors_refuses_sparse_ones() -> None:
    Design().require_dense("An export")
    with pytest.raises(UnmaskError, match="An export needs dense vectors, and 'causal/eol/last/lexical' gives sparse ones"):
        Design.parse("causal/eol/last/lexical").require_dense("An export")


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


def test_a_design_asked_for_twice_is_kept_once_under_its_first_label() -> None:
    found = parse_designs("moee,mean,causal/eol/last/sum:1,mean,causal/plain/mean")
    assert found == {name: Design.parse(name) for name in ("moee", "mean")}


@pytest.mark.parametrize(("kind", "registry"), [("POOLINGS", {**POOLS, **BUILT}), ("ROUTINGS", ROUTES), ("HEADS", BUILT)])
def test_every_name_of_the_vocabulary_has_its_implementation(kind: str, registry: dict[str, object]) -> None:
    assert sorted(getattr(vocabulary, kind)) == sorted(registry)


class TestLabels:
    TOPIC = 'causal/"The topic of {text}, in = one word:"/last'

    def test_a_design_may_have_a_label_of_its_own(self) -> None:
        designs = parse_designs(f"mean, topic = {self.TOPIC},{self.TOPIC.replace('topic', 'gist')}")
        assert list(designs) == ["mean", "topic", self.TOPIC.replace("topic", "gist")]
        assert designs["topic"] == Design.parse(self.TOPIC)

    @pytest.mark.parametrize(
        "names", ["=causal/eol/last", "echo=causal/eol/last", "mean,x=causal/eol/last,x=causal/eol/mean", "moee-ablation=mean"]
    )
    def test_a_label_stands_for_one_design(self, names: str) -> None:
        with pytest.raises(UnmaskError, match="label"):
            parse_designs(names)

    def test_a_label_names_the_design_where_both_are_given(self) -> None:
        assert list(parse_designs("x=causal/eol/last,prompteol")) == ["x"]

    def test_two_labels_of_one_design_are_refused(self) -> None:
        """A server would serve one of them, and a comparison would show one."""
        with pytest.raises(UnmaskError, match=r"'a' and 'b' are one design, 'causal/plain/mean'. Give it one name"):
            parse_designs("a=mean,last,b=causal/plain/mean")
