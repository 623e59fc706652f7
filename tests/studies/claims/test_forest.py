"""Forest plots: one axis for one unit, everything at its place, and a wide interval does not hide the others."""

from __future__ import annotations

import pytest

from tests.studies.claims.made import CLAIMS, made_findings, paired
from unmask.studies.claims.claim import Claim, Finding, findings
from unmask.studies.claims.page import Axis, Plot, plots, signed


def drawn(*differences: float, noise: float = 0.1, within: float | None = None) -> list[Plot]:
    """Plots of claims with these differences."""
    claims = [
        Claim(id=f"{place}", where="1", says="a", better="a", than=("b",), within=within) for place in range(len(differences))
    ]
    tests = {(f"{place}", "b"): paired(value, noise) for place, value in enumerate(differences)}
    return [plot for plot in plots(findings(claims, tests, lambda _: "points")) if plot]


def found(name: str) -> tuple[Finding, Plot | None]:
    every = made_findings()
    place = [claim.id for claim in CLAIMS].index(name)
    return every[place], plots(every)[place]


def test_a_place_is_a_share_of_the_axis() -> None:
    axis = Axis((-1.0, 0.0, 1.0, 2.0, 3.0))
    assert [axis.place(value) for value in (-1, 0, 1, 3, 9, -9)] == [0, 25, 50, 100, 100, 0]
    assert axis.labels == [(0, "\u22121"), (25, "0"), (50, "+1"), (75, "+2"), (100, "+3")]


@pytest.mark.parametrize(("value", "said"), [(0.0, "0"), (0.1 + 0.2, "+0.3"), (-20.0, "\u221220"), (1e-7, "+1e\u221207")])
def test_ticks_have_their_sign(value: float, said: str) -> None:
    assert signed(value) == said


@pytest.mark.parametrize("size", [1e-4, 0.03, 1.0, 7.0, 300.0])
def test_an_axis_shows_zero_both_sides_and_every_interval_at_round_numbers(size: float) -> None:
    shown = drawn(size, 0.4 * size, noise=0.1 * size)
    [axis] = {plot.axis for plot in shown}
    assert axis.low < 0 < axis.high and 0 in axis.ticks
    assert 4 <= len(axis.ticks) <= 7
    assert all(0 < edge < 100 for plot in shown for edge in plot.interval) and shown[0].goes_on == (False, False)
    assert all(plot.interval[0] < plot.point < plot.interval[1] for plot in shown)


def test_places_are_those_of_the_numbers() -> None:
    one, plot = found("best")
    assert plot and one.deciding
    axis, deciding = plot.axis, one.deciding
    assert plot.point == axis.place(deciding.difference) < axis.place(0)
    assert plot.interval == tuple(axis.place(edge) for edge in deciding.interval)
    assert plot.near == (axis.place(-deciding.detectable), axis.place(deciding.detectable))


def test_claims_of_one_unit_have_one_axis_and_only_they() -> None:
    shown = {one.claim.id: plot for one, plot in zip(made_findings(), plots(made_findings()), strict=True)}
    points = {plot.axis for name, plot in shown.items() if plot and name != "holds"}
    assert len(points) == 1 and shown["holds"] and shown["holds"].axis not in points
    assert shown["grows"] is None, "what is not tested is not drawn"


def test_a_wide_interval_goes_on_beyond_the_axis() -> None:
    _, wide = found("wide")
    _, alike = found("alike")
    assert wide and wide.goes_on == (True, True) and wide.interval == (0, 100)
    assert alike and alike.interval[1] - alike.interval[0] > 0.5, "the others can be seen"


def test_margins_are_on_the_axis() -> None:
    [narrow] = drawn(0.0, within=5.0)
    assert narrow.margins == (narrow.axis.place(-5), narrow.axis.place(5)) and narrow.margins[0] >= 0
    _, cheap = found("cheap")
    assert cheap and cheap.margins == (cheap.axis.place(-2.0),)


def test_no_difference_at_all_can_be_drawn() -> None:
    [plot] = drawn(0.0, noise=0.0)
    assert plot.point == 50 and plot.interval[0] < 50 < plot.interval[1]
