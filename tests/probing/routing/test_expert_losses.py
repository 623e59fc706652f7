"""`unmask probe experts`, run as a user does: what is lost without each expert, beside a record or alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mixture.models import language_model, saved_experts
from tests.probing.conftest import Run
from tests.probing.routing.recorded import topical
from tests.tiny import write_rows
from unmask.mixture.gating import Routing
from unmask.mixture.mixture_folder import Mixture, save_mixture
from unmask.models.source import Source
from unmask.probing.routing.ablation import ablate_experts
from unmask.probing.routing.expert_losses import read_expert_losses
from unmask.probing.routing.labelled_texts import read_labelled
from unmask.probing.routing.record import EXPERTS, read_record
from unmask.reporting.atlas.aggregate import aggregate
from unmask.saving.load_model import load_predicting_model


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [{"text": text.text, "topic": text.values[0], "size": text.values[1]} for text in topical(24).texts]
    return write_rows(tmp_path / "texts.jsonl", rows)


@pytest.fixture
def native(tokenizer: Any, tmp_path: Path) -> Path:
    language_model("olmoe", vocab_size=512).save_pretrained(tmp_path / "olmoe")
    tokenizer.save_pretrained(tmp_path / "olmoe")
    return tmp_path / "olmoe"


@pytest.fixture
def ours(base: Path, tmp_path: Path) -> Path:
    source = Source(str(base))
    model = load_predicting_model(source, "causal").language_model
    save_mixture(
        Mixture(model, saved_experts(tmp_path / "experts", model), Routing(top_k=1), source=source), tmp_path / "mixture"
    )
    return tmp_path / "mixture"


def test_the_file_says_what_the_functions_find(run: Run, texts: Path, native: Path, tmp_path: Path) -> None:
    given = ("experts", "-m", native, "-t", texts, "--label", "topic", "--label", "size", "-o", tmp_path / "out")
    code, out, err = run(*given)
    assert code == 0, err
    found = read_expert_losses(tmp_path / "out")
    assert found is not None
    labelled = read_labelled([str(texts)], ["topic", "size"])
    alone = ablate_experts(load_predicting_model(Source(str(native)), "causal"), [text.text for text in labelled.texts])
    assert found.removals == alone.removals and len(found.removals) == 24
    assert [one.value for one in found.changes] == pytest.approx([one.value for one in alone.changes()], abs=1e-6)
    assert found.labels["size"].values == ("long", "short") and found.texts == 24
    assert [point.layer for point in found.points] == [1, 2, 3] and len(found.differences) == 3
    largest = max(found.changes, key=lambda one: one.value)
    for said in (
        f"{found.loss:.3f} nats per token",
        f"{largest.value:+.3f}",
        "dominance of topic",
        "cosine",
        "9 experts that matter",
    ):
        assert said in out
    assert max(len(line.rstrip()) for line in out.splitlines() if line.startswith(" ")) <= 80
    assert json.loads(run(*given, "--json")[1])["loss"] == pytest.approx(found.loss)


def test_experts_of_a_mixture_of_ours(run: Run, texts: Path, ours: Path, tmp_path: Path) -> None:
    code, out, err = run("experts", "-m", ours, "-t", texts, "-o", tmp_path / "out")
    assert code == 0, err
    found = read_expert_losses(tmp_path / "out")
    assert found is not None and found.experts is not None and len(found.removals) == len(found.experts) == 3
    assert not found.differences and found.overlaps and "Directions that experts write to" in out
    assert all(name in out for name in found.experts) and " all " in out


@pytest.mark.parametrize("kind", ["native", "ours"])
def test_the_atlas_of_a_record_shows_it(kind: str, run: Run, texts: Path, native: Path, ours: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    given = ("-m", {"native": native, "ours": ours}[kind], "-t", texts, "--label", "topic", "-o", record)
    assert run("routing", *given)[0] == 0
    assert aggregate(read_record(record))["removal"] is None
    assert run("experts", *given)[0] == 0
    assert aggregate(read_record(record))["removal"]["texts"] == 24
    assert run("routing", "-o", record)[0] == 0, "the record is still one"


def test_a_folder_of_another_model_or_with_other_files_is_refused(
    run: Run, texts: Path, native: Path, pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    assert run("routing", "-m", pico_folder("mixtral"), "-t", texts, "-o", tmp_path / "record")[0] == 0
    code, _, err = run("experts", "-m", native, "-t", texts, "-o", tmp_path / "record")
    assert code == 2 and "with other weights: give another folder" in err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    code, _, err = run("experts", "-m", native, "-t", texts, "-o", tmp_path / "mine")
    assert code == 2 and "holds other files" in err
    assert not list(tmp_path.glob(f"*/{EXPERTS}"))


def test_texts_without_a_loss_are_left_out(run: Run, native: Path, tmp_path: Path) -> None:
    few = write_rows(tmp_path / "few.jsonl", [{"text": text} for text in ("guitar and drums", "x", "ball and goal")])
    code, out, err = run("experts", "-m", native, "-t", few, "-o", tmp_path / "out")
    assert code == 0, err
    assert "on 2 texts" in out and "Left out: 1 of one token" in out
    none = write_rows(tmp_path / "none.jsonl", [{"text": "x"}])
    code, _, err = run("experts", "-m", native, "-t", none, "-o", tmp_path / "none")
    assert code == 2 and "No text has two tokens" in err


def test_a_dense_model_has_no_experts(run: Run, texts: Path, base: Path, tmp_path: Path) -> None:
    code, _, err = run("experts", "-m", base, "-t", texts, "-o", tmp_path / "out")
    assert code == 2 and "it is dense" in err
    assert not (tmp_path / "out" / EXPERTS).exists()
