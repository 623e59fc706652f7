"""The plan of a study of embedders: how models are made, which embedders read them, on which tasks, and what the paper claims of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from pydantic import Field

from unmask.designs.design import Design, parse_designs
from unmask.designs.prompts import find_prompt
from unmask.errors import unknown
from unmask.studies.claims.claim import Claim
from unmask.studies.plan import PlanTable, StudyPlan, digest_of, read_plan
from unmask.training.recipe import Recipe, load_recipe

BASE: Final = "base"
"""The model that the study is run on."""
NOT_TRAINING: Final = {"name", "about", "source", "model", "seeds"}
"""Keys of a recipe that do not affect how a model of a study is trained: names, and values that the study sets."""


class ModelSpec(PlanTable):
    """How a model of the study is made: by upcycling another one, or by a recipe."""

    of: str = BASE
    """The model that it is made of: `base` or another one of the plan. Of a model with several seeds, the first."""
    experts: int | None = Field(default=None, ge=2)
    """Number of copies of each MLP. A model that is a mixture of experts already is used unchanged, and not trained."""
    recipe: str | None = None
    """A recipe, at the scale of the study."""
    settings: tuple[str, ...] = ()
    """`key=value` over the recipe."""
    design: str | None = None
    """Of the trained embedder, if not the recipe's."""
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Of the training; each gives its own model. None: the seeds of the plan."""

    def recipe_at(self, scale: str, *settings: str) -> Recipe | None:
        """The recipe at a scale, with `key=value` settings over it. None if nothing is trained."""
        if self.recipe is None:
            return None
        own_settings = [*self.settings, "evaluation.compared=[]"]  # the study itself scores its embedders
        if self.design is not None:
            own_settings.append(f"designs={json.dumps([self.design])}")
        return load_recipe(self.recipe, scale, [*own_settings, *settings])


class EmbedderSpec(PlanTable):
    """An embedder: a model of the study, read by a design."""

    model: str = BASE
    design: str
    """A preset or a readable name."""
    kinds: tuple[str, ...] = ()
    """Kinds of task that it is scored on; none means all."""

    @property
    def parsed_design(self) -> Design:
        """The design."""
        [design] = parse_designs(self.design).values()
        return design


class OtherPrompts(PlanTable):
    """Embedders that are read under other prompts, too."""

    of: tuple[str, ...] = Field(min_length=1)
    """Their names."""
    prompts: tuple[str, ...] = Field(min_length=4)
    """At least four: each of the five prompts is left out once to estimate the effect of the prompts."""
    kinds: tuple[str, ...] = ()
    """Kinds of task that these readings are scored on."""


class BaseModelPart(PlanTable):
    """What a plan measures on one base model, where that is less than on others: seeds, and embedders by name."""

    seeds: tuple[int, ...] = Field(min_length=1)
    only: tuple[str, ...] = Field(min_length=1)


class EmbeddersPlan(StudyPlan):
    """The settings of a study of embedders at one scale."""

    study: str
    paper: str
    """What is studied."""
    made: dict[str, ModelSpec] = Field(default={})
    """Models by name."""
    embedders: dict[str, EmbedderSpec] = Field(min_length=2)
    """What is compared."""
    other_prompts: OtherPrompts | None = None
    tasks: tuple[str, ...] = Field(min_length=1)
    """Folders below the data folder, or `starter:NAME`."""
    max_length: int = Field(ge=16)
    """Most tokens of a text."""
    reference: str = ""
    """A sentence-transformers model that is scored too, as a yardstick."""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    """Of each training without its own seeds (`made.NAME.seeds`)."""
    only: tuple[str, ...] = ()
    """The embedders to measure; none means all. Claims about embedders that are left out stay unmeasured."""
    on: dict[str, BaseModelPart] = Field(default={})
    """By base model, the part that is measured there."""
    how: str = ""
    """What every claim says of how it is tested."""
    claims: tuple[Claim, ...] = Field(min_length=1)

    @property
    def measured_embedders(self) -> dict[str, EmbedderSpec]:
        """The embedders that are measured, by name. One that is read under another prompt is `NAME, PROMPT`."""
        measured = {name: spec for name, spec in self.embedders.items() if not self.only or name in self.only}
        if (other_models := self.other_prompts) is not None:
            for name in [name for name in measured if name in other_models.of]:
                for prompt, new_name in zip(other_models.prompts, self.under_all_prompts(name)[1:], strict=True):
                    design = replace(measured[name].parsed_design, prompt=prompt).name
                    measured[new_name] = measured[name].model_copy(update={"design": design, "kinds": other_models.kinds})
        return measured

    def under_all_prompts(self, name: str) -> list[str]:
        """The names of an embedder under every prompt that it is read under, its own first."""
        other_designs = self.other_prompts
        return [
            name,
            *(f"{name}, {prompt}" for prompt in (other_designs.prompts if other_designs and name in other_designs.of else ())),
        ]

    def rests_on(self, scale: str) -> dict[str, str]:
        """Digests of the designs and recipes of the embedders that are measured, by name."""
        digests = {}
        for name, spec in self.measured_embedders.items():
            templates = [find_prompt(prompt).template for prompt in spec.parsed_design.prompts]
            digests[f"embedder {name}"] = digest_of([spec.parsed_design, templates])
            model = spec.model
            while model != BASE:
                recipe = self.made[model].recipe_at(scale)
                if recipe is not None:
                    digests[f"model {model}"] = digest_of(recipe.model_dump(exclude=NOT_TRAINING))
                model = self.made[model].of
        return digests


def load_plan(study: str, scale: str, settings: Iterable[str] = (), model: str | None = None) -> EmbeddersPlan:
    """The plan of a study at a scale, changed by `key=value` settings. Raises UnmaskError with the name of a wrong key.

    model: a base model; the plan is then the part that is measured on it. Settings override that part.
    """
    settings = list(settings)
    plan = read_plan(study, EmbeddersPlan, scale, settings)
    if model in plan.on:
        part = [f"{key}={json.dumps(value)}" for key, value in plan.on[model].model_dump(mode="json").items()]
        plan = read_plan(study, EmbeddersPlan, scale, [*part, *settings])
    for name in plan.only:
        if name not in plan.embedders:
            raise unknown("embedder", name, plan.embedders)
    for spec in plan.measured_embedders.values():
        _ = spec.parsed_design  # a wrong design is reported before anything is trained
    claims = (
        claim if claim.untestable else claim.model_copy(update={"how": " ".join(filter(None, (claim.how, plan.how)))})
        for claim in plan.claims
    )
    return plan.model_copy(update={"claims": tuple(claims)})


def allowed_values(plan: EmbeddersPlan) -> dict[str, list[str]]:
    """What a setting may hold, by the key of the setting."""
    return {"only": list(plan.embedders)}
