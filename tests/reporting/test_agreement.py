"""Nothing that is printed contradicts anything else that is printed: one rule decides what is said of two designs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proofs import ALL
from tests.reporting.synthetic import Folder
from unmask.evaluation.leader import kind_leaders
from unmask.evaluation.results import ResultStore
from unmask.evaluation.verdict import comparisons
from unmask.io.terminal import console
from unmask.reporting.grid import Grid, read_grid
from unmask.reporting.page import render
from unmask.reporting.summary import Summary, summarise
from unmask.reporting.tables import advice, differences


def grid_of(folder: Path, seed: int, designs: int, tasks: int, n: int, kind: str) -> Grid:
    """Designs whose scores are near each other, or equal; of items that are right or wrong, graded, or all right."""
    random, store = np.random.default_rng(seed), ResultStore(folder)
    of = Folder({}, {}, n=n)
    truth = np.sort(random.normal(0.7, random.choice([0, 0.02, 0.05, 0.2]), designs))
    for task in range(tasks):
        shared = random.random(n)
        for place in range(designs):
            graded = np.clip(truth[place] + 0.3 * (shared - 0.5) + random.normal(0, 0.1, n), 0, 1)
            value = {"graded": graded, "binary": (graded > 0.6).astype(float), "perfect": np.ones(n)}[kind]
            prompt = ("plain", "eol", "echo")[place % 3]
            kinds = "sts" if task % 2 else "retrieval"
            store.add(*of.result(f"d{place}", f"causal/{prompt}/mean@{place + 1}", f"task-{task}", kinds, value))
    return read_grid(folder)


def shown(grid: Grid, found: Summary) -> tuple[str, str]:
    """The page's text, and the terminal's at 80 columns."""
    page = " ".join(
        re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style)>.*?</\1>", "", render(grid, found, {}, []), flags=re.DOTALL)).split()
    )
    screen = console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    tests = comparisons(grid.results, grid.store)
    if tests:
        screen.print(differences(grid.results, tests, 80))
    screen.print(advice(kind_leaders(grid.results, grid.store), grid.results))
    return page, " ".join(screen.export_text().split())


@settings(deadline=None, max_examples=25 if ALL else 10)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 5),
    st.sampled_from([1, 2, 7]),
    st.integers(4, 40),
    st.sampled_from(["graded", "binary", "perfect"]),
)
def test_no_text_says_better_of_a_pair_that_the_test_does_not_tell_apart(
    tmp_path_factory: pytest.TempPathFactory, seed: int, designs: int, tasks: int, n: int, kind: str
) -> None:
    grid = grid_of(tmp_path_factory.mktemp("grid"), seed, designs, tasks, n, kind)
    found = summarise(grid)
    page, screen = shown(grid, found)
    head = page.partition("What to use")[0]

    # the heading, the table and the heat map
    assert ("ties with" in head) == bool(set(found.lead.tied))
    assert ("It is better than" in head) == (not set(found.lead.tied))
    for system, against in found.against.items():
        low, high = against.interval
        assert low < high
        assert (against.winner is None) == (low <= 0 <= high) == (system in found.lead.tied)
        assert (against.winner is None) != (system in found.lead.worse)
        assert (against.winner is None) or against.corrected_p < 0.05
    if tasks == 1:
        assert {system for (system, _), mark in found.marks.items() if mark == "tied"} == set(found.lead.tied)
    assert page.count("tied </") == 0
    assert (found.lead.needed is not None) == (" takes " in head)

    # what is advised
    for one in found.advice:
        said = " ".join(one.reasons)
        assert ("Tied with" in said) == bool(one.tied)
        assert not one.tied or ("ahead" not in said and "every other" not in said)
        for reason in one.reasons:
            assert reason in screen
    for text in (page, screen):
        assert not re.search(r"(?<!\d)0\.0 ahead", text)
        assert "of such studies" not in text
        for low, high in re.findall(r"ahead of [^\[;]*\[([^,]+), ([^\]]+)\]", text):
            assert float(low) >= 0 and float(high) > 0, "no sign but plus"
    assert not re.search(r"\[100\.0, 100\.0\]|\[0\.0, 0\.0\]", page)


@pytest.mark.parametrize(("errors", "tied"), [(1.0, True), (1.7, True), (2.3, False), (4.0, False)])
def test_a_lead_of_so_many_standard_errors_is_a_tie_or_a_win_everywhere(errors: float, tied: bool, tmp_path: Path) -> None:
    random, store, of = np.random.default_rng(0), ResultStore(tmp_path), Folder({}, {}, n=60)
    base, noise = random.uniform(0.3, 0.6, 60), random.normal(0, 0.1, 60)
    noise = (noise - noise.mean()) / noise.std() * 0.1
    for label, value in (("other", base), ("leader", base + noise + errors * 0.1 / np.sqrt(60))):
        store.add(*of.result(label, f"causal/plain/mean@{len(label)}", "task", "sts", value))
    grid = read_grid(tmp_path)
    found = summarise(grid)
    page, screen = shown(grid, found)
    assert ("leader ties with other" in page, "Tied with other" in screen, len(set(found.lead.tied)) == 1) == (tied,) * 3
    assert ("It is better than other" in page, "Better than every other design" in screen) == (not tied,) * 2
    assert ("*" in screen.partition("significant")[2].partition("* p <")[0]) == (not tied)
    assert ("Separating leader from other takes about" in page) == tied
