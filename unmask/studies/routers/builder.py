"""Builder: trains the experts once, and a mixture for each configuration and seed. Models that exist already are reused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.io.files import inside
from unmask.io.terminal import say
from unmask.models.loading import Source
from unmask.moe.experts.expert import train_expert
from unmask.moe.experts.lessons.lessons import Lesson
from unmask.moe.experts.mixing import Ingredients, mix, mix_jointly
from unmask.moe.mixture.gating import Routing
from unmask.studies.routers.configurations import CONFIGURATIONS, STANDARD, Configuration
from unmask.studies.routers.lesson_sets import LessonSet
from unmask.studies.routers.plan import RoutersPlan
from unmask.studies.routers.same_experts import TOGETHER


@dataclass(frozen=True)
class Builder:
    """Trains everything that the study compares, from one base model, below one folder.

    anchor: the layer that decides in anchored configurations. layers: number of layers of the base.
    """

    plan: RoutersPlan
    source: Source
    sets: Mapping[str, LessonSet]
    folder: Path
    anchor: int
    layers: int
    callbacks: Sequence[Any] = ()

    def folder_of(self, name: str, seed: int) -> Path:
        """Where the mixture of a configuration is, or will be."""
        name = STANDARD if CONFIGURATIONS[name].choice else name
        return inside(inside(self.folder / "mixtures", name.replace(" ", "-")), str(seed))

    def mixture(self, name: str, seed: int) -> Path:
        """The folder of a configuration's mixture. A configuration without training has the standard one."""
        how = CONFIGURATIONS[name]
        if how.choice:
            return self.mixture(STANDARD, seed)
        folder = self.folder_of(name, seed)
        self._announce(folder)
        lessons = self.sets[how.domains].grouped(how.experts)
        if how.options.joint:
            learning = self.plan.expert_learning(sum(map(len, lessons.values())), seed)
            mix_jointly(
                lessons, folder, how.routing, self.source,
                lora=self.plan.lora, learning=learning, options=how.options, callbacks=self.callbacks,
            )  # fmt: skip
            return folder
        experts = tuple(self._experts(how.domains, how.experts).values())
        shared = self._expert(how.domains, TOGETHER, self._all_lessons(how.domains)) if how.shared else None
        learning = self.plan.router_learning("example", len(lessons), trained=not how.untrained, seed=seed)
        if how.options.balance.weight:
            # a pass holds one domain, as a device does in the papers; without balance, passes only cost time
            learning = replace(learning, accumulate=len(lessons))
        mix(
            Ingredients(experts, shared), lessons, folder, self._routing(how), self.source,
            learning=learning, options=how.options, callbacks=self.callbacks,
        )  # fmt: skip
        return folder

    def _routing(self, how: Configuration) -> Routing:
        return replace(how.routing, from_layer=self.anchor, span=self.layers) if how.anchored else how.routing

    def _experts(self, domains: str, number: int | None) -> dict[str, Path]:
        return {name: self._expert(domains, name, lessons) for name, lessons in self.sets[domains].grouped(number).items()}

    def _all_lessons(self, domains: str) -> list[Lesson]:
        return [lesson for lessons in self.sets[domains].learned.values() for lesson in lessons]

    def _expert(self, domains: str, name: str, lessons: Sequence[Lesson]) -> Path:
        """An expert. Its seed is that of the lessons' draw: experts are the same for all seeds of routers."""
        folder = inside(inside(self.folder / "experts", domains), name)
        self._announce(folder)
        learning = self.plan.expert_learning(len(lessons), seed=0)
        train_expert(self.source, list(lessons), folder, lora=self.plan.lora, learning=learning, callbacks=self.callbacks)
        return folder

    def _announce(self, folder: Path) -> None:
        if not folder.exists():
            say(f"{self.source.model}: training {folder.relative_to(self.folder)}")
