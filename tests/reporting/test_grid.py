"""A folder is read as it is: nothing mixed up, nothing made up, and what cannot be used is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluation.test_seed_means import some_runs
from tests.reporting.synthetic import SCRIPT, Folder, add_costs, add_failure
from unmask.errors import UnmaskError
from unmask.reporting.grid import read_grid
from unmask.reporting.report_folder import write_report

TWO = Folder({"mean": ("causal/plain/mean", 0.5), "echo": ("causal/echo/mean", 0.9)}, {"sts-0": "sts", "topics": "clustering"})
MEAN, ECHO = ("smollm2", "causal/plain/mean"), ("smollm2", "causal/echo/mean")


def test_a_grid_has_a_cell_for_each_result(tmp_path: Path) -> None:
    store = TWO.write(tmp_path)
    grid = read_grid(tmp_path)
    assert grid.results == store.results
    assert grid.names == {MEAN: "mean", ECHO: "echo"}
    assert list(grid.tasks) == ["sts-0", "topics"]
    assert grid.kinds == ["sts", "clustering"]
    assert (grid.failures, grid.costs, grid.lost) == ([], [], 0)


def test_measurements_under_other_settings_are_other_systems(tmp_path: Path) -> None:
    TWO.write(tmp_path)
    replace(TWO, n=10).write(tmp_path, dtype="float32", max_length=128)
    grid = read_grid(tmp_path)
    assert len(grid.systems) == 4
    assert "smollm2 (float32, 128 tokens) mean" in grid.names.values()
    assert "smollm2 (bfloat16, 512 tokens) mean" in grid.names.values()
    assert len(grid.cells) == len(grid.results) == 8
    assert {len(grid.store.items(result).columns["value"]) for result in grid.results if "float32" in result.model} == {10}  # type: ignore[union-attr]


def test_a_design_fitted_on_two_corpora_is_two_designs(tmp_path: Path) -> None:
    TWO.write(tmp_path, reference="0123456789")
    TWO.write(tmp_path, reference="abcdefghij")
    assert sorted(read_grid(tmp_path).names.values()) == [
        "echo (fit 0123456)",
        "echo (fit abcdefg)",
        "mean (fit 0123456)",
        "mean (fit abcdefg)",
    ]


def test_a_task_whose_data_changed_is_another_task(tmp_path: Path) -> None:
    TWO.write(tmp_path)
    replace(TWO, tasks={"sts-0": "sts"}).write(tmp_path, task_revision="fedcba9876")
    assert list(read_grid(tmp_path).tasks) == ["sts-0 (b33d919)", "sts-0 (fedcba9)", "topics"]


def test_a_result_without_its_items_is_left_out_and_counted(tmp_path: Path) -> None:
    store = TWO.write(tmp_path)
    (tmp_path / "items" / f"{store.results[0].conditions.key}.npz").unlink()
    grid = read_grid(tmp_path)
    assert grid.lost == 1
    assert grid.results == store.results[1:]


def test_a_cost_is_that_of_the_passes_a_design_reads(tmp_path: Path) -> None:
    TWO.write(tmp_path)
    add_costs(tmp_path, TWO)
    grid = read_grid(tmp_path)
    mean, echo = grid.design_costs[MEAN], grid.design_costs[ECHO]
    assert (mean.tokens_per_text, echo.tokens_per_text) == (19, 51)  # as counted with the results
    assert (mean.tokens_per_second, echo.tokens_per_second) == (4000 / 2.5, 4000 / 8)
    assert (mean.milliseconds_per_text, echo.milliseconds_per_text) == (25, 80)
    assert (mean.peak_memory, echo.peak_memory) == (2**30, 3 * 2**29)


def test_a_failure_counts_until_the_cell_has_a_score(tmp_path: Path) -> None:
    of = replace(TWO, without=[("mean", "topics")])
    of.write(tmp_path)
    add_failure(tmp_path, of, "mean", "topics")
    add_failure(tmp_path, of, "mean", "topics")
    [failure] = read_grid(tmp_path).failures
    assert (failure.label, failure.task) == ("mean", "topics")
    assert SCRIPT in failure.error
    TWO.write(tmp_path)
    assert read_grid(tmp_path).failures == []


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UnmaskError, match=r"holds no results\.jsonl"):
            write_report(folder, folder / "report")
    assert list(tmp_path.iterdir()) == []


def test_passes_under_other_settings_are_timed_apart(tmp_path: Path) -> None:
    """The same model in two precisions has two costs."""
    TWO.write(tmp_path)
    replace(TWO, n=10).write(tmp_path, dtype="float32")
    add_costs(tmp_path, TWO)
    lines = [json.loads(line) for line in (tmp_path / "costs.jsonl").read_text().splitlines()]
    timed = [
        line | {"dtype": dtype, "seconds": line["seconds"] * factor}
        for line in lines
        for dtype, factor in (("bfloat16", 1), ("float32", 9))
    ]
    (tmp_path / "costs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timed))
    grid = read_grid(tmp_path)
    costs = {grid.names[system]: grid.design_costs[system].milliseconds_per_text for system in grid.systems}
    assert costs["smollm2 (bfloat16) mean"] == 25 and costs["smollm2 (float32) mean"] == 9 * 25


def test_seeds_of_one_training_are_one_system(tmp_path: Path) -> None:
    """As in `unmask compare`: a lucky seed is no design of its own."""
    models = some_runs(tmp_path / "runs", "causal/plain/mean", [0, 1, 2])
    for model in models:
        replace(TWO, designs={"mean": ("causal/plain/mean", 0.5)}, model=model).write(tmp_path / "results")
    TWO.write(tmp_path / "results")
    grid = read_grid(tmp_path / "results")
    assert len(grid.systems) == 3 and "causal-plain-mean (3 seeds) mean" in grid.names.values()
    assert len(grid.results) == 6
    page = write_report(tmp_path / "results", tmp_path / "report").read_text()
    assert "of means over 3 seeds" in page or "over seeds" in page


def test_a_report_leaves_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    """What no longer applies goes: failures that were mended, and figures."""
    of = replace(TWO, without=[("mean", "topics")])
    of.write(tmp_path)
    add_failure(tmp_path, of, "mean", "topics")
    write_report(tmp_path, tmp_path / "report")
    assert (tmp_path / "report" / "data" / "failures.csv").is_file()
    (tmp_path / "report" / "figures" / "layers.svg").write_text("<svg/>")
    TWO.write(tmp_path)
    write_report(tmp_path, tmp_path / "report")
    assert not (tmp_path / "report" / "data" / "failures.csv").exists()
    assert not (tmp_path / "report" / "figures" / "layers.svg").exists()
