"""Commands that read and write in different ways, with small inputs, and a folder that holds these inputs."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.abuse.forking import command, run
from tests.tiny import tagged, write_rows, write_task
from unmask.models.bundled import resolve

CPU = ("--device", "cpu", "--dtype", "float32")
PICO = ("-m", "pico", *CPU)
SHORT = ("--steps", "2", "--batch", "2", "--max-length", "160", *CPU)


@dataclass(frozen=True)
class Example:
    """A command line that works. In `words`, {in} is its main input and {out} its output."""

    words: tuple[str, ...]
    source: str = ""
    output: str = ""
    column: str = ""
    """The column of the input that holds the text."""
    timed: tuple[str, ...] = ()
    """Patterns of output files that differ from run to run."""

    def line(self, path: tuple[str, ...]) -> list[str]:
        """The complete command line."""
        return [*path, *(word.replace("{in}", self.source).replace("{out}", self.output) for word in self.words)]


EXAMPLES: dict[tuple[str, ...], Example] = {
    ("compare",): Example(
        ("-t", "{in}", "-d", "mean,last", "-o", "{out}", *PICO), "sts/test.jsonl", "compared", "sentence1", ("costs.jsonl",)
    ),
    ("embed",): Example(("{in}", "-d", "mean", "-o", "{out}", *PICO), "texts.jsonl", "vectors.npy", "text"),
    ("index",): Example(
        ("{in}", "-d", "mean", "-o", "{out}", *PICO), "texts.jsonl", "new-index", "text",
        ("*.lance", "*.manifest", "*.txn", "*_hint.json", "checksums.json"),  # LanceDB draws the names of its files
    ),
    ("export",): Example(("pico", "-d", "mean", "--to", "sentence-transformers", "-o", "{out}", *CPU), output="exported"),
    ("mine",): Example(("{in}", "-o", "{out}", *PICO), "pairs.jsonl", "triples.jsonl", "anchor"),
    ("train",): Example(("pico.toml", "-o", "{out}"), output="trained", timed=("run.json", "log.json", "README.md")),
    ("seeds",): Example(
        ("{in}", "-o", "{out}", "-n", "6", "--held-out", "tested.jsonl", "--held-out-number", "4"),
        "sums.jsonl", "learned.jsonl", "instruction",
    ),
    ("specialise",): Example(
        ("cooking.toml", "--seeds", "{in}", "-o", "{out}", "-n", "2", "--batch", "4",
         "--response-tokens", "8", "-m", "writer", *CPU), "sums.jsonl", "written", "instruction",
    ),
    ("mix",): Example(
        ("experts/sums", "experts/colours", "--lessons", "sums={in}", "--lessons", "colours=colours.jsonl", "-o", "{out}", *SHORT),
        "sums.jsonl", "mixture", "instruction",
    ),
    ("probe", "words"): Example(
        ("--train", "{in}", "--test", "words.jsonl", "-a", "causal", *PICO), "words.jsonl", column="tokens"
    ),
    ("probe", "prefix"): Example(("-o", "{out}", "-a", "bidirectional", *PICO), output="prefix"),
    ("probe", "routing"): Example(
        ("-m", "sparse", "-t", "{in}", "--label", "kind", "-o", "{out}", *CPU), "kinds.jsonl", "routing", "text"
    ),
    ("reproduce", "moee"): Example(
        ("-m", "sparse", "--scale", "smoke", "-o", "{out}", *CPU, "--set", 'only=["hidden", "routing"]'),
        output="moee", timed=("costs.jsonl", "study.json", "results.json"),  # they hold the path of the model
    ),
}  # fmt: skip
"""One command for each way of reading input and writing results. All commands together: tests/cli/test_every_command.py."""
WRITERS = [path for path, example in EXAMPLES.items() if example.output]
READERS = [path for path, example in EXAMPLES.items() if example.column]

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


def furnish(folder: Path) -> None:
    """Write the input files of the examples."""
    texts = ["A man plays a guitar.", "The stock market fell.", "x", "Two dogs run.", "It rains again.", "Nobody knows why."]
    write_rows(folder / "texts.jsonl", [{"text": text, "name": f"t{number}"} for number, text in enumerate(texts)])
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
    """Fill a folder with inputs, and with models that commands make: experts, a mixture of experts, a trained head."""
    furnish(folder)
    end_soon(folder / "writer")
    for name in ("sums", "colours"):
        must(["expert", f"{name}.jsonl", "-m", "pico", "-o", f"experts/{name}", *SHORT], folder, notes)
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
