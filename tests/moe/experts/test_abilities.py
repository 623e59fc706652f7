"""Abilities: items of real files, answers as they are read, and equality with likelihoods by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.moe.mixture.models import language_model
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.abilities import harness
from unmask.moe.experts.abilities.ability_tests import TESTS, Item, read_items
from unmask.moe.experts.abilities.harness import accuracies, draw_tests
from unmask.moe.experts.abilities.sandbox import Limits, Program, missing_protection, passes
from unmask.moe.experts.lessons.lessons import read_seeds

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


@pytest.fixture
def model() -> Any:
    return language_model(vocab_size=512, max_position_embeddings=512)


def rows_of(name: str, data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / FILES[name]).read_text().split("\n") if line]


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_published_solutions_pass_and_others_do_not(name: str, data: Path) -> None:
    rows = rows_of(name, data)
    rows = rows[10:510] if name == "mbpp" else rows  # tasks 11 to 510 are the published test
    items = read_items(name, data / FILES[name])
    assert len(items) == len(rows)
    if missing_protection():
        pytest.skip(f"no sandbox: {missing_protection()}")
    for item, row in list(zip(items, rows, strict=True))[:4]:
        assert item.program is not None
        assert passes(item.program(row["canonical_solution" if name == "humaneval" else "code"]), Limits(seconds=60))
        assert not passes(item.program("    return None\n" if name == "humaneval" else "x = 1\n"))


def test_learned_items_are_left_out_of_those_that_the_harness_fetches(
    data: Path, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lm_eval

    for name in ("mmlu", "bbh", "gsm8k"):
        rows, lessons = rows_of(name, data)[:6], read_seeds(data / FILES[name])
        _, metric, counted = TESTS[name].hub
        samples = [{"doc_id": index, "filter": counted, "doc": row, metric: index % 2} for index, row in enumerate(rows)]
        monkeypatch.setattr(lm_eval, "simple_evaluate", lambda *_, samples=samples, **__: {"samples": {"part": samples}})

        def scores(learned: list[Any], name: str = name) -> Any:
            return accuracies(model, tokenizer, draw_tests({name: None}, None, 0, learned))[name].tolist()

        assert scores([]) == [0, 1, 0, 1, 0, 1]
        assert scores([lessons[0], lessons[2]]) == [1, 1, 0, 1]
        with pytest.raises(UnmaskError, match="all 6 items are among the learned lessons"):
            scores(lessons[:6])


@pytest.mark.parametrize("name", ["mmlu", "piqa"])
def test_the_likeliest_choice_counts(name: str, model: Any, tokenizer: Any) -> None:
    """Likelihoods of two choices by hand, by their length where the test says so, whatever else is in the batch."""
    items = [Item(f"Number {index} is", str(index), (" a", " b and so on and on"), index % 2) for index in range(6)]
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
        expected.append(float(favourites[-1] == item.target))
    assert accuracies(model, tokenizer, {name: items})[name].tolist() == expected
    assert set(favourites) == ({1} if name == "piqa" else {0}), "a longer choice is less likely as a whole"


def test_written_text_is_scored(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.models.huggingface import HFLM

    monkeypatch.setattr(HFLM, "generate_until", lambda self, asked, **_: [" 2 + 2 = 4,000\n#### 4,000." for _ in asked])
    items = [Item("Two and two?", "a", target="4000"), Item("Three?", "b", target="3")]
    assert accuracies(model, tokenizer, {"gsm8k": items})["gsm8k"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_code_that_is_fetched_by_name_is_judged_by_our_sandbox(
    name: str, data: Path, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness's metrics run code in the process that measures: they are never loaded."""
    import datasets
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    rows = rows_of(name, data)
    parts = {"test": rows[10:510], "prompt": rows[:10]} if name == "mbpp" else {"test": rows}
    judged: list[Program] = []

    def judge(program: Program, *, unsandboxed: bool) -> bool:
        judged.append(program)
        return len(judged) == 2 and not unsandboxed

    monkeypatch.setattr(datasets, "load_dataset", lambda *given: parts if given == TESTS[name].hub else None)
    monkeypatch.setattr(lm_eval, "simple_evaluate", lambda *_, **__: pytest.fail("the harness would run the code"))
    monkeypatch.setattr(HFLM, "generate_until", lambda self, asked, **_: [" pass" for _ in asked])
    monkeypatch.setattr(harness, "passes", judge)
    monkeypatch.setattr(harness, "require_sandbox", lambda _: None)
    fetched = draw_tests({name: None}, 3, 0, [])
    assert accuracies(model, tokenizer, fetched, run_code=True, limit=3)[name].tolist() == [0, 1, 0]
    assert judged == [item.program(" pass") for item in read_items(name, data / FILES[name])[:3] if item.program]
    with pytest.raises(UnmaskError, match="--run-code"):
        accuracies(model, tokenizer, fetched)


def test_abilities_on_the_command_line(base: Path, data: Path) -> None:
    given = ["evaluate-lm", "-m", str(base), "--ability", f"piqa={data / FILES['piqa']}", "--limit", "5", "--dtype", "float32"]
    result: Any = json.loads(CliRunner().invoke(app, [*given, "--json"], catch_exceptions=False).stdout)["accuracy"]
    assert result["items"] == {"piqa": 5}
    model, tokenizer = load_language_model(Source(str(base), dtype="float32"))
    by_hand = accuracies(model, tokenizer, draw_tests({"piqa": data / FILES["piqa"]}, 5, 0, []))["piqa"]
    assert result["models"][0]["domains"]["piqa"] == pytest.approx(100 * by_hand.mean())
    assert "percent" in CliRunner().invoke(app, given, catch_exceptions=False).stdout
    for wrong, why in (
        (["--ability", "pika"], "Did you mean 'piqa'"),
        (["--ability", f"triviaqa={data / FILES['piqa']}"], "'triviaqa' is read by its name only"),
        (["--ability", f"mmlu={data / FILES['piqa']}"], "it needs the columns subject"),
        ([], "Nothing to evaluate"),
    ):
        with pytest.raises(UnmaskError, match=why):
            CliRunner().invoke(app, ["evaluate-lm", "-m", str(base), *wrong], catch_exceptions=False)
