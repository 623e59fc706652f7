"""What benchmarks share: options, inputs, timing and Markdown tables.

UNMASK_DATA names the folder of the data sets (docs/data.md). With `--smoke`, a benchmark uses the pico model and a few bundled texts: it
shows in seconds that everything runs, and its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.io.terminal import counted
from unmask.starter import starter_folders
from unmask.tasks.folder import open_folder
from unmask.tasks.kinds.retrieval import Retrieval
from unmask.tasks.mteb.ranking import ndcg

STARTER = {folder.name: folder for folder in starter_folders()}
BUNDLED = {"stsb/test.jsonl": STARTER["sts"] / "test.jsonl", "scifact/corpus.jsonl": STARTER["retrieval"] / "corpus.jsonl"}
_RETRIEVAL = ("corpus.jsonl", "queries.jsonl", "qrels_test.tsv")


def start(script: str, description: str | None, arguments: Sequence[str] | None, **defaults: Any) -> argparse.Namespace:
    """Read the options of a benchmark, and print the command, the hardware and the versions.

    defaults: options with their default values, or with a pair: the default and the value in a smoke run.
    """
    import torch

    from unmask.models.provenance import hardware, installed_versions

    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="use a tiny model and few texts, to see whether it runs")
    pairs = {name: value if isinstance(value, tuple) else (value, value) for name, value in defaults.items()}
    for name, (default, _) in {"model": ("smollm2", "pico"), **pairs}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), help=f"default: {default}")
    args = parser.parse_args(arguments)
    for name, (default, in_smoke) in {"model": ("smollm2", "pico"), **pairs}.items():
        if getattr(args, name) is None:
            setattr(args, name, in_smoke if args.smoke else default)
    command = ["python", "-m", f"benchmarks.{Path(script).stem}", *(sys.argv[1:] if arguments is None else arguments)]
    versions = ", ".join(
        f"{name} {version}" for name, version in installed_versions(("unmask", "torch", "transformers")).items()
    )
    threads = counted(torch.get_num_threads(), "thread")
    print(f"```\n{shlex.join(command)}\n```\nOn {hardware(torch.device('cpu'))}, {threads}, with {versions}.")
    return args


def head(*columns: str) -> None:
    """Print the head of a table."""
    print()
    row(*columns)
    row("---", *["--:"] * (len(columns) - 1))


def row(*cells: str) -> None:
    """Print a row of a table."""
    print("|", " | ".join(cells), "|", flush=True)


# --- inputs ----------------------------------------------------------------------------------------------------------


def data(*needed: str) -> Path:
    """The data folder. Exits if UNMASK_DATA is not set, or if the folder lacks one of these files or folders."""
    folder = Path(os.environ.get("UNMASK_DATA") or "?")
    if missing := [name for name in needed if not (folder / name).exists()]:
        raise SystemExit(f"UNMASK_DATA has to name a folder with {', '.join(missing)} (docs/data.md). Or give --smoke.")
    return folder


def rows(file: str, smoke: bool) -> list[dict[str, Any]]:
    """The rows of a file such as `stsb/test.jsonl`; in a smoke run, of a bundled file with the same columns."""
    path = BUNDLED[file] if smoke else data(file) / file
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def texts(count: int, smoke: bool) -> dict[str, list[str]]:
    """Sentences of STSB and a third as many abstracts of SciFact, apart and mixed in random order."""
    draw = random.Random(0)
    pairs, documents = rows("stsb/test.jsonl", smoke), rows("scifact/corpus.jsonl", smoke)
    sentences = draw.sample([pair["sentence1"] for pair in pairs], count // 2)
    abstracts = draw.sample([f"{document['title']} {document['text']}" for document in documents], count // 6)
    mixed = [*sentences, *abstracts]
    draw.shuffle(mixed)
    return {"sentences": sentences, "abstracts": abstracts, "mixed": mixed}


@dataclass(frozen=True)
class RetrievalTask:
    """Documents and queries by id. relevant: gains of documents, by query."""

    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]

    def ndcg(self, rankings: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
        """nDCG@10 of each query. rankings: scores of documents, for each query."""
        return np.array(
            [ndcg(dict(ranking), self.relevant[query], 10) for query, ranking in zip(self.queries, rankings, strict=True)]
        )

    def mean_ndcg(self, scores: NDArray[np.floating]) -> float:
        """Mean nDCG@10 x 100. scores: shape (query, document)."""
        return 100 * float(self.ndcg([dict(zip(self.documents, values.tolist(), strict=True)) for values in scores]).mean())


def retrieval_folder(name: str, smoke: bool) -> Path:
    """The folder of a retrieval task such as `scifact`; in a smoke run, the bundled one."""
    return STARTER["retrieval"] if smoke else data(*(f"{name}/{file}" for file in _RETRIEVAL)) / name


def retrieval(folder: Path, most: int = 0) -> RetrievalTask:
    """The content of a retrieval task, cut to so many documents: those that queries need, as many as fit, then others in order.

    Queries whose relevant documents do not fit are left out.
    """
    content = Retrieval().read(open_folder(folder))
    relevant: dict[str, dict[str, int]] = {}
    for judgement in content["qrels"]:
        if judgement["score"] > 0:
            relevant.setdefault(judgement["query-id"], {})[judgement["corpus-id"]] = int(judgement["score"])
    documents = {document["_id"]: f"{document['title']} {document['text']}".strip() for document in content["corpus"]}
    if most:
        needed = set[str]()
        for query, gains in list(relevant.items()):
            if len(needed | gains.keys()) <= most:
                needed |= gains.keys()
            else:
                del relevant[query]
        needed |= set([name for name in documents if name not in needed][: most - len(needed)])
        documents = {name: text for name, text in documents.items() if name in needed}
    queries = {query["_id"]: query["text"] for query in content["queries"] if query["_id"] in relevant}
    return RetrievalTask(documents, queries, relevant)


# --- measuring -------------------------------------------------------------------------------------------------------


def best_times(competitors: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The best time of each competitor, after a warm-up. They take turns, so that a busy machine slows all of them."""
    times = dict.fromkeys(competitors, float("inf"))
    for turn in range(repeats + 1):
        for name, run in competitors.items():
            begin = time.perf_counter()
            run()
            if turn:
                times[name] = min(times[name], time.perf_counter() - begin)
    return times


def run_alone(*command: str) -> tuple[float, str]:
    """Run `python -m COMMAND`. Returns the peak of its resident memory in MB, and what it wrote to standard error."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    messages = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(messages)
    return usage.ru_maxrss / 1024, messages
