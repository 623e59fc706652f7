"""A mixture of experts grown from one dense model: four branches, the mixture, its training, a control, and what came of it.

    python -m benchmarks.grow -o FOLDER [--smoke]

It cuts the text of four domains from the data folder (UNMASK_DATA) into training and held-out texts. Then it gives the commands of
`unmask` one after the other, and prints each of them: train four branches, mix them, train the mixture, measure loss by domain, and
compare hidden states with routing weights. The control is the base, upcycled: its experts start as copies, and it trains on the same
text for as many steps. Stop it at any time and give the same command again: finished steps are left out, and a training goes on from its
last checkpoint.
"""

from __future__ import annotations

import gc
import json
import random
import re
import shlex
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import _inputs
from unmask.cli import app
from unmask.io.files import atomic
from unmask.io.rows import read_rows
from unmask.models.bundled import resolve
from unmask.starter import reference_texts

TOKENS = 400_000  # of each domain's training text: the smallest domain has about so many
HELD_OUT = 10  # one of so many documents, at most MOST
MOST = 200
DESIGNS = "causal/eol/last/zscore,causal/eol/last/routing/zscore,causal/eol/last/concat/zscore,causal/eol/last/sum/zscore"
TASKS = ("stsb#500", "sickr#500", "mrpc#300", "trec#500", "subj#500", "searchsnippets#500")


def _joined(file: str, *columns: str, form: str = "{}\n{}") -> list[list[str]]:
    """Documents of one text each: the columns of a row, one below the other."""
    table = read_rows(_inputs.data(file) / file)
    return [[form.format(*(str(row[column]).replace("\r\n", "\n") for column in columns))] for _, row in table]


def _articles(*files: str) -> list[list[str]]:
    """Articles of WikiText, each a list of paragraphs."""
    folder = _inputs.data(*files)
    text = "\n".join((folder / file).read_text("utf-8") for file in files)
    articles = re.split(r"(?m)^ = (?!=).* = $", text)
    return [texts for one in articles if (texts := [line.strip() for line in one.split("\n") if len(line) > 200])]


DOMAINS: dict[str, Callable[[], list[list[str]]]] = {
    "code": lambda: [
        *_joined("mbpp/all.jsonl", "text", "code", form="# {}\n{}"),
        *_joined("nl2bash/pairs.jsonl", "anchor", "positive", form="# {}\n{}"),
    ],
    "math": lambda: _joined("gsm8k/train.jsonl", "question", "answer"),
    "medicine": lambda: _joined("medquad/pairs.jsonl", "anchor", "positive"),
    "encyclopedia": lambda: _articles("wikitext2/valid.txt", "wikitext2/test.txt"),
}
SMOKE: dict[str, Callable[[], list[list[str]]]] = {
    name: lambda place=place: [[text] for text in reference_texts()[place::4]]  # type: ignore[misc]
    for place, name in enumerate(DOMAINS)
}


def split(documents: list[list[str]], tokens: Callable[[str], int]) -> tuple[list[str], list[str]]:
    """Texts to train on, of TOKENS tokens at most, and held-out texts. A document is in one of the two, never in both."""
    order = random.Random(0).sample(documents, len(documents))
    held = min(MOST, max(1, len(order) // HELD_OUT))
    training: list[str] = []
    left = TOKENS
    for text in (text for document in order[held:] for text in document):
        if (left := left - tokens(text)) < 0:
            break
        training.append(text)
    return training, [text for document in order[:held] for text in document][:MOST]


def write_domains(folder: Path, model: str, domains: dict[str, Callable[[], list[list[str]]]]) -> None:
    """A file of training texts and one of held-out texts for each domain, unless they are there."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve(model))
    for name, documents in domains.items():
        files = folder / f"{name}.jsonl", folder / f"{name}-test.jsonl"
        if all(file.is_file() for file in files):
            continue
        for file, texts in zip(files, split(documents(), lambda text: len(tokenizer(text)["input_ids"]) + 1), strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            with atomic(file) as scratch:
                scratch.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")


def commands(folder: Path, model: str, scale: str, tasks: Iterable[str]) -> list[tuple[list[str], Path | None]]:
    """The commands in their order, each with what it leaves and cannot be given twice for."""
    domains = folder / "domains"
    branches = {name: folder / "branches" / name for name in DOMAINS}
    mixed, grown = folder / "mixed", folder / "grown"
    copies, control = folder / "copies", folder / "upcycled"
    train = [
        (
            ["train", "branch", "--scale", scale, "-o", str(place), "--data", str(domains),
             "--set", f'model="{model}"', "--set", f"data.text.path={name}.jsonl"],
            None,
        )
        for name, place in branches.items()
    ]  # fmt: skip
    mix = ["upcycle", model, "-o", str(mixed)]
    for name, place in branches.items():
        mix += ["--branch", f"{name}={place / 'model'}"]
    every = ["code", "math", "medicine", "encyclopedia"]
    learn = [
        ["train", "grown", "--scale", scale, "-o", str(trained), "--data", str(domains), "--set", f'model="{start}"',
         "--set", f"next-token.data={json.dumps(every)}"]
        for start, trained in ((mixed, grown), (copies, control))
    ]  # fmt: skip
    copy = ["upcycle", model, "-o", str(copies), "--experts", str(len(DOMAINS))]
    judged = [model, *(str(place / "model") for place in (*branches.values(), grown, control)), str(mixed)]
    loss = ["evaluate-lm", *(part for one in judged for part in ("-m", one))]
    for name in DOMAINS:
        loss += ["--texts", f"{name}={domains / f'{name}-test.jsonl'}"]
    compare = ["compare", "-d", DESIGNS, "-o", str(folder / "report")]
    for one in (mixed, grown / "model", control / "model"):
        compare += ["-m", str(one)]
    for task in tasks:
        compare += ["-t", task]
    return [*train, (mix, mixed), (learn[0], None), (copy, copies), (learn[1], None), (loss, None), (compare, None)]


def main(arguments: list[str] | None = None) -> None:
    """Grow the mixture."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # as the command line does
    parser = _inputs.parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, help="folder of all results")
    given = parser.parse_args(arguments)
    if not given.smoke and given.output is None:
        parser.error("-o FOLDER is needed: the runs go on from what is there")
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.output or Path(scratch)
        model = _inputs.model_of(given)
        # read before the first command: a mistake in the last one, which compares, would be told after hours
        tasks = [f"{_inputs.STARTER['sts']}#20"] if given.smoke else _inputs.tasks(*TASKS)
        write_domains(folder / "domains", model, SMOKE if given.smoke else DOMAINS)
        for words, made in commands(folder, model, "smoke" if given.smoke else "small", tasks):
            print(f"$ unmask {shlex.join(words)}", flush=True)
            if (made is None or not made.is_dir()) and app(words, standalone_mode=False):
                raise SystemExit(1)
            gc.collect()


if __name__ == "__main__":
    main()
