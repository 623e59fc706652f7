"""Builder: makes the models of a study. Models that exist already are reused, and a training that was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from unmask.designs.design import Design
from unmask.encoding.heads import DEFAULTS
from unmask.io.files import inside
from unmask.io.terminal import say
from unmask.models.loading import Source, load_base_language_model, load_decoder
from unmask.models.routers import proven_routers
from unmask.moe.upcycling import UpcycleOptions, save_upcycled, upcycle
from unmask.studies.embedders.made import Made
from unmask.studies.embedders.plan import BASE, NOT_TRAINING, EmbeddersPlan, Making
from unmask.tasks.task import Task
from unmask.training.recipe import Recipe, read_sets
from unmask.training.recipe_run import run_recipe
from unmask.training.run import Listener


@dataclass(frozen=True)
class Builder:
    """Makes the models of a plan, below one folder. held_out: tasks. No training sees the texts of those that are folders."""

    plan: EmbeddersPlan
    scale: str
    source: Source
    root: Path
    folder: Path
    held_out: Sequence[Task]
    callbacks: Sequence[Any] = ()

    def models(self, name: str) -> list[Made]:
        """A model by its name, once for each seed of its training. It is made when it is asked for."""
        if name == BASE:
            return [Made(lambda: self.source)]
        making = self.plan.made[name]
        [of] = self.models(making.of)[:1]
        folder = inside(self.folder / "models", name)
        if making.experts is not None:
            upcycled = folder.with_name(f"{name}-upcycled")
            if not upcycled.exists() and proven_routers(load_decoder(of.source)[0]):
                return [of]  # it is a mixture of experts already
            options = UpcycleOptions(making.experts)
            of = Made(partial(self._upcycled, of, options, upcycled), None, lambda: options, of)
        if making.recipe is None:
            return [of]
        # a seed has a folder of its own, so that seeds can be added later
        return [self._trained(making, of, folder / f"seed{seed}", seed) for seed in making.seeds or self.plan.seeds]

    def _upcycled(self, of: Made, options: UpcycleOptions, folder: Path) -> Source:
        """A dense model as a mixture of experts."""
        if not folder.exists():
            say(f"{self.source.model}: upcycling")
            dense, tokenizer = load_base_language_model(of.source)
            save_upcycled(upcycle(dense, options), tokenizer, folder, of.source.model, options)
        return replace(self.source, model=str(folder))

    def _trained(self, making: Making, of: Made, folder: Path, seed: int) -> Made:
        def recipe(base: str) -> Recipe:
            found = making.recipe_at(self.scale, f"model={json.dumps(base)}", f"seeds=[{seed}]")
            assert found is not None
            return found

        def train() -> Source:
            say(f"{self.source.model}: {folder.parent.name}, seed {seed}, by the recipe {making.recipe}")
            trained = recipe(of.source.model)
            [run] = run_recipe(trained, folder, self.root, Listener(callbacks=self.callbacks), held_out=self.held_out)
            # named as the study's folder was, so that results do not depend on where it lies
            return replace(self.source, model=str(folder / run.result.relative_to(folder.resolve())))

        def settings() -> object:
            planned = recipe("")
            rows = {
                stage: {one.name: one.revision for one in read_sets(planned, stage, self.root, seed)}
                for stage in planned.stages
            }
            return [planned.model_dump(exclude=NOT_TRAINING), rows, *_start(planned)]

        return Made(train, folder, settings, of)


def _start(recipe: Recipe) -> list[str]:
    """What was otherwise before November 2026: each layer matrix was centred then, and no setting said so."""
    head = recipe.head or DEFAULTS
    layered = any(Design.parse(design).pooling == "layer-attention" for design in recipe.designs)
    return ["random layer matrix"] if layered and head.layer_matrix and not head.centred else []
