"""Turn texts into vectors, save the embedder, and load it again: `python examples/embed.py smollm2`."""

import sys
import tempfile

import numpy as np

from unmask import Embedder

TEXTS = ["A man plays a guitar.", "Someone makes music.", "The stock market fell."]

embedder = Embedder.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
vectors = embedder.encode(TEXTS)
print("vectors:", vectors.shape)
print(embedder.similarity(vectors, vectors).round(2))

with tempfile.TemporaryDirectory() as folder:
    embedder.save_pretrained(f"{folder}/my-embedder")
    again = Embedder.from_pretrained(f"{folder}/my-embedder").encode(TEXTS)
print("the same vectors after saving:", np.array_equal(vectors, again))
