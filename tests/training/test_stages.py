"""Stages: what is minimised, and what is refused before a step is taken."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer

from tests.families import FAMILIES
from tests.training.running import ROOT, recipe, run
from tests.training.test_collate import VOCABULARY, sets_of, trainee_of
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.starter import reference_texts
from unmask.training.data import DataSource
from unmask.training.losses import neighbour_divergence
from unmask.training.recipe import Recipe, read_sets
from unmask.training.schedule import contrastive_schedule
from unmask.training.stages import STAGES
from unmask.training.stages.language import MntpOptions
from unmask.training.trainee import Trainee

NEXT = {"data": ["text"], "batch": 4, "max_length": 16, "steps": 2, "lr": 1e-3}


def mixture(tmp_path: Path, family: str, tokenizer: Any) -> Path:
    """A pico mixture of experts with its language-model head, on disk."""
    from transformers import AutoModelForCausalLM

    config = FAMILIES[family].build().config
    config.vocab_size = 512
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / family)
    tokenizer.save_pretrained(tmp_path / family)
    return tmp_path / family


def next_token(model: Path, **stage: Any) -> Recipe:
    common = recipe(model, "contrastive").model_dump(by_alias=True, exclude={"contrastive"}, exclude_unset=True)
    settings = common | {"stages": ["next-token"], "train": "full", "next-token": NEXT | stage}
    return Recipe.model_validate(settings | {"designs": ["causal/plain/mean"]})


def distill(model: Path, taught_by: Path, *designs: str, **stage: Any) -> Recipe:
    settings = {"designs": designs} if designs else {}
    return recipe(model, "distill", distill={"teacher": str(taught_by), **stage}, **settings)


def loss_of(made: Recipe, name: str) -> float:
    """The loss of a stage's first batch, before any step."""
    trainee = Trainee.load(made, Design.parse(made.designs[0]), 0)
    trainee.backbone.set_attention(STAGES[name].attention or "causal")
    trainee.start_stage(name, 0)
    stage = made.stage(name)
    ready = STAGES[name].prepare(stage, trainee, read_sets(made, name, ROOT, 0), 0)
    batch = ready.collate(ready.rows[: stage.batch // stage.accumulate])
    batch.pop("rows")
    with ready.around(), torch.no_grad():
        return float(ready.objective(ready.module, batch, None))


@pytest.mark.parametrize("family", ["mixtral", "olmoe"])
def test_the_load_balancing_loss_is_added_by_its_weight(family: str, tokenizer: Any, tmp_path: Path) -> None:
    folder = mixture(tmp_path, family, tokenizer)
    none, some, twice = (loss_of(next_token(folder, balance=weight), "next-token") for weight in (0.0, 0.5, 1.0))
    assert some - none > 0.1
    assert twice - some == pytest.approx(some - none, rel=1e-3)


def test_the_parts_of_a_step_share_the_load_balancing_loss_and_the_model_gets_its_own_back(
    tokenizer: Any, tmp_path: Path
) -> None:
    made = next_token(mixture(tmp_path, "mixtral", tokenizer), balance=0.5, accumulate=2)
    trainee = Trainee.load(made, Design.parse(made.designs[0]), 0)
    trainee.start_stage("next-token", 0)
    model: Any = trainee.language_model
    before = (model.router_aux_loss_coef, model.config.output_router_logits)
    with STAGES["next-token"].prepare(made.stage("next-token"), trainee, read_sets(made, "next-token", ROOT, 0), 0).around():
        assert (model.router_aux_loss_coef, model.config.output_router_logits) == (0.25, True)
    assert (model.router_aux_loss_coef, model.config.output_router_logits) == before


def test_a_mixture_without_such_a_loss_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    folder = mixture(tmp_path, "deepseek-v3", tokenizer)
    with pytest.raises(UnmaskError, match=r"has no load-balancing loss, so set next-token\.balance = 0"):
        loss_of(next_token(folder, balance=0.01), "next-token")
    assert loss_of(next_token(folder, balance=0.0), "next-token") > 0


# distillation


def distance(embedder: Embedder, teacher: Path) -> float:
    """How far the neighbours of texts that no recipe here trains on are from the teacher's."""
    texts = reference_texts()[-60:]
    vectors = SentenceTransformer(str(teacher), device="cpu").encode(texts, convert_to_tensor=True)
    mine = torch.from_numpy(embedder.encode(texts))
    return float(neighbour_divergence(mine, mine, vectors.clone(), vectors.clone(), 0, 0.05))


def test_a_student_comes_nearer_to_its_teacher_on_other_texts(model: Path, teacher: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(reference_texts()[:-60]))
    for name, steps, lr in (("before", 1, 1e-9), ("after", 40, 3e-3)):
        made = distill(
            model,
            teacher,
            "causal/eos/cross-attention",
            data=["text"],
            batch=16,
            steps=steps,
            lr=lr,
            save_every=100,
            max_length=64,
        )
        run(made.model_copy(update={"data": {"text": DataSource(path=str(texts))}}), tmp_path / name)
    before, after = (
        distance(Embedder.from_pretrained(tmp_path / name / "model", device="cpu"), teacher) for name in ("before", "after")
    )
    assert after < 0.8 * before


def test_pairs_stay_together_and_single_texts_are_taken(model: Path, teacher: Path, tmp_path: Path) -> None:
    """A batch comes from one data set: of 4 pairs it holds 8 texts, of 4 single texts 4."""
    made = distill(model, teacher)
    trainee = Trainee.load(made, Design.parse(made.designs[0]), 0)
    stage = made.stage("distill")
    sets = read_sets(made, "distill", ROOT, 0)
    assert {data.name: data.kind for data in sets} == {"pairs": "pairs", "text": "sentences"}
    ready = STAGES["distill"].prepare(stage, trainee, sets, 0)
    seen = set()
    for at in range(0, len(ready.rows), stage.batch):
        batch = ready.collate(ready.rows[at : at + stage.batch])
        (name,) = {row.partition(":")[0] for row in batch["rows"]}
        assert batch["teacher"].shape == (8 if name == "pairs" else 4, 16) and not batch["teacher"].requires_grad
        seen.add(name)
    assert seen == {"pairs", "text"}
    assert not any("teacher" in name for name, _ in ready.module.named_modules()), "a checkpoint holds the student alone"


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        ("contrastive", {"batch": 1}),
        ("simcse", {"batch": 1}),
        ("distill", {"batch": 2, "data": ["text"], "teacher": "nowhere"}),
    ],
)
def test_a_batch_that_teaches_nothing_is_refused_before_a_model_is_loaded(
    stage: str, options: dict[str, Any], model: Path, teacher: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnmaskError, match=rf"A batch of \d from data set '\w+' holds 2 texts.* takes 3: raise {stage}\.batch"):
        run(recipe(tmp_path / "nowhere", stage, **{stage: options}), tmp_path / "run")
    larger = options | {"batch": options["batch"] + 1} | ({"teacher": str(teacher)} if stage == "distill" else {})
    loss_of(recipe(model, stage, **{stage: larger}), stage)  # not refused


def test_a_guide_leaves_negatives_out_and_a_teacher_adds_its_divergence(model: Path, teacher: Path) -> None:
    def loss(**options: Any) -> float:
        return loss_of(recipe(model, "contrastive", contrastive=options), "contrastive")

    plain, named = loss(), str(teacher)
    assert loss(guide=named, false_negative_margin=-3.0) == 0.0, "no cosine is lower than the positive's by 3"
    assert loss(guide=named, false_negative_margin=3.0) == pytest.approx(plain)
    assert loss(guide=named) == loss(guide=named, false_negative_margin=0.0)
    once, twice = (loss(teacher=named, teacher_weight=weight) - plain for weight in (1.0, 2.0))
    assert once > 1e-3 and twice == pytest.approx(2 * once, rel=1e-4)
    alone = loss_of(recipe(model, "distill", distill={"teacher": named, "data": ["pairs"]}), "distill")
    assert once == pytest.approx(alone, rel=1e-3), "of the same batch"


def test_similar_texts_share_a_batch_if_asked(model: Path) -> None:
    made = recipe(model, "contrastive", contrastive={"similar": 2})
    sets, stage = read_sets(made, "contrastive", ROOT, 0), made.stage("contrastive")
    trainee = Trainee.load(made, Design.parse(made.designs[0]), 0)
    rows = STAGES["contrastive"].prepare(stage, trainee, sets, 0).rows
    expected = contrastive_schedule(sets, stage.steps, stage.batch, 0, 2)
    assert [row.id for row in rows] == [row.id for row in expected]
    assert expected != contrastive_schedule(sets, stage.steps, stage.batch, 0)


def test_every_stage_has_a_table_in_a_recipe() -> None:
    tables = {field.alias or name: field.annotation for name, field in Recipe.model_fields.items()}
    assert {name: tables.get(name) for name in STAGES} == {name: stage.options | None for name, stage in STAGES.items()}


def test_mntp_draws_no_token_that_the_model_does_not_embed(tokenizer: Any) -> None:
    """A tokenizer may know more tokens than the model. Those would have no embedding."""
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens([f"<image {number}>" for number in range(VOCABULARY)], special_tokens=True)
    stage = MntpOptions(data=("text",), steps=8, batch=4, lr=1.0, chunks="sentences", p=0.9)
    sets = [sets_of([[text] for text in reference_texts()])]
    ready = STAGES["mntp"].prepare(stage, trainee_of("llama", larger), sets, 0)
    fitting = STAGES["mntp"].prepare(stage, trainee_of("llama", tokenizer), sets, 0)
    inputs = ready.collate(ready.rows)["input_ids"]
    assert int(inputs.max()) < VOCABULARY < len(larger)
    assert torch.equal(inputs, fitting.collate(fitting.rows)["input_ids"])
