"""What studies of mixtures share: how experts and routers learn, and the training of experts and mixtures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from unmask.io.terminal import say
from unmask.models.loading import Source
from unmask.moe.experts.expert import train_expert
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.lessons.lessons import Lesson
from unmask.moe.experts.mixing import Ingredients, train_mixture
from unmask.moe.experts.router import RouterOptions
from unmask.moe.mixture.gating import Routing
from unmask.moe.names import LossAverage
from unmask.studies.plan import PlanTable, StudyPlan
from unmask.training.lora import LoraOptions


class ExpertPlan(PlanTable):
    """How experts learn. Instance merging and joint training use every lesson as often as the experts do."""

    steps: int = Field(ge=1)
    """For an expert with `number` lessons. Twice the lessons get twice the steps."""
    lr: float = Field(gt=0)
    warmup: int = Field(ge=0)


class RouterPlan(PlanTable):
    """How routers learn."""

    steps: int = Field(ge=1)
    lr: float = Field(gt=0)
    warmup: int = Field(ge=0)


class LearningPlan(StudyPlan):
    """What a study of mixtures learns, and how."""

    number: int = Field(ge=2)
    """Lessons to learn in each domain."""
    held_out: int = Field(ge=2)
    """Lessons for the tests, never learned."""
    batch: int = Field(ge=1)
    """Lessons of a step."""
    passes: int = Field(default=1, ge=1)
    """A step is split into at least this many forward passes, to save memory."""
    max_length: int = Field(ge=16)
    expert: ExpertPlan
    router: RouterPlan
    lora: LoraOptions = LoraOptions(r=8, alpha=16)

    def expert_learning(self, lessons: int, seed: int) -> Learning:
        """How a LoRA learns this number of lessons."""
        steps = max(1, round(self.expert.steps * lessons / self.number))
        return Learning(
            steps,
            self.expert.lr,
            self.batch,
            self._accumulate(self.batch),
            warmup=min(self.expert.warmup, steps - 1),
            max_length=self.max_length,
            seed=seed,
        )

    def router_learning(self, average: LossAverage, domains: int, trained: bool, seed: int) -> Learning:
        """How a router learns. A batch has the same number of lessons of each domain, and every router sees the same number of lessons."""
        batch = max(1, self.batch // domains) * domains
        steps = max(1, round(self.router.steps * self.batch / batch)) if trained else 0
        warmup = max(0, min(self.router.warmup, steps - 1))
        return Learning(
            steps, self.router.lr, batch, self._accumulate(batch), warmup=warmup, max_length=self.max_length, average=average, seed=seed
        )  # fmt: skip

    def _accumulate(self, batch: int) -> int:
        """The fewest equal passes of a batch that are not fewer than `passes`. No pass is smaller than one lesson."""
        return next(count for count in range(min(self.passes, batch), batch + 1) if batch % count == 0)


def lessons_record(lessons: str) -> dict[str, Any]:
    """The number and the digest of lessons, from their description (`LessonsRecord.words`)."""
    number, content = lessons.split(" lessons, ")
    return {"number": int(number), "content": content}


@dataclass(frozen=True, kw_only=True)
class MixtureBuilder:
    """Trains experts and mixtures from one base model, below one folder. Models that exist already are reused."""

    source: Source
    folder: Path
    callbacks: Sequence[Any] = ()

    def train_expert(self, plan: LearningPlan, folder: Path, lessons: Sequence[Lesson], seed: int) -> Path:
        """The folder of a LoRA that learned these lessons."""
        self._announce(folder)
        learning = plan.expert_learning(len(lessons), seed)
        train_expert(self.source, lessons, folder, lora=plan.lora, learning=learning, callbacks=self.callbacks)
        return folder

    def train_mixture(
        self,
        plan: LearningPlan,
        folder: Path,
        lessons: Mapping[str, Sequence[Lesson]],
        routing: Routing,
        options: RouterOptions,
        *,
        learning: Learning,
        ingredients: Callable[[], Ingredients],
    ) -> Path:
        """The folder of a mixture. Its experts are the ingredients, or new ones that learn jointly with the router."""
        self._announce(folder)
        if options.joint:
            learning = plan.expert_learning(sum(map(len, lessons.values())), learning.seed)
        train_mixture(            Ingredients() if options.joint else ingredients(), lessons, folder, routing, self.source,
            lora=plan.lora, learning=learning, options=options, callbacks=self.callbacks,
        )  # fmt: skip
        return folder

    def _announce(self, folder: Path) -> None:
        if not folder.exists():
            say(f"{self.source.model}: training {folder.relative_to(self.folder)}")
