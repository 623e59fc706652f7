"""Bulk: a corpus into a folder of vectors, compared with sentence-transformers, and one process with a worker for each core; and memory.

    python -m benchmarks.bulk [--model smollm2] [--texts 600] [--repeats 3] [--keep FILE] [--smoke]

Texts are a random sample of SciFact's abstracts (UNMASK_DATA). Ours reads them from a file, embeds them, and writes vectors, records and
checksums. sentence-transformers has them in memory and only encodes. Tokens and dtype are the same. Models are loaded before the clock
starts. Competitors take turns, and a ratio is that of their best times.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import _inputs, _report
from benchmarks._report import Report, Table
from benchmarks.encode import PLAIN, best_times
from unmask.bulk.embed_shard import Places, ShardRecord
from unmask.bulk.job import EmbedderArguments, Job
from unmask.bulk.manifest import key_of
from unmask.bulk.shards import Shard, read_sources
from unmask.bulk.team import Listener, Team, ThisProcess
from unmask.bulk.workers import Workers

SPEEDS = {
    **{"way": "{}", "against": "{}", "ratio": "{:.2f} x", "tokens/s": "{:,.0f}", "tokens/s of the other": "{:,.0f}"},
    **{"padding": "{:.1%}"},
}
_SHARDS = 8


def corpus_in(folder: Path, count: int, smoke: bool) -> list[str]:
    """A random sample of abstracts, also as `corpus.jsonl` in a folder."""
    documents = _inputs.rows("scifact/corpus.jsonl", smoke)
    chosen = random.Random(0).sample(documents, min(count, len(documents)))
    texts = [f"{row['title']} {row['text']}" for row in chosen]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


def job_in(folder: Path, name: str, rows: int) -> Job:
    """Embed the corpus into a folder of that name, in shards of so many rows."""
    return Job((folder / "corpus.jsonl",), folder / name, shard_rows=rows)


class Run:
    """A team whose members have loaded their models, and the shards that it embeds in each turn."""

    def __init__(self, job: Job, team: Team) -> None:
        sources = read_sources(job.files(), job, None, lambda _: None)
        self.shards, self.team, self.places = sources.shards, team, Places(job.output)
        self.records: dict[str, ShardRecord] = {}
        self.key = key_of(self.team.describe())

    def __call__(self) -> None:
        """Embed all shards. Their records are removed first, so that nothing counts as done."""
        for shard in self.shards:
            self.places.record(shard.name).unlink(missing_ok=True)
        self.team.embed(self.shards, self.key, Listener(lambda _: None, self._note, _fail))

    def _note(self, shard: Shard, record: ShardRecord) -> None:
        self.records[shard.name] = record

    @property
    def tokens(self) -> int:
        """Tokens of a turn."""
        return sum(record.tokens for record in self.records.values())

    @property
    def padding(self) -> float:
        """Share of computed tokens that were padding."""
        return 1 - self.tokens / sum(record.padded for record in self.records.values())


def _fail(shard: Shard, reason: str) -> None:
    raise SystemExit(f"{shard.name}: {reason}")


def against_sentence_transformers(speeds: Table, model: str, folder: Path, texts: list[str], repeats: int) -> None:
    """A corpus into a folder of vectors, against `encode` of sentence-transformers on texts in memory."""
    from sentence_transformers import SentenceTransformer

    from unmask import Embedder

    saved = folder / "saved"
    embedder = Embedder.from_pretrained(model, PLAIN)
    embedder.save_pretrained(saved)
    theirs = SentenceTransformer(str(saved), device=embedder.backbone.device.type)
    del embedder
    job = job_in(folder, "ours", len(texts))
    run = Run(job, ThisProcess(job, EmbedderArguments(str(saved))))
    encode: Callable[[], Any] = lambda: theirs.encode(texts, batch_size=32, show_progress_bar=False)  # noqa: E731
    times = best_times({"ours": run, "theirs": encode}, repeats)
    speeds.add(
        "`unmask embed`", "`encode` of sentence-transformers", *_speeds(times["ours"], times["theirs"], run.tokens), run.padding
    )


def _speeds(seconds: float, of_other: float, tokens: int) -> tuple[float, float, float]:
    """The ratio of two speeds, and both in tokens a second."""
    return of_other / seconds, tokens / seconds, tokens / of_other


def workers(speeds: Table, model: str, folder: Path, rows: int, repeats: int) -> None:
    """One process on all cores, against a worker of one thread on each core, on the same shards."""
    cores = len(os.sched_getaffinity(0))
    size = max(1, rows // _SHARDS)
    jobs = job_in(folder, "one", size), job_in(folder, "several", size)
    arguments = EmbedderArguments(model, PLAIN)
    with closing(ThisProcess(jobs[0], arguments)) as one, closing(Workers(jobs[1], arguments, cores)) as several:
        runs = {"one": Run(jobs[0], one), "several": Run(jobs[1], several)}
        times = best_times(runs, repeats)
        tokens, padding = runs["one"].tokens, runs["one"].padding
    label = f"{cores} workers of one thread, {len(runs['one'].shards)} shards"
    speeds.add(label, f"one process of {cores} threads", *_speeds(times["several"], times["one"], tokens), padding)


def peak_memory(report: Report, model: str, folder: Path) -> None:
    """Note the peak of resident memory of the command, with its libraries and its model."""
    corpus, output = (str(folder / name) for name in ("corpus.jsonl", "command"))
    command = [sys.executable, "-m", "unmask", "embed", corpus, "-m", model, "-d", PLAIN, "-o", output]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(said)
    import resource

    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(said.strip())
    report.note(f"`unmask embed` takes {peak:,.0f} MB of memory at its peak, with libraries and model.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all parts."""
    parser = _report.parser(__doc__)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(arguments)
    model, repeats = _inputs.model_of(given), 1 if given.smoke else given.repeats
    with tempfile.TemporaryDirectory() as name, Report(__file__, arguments) as report:
        folder = Path(name)
        texts = corpus_in(folder, 12 if given.smoke else given.texts, given.smoke)
        if not given.smoke:  # before anything else is loaded in a child
            peak_memory(report, model, folder)
        speeds = report.table(f"{len(texts)} abstracts of SciFact", SPEEDS)
        against_sentence_transformers(speeds, model, folder, texts, repeats)
        if not given.smoke:  # workers take half a minute to start
            workers(speeds, model, folder, len(texts), repeats)


if __name__ == "__main__":
    main()
