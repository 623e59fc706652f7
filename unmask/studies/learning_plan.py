"""What studies of mixtures plan and record alike: how experts and routers learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.records import RunRecord
from unmask.moe.names import Average
from unmask.studies.plans import PlanTable, WholePlan
from unmask.training.lora import LoraOptions


class ExpertPlan(PlanTable):
    """How experts learn. Instance merging and joint training use every lesson as often as the experts do.

    steps: for an expert with `number` lessons. Twice the lessons get twice the steps.
    """

    steps: int = Field(ge=1)
    lr: float = Field(gt=0)
    warmup: int = Field(ge=0)


class RouterPlan(PlanTable):
    """How routers learn."""

    steps: int = Field(ge=1)
    lr: float = Field(gt=0)
    warmup: int = Field(ge=0)


class LearningPlan(WholePlan):
    """What the study learns, and how.

    number: lessons to learn in each domain. held_out: lessons for the tests, never learned. batch: lessons of a step. passes: into at
    least so many forward passes a step is split, to save memory.
    """

    number: int = Field(ge=2)
    held_out: int = Field(ge=2)
    batch: int = Field(ge=1)
    passes: int = Field(default=1, ge=1)
    max_length: int = Field(ge=16)
    expert: ExpertPlan
    router: RouterPlan
    lora: LoraOptions = LoraOptions(r=8, alpha=16)

    def expert_learning(self, lessons: int, seed: int) -> Learning:
        """How a LoRA learns this number of lessons."""
        steps = max(1, round(self.expert.steps * lessons / self.number))
        warmup = min(self.expert.warmup, steps - 1)
        return Learning(
            steps,
            self.expert.lr,
            self.batch,
            self._accumulate(self.batch),
            warmup=warmup,
            max_length=self.max_length,
            seed=seed,
        )

    def router_learning(self, average: Average, domains: int, trained: bool, seed: int) -> Learning:
        """How a router learns. A batch has the same number of lessons of each domain, and every router sees as many lessons."""
        batch = max(1, self.batch // domains) * domains
        steps = max(1, round(self.router.steps * self.batch / batch)) if trained else 0
        warmup = max(0, min(self.router.warmup, steps - 1))
        return Learning(
            steps, self.router.lr, batch, self._accumulate(batch), warmup=warmup, max_length=self.max_length, average=average, seed=seed
        )  # fmt: skip

    def _accumulate(self, batch: int) -> int:
        """The fewest equal passes of a batch that are not fewer than `passes`. No pass is smaller than one lesson."""
        return next(count for count in range(min(self.passes, batch), batch + 1) if batch % count == 0)


class LearningRecord(RunRecord):
    """What a study of mixtures was started with. plan: the settings that may not change while it goes on."""

    base: str = Field(alias="model")
    plan: dict[str, Any]
    dtype: str

    def is_same(self, before: RunRecord, folder: Path) -> bool:
        """Whether an earlier run was started with the same. One that does not say `passes` is of a version that did not keep it."""
        assert isinstance(before, LearningRecord)
        plan = {"passes": self.plan["passes"], **before.plan}
        return super().is_same(before.model_copy(update={"plan": plan}), folder)
