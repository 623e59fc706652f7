"""Train two small experts, put a router between them, and embed with its routing weights: `python examples/mixture.py smollm2`.

The experts learn for two steps only, so that the script ends soon. Every step is a command, too: see docs/tutorials/mixture.md.
"""

import json
import sys
import tempfile
from pathlib import Path

from unmask import Embedder
from unmask.cli import app

LESSONS = {
    "math": [("What is 3 + 4?", "7"), ("What is 9 - 5?", "4"), ("What is 6 * 2?", "12"), ("What is 8 / 4?", "2")],
    "code": [("Reverse x in Python.", "x[::-1]"), ("Length of x?", "len(x)"), ("Sort x.", "sorted(x)"), ("Copy x.", "list(x)")],
}
SHORT = ["--steps", "2", "--batch", "2"]

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
with tempfile.TemporaryDirectory() as folder:
    for name, lessons in LESSONS.items():
        lines = [json.dumps({"instruction": question, "output": answer}) for question, answer in lessons]
        (Path(folder) / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        command = ["expert", f"{folder}/{name}.jsonl", "-m", model, "-o", f"{folder}/experts/{name}", *SHORT]
        app(command, standalone_mode=False)  # as `unmask expert ...` on the command line
    experts = [f"{folder}/experts/{name}" for name in LESSONS]
    taught = [word for name in LESSONS for word in ("--lessons", f"{name}={folder}/{name}.jsonl")]
    app(["mix", *experts, *taught, "-o", f"{folder}/mixture", *SHORT], standalone_mode=False)
    for design in ("prompteol", "routing", "moee"):
        vectors = Embedder.from_pretrained(f"{folder}/mixture", design=design).encode(["What is 5 + 5?", "Print x."])
        print(f"{design}: {vectors.shape[1]} dimensions")
