"""Stages: what is minimised, and what is refused before a step is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families import FAMILIES
from tests.training.running import ROOT, recipe
from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.training.recipe import Recipe, read_sets
from unmask.training.stages import STAGES
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
    common = recipe(model, "contrastive").model_dump(by_alias=True, exclude={"contrastive"})
    settings = common | {"stages": ["next-token"], "train": "full", "next-token": NEXT | stage}
    return Recipe.model_validate(settings | {"designs": ["causal/plain/mean"]})


def loss_of(made: Recipe, name: str) -> float:
    """The loss of a stage's first batch, before any step."""
    trainee = Trainee.load(made, Design.parse(made.designs[0]), 0)
    trainee.backbone.set_attention(STAGES[name].attention or "causal")
    trainee.begin(name, 0)
    stage = made.stage(name)
    ready = STAGES[name].prepare(stage, trainee, read_sets(made, name, ROOT, 0), 0)
    batch = ready.collate(ready.rows[: stage.batch // stage.accumulate])
    batch.pop("rows")
    with ready.around(), torch.no_grad():
        return float(ready.objective(ready.module, batch, None))


@pytest.mark.parametrize("family", ["mixtral", "olmoe", "qwen3-moe"])
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
    trainee.begin("next-token", 0)
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


def test_a_dense_model_needs_no_balance(model: Path) -> None:
    assert loss_of(next_token(model), "next-token") == loss_of(next_token(model, balance=0.0), "next-token")


def test_an_instruction_that_the_prompt_does_not_take_is_refused_before_training(model: Path) -> None:
    data = {"pairs": {"path": "starter:pairs", "instruction": "Find the same"}}
    made = recipe(model, "contrastive", data=data)
    with pytest.raises(UnmaskError, match=r"has no \{instruction\}"):
        loss_of(made, "contrastive")


def test_every_stage_has_a_table_in_a_recipe() -> None:
    tables = {field.alias or name: field.annotation for name, field in Recipe.model_fields.items()}
    assert {name: tables.get(name) for name in STAGES} == {name: stage.options | None for name, stage in STAGES.items()}
