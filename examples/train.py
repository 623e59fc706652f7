"""Train an embedder by a recipe of your own, and use it: `python examples/train.py smollm2`.

Three steps teach nothing. They show that everything is in place; `unmask recipes show prompteol` is a recipe that learns.
"""

import json
import sys
import tempfile
from pathlib import Path

from unmask import Embedder
from unmask.cli import app

PAIRS = [
    ("How do I reset my password?", "Open the settings and choose a new password."),
    ("Where is my parcel?", "Track it with the number in your confirmation."),
    ("Can I pay by card?", "We accept all credit cards."),
    ("Is the shop open on Sunday?", "We are closed on Sundays."),
]
RECIPE = """
about = "Three steps on four pairs."
model = "{model}"
designs = ["causal/eol/last"]
stages = ["contrastive"]

[lora]
r = 4

[data]
pairs = {{ path = "{folder}/pairs.jsonl" }}

[contrastive]
data = ["pairs"]
steps = 3
batch = 4
lr = 1e-3
max_length = 32
"""

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
with tempfile.TemporaryDirectory() as folder:
    lines = [json.dumps({"anchor": question, "positive": answer}) for question, answer in PAIRS]
    (Path(folder) / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (Path(folder) / "mine.toml").write_text(RECIPE.format(model=model, folder=folder), encoding="utf-8")
    app(["train", f"{folder}/mine.toml", "-o", f"{folder}/trained"], standalone_mode=False)  # as `unmask train ...`
    embedder = Embedder.from_pretrained(f"{folder}/trained/model")
    print(embedder.design.name, embedder.encode(["Where is my order?"]).shape)
