"""Code blocks of tutorials and how-to pages run, from the top, on a random model of two layers and a few rows of data."""

from __future__ import annotations

import functools
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import unmask.embedder
from tests.families import FAMILIES
from tests.proofs import ALL
from tests.resampling import resample_less
from tests.server.running import running
from tests.test_docs import ROOT, blocks, fenced
from unmask.cli import app
from unmask.models.bundled import BUNDLED
from unmask.moe.experts.lessons.lessons import read_lessons
from unmask.server.served import load_models
from unmask.tasks.find import find_task

pytestmark = pytest.mark.slow

STARTER = ROOT / "unmask" / "starter"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
HOW_TO = [ROOT / "docs" / f"{name}.md" for name in ("how-to", "experts")]
REFERENCE = [ROOT / "docs" / f"{name}.md" for name in ("corpus", "report", "analyses", "tasks", "training")]
"""Pages about one command or a few of them, which have tests of their own: they run in `make test-all`.

`make test` runs the pages that lead from one command to the next, and parses every command of every page (test_docs.py).
"""
CHEAPER = (  # what stands for what is large, slow, or fetched
    (r"\bsmollm2(?!-)", "pico"),
    (r"(?<=-m )MODEL", "routed"),
    (r" -r minilm", ""),
    (r"-d prompts\b", "-d my-prompts.toml"),
    (r"-t (starter|STSBenchmark|llm2vec-15|DATA/\w+)", "-t my-task"),
    (r"mean@12", "mean@2"),
    (r"\S+/mrpc/train\.jsonl", "pairs.jsonl"),
    (r"\S+/sts12", "my-task"),
    (r"--test test\.jsonl", "--test ud_ewt_pos/test.jsonl"),
    (r"--train train\.jsonl", "--train ud_ewt_pos/train.jsonl"),
    (r"\.steps=\d+", ".steps=2"),
    (r"(-t my-task)( -t my-task)+", r"\1"),
    (r"--scale (small|paper)", "--scale smoke"),
    (r" --data (?!domains)\S+", ""),
    (r"(unmask (expert|mix) (?!.*--steps).*)", r"\1 --steps 2 --batch 2"),
    (r"(unmask (serve|ui) .*)", r"\1 --check --port 0"),
    (r"(unmask seeds .*)-n \d+", r"\1-n 6 --held-out-number 4"),
    (r" -m mntp/model -m llm2vec/model", ""),
    (r" other-routing", " routing"),
    (r"(unmask train llm2vec .*-o (?:my-embedder|other)\b.*)", r"\1 --set evaluation.compared=[]"),  # the first one compares
    (r"(unmask train llm2vec .*-o try\b.*)", r"""\1 --set 'evaluation.compared=["my-task"]'"""),
    (r"(unmask reproduce moee .*)", r"""\1 --set 'only=["hidden-z", "routing-z"]'"""),
    (r"(unmask reproduce (llm2vec|pooling-and-attention) .*)", r"\1 --plan"),  # tests/studies/test_embedders.py runs them
)
PARSED_ONLY = (
    "--ability",
    "--ray",
    "--workers",
    "unmask specialise",
    "-ablation",
)  # the hub; clusters and processes; lessons that a random model cannot write; 64 dimensions
OF_CLIENTS = "from openai import"
"""In a block that needs a server."""


def cheaper(line: str) -> str:
    """A command on the smallest model and data."""
    for pattern, replacement in CHEAPER:
        line = re.sub(pattern, replacement, line)
    return line


def rows(file: Path, number: int) -> list[str]:
    return file.read_text("utf-8").splitlines(keepends=True)[:number]


def data_files() -> dict[str, list[str]]:
    """The files that the pages speak of, with a few rows each."""
    sentences = [line.strip() for line in rows(STARTER / "reference.txt", 24)]
    labelled = [{"text": text, "label": place % 2} for place, text in enumerate(sentences)]
    anchored = [{"anchor": one, "positive": other} for one, other in itertools.pairwise(sentences)]
    pairs = rows(STARTER / "sts" / "test.jsonl", 24)
    table = ["key,body", *(f"{place},It is day {place}." for place in range(24))]
    files = {
        "texts.txt": [f"{text}\n" for text in sentences],
        "keys.txt": ["a-key-of-a-client\n"],
        "texts.csv": [f"{line}\n" for line in table],
        "texts.jsonl": [json.dumps(row) + "\n" for row in labelled],
        "reports.jsonl": [json.dumps({"text": " ".join(sentences)}) + "\n"],
        "news.jsonl": [json.dumps({"text": text}) + "\n" for text in sentences],
        "law.jsonl": [json.dumps({"text": f"Section {place}: {text}"}) + "\n" for place, text in enumerate(sentences)],
        "pairs.jsonl": [json.dumps(row) + "\n" for row in anchored],
        "test.jsonl": pairs,
        "dev.jsonl": pairs,
        "my-task/test.jsonl": pairs,
        "corpus/part-0.jsonl": [
            json.dumps({"text": text, "key": place, "title": "T", "year": 2000}) + "\n" for place, text in enumerate(sentences)
        ],
    }
    files["triples.jsonl"] = files["pairs.jsonl"]
    for place, name in enumerate(("code", "math", "code-test", "math-test")):
        files[f"domains/{name}.jsonl"] = [json.dumps({"text": text}) + "\n" for text in sentences[place::4]]
    words = [{"tokens": text.split(), "tags": [str(len(word) % 2) for word in text.split()]} for text in sentences]
    files["ud_ewt_pos/train.jsonl"] = [json.dumps(row) + "\n" for row in words[:16]]
    files["ud_ewt_pos/test.jsonl"] = [json.dumps(row) + "\n" for row in words[16:]]
    for domain, name, source in (("math", "math", "DATA/gsm8k/train"), ("coding", "code", "DATA/mbpp/all")):
        lessons = rows(STARTER / "lessons" / f"{domain}.jsonl", 16)
        files |= {f"{name}.jsonl": lessons[:8], f"{name}-test.jsonl": lessons[8:], f"{source}.jsonl": lessons}
    return files


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sketched: None, pico_folder: Callable[[str], Path], tokenizer: Any
) -> Path:
    """A folder with data and models, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    resample_less(monkeypatch.setattr)
    for name, lines in data_files().items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines), "utf-8")
    FAMILIES["olmoe"].build_language_model().save_pretrained("routed")
    tokenizer.save_pretrained("routed")
    shutil.copytree(pico_folder("llama"), "path/to/model")
    save_lora(tmp_path / "path" / "to" / "model", tmp_path / "path" / "to" / "lora")
    return tmp_path


def save_lora(model: Path, folder: Path) -> None:
    """An adapter, as peft writes it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    adapted: Any = get_peft_model(AutoModel.from_pretrained(model), LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(folder)


def run(line: str) -> None:
    found = CliRunner().invoke(app, shlex.split(line)[1:])
    assert found.exit_code == 0, f"{line}\n{found.output}\n{found.exception!r}"


@pytest.mark.sample(2)
@pytest.mark.parametrize("page", [*TUTORIALS, *HOW_TO, *(REFERENCE if ALL else ())], ids=lambda page: page.stem)
def test_every_block_runs(page: Path, desk: Path) -> None:
    names: dict[str, Any] = {}
    ran = 0
    for language, block in fenced(page):
        if language == "python" and OF_CLIENTS not in block:
            exec(compile(block.replace("smollm2", "pico"), page.name, "exec"), names)
            ran += 1
        if language == "toml" and "template =" in block:
            Path("my-prompts.toml").write_text(block, "utf-8")
        if language == "toml" and "stages =" in block:
            Path("own.toml").write_text(block.replace("smollm2", "pico"), "utf-8")
            run("unmask train own.toml -o own --set contrastive.steps=2 --set contrastive.batch=4")
            ran += 1
        for line in block.replace("\\\n", " ").splitlines() if language == "" else ():
            if line.startswith("unmask ") and not any(part in line for part in PARSED_ONLY):
                run(cheaper(line.partition(" #")[0]))
                ran += 1
    assert ran > 1


def test_the_client_that_the_how_to_shows(pico_folder: Callable[[str], Path]) -> None:
    (block,) = (block for block in blocks(ROOT / "docs" / "how-to.md", "python") if OF_CLIENTS in block)
    with running(load_models(str(pico_folder("llama")), "prompteol")) as server:
        names: dict[str, Any] = {}
        exec(compile(block.replace("8000", str(server.port)), "how-to.md", "exec"), names)
        assert len(names["answer"].data) == 2
        names["client"].close()


def test_rows_that_tutorials_show(tmp_path: Path) -> None:
    (lesson,) = blocks(ROOT / "docs" / "tutorials" / "mixture.md", "json")
    (tmp_path / "math.jsonl").write_text(lesson, "utf-8")
    assert [one.output for one in read_lessons(tmp_path / "math.jsonl")] == ["7"]
    (row,) = blocks(ROOT / "docs" / "tutorials" / "search-box.md", "json")
    (tmp_path / "my-task").mkdir()
    (tmp_path / "my-task" / "test.jsonl").write_text(row, "utf-8")
    assert find_task(str(tmp_path / "my-task")).kind == "reranking"


def cells(notebook: Path) -> list[str]:
    """The code cells of a notebook, which is kept without outputs."""
    found = [cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in found), "strip the outputs"
    return ["".join(cell["source"]) for cell in found]


@pytest.mark.sample(0)
@pytest.mark.real
@pytest.mark.skipif(not BUNDLED["smollm2"].installed, reason=BUNDLED["smollm2"].install_command)
def test_the_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("load_decoder", "Backbone"):  # embedders of one model share it: it is loaded and proven once
        monkeypatch.setattr(unmask.embedder, part, functools.cache(getattr(unmask.embedder, part)))
    names: dict[str, Any] = {}
    for place, cell in enumerate(cells(ROOT / "docs" / "tutorials" / "first-look.ipynb")):
        exec(compile(cell, f"cell {place}", "exec"), names)
    assert names["best"].startswith("Recipe")
    assert max(names["spearman"], key=names["spearman"].get) == "prompteol-z"
    assert names["by_layer"][28] > names["by_layer"][8]
    assert names["same"]
