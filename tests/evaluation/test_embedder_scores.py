"""What training watches is what `unmask compare` reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import write_task
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.encoding.heads import build_head
from unmask.errors import UnmaskError
from unmask.evaluation.embedder_scores import require_scorable, score
from unmask.evaluation.results import ResultStore
from unmask.evaluation.scoring import ScoringPlan, score_designs
from unmask.models.loading import Source
from unmask.tasks.find import find_task


@pytest.fixture
def trained(pico: Callable[..., Embedder], tmp_path: Path) -> tuple[Embedder, Path]:
    """An embedder with a head, and the folder that it is saved in."""
    config = pico().backbone.model.config
    head = build_head("cross-attention", config.hidden_size, config.num_hidden_layers)
    embedder = pico("bidirectional/eos/cross-attention", head=head)
    embedder.save_pretrained(tmp_path / "saved")
    return embedder, tmp_path / "saved"


def test_scores_are_those_of_a_comparison_and_their_mean(trained: tuple[Embedder, Path], tmp_path: Path) -> None:
    embedder, folder = trained
    tasks = [find_task(str(write_task(tmp_path / kind, kind))) for kind in ("sts", "classification", "retrieval")]
    found = score(embedder, tasks)
    plan = ScoringPlan(Source(str(folder), dtype="float32"), {"own": embedder.design}, tasks, embedder.prompt.max_length, [])
    compared = {result.task: result.main_score for result in score_designs(plan, ResultStore(tmp_path / "report"))}
    assert {name: value for name, value in found.items() if name != "score"} == pytest.approx(compared)
    assert found["score"] == pytest.approx(sum(compared.values()) / 3)


def test_what_has_no_score_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    texts, words = (find_task(str(write_task(tmp_path / kind, kind))) for kind in ("sts", "word-level"))
    require_scorable([texts])
    with pytest.raises(UnmaskError, match="'word-level' is a word-level task: vectors of texts have no score on it"):
        require_scorable([texts, words])


def test_a_design_whose_head_is_not_trained_cannot_be_compared(pico_folder: Callable[..., Path], tmp_path: Path) -> None:
    task = find_task(str(write_task(tmp_path / "sts", "sts")))
    design = Design.parse("causal/eos/cross-attention")
    plan = ScoringPlan(Source(str(pico_folder())), {"head": design}, [task], 64, [])
    with pytest.raises(UnmaskError, match="needs a trained head"):
        score_designs(plan, ResultStore(tmp_path / "report"))
