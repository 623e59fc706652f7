"""Recipes: base model + design + stages + data, as one checked TOML file that serves a laptop, one GPU or several.

A recipe holds its settings once, and under `[scale.NAME]` what differs at that scale. `--set simcse.steps=100` overrides any
of them. Unknown keys are errors with the nearest match; so is an option that its stage would not read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unmask.designs.design import Design
from unmask.encoding.heads import HeadOptions
from unmask.errors import UnmaskError, unknown
from unmask.training.data import DataSource
from unmask.training.lora import LoraOptions

MOST_STEPS, MOST = 10_000_000, 1_000_000_000  # what is larger was mistyped


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Stage(_Table):
    """What every stage of training has.

    steps: optimiser steps; batch: examples of one step, over all machines; lr: peak learning rate; warmup: steps; accumulate:
    forward passes that a step is split into. max_length: tokens of one text. checkpointing: compute activations twice to
    save memory. evaluate_every: steps between evaluations (0: only at the end). save_every: steps between checkpoints.
    """

    data: tuple[str, ...] = Field(min_length=1)
    steps: int = Field(ge=1, le=MOST_STEPS)
    batch: int = Field(default=32, ge=1, le=MOST)
    accumulate: int = Field(default=1, ge=1, le=MOST)
    lr: float = Field(gt=0, le=1_000_000)
    warmup: int = Field(default=0, ge=0, le=MOST_STEPS)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_length: int = Field(default=128, ge=2, le=MOST)
    checkpointing: bool = False
    evaluate_every: int = Field(default=0, ge=0, le=MOST)
    save_every: int = Field(default=100, ge=1, le=MOST)

    @model_validator(mode="after")
    def _divisible(self) -> Stage:
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} cannot be split into {self.accumulate} equal parts (accumulate)")
        return self


class LanguageStage(Stage):
    """What stages on text alone share: `blocks` concatenates texts and cuts them every max_length tokens, `sentences` keeps them."""

    chunks: Literal["blocks", "sentences"] = "blocks"


class Mntp(LanguageStage):
    """Masked next-token prediction (LLM2Vec, section 2): masked token i is predicted from the state at position i - 1.

    mask: "_" as in the paper, "eos", or "new", a token of its own whose embedding is the mean of all. masking: "bert" replaces
    80 % of the chosen tokens by the mask, 10 % by random ones and keeps 10 %; "all" replaces all. p: share that is chosen.
    """

    mask: Literal["_", "eos", "new"] = "_"
    masking: Literal["bert", "all"] = "bert"
    p: float = Field(default=0.2, gt=0, lt=1)


class NextToken(LanguageStage):
    """Plain next-token prediction, causal; on a mixture of experts with its load-balancing loss, weighted by `balance`."""

    balance: float = Field(default=0.01, ge=0)


class Contrastive(Stage):
    """InfoNCE on cosines, with in-batch negatives and those of the data (LLM2Vec, section 4).

    temperature: divides the cosines. cache_tokens: a step with more tokens than this is computed in parts of this size by
    GradCache, so that memory does not grow with the batch. false_negative_margin: a negative whose cosine exceeds that of the
    positive plus this is left out (None: none is). matryoshka: the loss is averaged over these dimensions and the whole.
    """

    temperature: float = Field(default=0.05, gt=0)
    cache_tokens: int = Field(default=2048, ge=1)
    false_negative_margin: float | None = None
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Contrastive:
        if self.accumulate > 1:
            raise ValueError(
                "a batch in parts has fewer negatives: leave accumulate out, cache_tokens already limits the memory"
            )
        return self


class Simcse(Contrastive):
    """Unsupervised SimCSE: a sentence and itself under another dropout are the positive pair (LLM2Vec, section 3).

    dropout: its rate; where: on the "attention" probabilities as in the paper, or on what each "layer" adds to the residual stream.
    """

    dropout: float = Field(default=0.1, gt=0, lt=1)
    where: Literal["layer", "attention"] = "layer"


STAGES: Final[dict[str, type[Stage]]] = {
    "next-token": NextToken,
    "mntp": Mntp,
    "simcse": Simcse,
    "contrastive": Contrastive,
}


class Evaluation(_Table):
    """Tasks as `unmask compare` names them. tasks: scored during training; the best checkpoint is chosen by their mean, so results must
    not be claimed on them. held_out: those that results will be claimed on, never looked at here. Training rows that are in
    either are left out and reported.
    """  # fmt: skip

    tasks: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()


class Recipe(_Table):
    """A checked recipe at one scale.

    designs: one, or several that are trained alike; seeds: as many runs of each. train: "lora", or "full" for all weights, or "head"
    for the head alone. head_parameters: make every head as near to this size as its kind allows, so that designs are compared at one
    size. merge: whether the result holds merged weights or an adapter beside its base model. shard: split the weights over the
    processes (FSDP2), for models that do not fit one device; a stage that was stopped then starts anew.
    """

    name: str
    about: str
    source: str = ""
    model: str
    designs: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field(default=(0,), min_length=1)
    dtype: str = "auto"
    train: Literal["lora", "full", "head"] = "lora"
    merge: bool = True
    shard: bool = False
    max_length: int = Field(default=512, ge=2, le=MOST)
    stages: tuple[str, ...] = Field(min_length=1)
    lora: LoraOptions = LoraOptions()
    head: HeadOptions | None = None
    head_parameters: int | None = Field(default=None, ge=1)
    data: dict[str, DataSource]
    evaluation: Evaluation = Evaluation()
    next_token: NextToken | None = Field(default=None, alias="next-token")
    mntp: Mntp | None = None
    simcse: Simcse | None = None
    contrastive: Contrastive | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Recipe:
        for design in self.designs:
            Design.parse(design)
        for what, values in (("designs", self.designs), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise ValueError(f"{what} holds the same one twice")
        for name in self.stages:
            if name not in STAGES:
                raise ValueError(str(unknown("stage", name, STAGES)))
            for data in self.stage(name).data:
                if data not in self.data:
                    raise ValueError(str(unknown(f"data set of stage {name}", data, self.data)))
        return self

    @model_validator(mode="after")
    def _adapter_fits(self) -> Recipe:
        if not self.merge and self.train != "lora":
            raise ValueError(f'merge = false keeps an adapter, and train = "{self.train}" trains none: leave it out')
        if not self.merge and len(self.stages) > 1:
            raise ValueError(
                f"merge = false keeps one adapter, and {len(self.stages)} stages make as many, each on what the last one left: "
                "leave it out, or train one stage"
            )
        return self

    def stage(self, name: str) -> Stage:
        """The settings of a stage. Raises ValueError if the recipe has none for it."""
        found = getattr(self, name.replace("-", "_"))
        if found is None:
            raise ValueError(f"stage '{name}' is to be run, but there is no [{name}]")
        return found  # type: ignore[no-any-return]


def shipped() -> dict[str, Path]:
    """The recipes of this package, by name."""
    folder = Path(__file__).parents[1] / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def recipe_file(name: str) -> Path:
    """The file of a shipped recipe's name or of a path. Raises UnmaskError."""
    if name.endswith(".toml"):
        path = Path(name).expanduser()
        if not path.is_file():
            raise UnmaskError(f"There is no recipe '{name}'.")
        return path
    if name not in shipped():
        raise unknown("recipe", name, shipped())
    return shipped()[name]


def scales(name: str) -> list[str]:
    """The scales at which a recipe can be run."""
    return list(_tables(recipe_file(name)).get("scale", {}))


def load_recipe(name: str, scale: str | None = None, settings: Iterable[str] = ()) -> Recipe:
    """Read a recipe at one of its scales, with `key=value` settings over it. Raises UnmaskError that names file and key."""
    file = recipe_file(name)
    tables = _tables(file)
    known = tables.pop("scale", {})
    if scale is not None:
        if scale not in known:
            raise unknown(f"scale of recipe '{name}'", scale, known or ["(this recipe has none)"])
        tables = merged(tables, known[scale])
    for setting in settings:
        tables = merged(tables, parse_setting(setting))
    try:
        return Recipe.model_validate({"name": file.stem, **tables})
    except ValidationError as error:
        place = f"{file} at scale {scale}" if scale else str(file)
        choose = f" Scales, of which none was chosen: {', '.join(known)}." if known and not scale else ""
        raise UnmaskError(f"{place}: {_explain(error)}{choose}") from error


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with those of another over them, table by table."""
    result = dict(one)
    for key, value in other.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def parse_setting(setting: str) -> dict[str, Any]:
    """`simcse.steps=100` as nested tables; the value is TOML, and a bare word is a string. Raises UnmaskError."""
    key, equals, value = setting.partition("=")
    if not equals or not key.strip():
        raise UnmaskError(f"'{setting}' is not key=value, such as simcse.steps=100.")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed  # type: ignore[no-any-return]


def _tables(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnmaskError(f"{file} is no TOML: {error}.") from error


def _explain(error: ValidationError) -> str:
    problem = error.errors()[0]
    # pydantic also names the members of a union that it tried, such as literal['all']
    path = [str(part) for part in problem["loc"] if not str(part).startswith(("literal[", "tuple["))]
    where = ".".join(path) or "the recipe"
    if problem["type"] == "extra_forbidden":
        allowed, given = _fields(problem["loc"][:-1]), str(problem["loc"][-1])
        nearest = get_close_matches(given, allowed, n=1)
        hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
        return f"unknown key '{where}'.{hint} Allowed here: {', '.join(sorted(allowed))}."
    said = [
        one["msg"].removeprefix("Value error, ")
        for one in error.errors()
        if one["loc"][: len(path)] == problem["loc"][: len(path)]
    ]
    return f"{where}: {', or '.join(said).rstrip('.')}."


def _fields(path: tuple[int | str, ...]) -> list[str]:
    tables: dict[str, type[BaseModel]] = {
        **STAGES,
        "lora": LoraOptions,
        "head": HeadOptions,
        "evaluation": Evaluation,
        "data": DataSource,
    }
    model = tables[str(path[0])] if path and str(path[0]) in tables else Recipe
    return [field.alias or name for name, field in model.model_fields.items()]
