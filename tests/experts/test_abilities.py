"""Abilities: items of real files, answers read as they stand, code run within limits, and equality with the harness's own tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.experts.abilities.harness import accuracy, draw_items, draw_tests, learned_of
from unmask.experts.abilities.sandbox import Limits, runs_well
from unmask.experts.abilities.tests import TESTS, Item, read_items, said
from unmask.experts.speakers import load_speaker
from unmask.loading import Source

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


@pytest.mark.parametrize("name", FILES)
def test_items_of_real_files(name: str, data: Path) -> None:
    items, again, other = (draw_items(name, data / FILES[name], 20, seed) for seed in (0, 0, 1))
    assert len(items) == 20
    assert [item.key for item in items] == [item.key for item in again] != [item.key for item in other]
    for item in items:
        if item.program is None:
            assert item.choices[int(item.target)] if item.choices else item.target
    shots = {"bbh": ("\nQ:", 4), "gsm8k": ("Question: ", 9), "mbpp": ("[BEGIN]", 4)}.get(name)
    if shots:
        assert all(item.prompt.count(shots[0]) == shots[1] for item in items), "the shots and the question"
    if name == "bbh":
        assert not any("canary" in item.prompt for item in items)


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_published_solutions_pass_and_others_do_not(name: str, data: Path) -> None:
    rows = [json.loads(line) for line in (data / FILES[name]).read_text().splitlines()]
    rows = rows[10:510] if name == "mbpp" else rows  # tasks 11 to 510 are the published test
    column = "canonical_solution" if name == "humaneval" else "code"
    items = read_items(name, data / FILES[name])
    assert len(items) == len(rows)
    for item, row in list(zip(items, rows, strict=True))[:12]:
        assert item.program is not None
        assert runs_well(item.program(row[column]))
        assert not runs_well(item.program("    return None\n" if name == "humaneval" else "x = 1\n"))


def test_mbpp_is_asked_as_published(data: Path, tmp_path: Path) -> None:
    """Three examples, which are tasks 2, 3 and 4, and the 500 tasks of the test: wherever they stand in the file."""
    rows = [json.loads(line) for line in (data / FILES["mbpp"]).read_text().splitlines()]
    by_number = {row["task_id"]: row for row in rows}
    shuffled = tmp_path / "mbpp.jsonl"
    shuffled.write_text("\n".join(json.dumps(row) for row in reversed(rows)))
    items = read_items("mbpp", shuffled)
    assert [item.key for item in items] == [by_number[number]["text"] for number in reversed(range(11, 511))]
    for item in items:
        places = [item.prompt.find(by_number[number]["text"]) for number in (2, 3, 4)]
        assert -1 not in places and places == sorted(places)
        assert by_number[1]["text"] not in item.prompt and item.prompt.count("[BEGIN]") == 4
    for left, why in (({3}, "lacks task 3"), (set(range(11, 511)), "holds no item: .* tasks 11 to 510")):
        shuffled.write_text("\n".join(json.dumps(row) for row in rows if row["task_id"] not in left))
        with pytest.raises(UnmaskError, match=why):
            read_items("mbpp", shuffled)


@pytest.mark.parametrize(
    ("program", "well"),
    [
        ("assert sum([1, 2]) == 3", True),
        ("import math, re, collections, heapq, typing\nassert math.gcd(4, 6) == 2", True),
        ("open('a.txt', 'w').write('x')\nassert open('a.txt').read() == 'x'", True),
        ("assert False", False),
        ("while True: pass", False),
        ("import time; time.sleep(60)", False),
        ("import mmap; mmap.mmap(-1, 3 * 10**9)", False),
        ("open('a', 'w').write('x' * 10**7)", False),
        ("import sys; sys.exit(0)\nassert False", False),
        ("import os; os._exit(0)", False),
        ("import os; os.system('true')", False),
        ("import subprocess; subprocess.run(['true'])", False),
        ("import os; os.fork()", False),
        ("import socket; socket.socket().bind(('127.0.0.1', 0))", False),
        ("import os; assert 'HOME' not in os.environ", True),
        ("import numpy", False),
        ("def broken(:", False),
    ],
)
def test_the_sandbox(program: str, well: bool) -> None:
    assert runs_well(program, Limits(seconds=1)) is well


def test_the_sandbox_leaves_other_files_alone(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("mine")
    for program in (
        f"open({str(file)!r}, 'w')",
        f"import os; os.remove({str(file)!r})",
        f"import os; os.truncate({str(file)!r}, 0)",
    ):
        assert not runs_well(program)
    assert file.read_text() == "mine"


def test_code_is_not_run_where_it_cannot_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UnmaskError, match="only where its memory and time can be limited"):
        runs_well("pass")


def test_answers_are_read_where_they_stand() -> None:
    assert said(TESTS["gsm8k"], " 3 + 4 = 7.\n#### 1,234") == "1234"
    assert said(TESTS["gsm8k"], " It is 7.") == ""
    assert said(TESTS["bbh"], " First ... So the answer is (A).") == "(A)"
    assert said(TESTS["bbh"], " the answer is no. So the answer is valid.") == "valid"


def test_what_was_learned_is_left_out(data: Path) -> None:
    from unmask.experts.seeds import read_seeds

    for name in ("mmlu", "bbh", "gsm8k", "mbpp"):
        file = data / FILES[name]
        lessons = read_seeds(file)
        known = lessons[5:25]
        whole = len(draw_items(name, file, None, 0))
        left = len(draw_items(name, file, None, 0, learned_of(known)))
        assert 15 <= whole - left < 40, name
        with pytest.raises(UnmaskError, match="every item was learned"):
            draw_items(name, file, None, 0, learned_of(lessons))


@pytest.mark.parametrize("name", ["mmlu", "bbh", "gsm8k", "mbpp"])
def test_what_was_learned_is_left_out_of_items_that_the_harness_fetches(
    name: str, data: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lm_eval

    from tests.mixture.models import language_model
    from unmask.experts.seeds import read_seeds

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
    with pytest.raises(UnmaskError, match="All 6 items that the harness fetched were learned"):
        asked(lessons[:6])


@pytest.mark.parametrize("name", ["mmlu", "piqa"])
def test_a_model_that_knows_the_answer_is_right_and_one_that_does_not_is_wrong(name: str, tokenizer: Any) -> None:
    """Likelihoods of two choices by hand, by their length where the test says so, whatever else stands in the batch."""
    from tests.mixture.models import language_model

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

    from tests.mixture.models import language_model

    model = language_model(vocab_size=512, max_position_embeddings=512)
    monkeypatch.setattr(HFLM, "generate_until", lambda self, asked, **_: [" 2 + 2 = 4\n#### 4" for _ in asked])
    items = [Item("Two and two?", "a", target="4"), Item("Three?", "b", target="3")]
    assert accuracy(model, tokenizer, "gsm8k", items).tolist() == [1.0, 0.0]
    code = [Item("def f():\n", "c", program=lambda written: f"x = '''{written}'''\nassert '####' in x")]
    with pytest.raises(UnmaskError, match="--run-code"):
        accuracy(model, tokenizer, "humaneval", code)
    assert accuracy(model, tokenizer, "humaneval", code, run_code=True).tolist() == [1.0]


def test_abilities_on_the_command_line(base: Path, data: Path) -> None:
    given = ["evaluate-lm", "-m", str(base), "--ability", f"piqa={data / FILES['piqa']}", "--limit", "5", "--dtype", "float32"]
    said: Any = json.loads(CliRunner().invoke(app, [*given, "--json"], catch_exceptions=False).stdout)
    assert said["accuracy"]["items"] == {"piqa": 5}
    model, tokenizer = load_speaker(Source(str(base), dtype="float32"))
    found = accuracy(model, tokenizer, "piqa", draw_items("piqa", data / FILES["piqa"], 5, 0))
    assert said["accuracy"]["models"][0]["domains"]["piqa"] == pytest.approx(100 * found.mean())
    assert "percent" in CliRunner().invoke(app, given, catch_exceptions=False).stdout
    for wrong, why in (
        (["--ability", "pika"], "Did you mean 'piqa'"),
        (["--ability", f"triviaqa={data / FILES['piqa']}"], "by the harness's own name only"),
        (["--ability", f"mmlu={data / FILES['piqa']}"], "it needs the columns subject"),
        ([], "Name what is to be evaluated"),
    ):
        with pytest.raises(UnmaskError, match=why):
            CliRunner().invoke(app, ["evaluate-lm", "-m", str(base), *wrong], catch_exceptions=False)
