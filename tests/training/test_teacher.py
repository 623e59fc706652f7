"""Teachers: any sentence-transformers model, or a decoder under a design, fitted on texts of the training data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.training.running import recipe
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.starter import reference_texts
from unmask.training.data import DataSet, DataSource, read_texts_or_pairs
from unmask.training.stages import STAGES
from unmask.training.stages import teachers as distillation
from unmask.training.stages.distill import DistillOptions
from unmask.training.stages.teachers import Teacher, decoder_teacher

AVERAGE = "causal/echo+eol/mean+last"
CPU = torch.device("cpu")


def texts_of(tmp_path: Path, texts: list[str]) -> DataSource:
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    return DataSource(path=str(tmp_path / "texts.txt"))


def taught_by(model: Path, design: str, data: DataSet, seed: int = 0) -> Teacher:
    options = DistillOptions(data=("text",), steps=1, lr=1.0, teacher=str(model), teacher_design=design)
    return decoder_teacher(options, [data], seed, dtype="float32", device=CPU)


def test_a_decoder_teaches_what_an_embedder_of_its_design_says(model: Path, tmp_path: Path) -> None:
    data = read_texts_or_pairs("text", texts_of(tmp_path, reference_texts()[:50]), tmp_path, 0)
    vectors = taught_by(model, AVERAGE, data)(TEXTS)
    assert np.array_equal(
        vectors.numpy(), Embedder.from_pretrained(model, AVERAGE, dtype="float32", device="cpu").encode(TEXTS)
    )


def test_a_design_is_fitted_on_texts_of_the_training_data(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = reference_texts()[:50]
    data = read_texts_or_pairs("text", texts_of(tmp_path, [*own, own[0]]), tmp_path, 0)
    embedder = Embedder.from_pretrained(model, f"{AVERAGE}/zscore", dtype="float32", device="cpu").fit(own)
    vectors = taught_by(model, f"{AVERAGE}/zscore", data)(TEXTS)
    assert np.abs(vectors.numpy() - embedder.encode(TEXTS)).max() < 1e-3 * np.abs(embedder.encode(TEXTS)).max()
    monkeypatch.setattr(distillation, "FIT_TEXTS", 9)
    few, again, others = (taught_by(model, f"{AVERAGE}/zscore", data, seed)(TEXTS) for seed in (0, 0, 1))
    assert torch.equal(few, again) and not torch.equal(few, others) and not torch.equal(few, vectors)


def test_a_model_that_teaches_itself_needs_another_design(model: Path) -> None:
    with pytest.raises(ValueError, match="needs a teacher_design"):
        recipe(model, "distill", distill={"teacher": "self"})
    made = recipe(model, "distill", distill={"teacher": "self", "teacher_design": AVERAGE})
    assert STAGES["distill"].teacher(made.stage("distill")) == (str(model), AVERAGE)
    with pytest.raises(ValueError, match="the model already says what it would learn: 'prompteol' is its design"):
        recipe(model, "distill", distill={"teacher": "self", "teacher_design": "causal/eol/last"}, designs=["prompteol"])
    assert recipe(model, "simcse", "distill", distill={"teacher": "self", "teacher_design": "prompteol"}, designs=["prompteol"])


def test_a_sentence_transformers_model_is_not_read_under_a_design(teacher: Path, tmp_path: Path) -> None:
    data = read_texts_or_pairs("text", texts_of(tmp_path, TEXTS), tmp_path, 0)
    with pytest.raises(UnmaskError, match=r'If it is a sentence-transformers model, set teacher_design = ""\. The reason: '):
        taught_by(teacher, AVERAGE, data)
