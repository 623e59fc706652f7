"""Recipes: base model, design, stages and data in one checked TOML file, for a laptop, one GPU or several.

A table `[scale.NAME]` holds what differs at that scale. `--set simcse.steps=100` overrides any setting. An unknown key is an error that
names the nearest key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from unmask.designs.design import Design
from unmask.encoding.heads import HeadOptions
from unmask.errors import UnmaskError, place_of, reason_of, unknown
from unmask.io.paths import expanded
from unmask.training.data import DataSet, DataSource
from unmask.training.lora import LoraOptions
from unmask.training.stages import STAGES
from unmask.training.stages.contrastive import ContrastiveOptions, SimcseOptions
from unmask.training.stages.distill import SELF, DistillOptions, TeacherOptions
from unmask.training.stages.generate import GenerateOptions
from unmask.training.stages.language import MntpOptions, NextTokenOptions
from unmask.training.stages.stage import MOST, StageOptions, Table


class Evaluation(Table):
    """Tasks, named as in `unmask compare`. Training rows with texts of these tasks are left out and reported."""

    tasks: tuple[str, ...] = ()
    """Scored during training. The best checkpoint is chosen by their mean, so do not claim results on them."""
    held_out: tuple[str, ...] = ()
    """The tasks on which results will be claimed. They are never scored here."""
    compared: tuple[str, ...] = ()
    """The trained embedder, its untrained base and a reference row are compared on these after the last stage. Not among `tasks`."""


class Recipe(Table):
    """A checked recipe at one scale."""

    name: str
    about: str = ""
    source: str = ""
    model: str
    designs: tuple[str, ...] = Field(min_length=1)
    """One, or several that are trained in the same way."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field(default=(0,), min_length=1)
    """One run of each design for each seed."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"  # float16 would lose small gradients
    quantize: Literal["8bit", "4bit"] | None = None
    """Hold the base model in few bits while an adapter trains on it (QLoRA, arXiv 2305.14314)."""
    train: Literal["lora", "full", "head"] | Annotated[tuple[str, ...], Field(min_length=1)] = "lora"
    """An adapter, all weights, the head alone, or a list of kinds of weight that train directly, such as ["gate_proj", "router"]; the
    coverage table names the kinds."""
    compile: bool = False
    """Compile the decoder's layers (torch.compile), which takes minutes and, on a CPU, a C++ compiler. Steps are then faster."""
    merge: bool = True
    """Whether the result holds merged weights, or an adapter next to its base model."""
    max_length: int = Field(default=512, ge=2, le=MOST)
    stages: tuple[str, ...] = Field(min_length=1)
    lora: LoraOptions = LoraOptions()
    head: HeadOptions | None = None
    data: dict[str, DataSource]
    evaluation: Evaluation = Evaluation()
    next_token: NextTokenOptions | None = Field(default=None, alias="next-token")
    mntp: MntpOptions | None = None
    simcse: SimcseOptions | None = None
    contrastive: ContrastiveOptions | None = None
    distill: DistillOptions | None = None
    generate: GenerateOptions | None = None

    @model_validator(mode="after")
    def _check_coherence(self) -> Recipe:
        designs = {Design.parse(design): design for design in self.designs}
        for field_name, values in (("designs", self.designs), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise ValueError(f"{field_name} holds one value twice")
        for name in self.stages:
            if name not in STAGES:
                raise ValueError(str(unknown("stage", name, STAGES)))
            for data in self.stage(name).data:
                if data not in self.data:
                    raise ValueError(str(unknown(f"data set of stage {name}", data, self.data)))
        teacher = self.distill.teacher_design if self.distill and self.distill.teacher == SELF else None
        same = designs.get(Design.parse(teacher)) if teacher and self.stages[0] == "distill" else None
        if same:
            raise ValueError(f"the model already says what it would learn: '{same}' is its design and its teacher's")
        if not self.merge and self.train != "lora":
            raise ValueError(
                f"merge = false keeps an adapter, and train = {_format_train(self.train)} trains none: leave it out"
            )
        if self.quantize is not None and (self.merge or self.train != "lora"):
            raise ValueError(
                f'quantize = "{self.quantize}" trains an adapter, and merging would round it: set merge = false and train = "lora"'
            )
        if not self.merge and len(self.stages) > 1:
            raise ValueError(
                f"merge = false keeps one adapter, and {len(self.stages)} stages make as many, each on what the last one left: "
                "leave it out, or train one stage"
            )
        return self

    @property
    def trains_weights(self) -> bool:
        """Whether weights of the model itself train, all or some kinds of them, in place of an adapter or a head alone."""
        return self.train not in ("lora", "head")

    def stage(self, name: str) -> StageOptions:
        """The options of a stage. Raises ValueError if the recipe has no table for it."""
        options: StageOptions | None = getattr(self, name.replace("-", "_"))
        if options is None:
            raise ValueError(f"stage '{name}' is to be run, but there is no [{name}]")
        return options.resolve_self(self.model) if isinstance(options, TeacherOptions) else options


def read_sets(recipe: Recipe, stage: str, root: Path, seed: int) -> list[DataSet]:
    """The data of a stage, checked row by row. Raises UnmaskError with file, line and reason, and for batches that teach nothing."""
    sets = [STAGES[stage].read(name, recipe.data[name], root, seed) for name in recipe.stage(stage).data]
    STAGES[stage].require_learnable(recipe.stage(stage), sets)
    return sets


def ineffective_settings(recipe: Recipe) -> list[str]:
    """Settings of a recipe that its other settings leave without effect: a sentence for each."""
    reasons: dict[str, str] = {}
    for name in recipe.stages:
        attention, key = STAGES[name].attention, f"{name}.evaluate_every"
        mismatched = [design for design in recipe.designs if attention not in (None, Design.parse(design).attention)]
        if recipe.stage(name).evaluate_every and not recipe.evaluation.tasks:
            reasons[key] = "evaluation.tasks names no task"
        elif recipe.stage(name).evaluate_every and mismatched:
            reasons[f"{key} for {', '.join(mismatched)}"] = f"the stage trains with {attention} attention"
    if "contrastive" in recipe.stages and recipe.contrastive and recipe.contrastive.teacher is None:
        defaults = ContrastiveOptions.model_fields
        for key in ("teacher_weight", "teacher_temperature"):
            if getattr(recipe.contrastive, key) != defaults[key].default:
                reasons[f"contrastive.{key}"] = "there is no teacher"
    weighted = {data for name in recipe.stages if STAGES[name].pools for data in recipe.stage(name).data}
    for data in {data for name in recipe.stages for data in recipe.stage(name).data} - weighted:
        if recipe.data[data].weight:
            reasons[f"data.{data}.weight"] = "stages on tokens draw from all texts equally"
    if recipe.train != "lora" and recipe.lora != LoraOptions():
        reasons["[lora]"] = f"train = {_format_train(recipe.train)} trains no adapter"
    if recipe.head is not None and not any(Design.parse(design).needs_head for design in recipe.designs):
        reasons["[head]"] = "no design has a head"
    return [f"{key} has no effect, because {reason}" for key, reason in reasons.items()]


def shipped_recipes() -> dict[str, Path]:
    """The recipes of this package, by name."""
    folder = Path(__file__).parents[1] / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def recipe_file(name: str) -> Path:
    """The file of a shipped recipe's name or of a path. Raises UnmaskError."""
    if name.endswith(".toml"):
        path = expanded(name)
        if not path.is_file():
            raise UnmaskError(f"There is no recipe '{name}'.")
        return path
    if name not in shipped_recipes():
        raise unknown("recipe", name, shipped_recipes())
    return shipped_recipes()[name]


def scales(name: str) -> list[str]:
    """The scales at which a recipe can be run."""
    return list(_read_tables(recipe_file(name)).get("scale", {}))


def load_recipe(name: str, scale: str | None = None, settings: Iterable[str] = ()) -> Recipe:
    """Read a recipe at one of its scales, with `key=value` settings over it. Raises UnmaskError that names file and key."""
    file = recipe_file(name)
    tables = _read_tables(file)
    scales, changes = tables.pop("scale", {}), {setting: parse_setting(setting) for setting in settings}
    if scale is not None and scale not in scales:
        raise unknown(f"scale of recipe '{name}'", scale, scales or ["(this recipe has none)"])
    for change in (scales.get(scale, {}), *changes.values()):
        tables = merge_tables(tables, change)
    try:
        recipe = Recipe.model_validate({"name": file.stem, **tables})
    except ValidationError as error:
        location = f"{file} at scale {scale}" if scale else str(file)
        choose = f" No scale was chosen; choose one with --scale: {', '.join(scales)}." if scales and not scale else ""
        raise UnmaskError(f"{location}: {_explain(error)}{choose}") from error
    # A recipe file may hold tables that nothing reads, because other stages may be chosen. A setting may not.
    used = {data for stage in recipe.stages for data in recipe.stage(stage).data}
    for setting, change in changes.items():
        problem = f"'{setting}' would change nothing in recipe '{recipe.name}': its stages"
        if idle := change.keys() & (STAGES.keys() - set(recipe.stages)):
            raise UnmaskError(f"{problem} are {', '.join(recipe.stages)}, not {', '.join(idle)}.")
        data = change.get("data", {})
        if unread := [name for name in data if name not in used]:
            raise UnmaskError(f"{problem} do not read {unread[0]}, but {', '.join(sorted(used))}.")
    return recipe


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables updated with another's, table by table. An empty table clears what was there, as an empty list does."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and len(value) > 0 and isinstance(result.get(key), Mapping)
        result[key] = merge_tables(result[key], value) if both else value
    return result


def parse_setting(setting: str) -> dict[str, Any]:
    """`simcse.steps=100` as nested tables; the value is TOML, and a bare word is a string. Raises UnmaskError."""
    key, equals, value = setting.partition("=")
    if not equals or not key.strip():
        raise UnmaskError(f"'{setting}' is not key=value, such as max_length=256.")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed  # type: ignore[no-any-return]


def _format_train(train: str | tuple[str, ...]) -> str:
    return f'"{train}"' if isinstance(train, str) else str(list(train)).replace("'", '"')


def _read_tables(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnmaskError(f"{file} is not TOML: {error}.") from error


def _explain(error: ValidationError) -> str:
    problem = error.errors()[0]
    path = place_of(problem)
    if problem["type"] == "extra_forbidden":
        tables: dict[str, type[BaseModel]] = {
            **{name: stage.options for name, stage in STAGES.items()},
            "lora": LoraOptions,
            "head": HeadOptions,
            "evaluation": Evaluation,
            "data": DataSource,
        }
        fields = tables.get(path[0], Recipe).model_fields if len(path) > 1 else Recipe.model_fields
        table = ".".join(path[:-1])
        return str(
            unknown(f"key in [{table}]" if table else "key", path[-1], [field.alias or name for name, field in fields.items()])
        )
    reasons = [reason_of(detail) for detail in error.errors() if detail["loc"][: len(path)] == problem["loc"][: len(path)]]
    return f"{'.'.join(path) or 'the recipe'}: {', or '.join(reasons)}."
