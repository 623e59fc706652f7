"""Write the generated parts of README.md, docs/results.md and docs/claims.md from the results in docs/measured: `python -m tools.pages`.

A generated part stands between two comments. The first names a result and a way to show it, or all results of a study, the main one
first, or asks for the overview of all studies on the page:

    <!-- table: measured/results/demo.json by-kind -->
    <!-- claims: measured/moee-smollm2.json measured/moee-MiXSE.json -->
    <!-- overview: claims -->
    <!-- end -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from unmask.evaluation.results import SENTENCE_TRANSFORMERS
from unmask.io.terminal import counted, enumeration
from unmask.statistics.paired import SIGNIFICANT
from unmask.studies.claims.claim import VERDICTS, Claim, Finding
from unmask.studies.claims.tables import claims_sheet, common_method_note, counts_sentence, verdict_counts
from unmask.studies.sheet import Sheet
from unmask.studies.study import load_plan
from unmask.tasks.kinds import KINDS

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ("README.md", "docs/results.md", "docs/claims.md")
MEANINGS: Final = {
    "minilm": "all-MiniLM-L6-v2, the reference",
    "echo": "the text twice",
    "prompteol-z": "asks for the text in one word; standardised",
    "subject-mean-z": "asks for the subject in one word; last token and mean, standardised: the default",
    "prompteol": "in one word, not standardised",
    "weighted-mean": "later tokens weigh more",
    "mean": "the average over tokens",
    "last": "the last token",
    "bidirectional-mean": "every token sees all others, untrained",
    "max": "the largest value of each dimension",
}
NOISY: Final = "summarization"
"""A kind whose only task has ten documents. Grids show the mean without it as well."""
MOST_PAIRS: Final = 6
"""More pairs than these are not listed in a table: a sentence names those without a significant difference."""
BLOCK: Final = re.compile(r"(<!-- (table|claims|overview): ([^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Result = Mapping[str, Any]


def fill(page: str) -> str:
    """A page with its generated parts written again."""
    studies = {
        re.findall(r"^## (.+)$", page[: block.start()], re.MULTILINE)[-1]: [Run(name) for name in block[3].split()]
        for block in BLOCK.finditer(page)
        if block[2] == "claims"
    }

    def content(block: re.Match[str]) -> str:
        if block[2] == "overview":
            return "\n".join(overview(studies))
        if block[2] == "claims":
            return "\n".join(study([Run(name) for name in block[3].split()]))
        name, view = block[3].split()
        return SHOW[view](_read(name))

    return BLOCK.sub(lambda block: block[1] + content(block) + block[4], page)


def _read(name: str) -> Result:
    result: Result = json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))
    return result


# --- comparisons -------------------------------------------------------------------------------------------------------


def by_kind(result: Result) -> str:
    """Designs by kinds of task: mean main scores x 100."""
    columns = {kind: _score_on(kind) for kind in _kinds(result)} | {"mean": _score}
    rows = [(f"`{label}`: {MEANINGS[label]}", *means) for label, means in _means(result, columns)]
    return _markdown(("design", *columns), rows)


def grid(result: Result) -> str:
    """The same with the number of tasks, AMI for clustering and tokens per text."""
    results = result["results"]
    tasks = {kind: sorted({row["task"] for row in results if row["kind"] == kind}) for kind in _kinds(result)}
    columns = {f"{kind} ({len(names)})" if len(names) > 1 else kind: _score_on(kind) for kind, names in tasks.items()}
    if "clustering" in tasks and all("ami" in row for row in results if row["kind"] == "clustering"):
        columns["clustering, AMI"] = lambda row: row.get("ami")
    number = sum(map(len, tasks.values()))
    if NOISY in tasks:
        columns[f"mean of {number - len(tasks[NOISY])}, without {NOISY}"] = lambda row: (
            None if row["kind"] == NOISY else _score(row)
        )
    columns[f"mean of {number}"] = _score
    rows = []
    for label, means in _means(result, columns):
        of_label = [row for row in results if row["label"] == label]
        rows.append((_name(of_label[0]), *means, _tokens(of_label)))
    metrics = "; ".join(f"{kind}: {KINDS[kind].metric} on {', '.join(names)}" for kind, names in tasks.items())
    note = f"Main scores x 100, as means over the tasks of a kind. Bold: the best of a column, the reference left out. {metrics}.\n"
    return f"{_command(result)}\n{_markdown(('design', *columns, 'tokens per text'), rows)}\n{note}"


def scores(result: Result) -> str:
    """Designs on one task, and the difference of each pair."""
    results = sorted(result["results"], key=lambda row: -row["main_score"])
    rows = [(_name(row), f"{100 * row['main_score']:.1f}", _interval(row["interval"]), _tokens([row])) for row in results]
    table = _markdown(("design", "score", "interval", "tokens per text"), rows)
    what = f"Scores are {KINDS[results[0]['kind']].metric} x 100 on {results[0]['n']:,} items, with 95 % intervals."
    tests = _tests(result) if len(result["tests"]) <= MOST_PAIRS else _ties(result)
    return f"{_command(result)}\n{table}\n{what}\n\n{tests}"


def differences(result: Result) -> str:
    """The difference of each pair, with its effect size."""
    return _tests(result, effects=True)


SHOW: Final[Mapping[str, Callable[[Result], str]]] = {
    "by-kind": by_kind,
    "grid": grid,
    "scores": scores,
    "differences": differences,
}


def _score(row: Result) -> float | None:
    return float(row["main_score"])


def _score_on(kind: str) -> Callable[[Result], float | None]:
    return lambda row: _score(row) if row["kind"] == kind else None


def _kinds(result: Result) -> list[str]:
    return sorted({row["kind"] for row in result["results"]})


def _means(result: Result, columns: Mapping[str, Callable[[Result], float | None]]) -> list[tuple[str, list[str]]]:
    """The mean of each column for each design, best last column first. Bold: the best of a column, references left out."""
    by_label: dict[str, list[Result]] = {}
    for row in result["results"]:
        by_label.setdefault(row["label"], []).append(row)
    means = {
        label: [float(np.mean([value for row in rows if (value := of(row)) is not None])) for of in columns.values()]
        for label, rows in by_label.items()
    }
    best = np.max([means[label] for label, rows in by_label.items() if not _is_reference(rows[0])], axis=0)
    return [
        (
            label,
            [
                _bold(f"{100 * mean:.1f}", mean == top and not _is_reference(by_label[label][0]))
                for mean, top in zip(means[label], best, strict=True)
            ],
        )
        for label in sorted(means, key=lambda label: -means[label][-1])
    ]


def _tests(result: Result, effects: bool = False) -> str:
    rows = []
    for test in result["tests"]:
        difference = _bold(f"{100 * test['difference']:+.1f}", test["is_significant"])
        effect = ["" if test["effect"] is None else f"{test['effect']:.2f}"] if effects else []
        pair = f"`{test['a']}` minus `{test['b']}`"
        rows.append((pair, difference, _interval(test["interval"]), f"{test['p_holm']:.4f}", *effect))
    table = _markdown(("pair", "difference", "interval", "p (Holm)", *["effect"] * effects), rows)
    families = " and over ".join(dict.fromkeys(test["family"] for test in result["tests"]))
    effect_name = f" The effect is the {result['tests'][0]['effect_name']}." if effects else ""
    return (
        f"{table}\nBold differences are significant. {_test_name(result)} Holm's correction is over {families}.{effect_name}\n"
    )


def _ties(result: Result) -> str:
    """For each family of tests, the pairs without a significant difference."""
    families: dict[str, list[Result]] = {}
    for test in result["tests"]:
        families.setdefault(test["family"], []).append(test)
    sentences = []
    for family, tests in families.items():
        ties = [enumeration([f"`{test['a']}`", f"`{test['b']}`"]) for test in tests if not test["is_significant"]]
        different = len(tests) - len(ties)
        exceptions = f"{different} {'is' if different == 1 else 'are'} significantly different: all except {'; '.join(ties)}."
        sentences.append(f"Of {family}, {exceptions if ties else 'all are significantly different.'}")
    return f"{' '.join(sentences)} {_test_name(result)}\n"


def _test_name(result: Result) -> str:
    first = result["tests"][0]
    names = " or ".join(dict.fromkeys(test["test"] for test in result["tests"]))
    return f"The test is the {names}, on {first['n']:,} {first['unit']}; p < {SIGNIFICANT} after the correction is significant."


def _command(result: Result) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"```\n{result['command']}\n```\nOn {result['hardware']}, with {libraries}.\n"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Sheet("", tuple(columns), tuple(map(tuple, rows))).body()


def _interval(bounds: Sequence[float]) -> str:
    low, high = bounds
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _is_reference(row: Result) -> bool:
    return bool(row["design"] == SENTENCE_TRANSFORMERS)


def _name(row: Result) -> str:
    return f"`{row['label']}`" + " (reference)" * _is_reference(row)


def _tokens(rows: Sequence[Result]) -> str:
    """The mean tokens of a text. A reference has another tokenizer, so its cell is empty."""
    if _is_reference(rows[0]):
        return ""
    return f"{sum(row['tokens'] for row in rows) / sum(row['texts'] for row in rows):.0f}"


# --- claims ----------------------------------------------------------------------------------------------------------


class Run:
    """The results of a study on one model: claims in the words that the plan has now, those that were not measured last."""

    def __init__(self, name: str) -> None:
        self.name, self.result = name.removesuffix(".json"), _read(name)
        self.model: str = self.result["model"]
        planned = {claim.id: claim for claim in load_plan(self.result["study"], "small").claims}
        self.findings = [_reworded(Finding.model_validate(finding), planned) for finding in self.result["claims"]]
        measured = {finding.claim.id for finding in self.findings}
        self.findings += [
            Finding(claim=claim, tests=(), verdict="not testable here" if claim.untestable else "not measured")
            for claim in planned.values()
            if claim.id not in measured
        ]
        self.verdicts = {finding.claim.id: finding.verdict for finding in self.findings}


def _reworded(finding: Finding, planned: Mapping[str, Claim]) -> Finding:
    claim = planned.get(finding.claim.id, finding.claim)
    words = {"where": claim.where, "says": claim.says, "how": claim.how}
    return finding.model_copy(update={"claim": finding.claim.model_copy(update=words)})


def counted_findings(runs: Sequence[Run]) -> list[Finding]:
    """The findings of the first run. For a claim that it did not measure, those of another run of the same model."""
    measured = {
        finding.claim.id: finding
        for run in reversed(runs)
        if run.model == runs[0].model
        for finding in run.findings
        if finding.verdict != "not measured"
    }
    return [measured.get(finding.claim.id, finding) for finding in runs[0].findings]


def overview(studies: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """How many claims of each paper have each verdict, and which are refuted."""
    findings = {title: counted_findings(runs) for title, runs in studies.items()}
    links = {title: f"[{title}](#{title.lower().replace(' ', '-')})" for title in studies}
    every = [finding for of_paper in findings.values() for finding in of_paper]
    yield f"**{counts_sentence(every)}**\n\nThese claims are refuted:\n"
    for title, of_paper in findings.items():
        yield from (f"- {links[title]}: {finding.claim.says}" for finding in of_paper if finding.verdict == "refuted")
    yield "\nFurther runs refute other claims:\n"
    for title, runs in studies.items():
        refuted = {finding.claim.id for finding in findings[title] if finding.verdict == "refuted"}
        for run in runs[1:]:
            for finding in run.findings:
                if finding.verdict == "refuted" and finding.claim.id not in refuted:
                    yield f"- {links[title]}, on {run.model}: {finding.claim.says}"
    yield "\nThis table counts the first run of each study. If it did not measure a claim, a further run of its model counts.\n"
    rows = [
        (links[title], runs[0].model, *map(str, (len(findings[title]), *verdict_counts(findings[title]).values())))
        for title, runs in studies.items()
    ]
    yield _markdown(("paper", "model", "claims", *VERDICTS), rows)
    here = [finding.here.verdict for finding in every if finding.verdict == "undecided" and finding.here]
    yield (
        f"{len(here)} undecided claims were tested on tasks in general. On the measured tasks alone, {here.count('confirmed')} of "
        f'them are confirmed and {here.count("refuted")} refuted: see the column "on the measured tasks".\n'
    )


def study(runs: Sequence[Run]) -> Iterator[str]:
    """The command of each run; the claims of the first one, and what the others found differently."""
    first, *further = runs
    yield _source(first)
    yield replace(claims_sheet(first.findings), note=common_method_note(first.findings)).markdown().partition("\n")[2]
    for run in further:
        yield _source(run)
        measured = [finding for finding in run.findings if finding.verdict not in ("not measured", "not testable here")]
        changed = [finding for finding in measured if first.verdicts.get(finding.claim.id) != finding.verdict]
        yield (
            f"{_common_direction(run, first)}Of the {counted(len(measured), 'claim')} that this run measured, {len(changed)} have "
            f"another verdict than in the first run{':' if changed else '.'}"
        )
        yield ""
        for finding in changed:
            verdict, before = finding.verdict.capitalize(), first.verdicts.get(finding.claim.id)
            yield f"- {verdict} (first run: {before}): {finding.claim.says}"
        yield ""


def _source(run: Run) -> str:
    result = run.result
    versions = ", ".join(
        f"{name} {result['versions'][name]}" for name in ("unmask", "torch", "transformers") if name in result["versions"]
    )
    return (
        f"```\n{result['command']}\n```\nOn {run.model}, {result['hardware']}, {versions}; [all tables]({run.name}.md). "
        f"[{len(result['data'])} sets of data, with their revisions]({run.name}.json). {counts_sentence(run.findings)}\n"
    )


def _common_direction(run: Run, first: Run) -> str:
    """A sentence: how many differences point the same way in both runs."""
    here, there = (
        {finding.claim.question(test.than): test.difference for finding in each.findings for test in finding.tests}
        for each in (run, first)
    )
    common = here.keys() & there.keys()
    same = sum(here[pair] * there[pair] > 0 for pair in common)
    return f"Of {counted(len(common), 'difference')} that both this run and the first run measured, {same} have the same sign. "


def main() -> None:
    """Write all pages."""
    for name in PAGES:
        (ROOT / name).write_text(fill((ROOT / name).read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
