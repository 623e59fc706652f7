"""The plan of a study of embedders: how models are made, which embedders read them, on which tasks, and what the paper claims of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import Field

from unmask.designs.design import Design, parse_designs
from unmask.designs.prompts import find_prompt
from unmask.errors import UnmaskError, unknown
from unmask.studies.claims.claim import Claim, check_names
from unmask.studies.plans import PlanTable, WholePlan, read_plan, scales_of
from unmask.studies.settings_digests import digest_of
from unmask.tasks.kinds import KINDS
from unmask.training.recipe import Recipe, load_recipe

BASE: Final = "base"
"""The model that the study is run on."""
NOT_TRAINING: Final = {"name", "about", "source", "differences", "model", "seeds"}
"""Keys of a recipe that do not say how a model of a study is trained: of names, and of what the study gives itself."""
STUDIES: Final = ("llm2vec", "moee", "pooling-and-attention")


class Making(PlanTable):
    """How a model of the study is made: by upcycling another one, or by a recipe.

    of: the model that it is made of, `base` or another one of the plan. experts: number of copies of each MLP. A model that is a mixture
    of experts already is taken as it is, and not trained. recipe: a recipe at the scale of the study. settings: `key=value` over the
    recipe. design: of the trained embedder, if not the recipe's. seeds: of the training; each gives a model of its own. None is the seeds
    of the plan. What is made of several models is made of the first.
    """

    of: str = BASE
    experts: int | None = Field(default=None, ge=2)
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    design: str | None = None
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)

    def recipe_at(self, scale: str, *settings: str) -> Recipe | None:
        """The recipe at a scale, with `key=value` settings over it. None if nothing is trained."""
        if self.recipe is None:
            return None
        own = [*self.settings, "evaluation.compared=[]"]  # the study itself scores its embedders
        if self.design is not None:
            own.append(f"designs={json.dumps([self.design])}")
        return load_recipe(self.recipe, scale, [*own, *settings])


class Reading(PlanTable):
    """An embedder: a model of the study, read by a design.

    design: a preset or a readable name. kinds: kinds of task that it is scored on; none means all.
    """

    model: str = BASE
    design: str
    kinds: tuple[str, ...] = ()

    @property
    def parsed(self) -> Design:
        """The design."""
        [design] = parse_designs(self.design).values()
        return design


class OtherPrompts(PlanTable):
    """Embedders that are read under other prompts, too. of: their names. kinds: kinds of task that these readings are scored on.

    prompts: at least four, since each of all five is left out once to see how much the prompts matter, and fewer hardly tell.
    """

    of: tuple[str, ...] = Field(min_length=1)
    prompts: tuple[str, ...] = Field(min_length=4)
    kinds: tuple[str, ...] = ()


class Part(PlanTable):
    """What a plan measures on one base model, where that is less than on others: seeds, and embedders by name."""

    seeds: tuple[int, ...] = Field(min_length=1)
    only: tuple[str, ...] = Field(min_length=1)


class EmbeddersPlan(WholePlan):
    """The settings of a study at one scale.

    study: its name. paper: what is studied. made: models by name. embedders: what is compared. other_prompts: which of them are read
    under other prompts, too. tasks: folders below the data folder, or `starter:NAME`. max_length: most tokens of a text. reference: a
    sentence-transformers model that is scored beside them, as a yardstick; none if empty. seeds: of each training that names none of its
    own (`made.NAME.seeds`). only: the embedders to measure; none means all. on: by base model, the part that is measured there. how: what
    every claim says of how it is tested. claims: what the paper says. Those of embedders that are left out stay unmeasured.
    """

    study: str
    paper: str
    made: dict[str, Making] = Field(default={})
    embedders: dict[str, Reading] = Field(min_length=2)
    other_prompts: OtherPrompts | None = None
    tasks: tuple[str, ...] = Field(min_length=1)
    max_length: int = Field(ge=16)
    reference: str = ""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    only: tuple[str, ...] = ()
    on: dict[str, Part] = Field(default={})
    how: str = ""
    claims: tuple[Claim, ...] = Field(min_length=1)

    @property
    def measured(self) -> dict[str, Reading]:
        """The embedders that are measured, by name. One that is read under another prompt is `NAME, PROMPT`."""
        chosen = {name: reading for name, reading in self.embedders.items() if not self.only or name in self.only}
        others = {
            new: self._under(prompt, reading)
            for name, reading in chosen.items()
            for prompt, new in self._under_other_prompts(name).items()
        }
        return chosen | others

    @property
    def _prompts(self) -> tuple[str, ...]:
        return self.other_prompts.prompts if self.other_prompts else ()

    def under_all_prompts(self, name: str) -> list[str]:
        """The names of an embedder under every prompt that it is read under, its own first."""
        return [name, *self._under_other_prompts(name).values()]

    def _under_other_prompts(self, name: str) -> dict[str, str]:
        return {prompt: f"{name}, {prompt}" for prompt in self._prompts if self.other_prompts and name in self.other_prompts.of}

    def _under(self, prompt: str, reading: Reading) -> Reading:
        assert self.other_prompts is not None
        design = replace(reading.parsed, prompt=prompt).name
        return reading.model_copy(update={"design": design, "kinds": self.other_prompts.kinds})

    def rests_on(self, scale: str) -> dict[str, str]:
        """Digests of the designs and recipes of the embedders that are measured, by name."""
        found = {}
        for name, reading in self.measured.items():
            templates = [find_prompt(prompt).template for prompt in reading.parsed.prompts]
            found[f"embedder {name}"] = digest_of([reading.parsed, templates])
            for model in self._makings(reading.model):
                recipe = self.made[model].recipe_at(scale)
                if recipe is not None:
                    found[f"model {model}"] = digest_of(recipe.model_dump(exclude=NOT_TRAINING))
        return found

    def _makings(self, model: str) -> Iterator[str]:
        """A model, what it is made of, and so on, down to the base."""
        while model != BASE:
            yield model
            model = self.made[model].of


def file_of(study: str) -> Path:
    """The plan of a study."""
    return Path(__file__).with_name(f"{study}.toml")


def scales(study: str) -> list[str]:
    """The names of the scales of a study."""
    return scales_of(file_of(study))


def load_plan(study: str, scale: str, settings: Iterable[str] = (), model: str | None = None) -> EmbeddersPlan:
    """The plan of a study at a scale, changed by `key=value` settings. Raises UnmaskError with the name of a wrong key.

    model: a base model; the plan is then the part that is measured on it. Settings stand over that part.
    """
    settings = list(settings)
    plan = read_plan(file_of(study), EmbeddersPlan, scale, settings)
    if model in plan.on:
        part = [f"{key}={json.dumps(value)}" for key, value in plan.on[model].model_dump(mode="json").items()]
        plan = read_plan(file_of(study), EmbeddersPlan, scale, [*part, *settings])
    known = [BASE, *plan.made]
    for needed in _models_of(plan):
        if needed not in known:
            raise unknown(f"model of the study '{study}'", needed, known)
    for reading in (*plan.embedders.values(), *plan.measured.values()):
        _ = reading.parsed
    of_prompts = plan.other_prompts.of if plan.other_prompts else ()
    for name in (*plan.only, *(name for part in plan.on.values() for name in part.only), *of_prompts):
        if name not in plan.embedders:
            raise unknown("embedder", name, plan.embedders)
    check_names(plan.claims, agreement=True)
    _check_prompts(plan)
    for claim in plan.claims:
        for name in (claim.better, *claim.than) if claim.better else ():
            if name not in plan.embedders:
                raise unknown(f"embedder of claim '{claim.id}'", name, plan.embedders)
        if claim.agreement:
            _check_agreement(plan, claim)
    return plan.model_copy(update={"claims": tuple(_with_how(claim, plan.how) for claim in plan.claims)})


def _check_prompts(plan: EmbeddersPlan) -> None:
    """Raise UnmaskError for a kind of task that does not exist, or if an embedder would be read twice under one prompt."""
    others = plan.other_prompts
    for kind in (*(kind for reading in plan.embedders.values() for kind in reading.kinds), *(others.kinds if others else ())):
        if kind not in KINDS:
            raise unknown("kind of task", kind, KINDS)
    for name in others.of if others else ():
        prompts = [plan.embedders[name].parsed.prompt, *plan._prompts]
        if twice := [prompt for prompt in prompts if prompts.count(prompt) > 1]:
            raise UnmaskError(
                f"'{name}' would be read twice under the prompt '{twice[0]}'. Name each of the other prompts once."
            )


def _check_agreement(plan: EmbeddersPlan, claim: Claim) -> None:
    """Raise UnmaskError for a claim about agreement whose sides are not two embedders of one model under the same other prompts."""
    sides = (claim.better, *claim.than)
    read = plan.other_prompts.of if plan.other_prompts else ()
    if len(sides) != 2 or len({plan.embedders[name].model for name in sides}) > 1 or not set(sides) <= set(read):
        raise UnmaskError(
            f"Claim '{claim.id}' is about agreement. It needs two embedders of one model, and `other_prompts.of` has to name both: {read}."
        )


def _with_how(claim: Claim, of_all: str) -> Claim:
    """A claim that says how it is tested, with what is said of all claims of the study."""
    if claim.untestable:
        return claim
    return claim.model_copy(update={"how": " ".join(sentence for sentence in (claim.how, of_all) if sentence)})


def _models_of(plan: EmbeddersPlan) -> Iterator[str]:
    yield from (reading.model for reading in plan.embedders.values())
    yield from (making.of for making in plan.made.values())
