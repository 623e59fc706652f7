"""`unmask evaluate-lm` compares models on lessons and texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.moe.experts.conftest import DOMAINS
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.lessons.lessons import tokenize_lessons, write_lessons
from unmask.moe.experts.likelihood import text_likelihood
from unmask.statistics.domain_differences import compare_by_domain, share_of_gain


def test_differences_are_paired() -> None:
    random = np.random.default_rng(0)
    one = {"a": random.normal(3, 2, 50), "b": random.normal(1, 2, 20)}
    rows = compare_by_domain({"one": one, "less": {name: values - 0.1 for name, values in one.items()}}, "one")
    assert rows[0].difference == (0, 0, 0)
    assert rows[1].difference == pytest.approx((-0.1, -0.1, -0.1)), "no noise of lessons is left in a pair"
    assert rows[1].average == pytest.approx((one["a"].mean() + one["b"].mean()) / 2 - 0.1), "domains weigh the same"
    noise = {name: values + random.normal(0, 1, len(values)) for name, values in one.items()}
    value, low, high = compare_by_domain({"one": one, "noise": noise}, "one")[1].difference
    assert low < value < high and high - low > 0.2


def test_texts_of_domains_on_the_command_line(base: Path, tmp_path: Path) -> None:
    texts = {"snow": ["Snow fell on the hill.", "Rain fell on the snow."], "pairs": ["Is it cold?", "It is very cold."]}
    (tmp_path / "snow.txt").write_text("\n".join(texts["snow"]))
    (tmp_path / "pairs.jsonl").write_text(json.dumps(dict(zip(("question", "answer"), texts["pairs"], strict=True))))
    files = [part for name in ("snow.txt", "pairs.jsonl") for part in ("--texts", f"{name.split('.')[0]}={tmp_path / name}")]
    given = ["evaluate-lm", "-m", str(base), "--dtype", "float32", *files]
    said: Any = json.loads(CliRunner().invoke(app, [*given, "--json"], catch_exceptions=False).stdout)["text_likelihood"]
    model, tokenizer = load_language_model(Source(str(base), dtype="float32"))
    assert said["items"] == {"snow": 2, "pairs": 2}
    for name, some in texts.items():
        by_hand = text_likelihood(model, tokenizer, tokenizer(some)["input_ids"])
        assert said["models"][0]["domains"][name] == pytest.approx(by_hand.mean())
    assert "Nats per token of text" in CliRunner().invoke(app, given, catch_exceptions=False).stdout
    with pytest.raises(UnmaskError, match="--texts names 'snow' twice"):
        CliRunner().invoke(app, [*given, "--texts", files[1]], catch_exceptions=False)


def test_truncated_texts_and_lessons_are_counted(base: Path, tmp_path: Path) -> None:
    _, tokenizer = load_language_model(Source(str(base), dtype="float32"))
    texts = ["It is cold.", "Snow fell on the hill, and rain fell on the snow."]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    write_lessons(DOMAINS["sums"], tmp_path / "sums.jsonl")
    short = len(tokenizer(texts[0])["input_ids"])
    lengths = [len(tokens.ids) for tokens in tokenize_lessons(tokenizer, DOMAINS["sums"], 512)]
    for option, limit, part, cut in (  # a text of just the allowed length is not truncated
        (f"--texts=cold={tmp_path / 'texts.txt'}", short, "text_likelihood", {"cold": 1}),
        (f"--lessons=sums={tmp_path / 'sums.jsonl'}", max(lengths) - 1, "likelihood", {"sums": lengths.count(max(lengths))}),
    ):
        given = ["evaluate-lm", "-m", str(base), "--json", option, "--max-length", str(limit)]
        done = CliRunner().invoke(app, given, catch_exceptions=False)
        assert json.loads(done.stdout)[part]["cut"] == cut
        assert f"truncated to {limit} tokens (--max-length)" in " ".join(done.stderr.split())


def test_texts_that_do_not_count_are_told(base: Path, tmp_path: Path) -> None:
    rows = ["It is cold.", " ", "It is cold.", "x", "", "Snow fell."]
    (tmp_path / "some.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in rows))
    (tmp_path / "all.txt").write_text("It is cold.\nSnow fell.")
    files = [part for name in ("some.jsonl", "all.txt") for part in ("--texts", f"{name.split('.')[0]}={tmp_path / name}")]
    done = CliRunner().invoke(app, ["evaluate-lm", "-m", str(base), "--json", *files], catch_exceptions=False)
    found, said = json.loads(done.stdout)["text_likelihood"], " ".join(done.stderr.split())
    assert found["items"] == {"some": 2, "all": 2}
    assert found["left_out"]["some"] == {"empty": 2, "repeated": 1, "shorter than two tokens": 1}
    assert found["left_out"]["all"] == {"shorter than two tokens": 0}
    assert "some: 4 of 6 texts are skipped (2 empty, 1 repeated, 1 shorter than two tokens)" in said
    assert "all: " not in said


def test_a_model_that_is_not_there_is_told_before_another_is_measured(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("It is cold.\n")
    monkeypatch.setattr("unmask.moe.experts.lm_evaluation.load_language_model", lambda _: pytest.fail("a model was loaded"))
    given = ["evaluate-lm", "-m", str(base), "-m", f"{tmp_path}/gone", "--texts", f"cold={tmp_path / 'texts.txt'}"]
    with pytest.raises(UnmaskError, match=r"Folder '.*gone' does not exist"):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_a_share_of_a_gain_by_hand() -> None:
    random = np.random.default_rng(0)
    start = {"a": random.normal(3, 1, 40), "b": random.normal(1, 1, 40)}

    def gained(by: float, noise: float = 0.0) -> dict[str, Any]:
        return {name: values - by + noise * random.normal(size=40) for name, values in start.items()}

    half = share_of_gain(start, gained(0.5), gained(1.0))
    assert half is not None and half.value == pytest.approx(0.5) and half.interval == pytest.approx((0.5, 0.5))
    worse = share_of_gain(start, gained(-0.2, 0.1), gained(1.0, 0.1))
    assert worse is not None and worse.interval[0] < worse.value < worse.interval[1] < 0
    assert share_of_gain(start, gained(1.0), gained(0.0, 0.1)) is None, "there may be no gain to share"
    assert share_of_gain(start, gained(-0.5, 0.1), gained(-1.0, 0.1)) is None, "half of a loss is no share of a gain"
    uneven = {"a": start["a"] - 1, "b": start["b"]}
    mixed = share_of_gain(start, uneven, gained(1.0))
    assert mixed is not None and mixed.value == pytest.approx(0.5), "domains weigh the same"
