"""Write two sets of task folders from the public data sets: one to choose designs and recipes on, one to report.

    python -m tools.suites DATA FOLDER
    unmask compare -t FOLDER/development ...     choose here: no text and no source of the tasks that are reported
    unmask compare -t FOLDER/final ...           the twelve tasks of docs/results.md, whole or at least 1,000 items or 200 queries

The development tasks are small: about ten minutes for a design of one prompt, SmolLM2-135M and two cores.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FINAL = {
    "stsb": "",
    "sickr": "limit = 1500",
    "sts12": "limit = 1500",
    "sts13": "",
    "mrpc": "",
    "trec": "",
    "subj": 'kind = "classification"',
    "bbc_news": "limit = 200",
    "searchsnippets": "limit = 1000",
    "cranfield": "",
    "trecqa": "",
    "summeval": "",
}
"""The tasks that are reported, and their `task.toml`."""
SEED = 17
PAIR = ("sentence1", "sentence2")


def read(file: Path) -> list[Row]:
    """The rows of a file of JSON lines."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def drawn(rows: list[Row], count: int) -> list[Row]:
    """Rows drawn by the seed, in the order of the file."""
    return [rows[index] for index in sorted(random.Random(SEED).sample(range(len(rows)), count))]


def sts(data: Path) -> dict[str, list[Row]]:
    """Pairs of STSB's development set that share no sentence with the tasks that are reported, as STS12 and STS13 do."""
    reported = {
        row[key].lower()
        for name in ("stsb", "sts12", "sts13", "sickr", "mrpc")
        for row in read(data / name / "test.jsonl")
        for key in PAIR
    }
    fresh = [row for row in read(data / "stsb" / "dev.jsonl") if not {row[key].lower() for key in PAIR} & reported]
    return {"test.jsonl": drawn(fresh, min(len(fresh), 750))}


def duplicates(data: Path) -> dict[str, list[Row]]:
    """Pairs of Quora's questions, and whether they ask the same."""
    return {"test.jsonl": drawn(read(data / "quora" / "labelled.jsonl"), 500)}


def arguments(data: Path) -> dict[str, list[Row]]:
    """An argument and a key point on its topic, and whether the argument makes this point."""
    triples = drawn(read(data / "argument_key_points" / "triples.jsonl"), 200)
    return {
        "test.jsonl": [
            {"sentence1": row["anchor"], "sentence2": row[key], "label": int(key == "positive")}
            for row in triples
            for key in ("positive", "negative")
        ]
    }


def intents(data: Path) -> dict[str, list[Row]]:
    """Commands to an assistant, by intent: eight of each to train on, six of each to test."""
    by_intent: dict[str, list[Row]] = {}
    for row in drawn(rows := read(data / "hwu64" / "train.jsonl"), len(rows)):
        by_intent.setdefault(row["label"], []).append(row)
    parts: dict[str, list[Row]] = {"train.jsonl": [], "test.jsonl": []}
    for of_intent in by_intent.values():
        if len(of_intent) >= 14:
            chosen = drawn(of_intent, 14)
            parts["train.jsonl"] += chosen[:8]
            parts["test.jsonl"] += chosen[8:]
    return parts


def subjects(data: Path) -> dict[str, list[Row]]:
    """Short exam questions of high schools (MMLU), by subject."""
    rows = [row for row in read(data / "mmlu" / "test.jsonl") if row["subject"].startswith("high_school")]
    short = [{"text": row["question"], "label": row["subject"]} for row in rows if len(row["question"]) < 250]
    return {"all.jsonl": drawn(short, 500)}


def retrieval(pairs: list[Row], queries: int) -> dict[str, list[Row]]:
    """The first texts of some pairs find their second ones among those of all."""
    texts = list(dict.fromkeys(row["positive"] for row in pairs))
    ids = {text: str(index) for index, text in enumerate(texts)}
    asked = drawn(pairs, queries)
    return {
        "corpus.jsonl": [{"_id": key, "title": "", "text": text} for text, key in ids.items()],
        "queries.jsonl": [{"_id": f"q{index}", "text": row["anchor"]} for index, row in enumerate(asked)],
        "qrels_test.tsv": [
            {"query-id": f"q{index}", "corpus-id": ids[row["positive"]], "score": 1} for index, row in enumerate(asked)
        ],
    }


def answers(data: Path) -> dict[str, list[Row]]:
    """Questions of customers and their answers."""
    rows = [row for name in ("bank", "covid") for row in read(data / "faq" / f"{name}.jsonl") if len(row["positive"]) < 600]
    return retrieval(drawn(rows, 500), 200)


def abstracts(data: Path) -> dict[str, list[Row]]:
    """Questions of biomedical papers and their abstracts."""
    form = re.compile(r"Context: (?P<positive>.*)\nQuestion: (?P<anchor>.*)\nA\. yes", re.DOTALL)
    found = (form.match(row["context"]) for row in read(data / "pubmed_qa" / "all.jsonl"))
    pairs = [match.groupdict() for match in found if match and len(match["positive"]) < 1500]
    return retrieval(drawn(pairs, 150), 150)


def sentences(data: Path) -> dict[str, list[Row]]:
    """Questions on a passage, the sentence that answers them, and the others of the passage."""
    folder = data / "squad_xquad_en"
    passages = {row["_id"]: row["text"] for row in read(folder / "passages.jsonl")}
    rows = []
    for row in read(folder / "queries.jsonl"):
        ends = [match.end() for match in re.finditer(r"[.?!]\s+(?=[A-Z])", passages[row["passage_id"]])]
        bounds = list(zip([0, *ends], [*ends, len(passages[row["passage_id"]])], strict=True))
        parts = [passages[row["passage_id"]][start:end].strip() for start, end in bounds]
        right = [start <= row["answer_start"] < end for start, end in bounds]
        if len(parts) > 3:
            positive = [part for part, is_right in zip(parts, right, strict=True) if is_right]
            negative = [part for part, is_right in zip(parts, right, strict=True) if not is_right]
            rows.append({"query": row["query"], "positive": positive, "negative": negative})
    return {"test.jsonl": drawn(rows, 200)}


DEVELOPMENT: dict[str, Callable[[Path], dict[str, list[Row]]]] = {
    "dev-sts": sts,
    "dev-duplicates": duplicates,
    "dev-arguments": arguments,
    "dev-intents": intents,
    "dev-subjects": subjects,
    "dev-answers": answers,
    "dev-abstracts": abstracts,
    "dev-sentences": sentences,
}


def write(file: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines, or as a table with tabs."""
    rows = list(rows)
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    if file.suffix == ".tsv":
        lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(data: Path, folder: Path) -> None:
    """Write both sets."""
    for name, make in DEVELOPMENT.items():
        (target := folder / "development" / name).mkdir(parents=True, exist_ok=True)
        for file, rows in make(data).items():
            write(target / file, rows)
    for name, settings in FINAL.items():
        target = folder / "final" / name
        shutil.copytree(data / name, target, dirs_exist_ok=True)
        (target / "task.toml").write_text(f"{settings}\n", encoding="utf-8")
    # a limit would leave half of the 10,000 sentences to train on
    write(folder / "final" / "subj" / "all.jsonl", drawn(read(data / "subj" / "all.jsonl"), 2000))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
