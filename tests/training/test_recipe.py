"""Every shipped recipe loads at every scale; a mistake in one is named with its file, its key and what would be right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from unmask.designs.design import Design
from unmask.designs.prompts import find_prompt
from unmask.errors import UnmaskError
from unmask.training.recipe import (
    Recipe,
    ineffective_settings,
    load_recipe,
    parse_setting,
    recipe_file,
    scales,
    shipped_recipes,
)
from unmask.training.stages import STAGES

SHIPPED = [(name, scale) for name in shipped_recipes() for scale in scales(name)]

TEXT = """
about = "A recipe."
model = "pico"
designs = ["causal/plain/mean"]
stages = ["simcse"]

[simcse]
data = ["text"]
steps = 4
lr = 1e-3

[data.text]
path = "starter:reference"

[scale.large]
simcse = { steps = 400 }
data.text.limit = 7
seeds = [1, 2]
"""


WATCHED = [
    'stages=["mntp"]',
    'mntp={data=["text"], steps=4, lr=1e-3, evaluate_every=2}',
    'evaluation.tasks=["starter:sts"]',
]

TAUGHT = ['stages=["contrastive"]', 'contrastive={data=["text"], steps=4, lr=1e-3}']


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def refused(file: Path, *settings: str, scale: str | None = None) -> str:
    with pytest.raises(UnmaskError) as caught:
        load_recipe(str(file), scale, settings)
    assert str(file) in str(caught.value) or "recipe" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "scale"), SHIPPED)
def test_every_shipped_recipe_loads_at_every_scale(name: str, scale: str) -> None:
    recipe = load_recipe(name, scale)
    assert recipe.name == name and recipe.source, "where the settings come from is to be said"
    for stage in recipe.stages:
        assert isinstance(recipe.stage(stage), STAGES[stage].options)
        assert recipe.stage(stage).warmup < recipe.stage(stage).steps
    for data in recipe.data.values():
        if data.instruction or data.document_instruction:
            assert all(find_prompt(prompt).takes_instruction for one in recipe.designs for prompt in Design.parse(one).prompts)
    assert ineffective_settings(recipe) == []
    again = Recipe.model_validate_json(recipe.model_dump_json(by_alias=True))
    assert again == recipe, "the run folder keeps the recipe as JSON"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["simcse.evaluate_every=2"], ["simcse.evaluate_every has no effect, because evaluation.tasks names no task"]),
        (["simcse.evaluate_every=2", 'evaluation.tasks=["starter:sts"]'], []),
        (
            [*WATCHED, 'designs=["causal/plain/mean", "bidirectional/plain/mean"]'],
            ["mntp.evaluate_every for causal/plain/mean has no effect, because the stage trains with bidirectional attention"],
        ),
        ([*WATCHED, 'designs=["bidirectional/plain/mean"]'], []),
        (['train=["q_proj"]', "lora.r=4"], ['[lora] has no effect, because train = ["q_proj"] trains no adapter']),
        (["lora.r=4"], []),
        (["data.text.weight=3"], []),
        (
            ['stages=["mntp"]', WATCHED[1].replace(", evaluate_every=2", ""), "data.text.weight=3"],
            ["data.text.weight has no effect, because stages on tokens draw from all texts equally"],
        ),
        ([*TAUGHT, "contrastive.teacher_weight=3"], ["contrastive.teacher_weight has no effect, because there is no teacher"]),
        ([*TAUGHT, "contrastive.teacher_weight=3", "contrastive.teacher=minilm"], []),
        (["head.latents=4"], ["[head] has no effect, because no design has a head"]),
    ],
)
def test_settings_without_effect_are_named(file: Path, settings: list[str], said: list[str]) -> None:
    assert ineffective_settings(load_recipe(str(file), None, settings)) == said


PUBLISHED: list[tuple[str, str, dict[str, Any]]] = [
    ("llm2vec", "lora", {"r": 16, "alpha": 32, "dropout": 0.05}),
    (
        "llm2vec",
        "mntp",
        {"steps": 1000, "batch": 32, "lr": 5e-5, "schedule": "linear", "max_length": 512, "p": 0.2, "masking": "bert"},
    ),
    ("llm2vec", "simcse", {"steps": 1000, "batch": 32, "lr": 3e-5, "max_length": 128, "temperature": 0.05, "dropout": 0.3}),
    ("llm2vec", "contrastive", {"steps": 1000, "batch": 512, "lr": 2e-4, "warmup": 300, "temperature": 0.02}),
    ("pooling-and-attention", "lora", {"r": 16, "alpha": 32}),
    ("pooling-and-attention", "head", {"latents": 768, "heads": 32, "layer_matrix": True, "conditioned": False}),
    ("pooling-and-attention", "contrastive", {"steps": 1000, "batch": 2048, "lr": 1e-5, "temperature": 0.05}),
    ("nv-embed", "head", {"latents": 512, "heads": 8}),
    ("e5", "lora", {"r": 16}),
    (
        "e5",
        "contrastive",
        {"steps": 1000, "batch": 2048, "lr": 1e-4, "weight_decay": 0.1, "max_length": 512, "temperature": 0.02},
    ),
    ("gritlm", "contrastive", {"steps": 1253, "batch": 2048, "lr": 2e-5, "warmup": 38, "temperature": 0.02}),
    ("prompteol", "lora", {"r": 64, "alpha": 16, "dropout": 0.05}),
    ("prompteol", "contrastive", {"steps": 275_601 // 256, "batch": 256, "lr": 5e-4}),
    ("llm2vec-gen", "head", {"latents": 20, "read": 10}),
    (
        "llm2vec-gen",
        "generate",
        {"steps": 5000, "batch": 32, "lr": 3e-4, "warmup": 100, "max_length": 512, "reconstruction": 1.0, "alignment": 1.0},
    ),
    ("repllama", "contrastive", {"batch": 128, "lr": 1e-4, "warmup": 100, "max_length": 196}),
]


@pytest.mark.parametrize(("name", "table", "values"), PUBLISHED, ids=lambda value: value if isinstance(value, str) else "")
def test_the_scale_of_the_paper_has_the_numbers_of_the_paper(name: str, table: str, values: dict[str, Any]) -> None:
    """Sources: LLM2Vec, sections 2 and 3; Pooling and Attention, table 1 and its code (768 latents); NV-Embed, section 3.2; E5-Mistral,
    section 4.2; of GritLM, LLM2Vec-Gen, PromptEOL and RepLLaMA the scripts that were published with them.
    """
    found = getattr(load_recipe(name, "paper"), table).model_dump()
    assert {key: found[key] for key in values} == values


def test_a_scale_changes_what_it_names_and_nothing_else(file: Path) -> None:
    plain, large = load_recipe(str(file)), load_recipe(str(file), "large")
    assert plain.simcse and large.simcse
    assert (plain.simcse.steps, large.simcse.steps) == (4, 400)
    assert large.simcse == plain.simcse.model_copy(update={"steps": 400})
    assert large.data["text"].limit == 7 and large.data["text"].path == plain.data["text"].path
    assert large.seeds == (1, 2) and plain.seeds == (0,)
    assert scales(str(file)) == ["large"]


@pytest.mark.parametrize(
    ("setting", "parsed"),
    [
        ("simcse.steps=100", {"simcse": {"steps": 100}}),
        ("simcse.checkpointing = true", {"simcse": {"checkpointing": True}}),
        ("model=smollm2", {"model": "smollm2"}),
        ("model=./a=b/c", {"model": "./a=b/c"}),
        ('lora.targets=["q_proj", "v_proj"]', {"lora": {"targets": ["q_proj", "v_proj"]}}),
        ('data.text={path = "a.txt"}', {"data": {"text": {"path": "a.txt"}}}),
    ],
)
def test_settings_are_toml_and_bare_words_strings(setting: str, parsed: dict[str, Any]) -> None:
    assert parse_setting(setting) == parsed


def test_a_setting_of_what_is_not_run_or_read_is_refused(file: Path) -> None:
    """The tables of a recipe file may wait for other stages."""
    more = '[contrastive]\ndata = ["triples"]\nsteps = 4\nlr = 1e-3\n[data.triples]\npath = "starter:pairs"\n'
    file.write_text(TEXT.replace("[scale.large]", f"{more}\n[scale.large]"), encoding="utf-8")
    assert load_recipe(str(file)).contrastive
    for setting in ("contrastive.steps=500", 'next-token={data=["text"], steps=1, lr=1.0}'):
        assert f"'{setting}' would change nothing in recipe 'mine': its stages are simcse, not " in refused(file, setting)
    for setting in ("data.triples.limit=10", 'data.mine={path="a.txt"}'):
        assert f"'{setting}' would change nothing in recipe 'mine': its stages do not read " in refused(file, setting)
    own = ["contrastive.steps=500", "data.triples.limit=10", 'stages=["contrastive"]']
    recipe = load_recipe(str(file), None, iter(own))
    assert recipe.contrastive and (recipe.contrastive.steps, recipe.data["triples"].limit) == (500, 10)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("modle=x", "Unknown key 'modle'. Did you mean 'model'? Allowed: "),
        ("simcse.temprature=1", "Unknown key in [simcse] 'temprature'. Did you mean 'temperature'?"),
        ("lora.target=all", "Unknown key in [lora] 'target'. Did you mean 'targets'? Allowed: alpha, dropout, r, targets."),
        ("data.text.split_=x", "Unknown key in [data.text] 'split_'. Did you mean 'split'?"),
        ("next_token.steps=1", "Unknown key 'next_token'. Did you mean 'next-token'?"),
        ("simcse.mask=_", "Unknown key in [simcse] 'mask'."),  # an option of another stage
        ("scale.large.model=x", "Unknown key 'scale'."),
    ],
)
def test_an_unknown_key_names_the_nearest_match(file: Path, setting: str, said: str) -> None:
    assert said in refused(file, setting)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["simcse.steps=0"], "simcse.steps: Input should be greater than or equal to 1."),
        (["simcse.matryoshka=[64, 0]"], "simcse.matryoshka.1: Input should be greater than or equal to 1."),
        (["simcse.batch=10", "simcse.accumulate=4"], "simcse: batch 10 cannot be split into 4 equal parts (accumulate)."),
        (["simcse.accumulate=4"], "simcse: a batch in parts compares fewer texts: leave accumulate out"),
        (['simcse.data=["texts"]'], "Unknown data set of stage simcse 'texts'. Did you mean 'text'? Allowed: text."),
        (['stages=["mntp", "simcse"]'], "stage 'mntp' is to be run, but there is no [mntp]."),
        (['stages=["simsce"]'], "Unknown stage 'simsce'. Did you mean 'simcse'?"),
        (['designs=["causal/plain/maen"]'], "Did you mean 'mean'?"),
        (["seeds=[1, 1]"], "seeds holds one value twice."),
        (["simcse.similar=3"], "a batch of 32 is not made of whole groups of 3 (similar)"),
        (['stages=["simcse", "simcse"]', "merge=false"], "merge = false keeps one adapter, and 2 stages make as many"),
        (["merge=false", 'train=["v_proj"]'], 'merge = false keeps an adapter, and train = ["v_proj"] trains none'),
        (["lora.targets=[]"], "lora.targets: Input should be 'all', or it needs at least 1 value, and has none"),
        (["train=[]"], "train: Input should be 'lora', 'full' or 'head', or it needs at least 1 value, and has none"),
        (["data.text.columns.colour=a"], "data.text.columns: 'colour' is none of text, label, answer, anchor, positive"),
    ],
)
def test_a_value_that_cannot_be_says_where_and_why(file: Path, settings: list[str], said: str) -> None:
    message = refused(file, *settings)
    assert said in message
    assert ".." not in message and message.startswith(str(file))


def test_what_only_a_scale_says_is_asked_for(file: Path) -> None:
    file.write_text(TEXT.replace("steps = 4\n", ""), encoding="utf-8")
    assert "simcse.steps: it is missing. No scale was chosen; choose one with --scale: large." in refused(file)
    assert load_recipe(str(file), "large")
    assert "at scale large: Unknown key 'x'" in refused(file, "x=1", scale="large")


def test_an_unknown_scale_or_recipe_names_those_that_there_are(file: Path) -> None:
    assert "Unknown scale of recipe" in refused(file, scale="larg") and "Did you mean 'large'?" in refused(file, scale="larg")
    file.write_text(re.sub(r"(?s)\[scale.*", "", TEXT), encoding="utf-8")
    assert "(this recipe has none)" in refused(file, scale="small")
    with pytest.raises(UnmaskError, match=r"Unknown recipe 'llm2vce'\. Did you mean 'llm2vec'"):
        load_recipe("llm2vce")
    with pytest.raises(UnmaskError, match=r"There is no recipe 'nowhere\.toml'"):
        recipe_file("nowhere.toml")
