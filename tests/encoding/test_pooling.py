"""Poolings: every entry of POOLINGS reads the real tokens and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor

from unmask.encoding.pooling import POOLINGS

poolings = pytest.mark.parametrize("pooling", POOLINGS)
lengths = st.lists(st.integers(1, 7), min_size=1, max_size=5)


def counting(*rows: tuple[int, int], width: int) -> tuple[Tensor, Tensor]:
    """States that equal their position, and masks [first, stop) of each row."""
    hidden = torch.arange(width).float()[None, :, None].expand(len(rows), width, 2).clone()
    positions = torch.arange(width)
    return hidden, torch.stack([(positions >= first) & (positions < stop) for first, stop in rows])


def padded(texts: list[Tensor], left: bool, garbage: float) -> tuple[Tensor, Tensor]:
    """Texts side by side in one batch, with garbage where there is no token."""
    width = max(map(len, texts)) + 2
    hidden, mask = torch.full((len(texts), width, texts[0].shape[1]), garbage), torch.zeros(len(texts), width).bool()
    for row, text in enumerate(texts):
        where = slice(width - len(text), width) if left else slice(0, len(text))
        hidden[row, where], mask[row, where] = text, True
    return hidden, mask


def some(lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randn(length, 4, generator=generator) - 3 for length in lengths]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("last", [2, 4]), ("first", [0, 2]), ("mean", [1, 3]), ("weighted-mean", [8 / 6, 20 / 6]), ("max", [2, 4])],
)
def test_of_states_that_count(pooling: str, expected: list[float]) -> None:
    hidden, mask = counting((0, 3), (2, 5), width=6)
    assert torch.allclose(POOLINGS[pooling](hidden, mask), torch.tensor(expected)[:, None].expand(2, 2).float())


@pytest.mark.sample(12)
@poolings
@pytest.mark.parametrize("garbage", [0.0, 1e30, float("nan"), float("inf"), float("-inf")])
@settings(max_examples=10)
@given(lengths)
def test_left_and_right_padding_whatever_it_holds_is_the_text_alone(pooling: str, garbage: float, lengths: list[int]) -> None:
    texts = some(lengths)
    alone = torch.cat([POOLINGS[pooling](text[None], torch.ones(1, len(text)).bool()) for text in texts])
    for left in (True, False):
        assert torch.allclose(POOLINGS[pooling](*padded(texts, left, garbage)), alone, atol=1e-6)
    with_gaps = torch.stack([torch.arange(9) % 3 != 1]).expand(2, 9)
    hidden = torch.randn(2, 9, 4).masked_fill(~with_gaps[..., None], garbage)
    without = POOLINGS[pooling](hidden[:, with_gaps[0]], torch.ones(2, 6).bool())
    assert torch.allclose(POOLINGS[pooling](hidden, with_gaps), without, atol=1e-6)


@poolings
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_pooled_in_fp32(pooling: str, dtype: torch.dtype) -> None:
    hidden, mask = padded([text.to(dtype) for text in some([300, 5])], left=True, garbage=float("nan"))
    found = POOLINGS[pooling](hidden.to(dtype), mask)
    assert found.dtype == torch.float32
    assert torch.equal(found, POOLINGS[pooling](hidden.to(dtype).float(), mask))


@poolings
def test_a_shape_that_is_not_the_one_written_is_noticed(pooling: str) -> None:
    """The tests check the shapes of the whole package (tests/shapes.py)."""
    hidden, mask = padded(some([2, 4]), left=True, garbage=7.0)
    with pytest.raises(TypeCheckError):
        POOLINGS[pooling](hidden, mask[:, 1:])
