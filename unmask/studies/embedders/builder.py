"""Builder: makes the models of a study. Models that exist already are reused, and a training that was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.io.files import inside
from unmask.io.terminal import say
from unmask.mixture.any_model import load_any_decoder
from unmask.models.loading import Source, load_language_model
from unmask.models.routers import proven_routers
from unmask.models.upcycled_folder import save_upcycled
from unmask.models.upcycling import UpcycleOptions, upcycle
from unmask.studies.embedders.plan import BASE, EmbeddersPlan, Making
from unmask.tasks.task import Task
from unmask.training.recipe_run import run_recipe
from unmask.training.stage_run import Listener


@dataclass(frozen=True)
class Builder:
    """Makes the models of a plan, below one folder. held_out: tasks whose texts no training may see."""

    plan: EmbeddersPlan
    scale: str
    source: Source
    root: Path
    folder: Path
    held_out: Sequence[Task]
    callbacks: Sequence[Any] = ()

    def models(self, name: str) -> list[Source]:
        """A model by its name, once for each seed of its training."""
        if name == BASE:
            return [self.source]
        making = self.plan.made[name]
        [of] = self.models(making.of)[:1]
        folder = inside(self.folder / "models", name)
        if making.experts is not None:
            mixture = self._mixture(of, making.experts, folder.with_name(f"{name}-upcycled"))
            if mixture is None:
                return [of]
            of = mixture
        if making.recipe is None:
            return [of]
        return [replace(self.source, model=str(place)) for place in self._trained(making, of, folder)]

    def _mixture(self, of: Source, experts: int, folder: Path) -> Source | None:
        """A dense model, upcycled. None if it is a mixture of experts already."""
        if not folder.exists():
            decoder, _ = load_any_decoder(of)
            if proven_routers(decoder):
                return None
            say(f"{self.source.model}: upcycling")
            dense, tokenizer = load_language_model(of)
            options = UpcycleOptions(experts)
            save_upcycled(upcycle(dense, options), tokenizer, folder, of.model, options)
        return replace(self.source, model=str(folder))

    def _trained(self, making: Making, of: Source, folder: Path) -> Iterator[Path]:
        """The model of each seed. A seed has a folder of its own, so that seeds can be added later."""
        for seed in making.seeds or self.plan.seeds:
            say(f"{self.source.model}: {folder.name}, seed {seed}, by the recipe {making.recipe}")
            recipe = making.recipe_at(self.scale, f"model={json.dumps(of.model)}", f"seeds=[{seed}]")
            assert recipe is not None
            of_seed = folder / f"seed{seed}"
            [run] = run_recipe(recipe, of_seed, self.root, Listener(callbacks=self.callbacks), held_out=self.held_out)
            # named as the study's folder was, so that results do not depend on where it lies
            yield of_seed / run.result.relative_to(of_seed.resolve())
