"""Stages: what each adds to the gap, triple by triple."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.probing.models import pico_model
from unmask.errors import UnmaskError
from unmask.probing.prefix_stages import attention_in, compare_stages
from unmask.probing.prefixes import PrefixGap, probe_prefixes, read_triples
from unmask.reporting.probe_figures import draw_stages


@pytest.fixture(scope="module")
def gap(tokenizer: Any) -> PrefixGap:
    return probe_prefixes(pico_model(tokenizer), read_triples()[:12])


def moved(gap: PrefixGap, by: Any) -> PrefixGap:
    gaps = np.array(gap.gaps) + by
    return replace(gap, gap=float(gaps.mean()), gaps=tuple(gaps.tolist()))


def test_a_step_is_the_gap_less_that_of_the_stage_before(gap: PrefixGap) -> None:
    """A gain that is the same in all triples is certain, however much the triples differ; one that is not is not."""
    noisy = np.where(np.arange(12) % 2, 0.5, -0.4)
    first, second, third = compare_stages(["a", "b", "c"], [gap, moved(gap, 0.1), moved(gap, 0.1 + noisy)]).stages
    assert first.step is None and second.step is not None and third.step is not None
    assert second.step.difference == pytest.approx(0.1) and second.step.interval == pytest.approx((0.1, 0.1))
    assert third.step.difference == pytest.approx(0.05)
    assert third.step.interval[0] < 0 < third.step.interval[1]
    assert [one.name for one in (first, second, third)] == ["a", "b", "c"]


def test_other_triples_are_refused(gap: PrefixGap) -> None:
    with pytest.raises(UnmaskError, match="same triples"):
        compare_stages(["a", "b"], [gap, replace(gap, data="other")])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smollm2", ("smollm2", None)),
        ("smollm2:causal", ("smollm2", "causal")),
        ("out/model:bidirectional", ("out/model", "bidirectional")),
        ("C:\\models\\mine", ("C:\\models\\mine", None)),
    ],
)
def test_attention_behind_a_name(name: str, expected: tuple[str, str | None]) -> None:
    assert attention_in(name) == expected


def test_the_figure_is_drawn(gap: PrefixGap, tmp_path: Path) -> None:
    assert [file.name for file in draw_stages(compare_stages(["a"], [gap]), tmp_path)] == [
        "prefix.png",
        "prefix.svg",
        "prefix.pdf",
    ]
