"""Write the tables of docs/results.md and of the README from kept results, which lie in docs/measured/results.

    python -m tools.results                           write the tables again
    python -m tools.results NAME FOLDER 'COMMAND'     keep what tables need of the folder that COMMAND wrote, then write the tables

FOLDER comes from `unmask compare` or `unmask recommend`. COMMAND is shown to readers, with DATA in place of a folder of this machine.
A table stands between two comments. The first names a kept result and how it is shown (`SHOWN`):

    <!-- table: measured/results/demo.json by-kind -->
    <!-- end -->
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from unmask.designs.design import Design
from unmask.designs.prompts import find_prompt
from unmask.studies.sheet import Sheet

ROOT: Final = Path(__file__).parents[1]
KEPT: Final = "docs/measured/results"
PAGES: Final = ("docs/results.md", "README.md")
MACHINE: Final = re.compile(r"(?<!\w)(?:/(?:home|root|tmp|work|workspace|Users|mnt|media|opt|srv|usr|var)/|~/|[A-Za-z]:\\)")
"""The beginning of a path on somebody's machine."""

MEANINGS: Final = {
    "minilm": "all-MiniLM-L6-v2, the reference",
    "echo": "the text twice",
    "prompteol-z": "asks for the text in one word; standardised",
    "prompteol": "in one word, not standardised",
    "weighted-mean": "later tokens weigh more",
    "mean": "the average over tokens",
    "last": "the last token",
    "bidirectional-mean": "every token sees all others, untrained",
    "max": "the largest value of each dimension",
}
_TABLE: Final = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_OF_RESULT: Final = ("label", "model", "design", "task", "kind", "metric", "main_score", "interval", "n", "texts", "tokens")
_OF_TEST: Final = ("tasks", "test", "n", "unit", "difference", "interval", "p_holm", "told_apart", "family")
_OF_CHOICE: Final = (
    *("label", "design", "score", "interval", "items", "held_out", "chosen_on", "candidates", "ties"),
    *("tokens_a_text", "tokens", "grid_tokens", "failed"),
)
_BEST, _WORST = 10, 5

Kept = Mapping[str, Any]
"""A kept result: the JSON that `keep` wrote."""


def keep(name: str, folder: Path, command: str) -> None:
    """Keep what tables need of a folder of `compare` or `recommend`. Exits if that holds a path of a machine."""
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = results[-1]["provenance"]
    versions = {library: measured["versions"][library] for library in ("unmask", "torch", "transformers")}
    choice = folder / "recommendation.json"
    content = _choice(choice, results) if choice.exists() else _comparison(folder / "comparison.json")
    kept = {"command": command, "hardware": measured["hardware"], "versions": versions, **content}
    text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    if path := MACHINE.search(text):
        sys.exit(f"This holds a path of a machine: {text[path.start() :].splitlines()[0]}")
    (ROOT / KEPT / f"{name}.json").write_text(text, encoding="utf-8")


def _comparison(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    labels = {(result["model"], result["design"]): result["label"] for result in content["results"]}
    return {
        "results": [{key: result[key] for key in _OF_RESULT} for result in content["results"]],
        "tests": [
            {side: labels[test[side]["model"], test[side]["design"]] for side in "ab"} | {key: test[key] for key in _OF_TEST}
            for test in content["comparisons"]
        ],
    }


def _choice(file: Path, results: Sequence[Kept]) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    last = content["rounds"][-1]["standings"]
    costs = {result["label"]: result["tokens"] / result["texts"] for result in results}
    return {
        **{key: content[key] for key in _OF_CHOICE},
        "rounds": [
            {"items": one["items"], "tokens": one["tokens"], "designs": len(one["standings"])} for one in content["rounds"]
        ],
        "last_round": [{**standing, "tokens_a_text": costs[standing["label"]]} for standing in last],
    }


def by_kind(kept: Kept) -> str:
    """Designs by kinds of task: mean main scores x 100, best mean first. Bold: the best of a column, references left out."""
    results = kept["results"]
    kinds = sorted({result["kind"] for result in results})
    references = {result["label"] for result in results if result["design"] == "sentence-transformers"}
    labels = dict.fromkeys(result["label"] for result in results)
    table = {label: _means([one for one in results if one["label"] == label], kinds) for label in labels}
    best = np.max([means for label, means in table.items() if label not in references], axis=0)
    rows = []
    for label, means in sorted(table.items(), key=lambda one: -one[1][-1]):
        marks = ["**" if label not in references and mean == top else "" for mean, top in zip(means, best, strict=True)]
        cells = (f"{mark}{100 * mean:.1f}{mark}" for mean, mark in zip(means, marks, strict=True))
        rows.append((f"`{label}`: {MEANINGS[label]}" if label in MEANINGS else f"`{label}`", *cells))
    return _markdown(("design", *kinds, "mean"), rows)


def _means(results: Sequence[Kept], kinds: Sequence[str]) -> list[float]:
    """The mean of each kind, and of all tasks."""
    of_kinds = [float(np.mean([one["main_score"] for one in results if one["kind"] == kind])) for kind in kinds]
    return [*of_kinds, float(np.mean([one["main_score"] for one in results]))]


def scores(kept: Kept) -> str:
    """The command, each design on its one task, and the difference of each pair. Bold: told apart."""
    rows = []
    for result in sorted(kept["results"], key=lambda one: -one["main_score"]):
        reference = result["design"] == "sentence-transformers"
        tokens = "" if reference else f"{result['tokens'] / result['texts']:.0f}"
        name = f"`{result['label']}`" + " (reference)" * reference
        rows.append((name, f"{100 * result['main_score']:.1f}", _interval(result["interval"]), tokens))
    tests = []
    for test in kept["tests"]:
        mark = "**" if test["told_apart"] else ""
        difference = f"{mark}{100 * test['difference']:+.1f}{mark}"
        tests.append((f"`{test['a']}` minus `{test['b']}`", difference, _interval(test["interval"]), f"{test['p_holm']:.4f}"))
    shown = _markdown(("design", "score", "interval", "tokens a text"), rows)
    return f"{_command(kept)}\n{shown}\n" + _markdown(("pair", "difference", "interval", "p (Holm)"), tests)


def choice(kept: Kept) -> str:
    """The command, what was chosen and how well it does on other items, and the best and the worst of the last round."""
    standings = kept["last_round"]
    rows = [_standing(one) for one in standings]
    between = (f"{len(rows) - _BEST - _WORST} more", "", "", "")
    worse = kept["candidates"] - 1 - len(kept["ties"]) - len(kept["failed"])
    told = (
        f"`{kept['label']}` was chosen from {kept['candidates']} designs on {kept['chosen_on']} items. On {kept['items']} other items, "
        f"its score is **{100 * kept['score']:.1f}** {_interval(kept['interval'])}. {len(kept['ties'])} designs are tied with it, "
        f"and {worse} are worse. The table has the {len(rows)} designs of the last round.\n"
    )
    table = _markdown(
        ("design", f"score on the {kept['chosen_on']} items of the choice", "behind", "tokens a text"),
        [*rows[:_BEST], between, *rows[-_WORST:]],
    )
    return f"{_command(kept)}\n{told}\n{table}"


def _standing(standing: Kept) -> tuple[str, ...]:
    behind = ""
    if standing["interval"] is not None:
        mark = "**" if standing["worse"] else ""
        behind = f"{mark}{100 * standing['behind']:.1f}{mark} {_interval(standing['interval'])}"
    return f"`{standing['label']}`", f"{100 * standing['score']:.1f}", behind, f"{standing['tokens_a_text']:.0f}"


def prompt(kept: Kept) -> str:
    """The prompt that was chosen, with its solved examples."""
    (name,) = Design.parse(kept["design"]).prompts
    return f"```text\n{find_prompt(name).template}\n```\n"


def _command(kept: Kept) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    return f"```\n{kept['command']}\n```\nOn {kept['hardware']}, with {libraries}.\n"


def _interval(bounds: Sequence[float]) -> str:
    low, high = bounds
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def _markdown(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return Sheet("", columns, tuple(rows)).markdown().partition("\n")[2]


SHOWN: Final[Mapping[str, Callable[[Kept], str]]] = {"by-kind": by_kind, "scores": scores, "choice": choice, "prompt": prompt}


def page(text: str) -> str:
    """A page with its tables written again."""
    return _TABLE.sub(lambda found: found[1] + SHOWN[found[3]](_kept(found[2])) + found[4], text)


def _kept(name: str) -> Kept:
    content: Kept = json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))
    return content


def shown() -> Iterator[str]:
    """The kept results that the pages show, such as `measured/results/demo.json`."""
    for name in PAGES:
        yield from (found[2] for found in _TABLE.finditer((ROOT / name).read_text(encoding="utf-8")))


def main(given: Sequence[str]) -> None:
    """Keep a result if one is given, and write the tables."""
    if given:
        name, folder, command = given
        keep(name, Path(folder), command)
    for name in PAGES:
        file = ROOT / name
        file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
