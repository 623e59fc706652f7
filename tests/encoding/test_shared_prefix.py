"""Prompts that share a prefix: the vectors of each prompt alone, for every family; fewer tokens; and not where it would be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.families import FAMILIES
from tests.proofs import ALL
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding import shared_prefix
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import Vectors, group_by_pass
from unmask.encoding.shared_prefix import PromptBatch, SharedResult, group_by_shared_prefix
from unmask.errors import UnmaskError

FIRST = ("{text}\nThis is about one thing:", "{text}\nIn one word, its style is", "{text}")
INSIDE = ("eol", "sentiment")
TEXTS = [f"{'Someone plays a guitar. ' * (place % 5)}text {place}" for place in range(20)]
SOME = slice(None) if ALL else slice(None, None, 4)
"""The texts that every family reads alone: one of each of the five lengths, from the first batch to the last."""
CANNOT = ("mamba", "qwen3-next")  # their layers keep a state, not keys and values
PROMPTS = {"text first": FIRST, "text inside": INSIDE}
ASKED = [
    (family, kind)
    for place, family in enumerate(FAMILIES)
    for kind in (list(PROMPTS) if ALL or FAMILIES[family].changes.get("sliding_window") else [list(PROMPTS)[place % 2]])
]
"""Every family, under one of two kinds of prompts in turn. Under both if it has a window, which what stands before a text could
fill. In `make test-all`, always under both."""


@pytest.fixture(autouse=True)
def always_together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short texts are read once for all questions here, which costs time but shows whether the vectors are right."""
    if "by_their_cost" not in request.node.name:
        monkeypatch.setattr(shared_prefix, "CACHED_TOKEN_COST", 1)


def designs_of(prompts: Sequence[str], reading: str = "last") -> list[Design]:
    return [Design.parse(f"causal/{prompt}/{reading}") for prompt in prompts]


def batches_of(encoder: Encoder, designs: Sequence[Design], texts: Sequence[str]) -> list[PromptBatch]:
    forwards = [encoder.forward_pass(dict.fromkeys(group, Fit())) for group in group_by_pass(designs).values()]
    return [PromptBatch(forward, list(forward.tokenizer.tokenize(texts))) for forward in forwards]


def encode(
    embedder: Embedder, designs: Sequence[Design], texts: Sequence[str] = TEXTS, budget: int = 512, progress: Any = None
) -> SharedResult:
    encoder = replace(embedder.encoder, max_length=256, batch_tokens=budget)
    return encoder.encode_prompts(batches_of(encoder, designs, texts), progress)


def merged(result: SharedResult) -> dict[Design, Vectors]:
    return {design: values for vectors in result.vectors for design, values in vectors.items()}


def alone(embedder: Embedder, design: Design, texts: Sequence[str] = TEXTS) -> Vectors:
    encoder = replace(embedder.encoder, max_length=256, batch_tokens=512)
    return np.concatenate([encoder.encode([text], {design: Fit()})[design] for text in texts])


def was_shared(result: SharedResult) -> bool:
    return result.tokens < sum(result.tokens_alone)


def same(got: Vectors, expected: Vectors, limit: float = 1e-5) -> bool:
    return bool(np.abs(got - expected).max() <= limit * np.abs(expected).max())


@pytest.mark.sample(8)
@pytest.mark.parametrize(("family", "kind"), ASKED)
def test_vectors_are_those_of_each_text_alone_under_each_prompt(family: str, kind: str, pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/last", family=family)
    result = encode(embedder, designs_of(PROMPTS[kind], "last@all"))
    for design, vectors in merged(result).items():
        assert same(vectors[SOME], alone(embedder, design, TEXTS[SOME])), design.name
    assert was_shared(result) == (family not in CANNOT)


@pytest.mark.parametrize(
    "names",
    [
        *([f"causal/{prompt}/{reading}" for prompt in FIRST] for reading in ("last/routing", "last/sum:1", "last@2")),
        ["causal/eol+style+tone/last/concat", "causal/sentiment/last/concat"],
        ["causal/eol+style+tone/last"],
    ],
)
def test_features_and_averages_are_those_of_full_prompts(names: list[str], pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/last", family="olmoe")
    result = encode(embedder, list(map(Design.parse, names)))
    assert was_shared(result)
    for design, vectors in merged(result).items():
        assert same(vectors, alone(embedder, design), 1e-4)


@pytest.mark.sample(6)
@pytest.mark.parametrize("family", FAMILIES)
def test_order_and_copies_of_texts_and_other_batches_do_not_matter(family: str, pico: Callable[..., Embedder]) -> None:
    embedder, designs, steps = pico("causal/plain/last", family=family), designs_of(FIRST), list[int]()
    order = [*range(19, -1, -1), 3, 3, 7]
    forth = merged(encode(embedder, designs))
    back = merged(encode(embedder, designs, [TEXTS[index] for index in order], 96, progress=steps.append))
    for design in designs:
        assert same(back[design], forth[design][order])
    assert sum(steps) == 3 * len(order) and len(steps) > 3, "progress counts each text under each prompt"


@pytest.mark.parametrize(("words", "together"), [(3, False), (12, False), (100, True), (200, True)])
def test_the_way_is_chosen_by_their_cost(words: int, together: bool, pico: Callable[..., Embedder]) -> None:
    """Questions of about eight tokens each: sentences are read with each of them, long texts once. The vectors are the same."""
    embedder, designs = pico("causal/plain/last"), designs_of(FIRST)
    texts = [f"{place} {'guitar ' * words}" for place in range(20)]
    result = encode(embedder, designs, texts)
    assert was_shared(result) == together
    for design, vectors in merged(result).items():
        assert same(vectors, alone(embedder, design, texts)), design.name


def test_each_text_is_computed_once(pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, designs, tokens = pico("causal/plain/last"), designs_of(FIRST), list[int]()
    forward = type(embedder.backbone.model).forward

    def counting(self: Any, input_ids: Any, attention_mask: Any = None, **options: Any) -> Any:
        real = input_ids.numel() if attention_mask is None else int(attention_mask[:, -input_ids.shape[1] :].sum())
        tokens.append(real)
        return forward(self, input_ids=input_ids, attention_mask=attention_mask, **options)

    monkeypatch.setattr(type(embedder.backbone.model), "forward", counting)
    monkeypatch.setattr(shared_prefix, "agree", lambda *_: True)  # without the check
    result = encode(embedder, designs)
    two_texts = sum(tokens) - result.tokens  # whose prefix was computed for the check
    assert 0 <= two_texts < 100 and result.tokens < 0.5 * sum(result.tokens_alone)
    tokenizers = [embedder.encoder.prompt_tokenizer(design.prompt) for design in designs]
    assert result.tokens_alone == [sum(len(text.ids) for text in prompt.tokenize(TEXTS)) for prompt in tokenizers]


@pytest.mark.parametrize("failure", ["wrong keys", "hooks after the check", "memory"])
def test_where_sharing_fails_full_prompts_are_computed(
    failure: str, pico: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, designs, calls = pico("causal/plain/last"), designs_of(FIRST), list[Any]()
    cache_prefix = Backbone.cache_prefix

    def failing(self: Backbone, prefixes: Any) -> Any:
        calls.append(prefixes)
        if failure == "wrong keys":
            return cache_prefix(self, [[*ids[1:], *ids[:1]] for ids in prefixes])
        return cache_prefix(self, prefixes) if len(calls) == 1 else None

    def out_of_memory(*_: Any) -> Any:
        calls.append(None)
        raise torch.OutOfMemoryError

    if failure == "memory":
        monkeypatch.setattr(shared_prefix, "in_parallel", out_of_memory)
    else:
        monkeypatch.setattr(Backbone, "cache_prefix", failing)
    result = encode(embedder, designs)
    assert calls and (failure == "hooks after the check" or not was_shared(result))
    for design, vectors in merged(result).items():
        assert same(vectors, alone(embedder, design)), design.name


@pytest.mark.parametrize(
    ("designs", "count"),
    [
        ([*designs_of(FIRST), *designs_of(FIRST[:1], "mean")], 20),
        (designs_of(FIRST), 7),
        (designs_of(["{text}", "eol"]), 20),
        (designs_of(FIRST[:1]), 20),
        ([Design.parse(f"bidirectional/{prompt}/last") for prompt in FIRST], 20),
    ],
    ids=["the text is pooled", "few texts", "other beginnings", "one prompt", "tokens see what follows"],
)
def test_where_it_is_wrong_or_saves_little_prompts_are_computed_whole(
    designs: list[Design], count: int, pico: Callable[..., Embedder]
) -> None:
    embedder = pico(f"{designs[0].attention}/plain/last")
    result = encode(embedder, designs, TEXTS[:count])
    assert not was_shared(result)
    for design, vectors in merged(result).items():
        assert same(vectors, alone(embedder, design, TEXTS[:count]))


def test_a_vector_that_is_not_finite_is_refused(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/last")
    ids = next(embedder.encoder.prompt_tokenizer(FIRST[0]).tokenize(["text 7"])).ids
    only = set(ids) - {one for text in TEXTS[:7] for one in embedder.tokenizer(text)["input_ids"]}
    assert only
    embedder.backbone.model.get_input_embeddings().weight.data[sorted(only)] = float("nan")
    with pytest.raises(UnmaskError, match="not finite"):
        encode(embedder, designs_of(FIRST))


def test_prompts_that_begin_alike_stand_together(pico: Callable[..., Embedder]) -> None:
    embedder = pico("causal/plain/last")
    names = [
        "causal/eol/last",
        "causal/{text} is/last",
        "causal/sentiment/last/zscore",
        "causal/plain/last",
        "causal/style/mean",
    ]
    names += [
        "causal/tone/last/lexical",  # needs the text's own tokens
        "causal/style+tone/last",
        "causal/eol+plain/last",
        "causal/instruction/last",
        "causal/instruction-eos/last",
        "bidirectional/eol/last",
        "bidirectional/style/last",
    ]
    groups = group_by_pass(map(Design.parse, names))
    assert group_by_shared_prefix(groups, embedder.encoder.prompt_tokenizer) == [
        [("causal", "eol"), ("causal", "sentiment"), ("causal", ("style", "tone"))],
        [("causal", "{text} is"), ("causal", "plain")],
        [("causal", "style")],
        [("causal", "tone")],
        [("causal", "instruction")],
        [("causal", "instruction-eos")],
        [("causal", ("eol", "plain"))],
        [("bidirectional", "eol")],
        [("bidirectional", "style")],
    ]
