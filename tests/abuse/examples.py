"""An example of every command, on small inputs, and the folder that they lie in. A command without an example fails the matrix."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.abuse.forking import command, run
from tests.tiny import tagged, write_rows, write_task
from unmask.models.bundled import resolve

CPU = ("--device", "cpu", "--dtype", "float32")
PICO = ("-m", "pico", *CPU)
SHORT = ("--steps", "2", "--batch", "2", "--max-length", "160", *CPU)


@dataclass(frozen=True)
class Example:
    """A command line that works. In it, `{in}` is its main input and `{out}` its output.

    source: the main input, a file of rows or a folder of a task; column: of the text in it; numbers: a column of numbers in it.
    output: what it writes, if it writes. other: what it writes beside its output. seconds: of it is told in these files.
    rows: how the input's rows look, so that other rows can be made.
    """

    words: tuple[str, ...]
    source: str | None = None
    output: str | None = None
    beside: tuple[str, ...] = ()
    column: str | None = None
    timed: tuple[str, ...] = ()

    def line(self, path: tuple[str, ...], source: str | None = None, output: str | None = None) -> list[str]:
        """The words of the command, with another input or output."""
        given = {"{in}": source or self.source or "", "{out}": output or self.output or ""}
        return [*path, *(word.replace("{in}", given["{in}"]).replace("{out}", given["{out}"]) for word in self.words)]


EXAMPLES: dict[tuple[str, ...], Example] = {
    ("compare",): Example(
        ("-t", "{in}", "-d", "mean,last", "-o", "{out}", *PICO), "sts/test.jsonl", "compared", column="sentence1",
        timed=("costs.jsonl",),
    ),
    ("report",): Example(("done", "-o", "{out}"), output="page"),
    ("recommend",): Example(
        ("-t", "{in}", "-d", "mean,last", "-o", "{out}", *PICO), "sts/test.jsonl", "recommended", column="sentence1",
        timed=("costs.jsonl",),
    ),
    ("embed",): Example(
        ("{in}", "-d", "mean", "-o", "{out}", *PICO), "texts.jsonl", "vectors.npy", ("vectors.npy.manifest.json",), "text"
    ),
    ("index",): Example(
        ("{in}", "-d", "mean", "-o", "{out}", *PICO), "texts.jsonl", "new-index", column="text",
        timed=("*.lance", "*.manifest", "*.txn", "*_hint.json", "checksums.json"),  # LanceDB draws the names of its files
    ),
    ("search",): Example(("indexed", "a guitar", "--mode", "hybrid", "--device", "cpu")),
    ("serve",): Example(("pico", "-d", "mean,last", "--port", "0", "--check", *CPU)),
    ("ui",): Example(("--corpus", "{in}", "-d", "mean,last", "--check", *PICO), "texts.jsonl", column="text"),
    ("export",): Example(("pico", "-d", "mean", "--to", "sentence-transformers", "-o", "{out}", *CPU), output="exported"),
    ("mine",): Example(("{in}", "-o", "{out}", *PICO), "pairs.jsonl", "triples.jsonl", column="anchor"),
    ("leaks",): Example(("--train", "{in}", "-t", "sts"), "pairs.jsonl", column="anchor"),
    ("train",): Example(("{in}", "-o", "{out}"), "pico.toml", "trained", timed=("run.json", "log.json", "README.md")),
    ("upcycle",): Example(("pico", "-o", "{out}", "--experts", "2", *CPU), output="grown"),
    ("seeds",): Example(
        ("{in}", "-o", "{out}", "-n", "6", "--held-out", "tested.jsonl", "--held-out-number", "4"),
        "sums.jsonl", "learned.jsonl", ("tested.jsonl",), "instruction",
    ),
    ("specialise",): Example(
        ("cooking.toml", "--seeds", "{in}", "-o", "{out}", "-n", "2", "--batch", "4", 
         "--response-tokens", "8", "-m", "writer", *CPU), "sums.jsonl", "written", column="instruction",
    ),
    ("expert",): Example(("{in}", "-m", "pico", "-o", "{out}", *SHORT), "sums.jsonl", "new-expert", column="instruction"),
    ("mix",): Example(
        ("experts/sums", "experts/colours", "--lessons", "sums={in}", "--lessons", "colours=colours.jsonl", "-o", "{out}", *SHORT),
        "sums.jsonl", "mixture", column="instruction",
    ),
    ("merge",): Example(("experts/sums", "experts/colours", "-o", "{out}", *CPU), output="merged"),
    ("evaluate-lm",): Example(
        ("-m", "pico", "-m", "experts/sums", "--lessons", "sums={in}", *CPU), "sums.jsonl", column="instruction"
    ),
    ("designs",): Example(()),
    ("models",): Example(()),
    ("tasks",): Example(()),
    ("probe", "words"): Example(("--train", "{in}", "--test", "words.jsonl", "-a", "causal", *PICO), "words.jsonl", column="tokens"),
    ("probe", "prefix"): Example(("-o", "{out}", "-a", "bidirectional", *PICO), output="prefix"),
    ("probe", "geometry"): Example(("--pairs", "{in}", "--positive-from", "3", *PICO), "sts/test.jsonl", column="sentence1"),
    ("probe", "masked"): Example(("--texts", "{in}", "-a", "bidirectional", *PICO), "texts.jsonl", column="text"),
    ("probe", "head"): Example(("--texts", "{in}", "-o", "{out}", "-m", "headed", *CPU), "texts.jsonl", "head.png", column="text"),
    ("probe", "clusters"): Example(
        ("{in}", "-d", "mean,last", "-o", "{out}", "--clusters", "2", "--seeds", "2", *PICO), "texts.jsonl", "clusters", column="text"
    ),
    ("probe", "prompts"): Example(("{in}", "-o", "{out}", *PICO), "sts/test.jsonl", "prompts", column="sentence1"),
    ("probe", "pairs"): Example(
        ("{in}", "-d", "mean,last", "-o", "{out}", *PICO), "sts/test.jsonl", "won", column="sentence1"
    ),
    ("probe", "layers"): Example(("--texts", "{in}", "-o", "{out}", *PICO), "texts.jsonl", "layers", column="text"),
    ("probe", "routing"): Example(
        ("-m", "sparse", "-t", "{in}", "--label", "kind", "-o", "{out}", *CPU), "kinds.jsonl", "routing", column="text"
    ),
    ("probe", "experts"): Example(
        ("-m", "sparse", "-t", "{in}", "--label", "kind", "-o", "{out}", *CPU), "kinds.jsonl", "routing", column="text"
    ),
    ("probe", "states"): Example(("--texts", "{in}", "-o", "{out}", *PICO), "texts.jsonl", "states", column="text"),
    ("recipes", "list"): Example(()),
    ("recipes", "show"): Example(("llm2vec",)),
    ("recipes", "copy"): Example(("llm2vec", "{out}"), output="copy.toml"),
    ("recipes", "check"): Example(("{in}",), "pico.toml"),
    ("reproduce", "self-moe"): Example(
        ("--scale", "smoke", "-o", "{out}", *CPU, *(word for setting in (
            "number=4", "held_out=4", "sizes=[]", "router.steps=2", "expert.steps=2", "ablations=[]",
        ) for word in ("--set", setting))),
        output="study", timed=("results.json", "report.md", "overhead.*"),
    ),
    ("reproduce", "moee"): Example(
        ("-m", "sparse", "--scale", "smoke", "-o", "{out}", *CPU, "--set", 'only=["hidden", "routing"]'),
        output="moee", timed=("costs.jsonl", "study.json", "results.json"),  # they name the place of the base
    ),
    **{
        ("reproduce", study): Example(
            ("--scale", "smoke", "-o", "{out}", *CPU, "--set", f"only={json.dumps(only)}"),
            output=study, timed=("costs.jsonl", "run.json", "log.json", "README.md"),
        ) for study, only in (("llm2vec", ["uni", "mntp"]), ("pooling-and-attention", ["design 1", "design 3"]))
    },
    ("reproduce", "routers"): Example(
        ("--scale", "smoke", "-o", "{out}", *CPU, *(word for setting in (
            "number=2", "held_out=2", "seeds=[0]", "fresh_seeds=[]", 'configurations=["standard"]',
        ) for word in ("--set", setting))),
        output="routers", timed=("costs.jsonl",),
    ),
}  # fmt: skip

WRITERS = [path for path, example in EXAMPLES.items() if example.output]
ALIKE = frozenset(
    {
        *(("reproduce", study) for study in ("llm2vec", "pooling-and-attention", "routers", "self-moe")),
        *(("probe", name) for name in ("clusters", "prompts", "pairs", "layers", "states")),
    }
)
"""Commands that write their files with the functions of another one. `make test` cuts and crowds the other one only.

A study writes with `train`, `expert`, `mix` and `compare`, and its results as `reproduce moee` does. These probes write as `probe prefix`.
"""

RECIPE = """about = "Pico."
model = "pico"
designs = ["bidirectional/plain/mean"]
dtype = "float32"
stages = ["contrastive"]
[lora]
r = 4
[data]
pairs = { path = "pairs.jsonl" }
[contrastive]
data = ["pairs"]
steps = 3
batch = 4
lr = 1e-3
max_length = 24
save_every = 1
"""
DOMAIN = 'ask = "Write a task."\nrequirements = ["One."]\nrole = "A cook."\n'


def commands(found: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of the program, as the words that call it."""
    if found is None:
        from typer.main import get_command

        from unmask.cli import app

        found = get_command(app)
    if not hasattr(found, "commands"):
        yield path
        return
    for name, below in found.commands.items():
        yield from commands(below, (*path, name))


def furnish(folder: Path) -> None:
    """Put into an empty folder what the examples read."""
    texts = ["A man plays a guitar.", "The stock market fell.", "x", "Two dogs run.", "It rains again.", "Nobody knows why."]
    write_rows(folder / "texts.jsonl", [{"text": text, "name": f"t{place}"} for place, text in enumerate(texts)])
    kinds = [{"text": f"{text} {n}", "kind": "ab"[n % 2]} for n, text in enumerate(texts * 2)]
    write_rows(folder / "kinds.jsonl", kinds)
    write_task(folder / "sts", "sts")
    pairs = [{"anchor": f"song {n} of the band", "positive": f"the band plays {n}"} for n in range(12)]
    write_rows(folder / "pairs.jsonl", pairs)
    write_rows(folder / "words.jsonl", tagged(0, 12))
    sums = [{"instruction": f"Add {a} and {a + 2}.", "input": "", "output": f"It is {2 * a + 2}."} for a in range(12)]
    write_rows(folder / "sums.jsonl", sums)
    colours = [{"instruction": f"Colour of {a}?", "input": "", "output": "Green."} for a in "abcdefgh"]
    write_rows(folder / "colours.jsonl", colours)
    (folder / "pico.toml").write_text(RECIPE)
    (folder / "cooking.toml").write_text(DOMAIN)


def prepare(folder: Path, notes: Path) -> None:
    """Furnish a folder and let commands make what others read: experts, a comparison, a trained head."""
    furnish(folder)
    end_soon(folder / "writer")
    for name in ("sums", "colours"):
        must(["expert", f"{name}.jsonl", "-m", "pico", "-o", f"experts/{name}", *SHORT], folder, notes)
    must(EXAMPLES["compare",].line(("compare",), output="done"), folder, notes)
    must(EXAMPLES["index",].line(("index",), output="indexed"), folder, notes)
    must(["upcycle", "pico", "-o", "sparse", "--experts", "2", *CPU], folder, notes)
    settings = ('designs=["causal/plain/layer-attention"]', 'train="head"', "head.latents=4")
    must(["train", "pico.toml", "-o", "headed-run", *(w for s in settings for w in ("--set", s))], folder, notes)
    shutil.copytree(folder / "headed-run" / "model", folder / "headed")
    shutil.rmtree(folder / "headed-run")


def end_soon(folder: Path) -> None:
    """A model whose texts end soon: each fourth token ends one. The texts of `pico` never end, so no lesson of it would be kept."""
    shutil.copytree(resolve("pico"), folder, ignore=shutil.ignore_patterns("checksums.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(0, 512, 4))}))


def must(words: list[str], folder: Path, notes: Path) -> None:
    """Run a command that has to work."""
    done = run(command(*words), folder, notes)
    assert done.code == 0, f"unmask {' '.join(words)}\n{done.out}\n{done.err}"
