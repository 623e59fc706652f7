"""The stages of training, by name. A new stage is one file in this folder, one entry below, and one field of `Recipe`."""

from __future__ import annotations

from typing import Any, Final

from unmask.training.stages.contrastive import Contrastive
from unmask.training.stages.distill import Distill
from unmask.training.stages.mntp import Mntp
from unmask.training.stages.next_token import NextToken
from unmask.training.stages.simcse import Simcse
from unmask.training.stages.stage import TrainingStage

STAGES: Final[dict[str, TrainingStage[Any]]] = {
    stage.name: stage for stage in (NextToken(), Mntp(), Simcse(), Contrastive(), Distill())
}
