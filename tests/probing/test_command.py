"""`unmask probe`: each command prints a table or JSON, and tells a mistake in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TEXTS
from tests.probing.conftest import Run
from tests.probing.models import saved_language_model
from tests.tiny import write_rows
from unmask.embedder import Embedder
from unmask.reporting.probe_tables import ProbeTable, with_interval

pytestmark = pytest.mark.usefixtures("sketched")  # test_prefix_stages.py draws
COMMANDS = ["words", "prefix", "geometry", "masked"]


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, the embedder made of it, and a file for each probe."""
    home = tmp_path_factory.mktemp("probe")
    base = saved_language_model(home / "base", tokenizer)
    Embedder.from_pretrained(base, "bidirectional/plain/mean", dtype="float32").save_pretrained(home / "saved")
    words = ["man", "dog", "plays", "runs"]
    rows = [
        {
            "tokens": [words[(n + k) % 4] for k in range(3)],
            "tags": ["NV"[(n + k) % 4 // 2] for k in range(3)],
            "ner": [["B-A", "O"][(n + k) % 4 // 2] for k in range(3)],
        }
        for n in range(24)
    ]
    write_rows(home / "words.jsonl", rows)
    pairs = [{"sentence1": TEXTS[n], "sentence2": TEXTS[n + 1], "score": float(5 - n)} for n in range(4)]
    write_rows(home / "pairs.jsonl", pairs)
    (home / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return home


def arguments(command: str, folder: Path) -> list[Any]:
    return {
        "words": ["--train", folder / "words.jsonl", "--test", folder / "words.jsonl"],
        "prefix": [],
        "geometry": ["--pairs", folder / "pairs.jsonl"],
        "masked": ["--texts", folder / "texts.txt"],
    }[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_saved_embedder_is_read_as_it_was_saved(command: str, run: Run, folder: Path) -> None:
    _, table, _ = run(command, "-m", folder / "saved", *arguments(command, folder))
    rests_on = {"words": "72 words of 24 sentences", "prefix": "48 triples", "geometry": "lower", "masked": "tokens of"}
    assert "bidirectional, proven in 3 layers" in table and rests_on[command] in table
    found = json.loads(run(command, "-m", folder / "saved", *arguments(command, folder), "--json")[1])
    found = found["stages"][0]["result"] if command == "prefix" else found
    assert found["provenance"]["proof"].startswith("bidirectional, proven in 3 layers")
    assert found["provenance"]["weights"] and found["provenance"]["dtype"] == "float32"


def test_stages_stand_in_one_table_and_one_figure(run: Run, folder: Path, tmp_path: Path) -> None:
    stages = [f"{folder / 'base'}:causal", f"{folder / 'base'}:bidirectional", str(folder / "saved")]
    ask = ["prefix", *(part for stage in stages for part in ("-m", stage)), "-o", tmp_path / "out"]
    code, out, _ = run(*ask)
    assert code == 0
    assert all(stage in out for stage in stages) and out.count("exactly 0") == 1
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "prefix.json",
        "prefix.pdf",
        "prefix.png",
        "prefix.svg",
    ]
    found = json.loads(run(*ask, "--json")[1])["stages"]
    assert [one["name"] for one in found] == stages
    gaps = [one["result"]["gap"] for one in found]
    assert gaps[0] == 0 != gaps[1] and found[0]["step"] is None
    assert found[1]["step"]["difference"] == pytest.approx(gaps[1])
    assert found[2]["step"]["difference"] == pytest.approx(gaps[2] - gaps[1])


def test_options_of_words_reach_the_probe(run: Run, folder: Path) -> None:
    base = ("words", "-m", folder / "saved", *arguments("words", folder), "--json")
    options = (
        "--shift",
        "--layer",
        "1",
        "--limit",
        "12",
        "--seed",
        "3",
        "--tags",
        "ner",
    )
    found = json.loads(run(*base, *options)[1])
    assert (found["shift"], found["layer"], found["seed"]) == (True, 1, 3)
    assert (found["train_sentences"], found["test_sentences"], found["metric"]) == (12, 12, "entity_f1")


def test_options_of_masked_and_geometry_reach_the_probe(run: Run, folder: Path) -> None:
    options = (
        "-p",
        "0.5",
        "--seed",
        "3",
        "--limit",
        "3",
        "--mask-token",
        "</s>",
        "--max-length",
        "9",
        "-a",
        "causal",
        "--json",
    )
    found = json.loads(run("masked", "-m", folder / "saved", *arguments("masked", folder), *options)[1])
    assert (found["rate"], found["seed"], found["mask_token"], found["max_length"]) == (0.5, 3, "</s>", 9)
    assert found["texts"] + found["skipped"] == 3
    assert found["provenance"]["attention"] == "causal"
    given = ("geometry", "-m", folder / "base", "-d", "mean", *arguments("geometry", folder), "--positive-from", "3", "--json")
    found = json.loads(run(*given)[1])
    assert (found["positives"], found["provenance"]["design"]) == (3, "causal/plain/mean")


def test_a_narrow_terminal_cuts_nothing_of_a_wide_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head = ["layer", "cosine", "centred", *(f"starter-task-{name}" for name in "abcd")]
    rows = [[str(layer), *(with_interval(0.1 * layer, (0.25, 0.75)) for _ in head[1:])] for layer in (1, 2)]
    ProbeTable("Layers", rows, [], head).print()
    shown = capsys.readouterr().out
    assert [word for line in shown.splitlines() for word in line.split()[:1] if word.isdigit()] == ["1", "2"]
    assert shown.count("25.0") == shown.count("75.0") == 12, "both ends of each interval"
