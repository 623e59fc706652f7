"""Abilities: items of real files, answers read as they stand, code run within limits, and equality with the harness's own tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.abilities.ability_tests import TESTS, Item, read_items
from unmask.moe.experts.abilities.harness import accuracy, draw_items, draw_tests
from unmask.moe.experts.abilities.sandbox import Limits, Program, missing_protection, passes

FILES = {
    "mmlu": "mmlu/test.jsonl",
    "bbh": "bbh/test.jsonl",
    "gsm8k": "gsm8k/test.jsonl",
    "humaneval": "humaneval/test.jsonl",
    "mbpp": "mbpp/all.jsonl",
    "hellaswag": "hellaswag/validation.jsonl",
    "piqa": "piqa/valid.jsonl",
    "truthfulqa": "truthfulqa/test.jsonl",
}


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_published_solutions_pass_and_others_do_not(name: str, data: Path) -> None:
    rows = [json.loads(line) for line in (data / FILES[name]).read_text().splitlines()]
    rows = rows[10:510] if name == "mbpp" else rows  # tasks 11 to 510 are the published test
    column = "canonical_solution" if name == "humaneval" else "code"
    items = read_items(name, data / FILES[name])
    assert len(items) == len(rows)
    if missing_protection():
        pytest.skip(f"no sandbox: {missing_protection()}")
    for item, row in list(zip(items, rows, strict=True))[:6]:
        assert item.program is not None
        assert passes(item.program(row[column]), Limits(seconds=60))
        assert not passes(item.program("    return None\n" if name == "humaneval" else "x = 1\n"))


@pytest.mark.parametrize("name", ["mmlu", "bbh", "gsm8k"])
def test_what_was_learned_is_left_out_of_items_that_the_harness_fetches(
    name: str, data: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lm_eval

    from tests.moe.mixture.models import language_model
    from unmask.moe.experts.lessons.lessons import read_seeds

    rows = [json.loads(line) for line in (data / FILES[name]).read_text().splitlines()[:6]]
    lessons = read_seeds(data / FILES[name])
    _, metric, counted = TESTS[name].hub
    samples = [{"doc_id": place, "filter": counted, "doc": row, metric: place % 2} for place, row in enumerate(rows)]
    monkeypatch.setattr(lm_eval, "simple_evaluate", lambda *_, **__: {"samples": {name: samples}})
    model = language_model(vocab_size=512, max_position_embeddings=512)

    def asked(learned: list[Any]) -> Any:
        return accuracy(model, tokenizer, name, draw_tests({name: None}, None, 0, learned)[name], run_code=True).tolist()

    assert asked([]) == accuracy(model, tokenizer, name, run_code=True).tolist() == [0, 1, 0, 1, 0, 1]
    assert asked([lessons[0], lessons[2]]) == [1, 1, 0, 1]
    with pytest.raises(UnmaskError, match="All 6 items that the harness fetched are among the learned lessons"):
        asked(lessons[:6])


@pytest.mark.parametrize("name", ["mmlu", "piqa"])
def test_a_model_that_knows_the_answer_is_right_and_one_that_does_not_is_wrong(name: str, tokenizer: Any) -> None:
    """Likelihoods of two choices by hand, by their length where the test says so, whatever else stands in the batch."""
    from tests.moe.mixture.models import language_model

    model = language_model(vocab_size=512, max_position_embeddings=512)
    items = [Item(f"Number {place} is", str(place), (" a", " b and so on and on"), place % 2) for place in range(6)]
    found = accuracy(model, tokenizer, name, items)
    expected, favourites = [], []
    for item in items:
        scores = []
        for choice in item.choices:
            ids = tokenizer(item.prompt + choice, return_tensors="pt")["input_ids"]
            start = len(tokenizer(item.prompt)["input_ids"])
            with torch.no_grad():
                logs = model(ids).logits.log_softmax(dim=-1)[0]
            length = len(choice.strip()) if name == "piqa" else 1
            scores.append(float(sum(logs[at - 1, ids[0, at]] for at in range(start, ids.shape[1]))) / length)
        favourites.append(int(np.argmax(scores)))
        expected.append(float(np.argmax(scores) == item.target))
    assert found.tolist() == expected and 0 < found.mean() < 1
    assert set(favourites) == ({1} if name == "piqa" else {0}), "whatever is longer is less likely as a whole"


def test_written_text_is_scored(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.models.huggingface import HFLM

    from tests.moe.mixture.models import language_model

    model = language_model(vocab_size=512, max_position_embeddings=512)
    monkeypatch.setattr(HFLM, "generate_until", lambda self, asked, **_: [" 2 + 2 = 4\n#### 4" for _ in asked])
    items = [Item("Two and two?", "a", target="4"), Item("Three?", "b", target="3")]
    assert accuracy(model, tokenizer, "gsm8k", items).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_code_that_is_asked_for_by_name_is_judged_by_our_sandbox(
    name: str, data: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the harness has for these tests, its metrics run code in the process that measures: they are never loaded."""
    import datasets
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    from tests.moe.mixture.models import language_model
    from unmask.moe.experts.abilities import harness

    model = language_model(vocab_size=512, max_position_embeddings=512)
    rows = [json.loads(line) for line in (data / FILES[name]).read_text().splitlines()]
    parts = {"test": rows[10:510], "prompt": rows[:10]} if name == "mbpp" else {"test": rows}
    judged: list[Program] = []

    def judge(program: Program, *, unsandboxed: bool) -> bool:
        judged.append(program)
        return len(judged) == 2 and not unsandboxed

    monkeypatch.setattr(datasets, "load_dataset", lambda *given: parts if given == TESTS[name].dataset else None)
    monkeypatch.setattr(lm_eval, "simple_evaluate", lambda *_, **__: pytest.fail("the harness would run the code"))
    monkeypatch.setattr(HFLM, "generate_until", lambda self, asked, **_: [" pass" for _ in asked])
    monkeypatch.setattr(harness, "passes", judge)
    monkeypatch.setattr(harness, "require_sandbox", lambda _: None)
    given = draw_tests({name: None}, 3, 0, [])[name]
    assert accuracy(model, tokenizer, name, given, run_code=True, limit=3).tolist() == [0, 1, 0]
    local = read_items(name, data / FILES[name])[:3]
    assert judged == [item.program(" pass") for item in local if item.program]
    with pytest.raises(UnmaskError, match="--run-code"):
        accuracy(model, tokenizer, name, given)
    from unmask.moe.experts.lessons.lessons import read_seeds

    if name == "mbpp":
        lessons = read_seeds(data / FILES[name])[10:13]
        left = draw_tests({name: None}, 3, 0, lessons[:2])[name]
        assert len(accuracy(model, tokenizer, name, left, run_code=True, limit=3)) == 1
        with pytest.raises(UnmaskError, match="All 3 items that the harness fetched are among the learned lessons"):
            accuracy(model, tokenizer, name, draw_tests({name: None}, 3, 0, lessons)[name], run_code=True, limit=3)


def test_abilities_on_the_command_line(base: Path, data: Path) -> None:
    given = ["evaluate-lm", "-m", str(base), "--ability", f"piqa={data / FILES['piqa']}", "--limit", "5", "--dtype", "float32"]
    said: Any = json.loads(CliRunner().invoke(app, [*given, "--json"], catch_exceptions=False).stdout)
    assert said["accuracy"]["items"] == {"piqa": 5}
    model, tokenizer = load_language_model(Source(str(base), dtype="float32"))
    found = accuracy(model, tokenizer, "piqa", draw_items("piqa", data / FILES["piqa"], 5, 0))
    assert said["accuracy"]["models"][0]["domains"]["piqa"] == pytest.approx(100 * found.mean())
    assert "percent" in CliRunner().invoke(app, given, catch_exceptions=False).stdout
    for wrong, why in (
        (["--ability", "pika"], "Did you mean 'piqa'"),
        (["--ability", f"triviaqa={data / FILES['piqa']}"], "it needs the columns question, answer"),
        (["--ability", f"mmlu={data / FILES['piqa']}"], "it needs the columns subject"),
        ([], "Nothing to evaluate"),
    ):
        with pytest.raises(UnmaskError, match=why):
            CliRunner().invoke(app, ["evaluate-lm", "-m", str(base), *wrong], catch_exceptions=False)
