"""Teachers: any sentence-transformers model, or a decoder under a design, fitted on texts of the training data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.training.running import recipe, run
from unmask.embedder import Embedder
from unmask.starter import reference_texts
from unmask.training import teacher as teachers
from unmask.training.data import DataSource, read_any
from unmask.training.losses import neighbour_divergence
from unmask.training.stages import STAGES
from unmask.training.stages.distill import DistillOptions
from unmask.training.teacher import load_teacher

AVERAGE = "causal/echo+eol/mean+last"
CPU = torch.device("cpu")


def texts_of(tmp_path: Path, texts: list[str]) -> DataSource:
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    return DataSource(path=str(tmp_path / "texts.txt"))


def test_a_decoder_teaches_what_an_embedder_of_its_design_says(model: Path, tmp_path: Path) -> None:
    data = read_any("text", texts_of(tmp_path, reference_texts()[:50]), tmp_path, 0)
    vectors = load_teacher(str(model), AVERAGE, [data], 0, CPU)(TEXTS)
    assert np.array_equal(vectors.numpy(), Embedder.from_pretrained(model, AVERAGE, device="cpu").encode(TEXTS))


def test_a_design_is_fitted_on_texts_of_the_training_data(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = reference_texts()[:50]
    data = read_any("text", texts_of(tmp_path, [*own, own[0]]), tmp_path, 0)
    embedder = Embedder.from_pretrained(model, f"{AVERAGE}/zscore", device="cpu").fit(own)
    vectors = load_teacher(str(model), f"{AVERAGE}/zscore", [data], 0, CPU)(TEXTS)
    assert np.abs(vectors.numpy() - embedder.encode(TEXTS)).max() < 1e-3 * np.abs(embedder.encode(TEXTS)).max()
    monkeypatch.setattr(teachers, "FIT_TEXTS", 9)
    few, again, others = (load_teacher(str(model), f"{AVERAGE}/zscore", [data], seed, CPU)(TEXTS) for seed in (0, 0, 1))
    assert torch.equal(few, again) and not torch.equal(few, others) and not torch.equal(few, vectors)


def test_a_model_learns_from_itself(model: Path, tmp_path: Path) -> None:
    """On texts that it did not train on, it comes nearer to what it says under other prompts."""
    source = texts_of(tmp_path, reference_texts()[:-60])
    teacher = Embedder.from_pretrained(model, AVERAGE, device="cpu").encode(reference_texts()[-60:])
    distances = []
    for name, steps, lr in (("before", 1, 1e-9), ("after", 40, 3e-3)):
        stage = {"data": ["text"], "batch": 16, "steps": steps, "lr": lr, "save_every": 100, "max_length": 64}
        taught = stage | {"teacher": "self", "teacher_design": AVERAGE}
        made = recipe(model, "distill", distill=taught, designs=["causal/plain/last"])
        run(made.model_copy(update={"data": {"text": source}}), tmp_path / name)
        mine = torch.as_tensor(
            Embedder.from_pretrained(tmp_path / name / "model", device="cpu").encode(reference_texts()[-60:])
        )
        distances.append(float(neighbour_divergence(mine, mine, torch.as_tensor(teacher), torch.as_tensor(teacher), 0, 0.05)))
    assert distances[1] < 0.8 * distances[0]


@pytest.mark.parametrize(("design", "said"), [("causal/eol/last/lexical", "A teacher needs dense vectors"), ("menn", "menn")])
def test_a_design_that_cannot_teach_is_refused(design: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DistillOptions(data=("text",), steps=1, lr=1.0, teacher="pico", teacher_design=design)


def test_a_model_that_teaches_itself_needs_another_design(model: Path) -> None:
    with pytest.raises(ValueError, match="needs a teacher_design"):
        recipe(model, "distill", distill={"teacher": "self"})
    made = recipe(model, "distill", distill={"teacher": "self", "teacher_design": AVERAGE})
    assert STAGES["distill"].teacher(made.stage("distill")) == str(model)
