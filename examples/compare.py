"""Compare two designs on a task of your own, with a paired test: `python examples/compare.py smollm2`."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PAIRS = [
    ("A dog runs on the beach.", "A dog is running by the sea.", 4.5),
    ("She sells bread.", "The woman is a baker.", 3.5),
    ("The train is late.", "The delayed train has not arrived.", 4.6),
    ("He reads a book.", "A man is cooking dinner.", 0.8),
    ("It rains in Oslo.", "The weather in Oslo is wet.", 4.2),
    ("The car is red.", "My brother likes cheese.", 0.1),
    ("Two children play chess.", "Kids are playing a board game.", 3.6),
    ("The shop opens at nine.", "The shop closes at nine.", 1.9),
]

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
with tempfile.TemporaryDirectory() as folder:
    task = Path(folder) / "my-task"
    task.mkdir()
    lines = [json.dumps({"sentence1": one, "sentence2": other, "score": score}) for one, other, score in PAIRS]
    (task / "test.jsonl").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "unmask", "compare", "-m", model, "-t", str(task), "-d", "mean,prompteol", "--json"]
    printed = subprocess.run([*command, "-o", f"{folder}/report"], check=True, stdout=subprocess.PIPE).stdout

found = json.loads(printed)
for result in found["results"]:
    low, high = result["interval"]
    print(f"{result['label']}: {100 * result['main_score']:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
for test in found["comparisons"]:
    print(f"difference {100 * test['difference']:+.1f}, p = {test['p']:.3f}: {test['test']}")
