"""Examples in README, docs/ and examples/ work: every command parses, and pages that lead from step to step run from top to bottom."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from tests.abuse.forking import run
from tests.cases import cases
from tests.in_process import HELP
from tests.resampling import resample_less
from tools.reference_pages import commands
from unmask.cli import app
from unmask.designs.design import parse_designs
from unmask.models.bundled import BUNDLED

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STARTER = ROOT / "unmask" / "starter"
GENERATED = ("commands", "python", "designs")  # by tools/reference_pages.py
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page.stem not in GENERATED)]
RUN = [*sorted((DOCS / "tutorials").iterdir()), *(DOCS / f"{name}.md" for name in ("how-to", "experts", "statistics"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"langchain_search": "langchain_core", "llama_index_search": "llama_index", "bertopic_topics": "bertopic"}
SMALL = (  # a tiny model, few rows, and nothing from the network
    (r"\bsmollm2(?!-)", "pico"),
    (r" -r minilm", ""),
    (r"-d prompts\b", "-d my-prompts.toml"),
    (r"(-t my-task )?-t starter", "-t my-task"),
    (r"\(8, 16, 24, 28\)", "(1, 2)"),
    (r"(unmask (expert|mix) (?!.*--steps).*)", r"\1 --steps 2 --batch 2"),
    (r"(unmask (serve|ui) .*)", r"\1 --check --port 0"),
    (r"(unmask seeds .*)-n \d+", r"\1-n 6 --held-out-number 4"),
)
PARSED_ONLY = ("--ability", "unmask specialise", "unmask reproduce", "from openai import")
"""Commands for the hub and for trained models, studies (which have tests of their own), and a client without its server."""


def fenced(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page, or the cells of a notebook, with their languages."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        return [("python", "".join(cell["source"])) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    parts = re.split(r"^```(.*)\n", text, flags=re.MULTILINE)
    return list(zip(parts[1::4], parts[2::4], strict=False))


def blocks(page: Path, language: str) -> list[str]:
    """The blocks in one language."""
    return [code for name, code in fenced(page) if name == language]


def commands_in(block: str) -> list[str]:
    lines = block.replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("unmask ")]


def parse(words: Sequence[str]) -> None:
    """Raise for an unknown command or option, a value that is refused, or a design that does not parse."""
    group = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    name, *arguments = words
    if isinstance(group[name], TyperGroup):
        group, (name, *arguments) = group[name].commands, arguments
    group[name].make_context(name, list(arguments), **HELP)
    for option, value in itertools.pairwise(arguments):
        if option == "-d":
            parse_designs(value)


SHOWN = [(page.name, line) for page in PAGES for block in blocks(page, "") for line in commands_in(block)]
SHOWN += [
    (f"{name} --help", line)
    for name, command in commands(typer.main.get_command(app), "unmask")
    for line in commands_in((command.epilog or "").removeprefix("Example: "))
]


@cases("page, command", SHOWN)
def test_commands_parse(page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-prompts.toml").write_text(
        next(code for code in blocks(DOCS / "how-to.md", "toml") if "template =" in code), "utf-8"
    )
    parse(shlex.split(command)[1:])


@pytest.mark.real
@pytest.mark.skipif(not BUNDLED["smollm2"].installed, reason=BUNDLED["smollm2"].install_command)
def test_readme_code_prints_what_it_says() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(blocks(ROOT / "README.md", "python")[0], "README.md", "exec"), {})
    expected = next(block for block in blocks(ROOT / "README.md", "") if block.startswith("(3, 576)"))
    numbers, shown = ([float(number) for number in re.findall(r"-?\d+\.?\d*", text)] for text in (printed.getvalue(), expected))
    assert numbers == pytest.approx(shown, abs=0.02)  # in bf16 or fp32, whichever the machine is fast at


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sketched: None, pico_folder: Callable[[str], Path]) -> Path:
    """A folder with the models and a few rows of the files that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    resample_less(monkeypatch.setattr)
    texts = (STARTER / "reference.txt").read_text("utf-8").splitlines()[:24]
    lessons = {
        name: (STARTER / "lessons" / f"{file}.jsonl").read_text("utf-8").splitlines()[:16]
        for name, file in (("math", "math"), ("code", "coding"))
    }
    files = {
        "texts.txt": texts,
        "keys.txt": ["a-key-of-a-client"],
        "texts.csv": ["key,body", *(f"{number},It is day {number}." for number in range(24))],
        "texts.jsonl": [json.dumps({"text": text, "label": number % 2}) for number, text in enumerate(texts)],
        "reports.jsonl": [json.dumps({"text": " ".join(texts)})],
        "my-task/test.jsonl": (STARTER / "sts" / "test.jsonl").read_text("utf-8").splitlines()[:24],
        "DATA/gsm8k/train.jsonl": lessons["math"],
        "DATA/mbpp/all.jsonl": lessons["code"],
        **{f"{name}.jsonl": rows[:8] for name, rows in lessons.items()},
        **{f"{name}-test.jsonl": rows[8:] for name, rows in lessons.items()},
    }
    for name, rows in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("".join(f"{row}\n" for row in rows), "utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_runs(page: Path, desk: Path, pico_folder: Callable[[str], Path]) -> None:
    if page.stem == "how-to":
        save_lora(shutil.copytree(pico_folder("llama"), desk / "path" / "to" / "model"))
    names: dict[str, Any] = {}
    for language, block in fenced(page):
        for pattern, replacement in SMALL:
            block = re.sub(pattern, replacement, block)
        if language == "python" and not any(part in block for part in PARSED_ONLY):
            exec(compile(block, page.name, "exec"), names)
        if language == "toml" and "template =" in block:
            Path("my-prompts.toml").write_text(block, "utf-8")
        for line in commands_in(block) if language == "" else ():
            if not any(part in line for part in PARSED_ONLY):
                done = CliRunner().invoke(app, shlex.split(line)[1:])
                assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"


def save_lora(model: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    adapted: Any = get_peft_model(AutoModel.from_pretrained(model), LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(model.parent / "lora")


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_a_script_runs_and_leaves_nothing_behind(script: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(script.stem, "unmask"))

    def work() -> None:
        sys.argv = [str(script), "pico"]
        runpy.run_path(str(script), run_name="__main__")

    (here := tmp_path / "here").mkdir()
    done = run(work, here, tmp_path / "notes")
    assert done.code == 0, done.err
    assert done.out.strip() and not list(here.iterdir())
