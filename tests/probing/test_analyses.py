"""`unmask probe clusters | ...`: each analysis as a user runs it, on a tiny mixture of experts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.probing.conftest import Run
from tests.resampling import resample_less
from tests.tiny import FILES, labelled, write_rows, write_task


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are tested with each probe."""
    resample_less(monkeypatch.setattr)


ANALYSES = ["clusters", "prompts", "pairs", "layers", "states"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analyses")
    write_rows(folder / "texts.jsonl", labelled(0, 24))
    write_task(folder / "sts", "sts")
    write_rows(folder / "pairs.jsonl", FILES["sts"]()["test.jsonl"])
    return folder


def given(analysis: str, home: Path) -> list[Any]:
    return {
        "clusters": [home / "texts.jsonl", "--clusters", "3", "--seeds", "2", "--label", "label"],
        "prompts": [home / "pairs.jsonl", "--limit", "20"],
        "pairs": [home / "pairs.jsonl", "--limit", "20", "--most", "2"],
        "layers": ["-d", "mean", "-t", home / "sts", "--texts", home / "texts.jsonl", "--limit", "20"],
        "states": ["--texts", home / "texts.jsonl", "--limit", "20", "--max-length", "6"],
    }[analysis]


SAYS = {
    "clusters": [
        "exact matching",
        "24 distinct texts, 3 clusters",
        "A with itself",
        "AMI with 'label': routing ",
        "clusters.svg",
    ],
    "prompts": ["mean over pairs of prompts, RW", "with gold: HS grammar", "20 pairs, 9 prompts"],
    "pairs": ["A wins by", "of 20 pairs", "p = ", "margin with shared words", " | "],
    "layers": ["centred", "sts", "over 20 texts", "* the best layer"],
    "states": ["any two", "2-3", "of 20 texts", "cut to 6 tokens", "bidirectional, proven in 3 layers"],
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("analysis", ANALYSES)
def test_a_table_a_result_and_a_figure(
    analysis: str, run: Run, home: Path, pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    ask = (analysis, *given(analysis, home), "-m", pico_folder("olmoe"), "-o", tmp_path / "out")
    code, out, err = run(*ask)
    assert code == 0, err
    for part in (*SAYS[analysis], "proven in 3 layers"):
        assert part in out
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {f"{analysis}.{ending}" for ending in ("json", "png", "svg", "pdf")}
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    code, out, _ = run(*ask, "--json")
    assert json.loads(out) == json.loads(before[f"{analysis}.json"])  # and the same again from another run
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("ask", "part"),
    [
        (["clusters", "TEXTS", "-d", "mean"], "compares two designs"),
        (["clusters", "TEXTS", "--clusters", "13"], "choose 2 to 12"),
        (["clusters", "TEXTS", "--label", "topic"], "column 'topic'"),
        (["prompts", "TEXTS"], "column 'sentence1'"),
        (["pairs", "PAIRS", "-d", "mean,last", "--limit", "9"], "at least 10 pairs"),
        (["layers", "-d", "causal/plain/mean@2"], "without '@layer'"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    ask: list[str], part: str, run: Run, home: Path, pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    files = {"TEXTS": home / "texts.jsonl", "PAIRS": home / "pairs.jsonl"}
    code, out, err = run(*[files.get(one, one) for one in ask], "-m", pico_folder("llama"), "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert part in err.strip().splitlines()[-1]


def test_routing_of_a_dense_model_is_refused(run: Run, home: Path, pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    code, _, err = run("clusters", home / "texts.jsonl", "-m", pico_folder("llama"), "--clusters", "3", "-o", tmp_path / "out")
    assert code == 2 and "it is dense" in err
    assert not (tmp_path / "out").exists()
