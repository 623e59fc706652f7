"""`unmask embed` on a corpus: compared with sentence-transformers and with one process per core; and its peak memory.

    python -m benchmarks.bulk [--model smollm2] [--texts 600] [--workers 2] [--smoke]

Texts are a random sample of SciFact's abstracts. `unmask embed` reads them from a file and writes vectors, records and checksums;
sentence-transformers has them in memory and only encodes. Speeds leave out the time of loading the model.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._common import best_times, head, row, rows, run_alone, start
from unmask import Embedder


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the speed and the peak memory of each way."""
    from sentence_transformers import SentenceTransformer

    args = start(__file__, __doc__, arguments, texts=(600, 12), workers=(2, 0))
    documents = [f"{document['title']} {document['text']}" for document in rows("scifact/corpus.jsonl", args.smoke)]
    texts = random.Random(0).sample(documents, min(args.texts, len(documents)))
    head(f"{len(texts)} abstracts", "tokens/s", "peak memory, MB")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
        for workers in (1, args.workers) if args.workers else (1,):
            command = ["unmask", "embed", f"{folder}/corpus.jsonl", "-m", args.model, "-d", "mean", "-o", f"{folder}/{workers}"]
            shards = ["--workers", str(workers), "--shard-rows", str(len(texts) // 8)] if workers > 1 else []
            memory, messages = run_alone(*command, *shards)
            speed = re.findall(r"([\d,]+) tokens/s", messages)[-1]
            row(f"`unmask embed`, {workers} process{'es' * (workers > 1)}", speed, f"{memory:,.0f}")
        ours = Embedder.from_pretrained(args.model, "mean")
        ours.save_pretrained(f"{folder}/saved")
        tokens = sum(len(text.ids) for text in ours.prompt.tokenize(texts))
        theirs = SentenceTransformer(f"{folder}/saved", device=ours.backbone.device.type)
        seconds = best_times({"theirs": lambda: theirs.encode(texts, batch_size=32, show_progress_bar=False)}, 1)["theirs"]
        row("sentence-transformers `encode`", f"{tokens / seconds:,.0f}", "")


if __name__ == "__main__":
    main()
