"""Digests of settings: a change shows, and what only adds an option that is off does not."""

from __future__ import annotations

from dataclasses import make_dataclass

import pytest
from pydantic import create_model

from unmask.moe.experts.router import RouterOptions
from unmask.moe.mixture.gating import Routing
from unmask.studies.plan import digest_of

TABLE = {"lr": 0.1, "steps": 0, "on": True, "parts": [{"a": 1}, {}]}


@pytest.mark.parametrize(
    "changed",
    [{"lr": 0.2}, {"steps": None}, {"on": False}, {"on": 1.0}, {"parts": [{}, {"a": 1}]}, {"parts": [{"a": 1}]}, {"more": 0}],
)
def test_any_change_shows(changed: dict[str, object]) -> None:
    assert digest_of({**TABLE, **changed}) != digest_of(TABLE)


@pytest.mark.parametrize("off", [None, False, [], {}, "", {"deep": {"none": None}}])
def test_a_new_option_that_is_off_and_the_order_of_keys_change_nothing(off: object) -> None:
    assert digest_of({"new": off, **dict(reversed(TABLE.items()))}) == digest_of(TABLE)


def test_a_rate_of_the_router_is_in_a_digest_if_it_is_set() -> None:
    older = {name: value for name, value in vars(RouterOptions(1, joint=True)).items() if name != "lr"}
    assert digest_of(RouterOptions(1, joint=True)) == digest_of(older)
    assert digest_of(RouterOptions(1, joint=True, lr=0.01)) != digest_of(older)


def test_models_and_dataclasses_are_their_values() -> None:
    model = create_model("Model", lr=(float, ...), of=(Routing, ...))(lr=0.1, of=Routing(top_k=2))
    record = make_dataclass("Record", ["lr", "of"])(0.1, Routing(top_k=2))
    assert digest_of(model) == digest_of(record) == digest_of({"lr": 0.1, "of": vars(Routing(top_k=2))})
    assert digest_of(model) != digest_of({"lr": 0.1, "of": Routing()})
