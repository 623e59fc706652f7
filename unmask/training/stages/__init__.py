"""The stages of training, by name. A new stage is a class in this folder, one entry below, and one field of `Recipe`."""

from __future__ import annotations

from typing import Any, Final

from unmask.training.stages.contrastive import Contrastive, Simcse
from unmask.training.stages.distill import Distill
from unmask.training.stages.generate import Generate
from unmask.training.stages.language import Mntp, NextToken
from unmask.training.stages.stage import TrainingStage

STAGES: Final[dict[str, TrainingStage[Any]]] = {
    stage.name: stage for stage in (NextToken(), Mntp(), Simcse(), Contrastive(), Distill(), Generate())
}
