"""Task folders as people download them: BEIR's own layout, and the spec of the starter tasks with a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import write_rows
from unmask.errors import UnmaskError
from unmask.tasks.find import find_task
from unmask.tasks.kinds import KINDS
from unmask.tasks.task import LocalTask
from unmask.training.data import DataSource, read_pairs


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Whole numbers as ids, as in BEIR's NFCorpus exports, and judgements of documents that are not there, as in ArguAna."""
    folder = tmp_path / "arguana"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": n, "title": f"t{n}" if n % 2 else "", "text": f"document {n}", "metadata": {}} for n in range(6)]
    write_rows(folder / "corpus.jsonl", documents)
    write_rows(folder / "queries.jsonl", [{"_id": 10 + n, "text": f"query {n}", "metadata": {}} for n in range(4)])
    judged = [("10", "0", 1), ("11", "1", 2), ("11", "gone", 1), ("12", "lost", 1), ("13", "2", 1), ("13", "3", 0)]
    for split, rows in (("test", judged), ("train", judged), ("dev", judged[:1])):
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def local(spec: str) -> LocalTask:
    task = find_task(spec)
    assert isinstance(task, LocalTask)
    return task


def test_the_layout_of_beir_is_a_retrieval_task(beir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "unmask")
    task = local(str(beir))
    assert (task.kind, task.name, task.size) == ("retrieval", "arguana", 4)
    assert [row["_id"] for row in task.data["corpus"]] == [str(n) for n in range(6)]
    relevant = [
        (row["query-id"], row["corpus-id"]) for row in task.data["qrels"] if row["score"] > 0
    ]  # as trec_eval counts them
    assert relevant == [("10", "0"), ("11", "1"), ("11", "gone"), ("12", "lost"), ("13", "2")]
    [message] = caplog.messages
    assert message.startswith(
        "arguana: 2 judged documents, such as 'gone', not in the corpus. They count as documents that were not"
    )
    dev = local(f"{beir}/qrels/dev.tsv")
    assert (dev.kind, dev.name, dev.size) == ("retrieval", "arguana-qrels_dev", 1)
    texts, pairs = KINDS["retrieval"].texts_and_pairs(task.data)
    assert len(texts) == 10 and len(pairs) == 3
    sampled = local(f"{beir}#2")
    assert sampled.size == 2


def test_judgements_of_another_corpus_are_refused(beir: Path) -> None:
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n10\ta\t1\n11\tb\t1\n")
    with pytest.raises(UnmaskError, match=r"test.tsv: no relevant document is in .*corpus.jsonl; there is no document 'a'"):
        find_task(str(beir))
    (beir / "qrels_test.tsv").write_text("query-id\tcorpus-id\tscore\n10\t1\t1\n")
    with pytest.raises(UnmaskError, match=r"both hold judgements of one split"):
        find_task(str(beir))


def test_training_reads_the_layout_of_beir(beir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "unmask")
    found = read_pairs("set", DataSource(path="arguana"), beir.parent, 0)
    assert [example.texts for example in found.examples] == [
        ("query 0", "document 0"),
        ("query 1", "t1 document 1"),
        ("query 3", "document 2"),
    ]
    [message] = caplog.messages
    assert "nothing has the id 'gone'; 2 judgements of documents that are not in the corpus left out" in message
    assert len(read_pairs("set", DataSource(path="arguana", split="dev"), beir.parent, 0).examples) == 1
