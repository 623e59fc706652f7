"""`unmask probe experts`, run as a user does: what is lost without each expert, beside a record or alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.moe.mixture.models import language_model, saved_experts
from tests.moe.routing.recorded import topical
from tests.probing.conftest import Run
from tests.tiny import write_rows
from unmask.models.source import Source
from unmask.moe.atlas.aggregate import aggregate
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.moe.routing.expert_losses import ablate_experts
from unmask.moe.routing.labelled_texts import read_labelled
from unmask.moe.routing.record import read_expert_losses, read_record
from unmask.saving.load_model import load_encoder


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
    model = load_encoder(source, "causal", predicts=True).language_model
    mixture = Mixture(model, saved_experts(tmp_path / "experts", model), Routing(top_k=1), source=source)
    mixture.save_pretrained(tmp_path / "mixture")
    return tmp_path / "mixture"


def test_the_file_says_what_the_functions_find(run: Run, texts: Path, native: Path, tmp_path: Path) -> None:
    given = ("experts", "-m", native, "-t", texts, "--label", "topic", "--label", "size", "-o", tmp_path / "out")
    code, out, err = run(*given)
    assert code == 0, err
    found = read_expert_losses(tmp_path / "out")
    assert found is not None
    labelled = read_labelled([str(texts)], ["topic", "size"])
    alone = ablate_experts(load_encoder(Source(str(native)), "causal", predicts=True), [text.text for text in labelled.texts])
    assert found.removals == alone.removals and len(found.removals) == 24
    assert [one.value for one in found.changes] == pytest.approx([one.value for one in alone.changes()], abs=1e-6)
    assert found.labels["size"].values == ("long", "short") and found.texts == 24
    assert (
        [point.layer for point in found.points] == [1, 2, 3]
        and found.differences is not None
        and len(found.differences.points) == 3
    )
    largest = max(found.changes, key=lambda one: one.value)
    assert found.loss.interval is not None and found.differences.cka is not None and found.differences.cka.interval is not None
    for said in (
        f"{found.loss.value:.3f} (95 %: {found.loss.interval[0]:.3f} to {found.loss.interval[1]:.3f}) nats per token",
        f"{largest.value:+.3f}",
        f"CKA {found.differences.cka.value:.2f} (95 %: {found.differences.cka.interval[0]:.2f} to",
    ):
        assert said in " ".join(out.split())
    assert max(len(line.rstrip()) for line in out.splitlines() if line.startswith(" ")) <= 80
    assert json.loads(run(*given, "--json")[1])["loss"]["value"] == pytest.approx(found.loss.value)


def test_experts_of_a_mixture_of_ours(run: Run, texts: Path, ours: Path, tmp_path: Path) -> None:
    code, out, err = run("experts", "-m", ours, "-t", texts, "-o", tmp_path / "out")
    assert code == 0, err
    found = read_expert_losses(tmp_path / "out")
    assert found is not None and found.experts is not None and len(found.removals) == len(found.experts) == 3
    assert found.differences is None and found.overlaps and "Directions that experts write to" in out
    assert all(name in out for name in found.experts) and " all " in out


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["native", "ours"])
def test_the_atlas_of_a_record_shows_it(kind: str, run: Run, texts: Path, native: Path, ours: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    given = ("-m", {"native": native, "ours": ours}[kind], "-t", texts, "--label", "topic", "-o", record)
    assert run("routing", *given)[0] == 0
    assert aggregate(read_record(record))["removal"] is None
    assert run("experts", *given)[0] == 0
    assert aggregate(read_record(record))["removal"]["texts"] == 24
    assert run("routing", "-o", record)[0] == 0, "the record is still one"
