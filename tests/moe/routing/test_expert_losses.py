"""`unmask probe experts`, run as a user does: what is lost without each expert, beside a record or alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask.moe.routing.expert_losses as module
from tests.moe.mixture.models import language_model, saved_experts
from tests.moe.routing.recorded import topical
from tests.probing.conftest import Run
from tests.tiny import write_rows
from unmask.errors import UnmaskError
from unmask.models.source import Source
from unmask.moe.atlas.aggregate import aggregate
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture
from unmask.moe.routing.ablation import ablate_experts
from unmask.moe.routing.expert_differences import output_differences
from unmask.moe.routing.expert_record import read_expert_losses
from unmask.moe.routing.labelled_texts import LabelledText, LabelledTexts, read_labelled
from unmask.moe.routing.record import EXPERTS, read_record
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
    alone = ablate_experts(load_predicting_model(Source(str(native)), "causal"), [text.text for text in labelled.texts])
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
        "9 experts that matter",
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
    assert "on 2 texts" in " ".join(out.split()) and "Left out: 1 of one token" in " ".join(out.split())
    none = write_rows(tmp_path / "none.jsonl", [{"text": "x"}])
    code, _, err = run("experts", "-m", native, "-t", none, "-o", tmp_path / "none")
    assert code == 2 and "No text has two tokens" in err


def test_a_dense_model_has_no_experts(run: Run, texts: Path, base: Path, tmp_path: Path) -> None:
    code, _, err = run("experts", "-m", base, "-t", texts, "-o", tmp_path / "out")
    assert code == 2 and "it is dense" in err
    assert not (tmp_path / "out" / EXPERTS).exists()


def test_losses_of_another_model_and_a_file_of_somebody_else_stay(
    run: Run, texts: Path, native: Path, ours: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    assert run("experts", "-m", ours, "-t", texts, "-o", folder)[0] == 0
    before = (folder / EXPERTS).read_bytes()
    code, _, err = run("experts", "-m", native, "-t", texts, "-o", folder)
    assert code == 2 and "holds losses of" in err and (folder / EXPERTS).read_bytes() == before
    (folder / EXPERTS).write_text(json.dumps({"my": "team of experts"}))
    assert run("experts", "-m", ours, "-t", texts, "-o", folder)[0] == 2
    assert json.loads((folder / EXPERTS).read_text()) == {"my": "team of experts"}


def test_only_our_experts_are_removed_over_a_native_base(run: Run, texts: Path, native: Path, tmp_path: Path) -> None:
    source = Source(str(native))
    model = load_predicting_model(source, "causal").language_model
    mixture = Mixture(model, saved_experts(tmp_path / "experts", model), Routing(top_k=1), source=source)
    mixture.save_pretrained(tmp_path / "mixture")
    code, _, err = run("experts", "-m", tmp_path / "mixture", "-t", texts, "-o", tmp_path / "out")
    assert code == 0, err
    found = read_expert_losses(tmp_path / "out")
    assert found is not None and [one.expert for one in found.removals] == [0, 1, 2]
    assert all(point.experts == 3 for point in found.points)


def test_outputs_of_experts_are_compared_on_texts_of_all_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPARED", 100)
    texts, tokens = [f"news {number}" for number in range(50)] + [f"law {number}" for number in range(50)], [10] * 100
    few = module._few(texts, tokens, 0)
    assert len(few) == 10 and {text.split()[0] for text in few} == {"news", "law"}
    assert few == module._few(texts, tokens, 0) != module._few(texts, tokens, 1)
    assert module._few(["long"], [1_000], 0) == ["long"], "one text at least"


def test_a_limit_of_tokens_holds_for_every_part(native: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, long = load_predicting_model(Source(str(native)), "causal"), LabelledTexts((LabelledText("guitar " * 60),))
    seen: list[int] = []
    inner = output_differences

    def spied(*given: Any) -> Any:
        hook = model.backbone.model.register_forward_pre_hook(
            lambda _, args, named: seen.append(named["input_ids"].shape[1]), with_kwargs=True
        )
        try:
            return inner(*given)
        finally:
            hook.remove()

    monkeypatch.setattr(module, "output_differences", spied)
    found = module.measure_experts(model, long, tmp_path / "out", max_length=8)
    assert found.tokens == 8 and seen == [8]


def test_a_loss_that_is_no_number_is_refused(native: Path, tmp_path: Path) -> None:
    model = load_predicting_model(Source(str(native)), "causal")
    with torch.no_grad():
        model.language_model.get_output_embeddings().weight[:] = torch.inf
    with pytest.raises(UnmaskError, match="A loss is not finite"):
        module.measure_experts(model, topical(4), tmp_path / "out")
    assert not (tmp_path / "out" / EXPERTS).exists()


def test_labels_of_words_are_told(run: Run, native: Path, tmp_path: Path) -> None:
    rows = [{"tokens": ["guitar", "plays"], "tags": ["N", "V"]}, {"tokens": ["ball", "rolls"], "tags": ["N", "V"]}]
    file = write_rows(tmp_path / "words.jsonl", rows)
    code, _, err = run("experts", "-m", native, "-t", file, "--label", "tags", "-o", tmp_path / "out")
    assert code == 0 and "Labels of words are ignored" in err
