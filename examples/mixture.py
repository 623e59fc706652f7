"""Train two small experts, put a router between them, and embed with its routing weights: `python examples/mixture.py smollm2`.

The experts learn for two steps only, so that the script ends soon. Every step is a command, too: see docs/tutorials/mixture.md.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from unmask import Embedder

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
        command = [sys.executable, "-m", "unmask", "expert", f"{name}.jsonl", "-m", model, "-o", f"experts/{name}", *SHORT]
        subprocess.run(command, cwd=folder, check=True)
    taught = ["--lessons", "math=math.jsonl", "--lessons", "code=code.jsonl"]
    command = [sys.executable, "-m", "unmask", "mix", "experts/math", "experts/code", *taught, "-o", "mixture", *SHORT]
    subprocess.run(command, cwd=folder, check=True)
    for design in ("prompteol", "routing", "moee"):
        vectors = Embedder.from_pretrained(f"{folder}/mixture", design=design).encode(["What is 5 + 5?", "Print x."])
        print(f"{design}: {vectors.shape[1]} dimensions")
