"""Teachers: any sentence-transformers model, or a decoder under a design, fitted on texts of the training data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import TEXTS
from tests.training.running import recipe, run
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.starter import reference_texts
from unmask.training import teacher as teachers
from unmask.training.data import DataSet, DataSource, read_any
from unmask.training.losses import neighbour_divergence
from unmask.training.stages import STAGES
from unmask.training.stages.distill import DistillOptions
from unmask.training.teacher import Teacher, load_decoder_teacher

AVERAGE = "causal/echo+eol/mean+last"
CPU = torch.device("cpu")


def texts_of(tmp_path: Path, texts: list[str]) -> DataSource:
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    return DataSource(path=str(tmp_path / "texts.txt"))


def taught_by(model: Path, design: str, data: DataSet, seed: int = 0, max_length: int = 64) -> Teacher:
    return load_decoder_teacher(str(model), design, [data], seed, dtype="float32", device=CPU, max_length=max_length)


def test_a_decoder_teaches_what_an_embedder_of_its_design_says(model: Path, tmp_path: Path) -> None:
    data = read_any("text", texts_of(tmp_path, reference_texts()[:50]), tmp_path, 0)
    vectors = taught_by(model, AVERAGE, data)(TEXTS)
    assert np.array_equal(
        vectors.numpy(), Embedder.from_pretrained(model, AVERAGE, dtype="float32", device="cpu").encode(TEXTS)
    )


def test_a_design_is_fitted_on_texts_of_the_training_data(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = reference_texts()[:50]
    data = read_any("text", texts_of(tmp_path, [*own, own[0]]), tmp_path, 0)
    embedder = Embedder.from_pretrained(model, f"{AVERAGE}/zscore", dtype="float32", device="cpu").fit(own)
    vectors = taught_by(model, f"{AVERAGE}/zscore", data)(TEXTS)
    assert np.abs(vectors.numpy() - embedder.encode(TEXTS)).max() < 1e-3 * np.abs(embedder.encode(TEXTS)).max()
    monkeypatch.setattr(teachers, "FIT_TEXTS", 9)
    few, again, others = (taught_by(model, f"{AVERAGE}/zscore", data, seed)(TEXTS) for seed in (0, 0, 1))
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
    assert STAGES["distill"].teacher(made.stage("distill")) == (str(model), AVERAGE)
    with pytest.raises(ValueError, match="the model says already what it would learn: 'prompteol' is its design"):
        recipe(model, "distill", distill={"teacher": "self", "teacher_design": "causal/eol/last"}, designs=["prompteol"])
    assert recipe(model, "simcse", "distill", distill={"teacher": "self", "teacher_design": "prompteol"}, designs=["prompteol"])


def test_an_empty_design_is_none(teacher: Path, model: Path) -> None:
    made = recipe(model, "distill", distill={"teacher": str(teacher), "teacher_design": ""})
    assert STAGES["distill"].teacher(made.stage("distill")) == (str(teacher), None)


def test_a_sentence_transformers_model_is_not_read_under_a_design(teacher: Path, tmp_path: Path) -> None:
    data = read_any("text", texts_of(tmp_path, TEXTS), tmp_path, 0)
    with pytest.raises(UnmaskError, match=r'If it is a sentence-transformers model, set teacher_design = ""\. The reason: '):
        taught_by(teacher, AVERAGE, data)


def test_what_the_model_itself_lacks_is_told_before_any_stage_trains(model: Path, tmp_path: Path) -> None:
    taught = {"teacher": "self", "teacher_design": "causal/plain/last@40"}
    with pytest.raises(UnmaskError, match="reads layer 40, but this model has"):
        run(recipe(model, "simcse", "distill", distill=taught, designs=["causal/plain/last"]), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("done*"))


def test_a_teacher_warns_of_no_text(model: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    data = read_any("text", texts_of(tmp_path, TEXTS), tmp_path, 0)
    taught_by(model, "causal/plain/mean", data)(["long " * 2000])
    assert not [one for one in recwarn if "cut" in str(one.message)]
