"""Search your own notes: `python examples/search.py smollm2 notes.txt "when is the dentist?"` (a note on each line)."""

import sys
from pathlib import Path

from unmask import Embedder

NOTES = [
    "Dentist on Tuesday at nine, bring the insurance card.",
    "Recipe: two eggs, flour, milk, a pinch of salt; rest for half an hour.",
    "The wireless password is on the back of the router.",
    "Tomatoes need water every evening while we are away.",
]

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
notes = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines() if len(sys.argv) > 2 else NOTES
question = sys.argv[3] if len(sys.argv) > 3 else "How do I make pancakes?"

embedder = Embedder.from_pretrained(model)
scores = embedder.similarity(embedder.encode([question]), embedder.encode(notes))[0]
print(f'Closest to "{question}":')
for place in scores.argsort()[::-1][:3]:
    print(f"{scores[place]:.2f}  {notes[place]}")
