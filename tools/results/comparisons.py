"""Views of a comparison: scores on one task, means by kind of task, differences of pairs, and published scores beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tools.results.cells import bold, command, interval, listed, markdown
from tools.results.kept import Kept
from unmask.evaluation.results import SENTENCE_TRANSFORMERS
from unmask.statistics.paired import SIGNIFICANT
from unmask.tasks.kinds import KINDS

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
PUBLISHED: Final = {"minilm": {"sts12": 0.7237, "sts13": 0.8060, "stsb": 0.8203, "sickr-all": 0.7758}}
"""Main scores that MTEB's leaderboard has for a reference, by the name of the task's folder."""
_MOST_PAIRS: Final = 6
"""The most pairs that are shown as a table. Of more, those are named that are not told apart."""


def by_kind(kept: Kept) -> str:
    """Designs by kinds of task: mean main scores x 100, best mean first. Bold: the best of a column, references left out."""
    rows = [(f"`{label}`: {MEANINGS[label]}" if label in MEANINGS else f"`{label}`", *means) for label, means in _means(kept)]
    return markdown(("design", *_kinds(kept), "mean"), rows)


_NOISY: Final = "summarization"
"""A kind whose one task has ten documents: a mean is also shown without it."""


def grid(kept: Kept) -> str:
    """The command, and designs by kinds of task with the number of tasks, AMI for clustering, and tokens a text."""
    results = kept["results"]
    tasks = {kind: sorted({one["task"] for one in results if one["kind"] == kind}) for kind in _kinds(kept)}
    headings = [f"{kind} ({len(names)})" if len(names) > 1 else kind for kind, names in tasks.items()]
    has_ami = _has_ami(kept)
    rows = []
    for label, means in _means(kept, in_grid=True):
        own = [one for one in results if one["label"] == label]
        rows.append((_name(own[0]), *means, _tokens(own)))
    number = sum(map(len, tasks.values()))
    means_of = [f"mean of {number - len(tasks[_NOISY])}, without {_NOISY}"] if _NOISY in tasks else []
    header = ("design", *headings, *["clustering, AMI"] * has_ami, *means_of, f"mean of {number}", "tokens a text")
    table = markdown(header, rows)
    told = "; ".join(f"{kind}: {KINDS[kind].metric} on {', '.join(names)}" for kind, names in tasks.items())
    note = (
        f"Main scores x 100, as means over the tasks of a kind. Bold: the best of a column, the reference left out. {told}.\n"
    )
    return f"{command(kept)}\n{table}\n{note}"


def _kinds(kept: Kept) -> list[str]:
    return sorted({result["kind"] for result in kept["results"]})


def _has_ami(kept: Kept) -> bool:
    clusterings = [one for one in kept["results"] if one["kind"] == "clustering"]
    return bool(clusterings) and all("ami" in one for one in clusterings)


def _means(kept: Kept, in_grid: bool = False) -> list[tuple[str, list[str]]]:
    """The mean of each kind, and of all tasks, of each design, as cells. in_grid: with AMI and the mean without the noisy kind."""
    results = kept["results"]
    table: dict[str, list[float]] = {}
    for label in dict.fromkeys(result["label"] for result in results):
        own = [one for one in results if one["label"] == label]
        of_kinds = [[one["main_score"] for one in own if one["kind"] == kind] for kind in _kinds(kept)]
        columns = of_kinds
        if in_grid and _has_ami(kept):
            columns.append([one["ami"] for one in own if one["kind"] == "clustering"])
        if in_grid and _NOISY in _kinds(kept):
            columns.append([one["main_score"] for one in own if one["kind"] != _NOISY])
        columns.append([one["main_score"] for one in own])
        table[label] = [float(np.mean(column)) for column in columns]
    references = {result["label"] for result in results if _is_reference(result)}
    best = np.max([means for label, means in table.items() if label not in references], axis=0)
    rows = []
    for label, means in sorted(table.items(), key=lambda one: -one[1][-1]):
        marked = [label not in references and mean == top for mean, top in zip(means, best, strict=True)]
        rows.append((label, [bold(f"{100 * mean:.1f}", mark) for mean, mark in zip(means, marked, strict=True)]))
    return rows


def scores(kept: Kept) -> str:
    """The command, each design on its one task, and the difference of each pair."""
    results = sorted(kept["results"], key=lambda one: -one["main_score"])
    rows = [(_name(one), f"{100 * one['main_score']:.1f}", interval(one["interval"]), _tokens([one])) for one in results]
    table = markdown(("design", "score", "interval", "tokens a text"), rows)
    metric = f"{KINDS[results[0]['kind']].metric} x 100"
    tested = f"{_tests(kept)}\n{_note(kept)}" if len(kept["tests"]) <= _MOST_PAIRS else _told_apart(kept)
    return f"{command(kept)}\n{table}\nScores are {metric} on {results[0]['n']:,} items, with 95 % intervals.\n\n{tested}"


def differences(kept: Kept) -> str:
    """The difference of each pair that was tested, with its interval, p and effect."""
    return f"{_tests(kept, effects=True)}\n{_note(kept, effects=True)}"


def _tests(kept: Kept, effects: bool = False) -> str:
    rows = []
    for test in kept["tests"]:
        difference = bold(f"{100 * test['difference']:+.1f}", test["told_apart"])
        effect = ["" if test["effect"] is None else f"{test['effect']:.2f}"] if effects else []
        cells = difference, interval(test["interval"]), f"{test['p_holm']:.4f}", *effect
        rows.append((f"`{test['a']}` minus `{test['b']}`", *cells))
    return markdown(("pair", "difference", "interval", "p (Holm)", *["effect"] * effects), rows)


def _told_apart(kept: Kept) -> str:
    """How many pairs of designs are told apart, and which are not; for each family of tests."""
    families: dict[str, list[Any]] = {}
    for test in kept["tests"]:
        families.setdefault(test["family"], []).append(test)
    told = []
    for family, tests in families.items():
        alike = [listed([test["a"], test["b"]]) for test in tests if not test["told_apart"]]
        number = len(tests) - len(alike)
        which = f"{number} {'is' if number == 1 else 'are'} significantly different: all except {'; '.join(alike)}."
        told.append(f"Of {family}, {which if alike else 'all are significantly different.'}")
    return f"{' '.join(told)} {_test_of(kept)}\n"


def _note(kept: Kept, effects: bool = False) -> str:
    families = " and over ".join(dict.fromkeys(test["family"] for test in kept["tests"]))
    effect = f" The effect is the {kept['tests'][0]['effect_name']}." if effects else ""
    return f"Bold differences are significant. {_test_of(kept)} Holm's correction is over {families}.{effect}\n"


def _test_of(kept: Kept) -> str:
    """The test and its level."""
    first = kept["tests"][0]
    tests = " or ".join(dict.fromkeys(test["test"] for test in kept["tests"]))
    return f"The test is the {tests}, on {first['n']:,} {first['unit']}; p < {SIGNIFICANT} after the correction is significant."


def published(kept: Kept) -> str:
    """The command, and a reference's published scores beside those of our evaluation."""
    own = {one["task"]: one for one in kept["results"] if one["label"] in PUBLISHED}
    (label,) = {one["label"] for one in own.values()}
    headings = [f"{task} ({one['n']:,} items)" for task, one in own.items()]
    theirs = [f"{100 * PUBLISHED[label][task]:.2f}" for task in own]
    ours = [f"{100 * one['main_score']:.2f}" for one in own.values()]
    table = markdown((f"{KINDS['sts'].metric} x 100", *headings), [("published", *theirs), ("`unmask compare`", *ours)])
    return f"{command(kept)}\n{table}"


def _is_reference(result: Kept) -> bool:
    return bool(result["design"] == SENTENCE_TRANSFORMERS)


def _name(result: Kept) -> str:
    return f"`{result['label']}`" + " (reference)" * _is_reference(result)


def _tokens(results: Sequence[Kept]) -> str:
    """The mean tokens of a text; nothing for a reference, whose tokenizer is another."""
    if _is_reference(results[0]):
        return ""
    return f"{sum(one['tokens'] for one in results) / sum(one['texts'] for one in results):.0f}"
