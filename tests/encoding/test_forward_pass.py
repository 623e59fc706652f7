"""A pass computes each text once for all its designs, and goes on where it was stopped, to the same bits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding import beginnings, questions
from unmask.encoding import forward_pass as passes
from unmask.encoding.encode import encode_tokenized
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import ForwardPass, SharedVectors, chunks, introduce, peak_memory, reset_peak_memory
from unmask.encoding.questions import Answers, encode_questions
from unmask.encoding.tokenization import PromptTokenizer
from unmask.encoding.vector_store import StoredRows, VectorStore, key_of
from unmask.errors import UnmaskError

MEAN, LAST = Design(pooling="mean"), Design(pooling="last")
TEXTS = [f"{'A man plays a guitar. ' * (number % 4 + 1)}{number}" for number in range(12)]


@pytest.fixture
def embedder(pico: Callable[..., Embedder]) -> Embedder:
    return pico("causal/plain/mean")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of texts that were computed, call by call."""
    seen: list[int] = []

    def encode(backbone: Any, prompts: Any, fits: Any, texts: Any, **options: Any) -> Any:
        seen.append(len(texts))
        return encode_tokenized(backbone, prompts, fits, texts, **options)

    monkeypatch.setattr(questions, "encode_tokenized", encode)
    return seen


def shared(embedder: Embedder, folder: Path, *designs: Design) -> SharedVectors:
    fits = dict.fromkeys(designs, Fit())
    source = ForwardPass(embedder.backbone, embedder.prompt, fits, VectorStore(folder), "weights", 256)
    return SharedVectors(source, designs, "a task")


def test_each_text_is_computed_once_for_all_designs(embedder: Embedder, tmp_path: Path, computed: list[int]) -> None:
    vectors = shared(embedder, tmp_path, MEAN, LAST)
    vectors.get(MEAN, ["a", "b", "a"], None)
    vectors.get(LAST, ["b", "c"], None)
    vectors.get(MEAN, ["c", "b", "a"], None)
    assert computed == [2, 1]
    assert (vectors.tally.texts, vectors.spent.texts) == (3, 3)


def test_an_instruction_makes_another_text_only_where_the_prompt_takes_it(
    pico: Callable[..., Embedder], tmp_path: Path, computed: list[int]
) -> None:
    for design, expected in (("causal/plain/mean", 1), ("causal/instruction/mean", 2)):
        computed.clear()
        embedder = pico(design)
        vectors = shared(embedder, tmp_path / design, embedder.design)
        one, other = (vectors.get(embedder.design, ["a"], instruction) for instruction in ("Find it.", "Rank it."))
        assert len(computed) == expected == vectors.tally.texts
        assert np.array_equal(one, other) == (expected == 1)


def test_vectors_are_those_of_the_texts_in_their_order(embedder: Embedder, tmp_path: Path) -> None:
    vectors = shared(embedder, tmp_path, MEAN, LAST)
    for texts in (TEXTS[:3], [TEXTS[5], TEXTS[0], TEXTS[5]], TEXTS[::-1]):
        np.testing.assert_allclose(vectors.get(MEAN, texts, None), embedder.encode(texts), atol=1e-5)


def test_what_is_on_disk_is_counted_but_not_spent(embedder: Embedder, tmp_path: Path, computed: list[int]) -> None:
    first = shared(embedder, tmp_path, MEAN)
    before = first.get(MEAN, TEXTS, None)
    again = shared(embedder, tmp_path, MEAN)
    computed.clear()
    np.testing.assert_array_equal(again.get(MEAN, TEXTS, None), before)
    assert computed == []
    assert again.tally == first.tally and again.tally.tokens > 0
    assert (again.spent.texts, again.spent.tokens) == (0, 0)


def test_a_design_that_comes_later_gets_its_own(embedder: Embedder, tmp_path: Path, computed: list[int]) -> None:
    before = shared(embedder, tmp_path, MEAN).get(MEAN, TEXTS, None)
    both = shared(embedder, tmp_path, MEAN, LAST)
    np.testing.assert_array_equal(both.get(MEAN, TEXTS, None), before)
    np.testing.assert_array_equal(
        both.get(LAST, TEXTS, None), shared(embedder, tmp_path / "alone", LAST).get(LAST, TEXTS, None)
    )


def test_a_text_whose_size_was_lost_is_computed_again(embedder: Embedder, tmp_path: Path, computed: list[int]) -> None:
    first = shared(embedder, tmp_path, MEAN)
    before = first.get(MEAN, TEXTS, None)
    shutil.rmtree(first.source.sizes.folder)
    again = shared(embedder, tmp_path, MEAN)
    np.testing.assert_array_equal(again.get(MEAN, TEXTS, None), before)
    assert again.tally == first.tally


def test_vectors_of_other_weights_are_not_taken(embedder: Embedder, tmp_path: Path, computed: list[int]) -> None:
    vectors = shared(embedder, tmp_path, MEAN)
    vectors.get(MEAN, TEXTS, None)
    other = shared(embedder, tmp_path, MEAN)
    other.source.name = "other weights"
    other.get(MEAN, TEXTS, None)
    assert computed == [12, 12]


@pytest.mark.parametrize("stop", range(1, 4))
def test_a_run_that_was_stopped_goes_on_with_the_same_chunks(
    stop: int, embedder: Embedder, tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "chunks", lambda lengths: chunks(lengths, 60))
    whole = shared(embedder, tmp_path / "whole", MEAN, LAST)
    expected = whole.get(MEAN, TEXTS, None)
    sizes = computed.copy()
    assert len(sizes) > 4
    counting: Any = vars(questions)["encode_tokenized"]

    def stopped(*args: Any, **options: Any) -> Any:
        if len(computed) == stop:
            raise KeyboardInterrupt
        return counting(*args, **options)

    computed.clear()
    monkeypatch.setattr(questions, "encode_tokenized", stopped)
    with pytest.raises(KeyboardInterrupt):
        shared(embedder, tmp_path / "stopped", MEAN, LAST).get(MEAN, TEXTS, None)
    monkeypatch.setattr(questions, "encode_tokenized", counting)
    again = shared(embedder, tmp_path / "stopped", MEAN, LAST)
    np.testing.assert_array_equal(again.get(MEAN, TEXTS, None), expected)
    assert computed == sizes
    assert again.tally == whole.tally


ONE, OTHER = (Design.parse(f"causal/{prompt}/last") for prompt in ("{text} means", "{text} is about"))


@pytest.fixture(autouse=True)
def always_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short texts are read once for several prompts here: which way is cheaper is asked in test_questions."""
    monkeypatch.setattr(questions, "_GOES_ON", 1)


def companions(embedder: Embedder, folder: Path, *designs: Design) -> list[SharedVectors]:
    """Vectors of designs that each have a prompt of their own, and that are computed together."""
    store = VectorStore(folder)
    sources = [
        ForwardPass(
            embedder.backbone,
            PromptTokenizer(embedder.tokenizer, design.require_one_prompt("This"), 256),
            {design: Fit()},
            store,
            "weights",
            256,
        )
        for design in designs
    ]
    found = [SharedVectors(source, [design], "a task") for source, design in zip(sources, designs, strict=True)]
    introduce(found)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Answers]:
    """What was computed, call by call."""
    seen: list[Answers] = []

    def encode(*args: Any, **options: Any) -> Answers:
        seen.append(encode_questions(*args, **options))
        return seen[-1]

    monkeypatch.setattr(passes, "encode_questions", encode)
    return seen


def test_companions_have_prompts_that_begin_alike(embedder: Embedder, tmp_path: Path) -> None:
    names = ["{text} means/last", "eol/last", "{text} is/last", "{text} is/last@1", "{text} has/mean", "style/last"]
    found = companions(embedder, tmp_path, *(Design.parse(f"causal/{name}") for name in names))
    one, eol, first, second, _, style = found
    assert [vectors.companions for vectors in found] == [[first], [style], [one], [one], [], [eol]]
    assert second not in one.companions, "one for each prompt"


def test_companions_are_computed_together(embedder: Embedder, tmp_path: Path, asked: list[Answers]) -> None:
    one, other = companions(embedder, tmp_path, ONE, OTHER)
    values = [vectors.get(vectors.designs[0], TEXTS, None) for vectors in (one, other)]
    assert [answer.computed < 0.7 * sum(answer.alone) for answer in asked] == [True]
    for vectors, got in zip((one, other), values, strict=True):
        vectors = shared(embedder.with_design(vectors.designs[0]), tmp_path / vectors.designs[0].name, vectors.designs[0])
        np.testing.assert_allclose(got, vectors.get(vectors.designs[0], TEXTS, None), atol=1e-5)


def test_a_companion_costs_what_it_would_cost_alone(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(2))
    monkeypatch.setattr("unmask.encoding.forward_pass.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    one, other = companions(embedder, tmp_path, ONE, OTHER)
    one.get(ONE, TEXTS, None)
    tokens = [vectors.spent.tokens for vectors in (one, other)]
    assert tokens == [sum(len(text.ids) for text in vectors.source.prompts.tokenize(TEXTS)) for vectors in (one, other)]
    assert one.tally.tokens == tokens[0] and other.spent.texts == len(TEXTS)
    assert one.spent.seconds < 1 < one.spent.seconds + other.spent.seconds, "the shared part counts for each of them"
    assert one.spent.seconds / other.spent.seconds == pytest.approx(tokens[0] / tokens[1])


def test_a_prompt_that_fails_takes_no_others_with_it(embedder: Embedder, tmp_path: Path) -> None:
    one, other = companions(embedder, tmp_path, ONE, OTHER)
    other.source.prompts.max_length = 2
    assert one.get(ONE, TEXTS, None).shape == (12, 64)
    with pytest.raises(UnmaskError, match="no room"):
        other.get(OTHER, TEXTS, None)


@pytest.mark.parametrize("error", [UnmaskError("A vector is not finite"), torch.OutOfMemoryError("too much")])
def test_what_was_stored_before_a_failure_is_not_computed_again(
    error: Exception, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "chunks", lambda lengths: chunks(lengths, 400))
    together: list[int] = []

    def failing(backbone: Any, asked: Any, **options: Any) -> Answers:
        if len(asked) > 1:
            together.append(len(asked[0].texts))
            if len(together) == 2:
                raise error
        return encode_questions(backbone, asked, **options)

    monkeypatch.setattr(passes, "encode_questions", failing)
    one, other = companions(embedder, tmp_path, ONE, OTHER)
    found = one.get(ONE, TEXTS, None)
    assert len(together) == 2
    assert (one.spent.texts, other.spent.texts) == (len(TEXTS), together[0])
    assert one.spent.tokens == one.tally.tokens
    plain = shared(embedder.with_design(ONE), tmp_path / "alone", ONE)
    np.testing.assert_allclose(found, plain.get(ONE, TEXTS, None), atol=1e-5)


def test_companions_that_were_stopped_go_on_to_the_same_bits(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "chunks", lambda lengths: chunks(lengths, 200))
    monkeypatch.setattr(beginnings, "_FEWEST", 2)
    whole = [vectors.get(vectors.designs[0], TEXTS, None) for vectors in companions(embedder, tmp_path / "whole", ONE, OTHER)]
    add = StoredRows.add
    for stop in range(1, 9):  # each chunk is stored in four steps
        left = iter(range(stop))

        def stopped(rows: StoredRows, *args: Any, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            add(rows, *args)

        folder = tmp_path / str(stop)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(StoredRows, "add", stopped)
            companions(embedder, folder, ONE, OTHER)[0].get(ONE, TEXTS, None)
        again = companions(embedder, folder, ONE, OTHER)
        one, other = (vectors.source.stored(vectors.designs[0]) for vectors in again)
        assert all(key_of(text, None) in other for text in TEXTS if key_of(text, None) in one)
        for vectors, expected in zip(again, whole, strict=True):
            np.testing.assert_array_equal(vectors.get(vectors.designs[0], TEXTS, None), expected)


def test_chunks_are_filled_by_tokens() -> None:
    assert list(chunks([3, 3, 3, 9, 1], 6)) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert list(chunks([9, 9], 6)) == [(0, 1), (1, 2)]
    assert list(chunks([2, 2, 2], 6)) == [(0, 3)]
    assert list(chunks([], 6)) == []


# --- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this system cannot forget a peak")
def test_a_peak_is_forgotten() -> None:
    cpu = torch.device("cpu")
    block = np.ones(2**25)
    high = peak_memory(cpu)
    assert high > block.nbytes == 2**28
    del block
    reset_peak_memory(cpu)
    assert 0 < peak_memory(cpu) < high - 2**27


def test_a_design_that_is_computed_later_can_show_less(
    pico: Callable[..., Embedder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most of its own passes: the first design needs 9 and 4, the second one 5."""
    embedder, needed, held = pico("causal/plain/mean"), iter([9, 4, 5]), {"peak": 1}

    def encode(*given: Any, **options: Any) -> Any:
        held["peak"] = max(held["peak"], next(needed))
        return encode_questions(*given, **options)

    monkeypatch.setattr(passes, "encode_questions", encode)
    monkeypatch.setattr(passes, "peak_memory", lambda device: held["peak"])
    monkeypatch.setattr(passes, "reset_peak_memory", lambda device: held.update(peak=1))
    peaks = []
    for name, asked in (("first", [["a"], ["b"]]), ("second", [["a"]])):
        fits = {embedder.design: Fit()}
        source = ForwardPass(embedder.backbone, embedder.prompt, fits, VectorStore(tmp_path / name), name, 256)
        vectors = SharedVectors(source, [embedder.design], "a task")
        for texts in asked:
            vectors.get(embedder.design, texts, None)
        peaks.append(vectors.spent.peak_memory)
    assert peaks == [9, 5]
