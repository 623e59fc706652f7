"""Builder: trains the experts, instance merging, and every mixture of the study. Models that exist already are reused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.io.files import inside
from unmask.io.terminal import say
from unmask.models.loading import Source
from unmask.moe.experts.expert import train_expert
from unmask.moe.experts.lessons.lessons import Lesson
from unmask.moe.experts.mixing import Ingredients, mix, mix_jointly
from unmask.studies.self_moe.plan import INSTANCE, VARIANTS, StudyPlan, Variant
from unmask.studies.self_moe.study_data import Number, StudyData, number_of


@dataclass(frozen=True)
class Builder:
    """Trains everything that the study compares, from one base model, below one folder."""

    plan: StudyPlan
    source: Source
    data: StudyData
    folder: Path
    callbacks: Sequence[Any] = ()

    def experts(self, number: Number) -> dict[str, Path]:
        """The folder of an expert for each domain, trained on `number` lessons."""
        return {name: self._expert(name, lessons, number_of(name, number)) for name, lessons in self.data.first(number).items()}

    def instance(self, number: Number) -> Path:
        """One LoRA trained on all lessons together (instance merging), with the same data and steps."""
        together = [lesson for lessons in self.data.first(number).values() for lesson in lessons]
        return self._expert(INSTANCE, together, number)

    def mixture(self, variant: str, number: Number, domains: Sequence[str] | None = None) -> Path:
        """A mixture of the experts of some domains (default: all). Its router is trained on the lessons of these domains."""
        how = VARIANTS[variant]
        chosen = list(domains or self.data.learned)
        lessons = {name: self.data.first(number)[name] for name in chosen}
        end = "" if len(chosen) == len(self.data.learned) else f"-{len(chosen)}"
        folder = self._place("mixtures", f"{variant.replace(' ', '-')}{end}", number)
        if how.options.joint:
            return self._joint(how, lessons, folder)
        self._announce(folder)
        learning = self.plan.router_learning(
            how.average, len(lessons), trained=not how.untrained and len(chosen) > 1, seed=self.plan.seed
        )
        experts = self.experts(number)
        ingredients = Ingredients(tuple(experts[name] for name in chosen), self.instance(number) if how.shared else None)
        mix(
            ingredients, lessons, folder, how.routing, self.source,
            learning=learning, options=how.options, callbacks=self.callbacks,
        )  # fmt: skip
        return folder

    def _joint(self, how: Variant, lessons: Mapping[str, Sequence[Lesson]], folder: Path) -> Path:
        self._announce(folder)
        together = sum(len(of_domain) for of_domain in lessons.values())
        learning = self.plan.expert_learning(together, self.plan.seed)
        mix_jointly(
            lessons, folder, how.routing, self.source,
            lora=self.plan.lora, learning=learning, options=how.options, callbacks=self.callbacks,
        )  # fmt: skip
        return folder

    def _expert(self, name: str, lessons: Sequence[Lesson], number: Number) -> Path:
        folder = self._place("experts", name, number)
        self._announce(folder)
        learning = self.plan.expert_learning(len(lessons), self.plan.seed)
        train_expert(self.source, lessons, folder, lora=self.plan.lora, learning=learning, callbacks=self.callbacks)
        return folder

    def _place(self, kind: str, name: str, number: Number) -> Path:
        """The folder of an expert or mixture. Its name contains the number of lessons if that is below the plan's number."""
        few = fewer(number, self.plan.number)
        return inside(self.folder / (f"{kind}-{few}" if few else kind), name)

    def _announce(self, folder: Path) -> None:
        if not folder.exists():
            say(f"{self.source.model}: training {folder.relative_to(self.folder)}")


def fewer(number: Number, whole: int) -> str:
    """A number of lessons, if it is below the whole number: "33", or "33-14-33" if domains differ. Else nothing."""
    numbers = [number] if isinstance(number, int) else list(number.values())
    shown = numbers if len(set(numbers)) > 1 else numbers[:1]
    return "-".join(map(str, shown)) if min(numbers) < whole else ""
