"""Tiny labelled sets, one of each kind of task, and an encoder that needs no model: overlapping words, near vectors."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]
Files = dict[str, list[Row]]

TOPICS = {"music": "guitar drum song choir melody band", "sport": "ball goal race team medal coach"}


def encode_words(texts: Sequence[str], _: str | None = None) -> NDArray[np.float32]:
    """The sum of one fixed random vector a word."""
    return np.stack([np.sum([_word(word) for word in text.split()] or [np.ones(16)], axis=0) for text in texts]).astype(
        np.float32
    )


def _word(word: str) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=16)


def overlapping(number: int, shared: int) -> tuple[str, str]:
    """Two texts of five words, so many of them shared."""
    one = [f"{letter}{number}" for letter in "abcde"]
    other = [f"{letter}{number}" for letter in "vwxyz"]
    return " ".join(one), " ".join(one[:shared] + other[shared:])


def pairs(column: str, values: Callable[[int], tuple[int, float]], size: int = 24) -> list[Row]:
    rows = []
    for number in range(size):
        shared, value = values(number)
        one, two = overlapping(number, shared)
        rows.append({"sentence1": one, "sentence2": two, column: value})
    return rows


def labelled(first: int, size: int) -> list[Row]:
    """Texts of two topics in turn, no two alike."""
    rows = []
    for number in range(first, first + size):
        label = list(TOPICS)[number % 2]
        words = TOPICS[label].split()
        rows.append({"text": f"{words[number % 6]} {words[(number // 2) % 6]} n{number}", "label": label})
    return rows


def retrieval() -> Files:
    corpus = [{"_id": f"d{n}", "title": f"t{n}" if n % 2 else "", "text": overlapping(n % 6, 4 - n // 3)[1]} for n in range(12)]
    queries = [{"_id": f"q{n}", "text": overlapping(n, 0)[0]} for n in range(6)]
    qrels = [{"query-id": f"q{n % 6}", "corpus-id": f"d{n}", "score": 2 - n // 6} for n in range(12)]
    return {"corpus.jsonl": corpus, "queries.jsonl": queries, "qrels_test.tsv": qrels}


def reranking() -> list[Row]:
    return [
        {
            "query": overlapping(number, 0)[0],
            "positive": [overlapping(number, shared)[1] for shared in (4, 2)],
            "negative": [overlapping(number, 1)[1], overlapping(number, 0)[1], f"n{number}"],
        }
        for number in range(6)
    ]


def summaries() -> list[Row]:
    return [
        {
            "source": f"s{number}",
            "references": [overlapping(number, 0)[0], f"r{number}"],
            "systems": [
                {"summary": overlapping(number, shared)[1], "scores": {"fluency": shared, "coverage": (shared * 3) % 5}}
                for shared in range(5)
            ],
        }
        for number in range(4)
    ]


def tagged(first: int, size: int) -> list[Row]:
    """Sentences whose words are of a topic or a number; each test word is in the training sentences too, so that it can be told."""
    rows = []
    for number in range(first, first + size):
        music, sport = (TOPICS[topic].split()[number % 6] for topic in ("music", "sport"))
        words = [(music, "MUSIC"), (str(number % 7), "NUM"), (sport, "SPORT"), ("and", "CONJ"), (str(number % 5), "NUM")]
        if number % 3 == 0:
            words[1] = words[1][0], "ID"  # which a number is cannot be told
        words = words[number % 2 : 3 + number % 3]
        rows.append({"tokens": [word for word, _ in words], "tags": [tag for _, tag in words]})
    return rows


FILES: dict[str, Callable[[], Files]] = {
    "sts": lambda: {"test.jsonl": pairs("score", lambda n: (n % 5, n % 5 + n % 3))},
    "pair-classification": lambda: {"test.jsonl": pairs("label", lambda n: ((n * 7) % 5, int(n % 6 in (1, 3, 4))))},
    "classification": lambda: {"train.jsonl": labelled(0, 16), "test.jsonl": labelled(16, 12)},
    "clustering": lambda: {"all.jsonl": labelled(0, 24)},
    "retrieval": retrieval,
    "reranking": lambda: {"test.jsonl": reranking()},
    "summarization": lambda: {"test.jsonl": summaries()},
    "word-level": lambda: {"train.jsonl": tagged(0, 24), "test.jsonl": tagged(24, 10)},
}


def write_task(folder: Path, kind: str, toml: str = "") -> Path:
    """A tiny task folder of a kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in FILES[kind]().items():
        write_rows(folder / name, rows)
    if toml:
        (folder / "task.toml").write_text(toml, encoding="utf-8")
    return folder


def write_rows(file: Path, rows: Sequence[Row]) -> Path:
    """Rows in the format that the file's ending says."""
    WRITERS[file.suffix](file, rows)
    return file


def _jsonl(file: Path, rows: Sequence[Row]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _json(file: Path, rows: Sequence[Row]) -> None:
    file.write_text(json.dumps(list(rows), ensure_ascii=False, indent=1), encoding="utf-8")


def _delimited(**dialect: Any) -> Callable[[Path, Sequence[Row]], None]:
    def write(file: Path, rows: Sequence[Row]) -> None:
        with file.open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, list(rows[0]), **dialect)
            writer.writeheader()
            writer.writerows(rows)

    return write


def _parquet(file: Path, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), file)


def _feather(file: Path, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    from pyarrow import feather

    feather.write_feather(pa.Table.from_pylist(list(rows)), file)


def _arrow_stream(file: Path, rows: Sequence[Row]) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(list(rows))
    with pa.ipc.new_stream(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


WRITERS: dict[str, Callable[[Path, Sequence[Row]], None]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _delimited(),
    ".tsv": _delimited(delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None),
    ".parquet": _parquet,
    ".feather": _feather,
    ".arrow": _arrow_stream,
}


def give_code(folder: Path, proof: Path) -> Path:
    """Give a llama's folder Python code of its own, which makes the file `proof` when it runs."""
    said = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel", "AutoModelForCausalLM": "own.OwnLanguageModel"}
    (folder / "config.json").write_text(json.dumps({**said, "auto_map": names, "model_type": "own"}))
    (folder / "own.py").write_text(
        f"from pathlib import Path\nfrom transformers import LlamaConfig, LlamaForCausalLM, LlamaModel\nPath({str(proof)!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\nclass OwnModel(LlamaModel):\n    config_class = OwnConfig\n"
        "class OwnLanguageModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    return folder
