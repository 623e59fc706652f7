"""A mixture of experts grown from one dense model: four branches, the mixture, its training, a control, and what came of it.

    python -m benchmarks.grow --output FOLDER [--model smollm2] [--smoke]

It cuts the texts of four domains in the data folder into training and held-out texts. Then it runs and prints the commands of `unmask`:
train four branches, mix them, train the mixture, measure the loss by domain, and compare hidden states with routing weights. The control
is the base, upcycled: its experts start as copies, and it trains on the same text for as many steps. To continue a run that was stopped,
give the same command again.
"""

from __future__ import annotations

import gc
import json
import random
import re
import shlex
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks._common import STARTER, data, start
from unmask.cli import app
from unmask.io.files import atomic
from unmask.io.rows import read_rows
from unmask.models.bundled import resolve
from unmask.starter import reference_texts
from unmask.tasks.find import resolve_tasks

TOKENS = 400_000  # of each domain's training text: about the size of the smallest domain
HELD_OUT = 200  # most held-out texts of a domain
DESIGNS = ",".join(f"causal/eol/last{features}/zscore" for features in ("", "/routing", "/concat", "/sum"))
TASKS = ("stsb#500", "sickr#500", "mrpc#300", "trec#500", "subj#500", "searchsnippets#500")
Document = list[str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Grow the mixture."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # as the command line does
    args = start(__file__, __doc__, arguments, output=("four-domains", ""))
    tasks = [f"{STARTER['sts']}#20"] if args.smoke else [str(data(name.partition("#")[0]) / name) for name in TASKS]
    resolve_tasks(tasks)  # a mistake in the last command would show after hours
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(args.output or scratch)
        for number, name in enumerate(DOMAINS):
            bundled = [[text] for text in reference_texts()[number::4]] if args.smoke else None
            write_domain(folder / "domains", args.model, name, bundled)
        for command, output in commands(folder, args.model, "smoke" if args.smoke else "small", tasks):
            print(f"$ unmask {shlex.join(command)}", flush=True)
            if (output is None or not output.is_dir()) and app(command, standalone_mode=False):
                raise SystemExit(1)
            gc.collect()


def commands(folder: Path, model: str, scale: str, tasks: Sequence[str]) -> list[tuple[list[str], Path | None]]:
    """The commands in their order; with the folder that one makes, if it cannot be given twice."""

    def train(recipe: str, base: str | Path, output: str, *settings: str) -> tuple[list[str], None]:
        changes = [word for setting in (f'model="{base}"', *settings) for word in ("--set", setting)]
        return [
            "train",
            recipe,
            "--scale",
            scale,
            "-o",
            str(folder / output),
            "--data",
            str(folder / "domains"),
            *changes,
        ], None

    def each(option: str, values: Sequence[object]) -> list[str]:
        return [word for value in values for word in (option, str(value))]

    mixed, copies = folder / "mixed", folder / "copies"
    branches = {name: folder / "branches" / name / "model" for name in DOMAINS}
    grown, control = folder / "grown" / "model", folder / "upcycled" / "model"
    every = f"next-token.data={json.dumps(list(DOMAINS))}"
    held_out = [f"{name}={folder / 'domains' / f'{name}-test.jsonl'}" for name in DOMAINS]
    return [
        *(train("branch", model, f"branches/{name}", f"data.text.path={name}.jsonl") for name in DOMAINS),
        (
            ["upcycle", model, "-o", str(mixed), *each("--branch", [f"{name}={branch}" for name, branch in branches.items()])],
            mixed,
        ),
        train("grown", mixed, "grown", every),
        (["upcycle", model, "-o", str(copies), "--experts", str(len(DOMAINS))], copies),
        train("grown", copies, "upcycled", every),
        (["evaluate-lm", *each("-m", [model, *branches.values(), grown, control, mixed]), *each("--texts", held_out)], None),
        (
            ["compare", "-d", DESIGNS, "-o", str(folder / "report"), *each("-m", [mixed, grown, control]), *each("-t", tasks)],
            None,
        ),
    ]


# --- texts -----------------------------------------------------------------------------------------------------------


def write_domain(folder: Path, model: str, name: str, documents: list[Document] | None) -> None:
    """A file of training texts, of TOKENS tokens at most, and one of held-out texts. A document is in one of the two only."""
    from transformers import AutoTokenizer

    files = folder / f"{name}.jsonl", folder / f"{name}-test.jsonl"
    if all(file.is_file() for file in files):
        return
    documents = documents or DOMAINS[name]()
    order = random.Random(0).sample(documents, len(documents))
    number = min(HELD_OUT, max(1, len(order) // 10))
    tokenizer, left, training = AutoTokenizer.from_pretrained(resolve(model)), TOKENS, list[str]()
    for text in (text for document in order[number:] for text in document):
        if (left := left - len(tokenizer(text)["input_ids"]) - 1) < 0:
            break
        training.append(text)
    folder.mkdir(parents=True, exist_ok=True)
    held_out = [text for document in order[:number] for text in document][:HELD_OUT]
    for file, texts in zip(files, (training, held_out), strict=True):
        with atomic(file) as scratch:
            scratch.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")


def joined(file: str, *columns: str, form: str = "{}\n{}") -> list[Document]:
    """Documents of one text each: the columns of a row."""
    table = read_rows(data(file) / file)
    return [[form.format(*(str(row[column]).replace("\r\n", "\n") for column in columns))] for _, row in table]


def articles() -> list[Document]:
    """Articles of WikiText, each a list of paragraphs."""
    files = "wikitext2/valid.txt", "wikitext2/test.txt"
    text = "\n".join((data(file) / file).read_text("utf-8") for file in files)
    parts = re.split(r"(?m)^ = (?!=).* = $", text)
    return [texts for part in parts if (texts := [line.strip() for line in part.split("\n") if len(line) > 200])]


DOMAINS: dict[str, Callable[[], list[Document]]] = {
    "code": lambda: [
        *joined("mbpp/all.jsonl", "text", "code", form="# {}\n{}"),
        *joined("nl2bash/pairs.jsonl", "anchor", "positive", form="# {}\n{}"),
    ],
    "math": lambda: joined("gsm8k/train.jsonl", "question", "answer"),
    "medicine": lambda: joined("medquad/pairs.jsonl", "anchor", "positive"),
    "encyclopedia": articles,
}


if __name__ == "__main__":
    main()
