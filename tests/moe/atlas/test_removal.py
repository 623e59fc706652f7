"""The losses without an expert stand on the card of this expert, and on no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.moe.atlas.conftest import recorded
from tests.moe.atlas.made_record import Made
from tests.moe.atlas.test_packing import unpacked
from unmask.moe.atlas.aggregate import aggregate
from unmask.moe.routing.record import EXPERTS, ExpertLosses, LabelLosses, Removal, read_record
from unmask.moe.routing.text_bootstrap import Measured

MADE = Made(points=3, experts=4, texts=12)


def losses(folder: Path, removals: list[Removal], **other: Any) -> Path:
    """A record with losses: those of removal number n are n / 10 in all, and n / 10 + 1 for the domain `law`."""
    recorded(folder, MADE)
    settings = read_record(folder).settings

    def change(value: float) -> Measured:
        return Measured(value, 0.0, (value - 0.01, value + 0.01))

    numbers = [place / 10 for place in range(len(removals))]
    of_domains = LabelLosses(
        ("law", "unknown"), (change(1.0), change(1.0)), tuple((change(one + 1), change(9.0)) for one in numbers)
    )
    given: dict[str, Any] = {
        "model": settings.model, "weights": settings.weights, "dtype": "float32", "max_length": 32, "seed": 0, "sources": ("made",),
        "texts": 12, "tokens": 100, "left_out": 0, "points": settings.points, "experts": None, "loss": change(2.0), "removals": removals,
        "changes": [change(one) for one in numbers], "labels": {"domain": of_domains}, "differences": None, "overlaps": {},
        "provenance": {},
    }  # fmt: skip
    ExpertLosses.model_validate(given | other).write(folder / EXPERTS)
    return folder


EACH = [Removal((point,), expert) for point in range(3) for expert in range(4)]


def test_each_slot_has_the_loss_of_its_expert(tmp_path: Path) -> None:
    data = aggregate(read_record(losses(tmp_path / "record", EACH)))
    found = unpacked(data["removal"]["all"]).reshape(3, 4, 3)
    assert found[2, 1] == pytest.approx([0.9, 0.89, 0.91]) and found[0, 3, 0] == pytest.approx(0.3)
    by_domain = unpacked(data["removal"]["labels"][0]).reshape(12, len(data["heat"][1]["values"]))
    law = data["heat"][1]["values"].index("law")
    assert by_domain[:, law] == pytest.approx(1 + np.arange(12) / 10)
    assert np.isnan(np.delete(by_domain, law, axis=1)).all(), "of other domains nothing is known"
    assert not data["removal"]["together"]
