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
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from unmask.evaluation.results import SENTENCE_TRANSFORMERS
from unmask.io.terminal import counted, enumeration
from unmask.statistics.paired import SIGNIFICANT
from unmask.studies.claims.carry import BOUND, TaskScores, what_decides, with_basis, with_seeds
from unmask.studies.claims.claim import POWER, Basis, Claim, ClaimTest, Finding, turns_on_one_task
from unmask.studies.claims.tables import claims_sheet, common_method_note, counts_sentence, method_notes, verdict_text
from unmask.studies.embedders.findings import task_scores
from unmask.studies.self_moe.findings import scores_of
from unmask.studies.self_moe.plan import WITH_HUMAN
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
SMALL_TASKS: Final = ("cranfield#5", "scifact#5")
OURS: Final = "Our questions, and those of reviewers"
_DOMAINS: Final = ("knowledge", "reasoning", "math", "coding")
"""Of Self-MoE, in the tables of its studies."""
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
    """The results of a study on one model: the claims that the plan has now, in its words, those that were not measured last."""

    def __init__(self, name: str) -> None:
        self.name, self.result = name.removesuffix(".json"), _read(name)
        self.model: str = self.result["model"]
        plan = load_plan(self.result["study"], "small")
        planned = {claim.id: claim for claim in plan.claims}
        kept = [Finding.model_validate(finding) for finding in self.result["claims"]]
        findings = [_reworded(finding, planned[finding.claim.id]) for finding in kept if finding.claim.id in planned]
        findings += self._unmeasured(set(planned) - {finding.claim.id for finding in findings}, planned)
        self.label = self.name.rpartition("/")[2].removeprefix(f"{self.result['study']}-")
        self.scores = self._scores(plan)
        self.findings = self._with_basis(findings)
        self.verdicts = {finding.claim.id: finding.verdict for finding in self.findings}

    @property
    def papers(self) -> list[Finding]:
        """Of claims that a paper makes."""
        return [finding for finding in self.findings if not finding.claim.is_own]

    @property
    def ours(self) -> list[Finding]:
        """Of questions that no paper answers."""
        return [finding for finding in self.findings if finding.claim.is_own]

    def _unmeasured(self, ids: Set[str], planned: Mapping[str, Claim]) -> Iterator[Finding]:
        """Claims without a kept test. Of rows of written lessons, the kept means and intervals bound the test that was not kept."""
        tests = bounded_tests([claim for name, claim in planned.items() if name in ids], self.result)
        for name, claim in planned.items():
            if test := tests.get(name):
                low, high = test.interval
                yield Finding(
                    claim=claim, tests=(test,), verdict="confirmed" if low > 0 else "refuted" if high < 0 else "undecided"
                )
            elif name in ids:
                yield Finding(claim=claim, tests=(), verdict="not wired" if claim.untestable else "not measured")

    def _scores(self, plan: Any) -> TaskScores:
        if "kinds" in self.result:
            return task_scores(plan, self.result["scores"], self.result["kinds"])
        return scores_of(_losses(self.result) if self.result["study"] == "self-moe" else {})

    def _with_basis(self, findings: list[Finding]) -> list[Finding]:
        if self.result["study"] != "routers":
            return with_basis(findings, self.scores)
        return with_seeds(findings, {row["name"]: row["seeds"] for row in self.result["configurations"]}, len(_DOMAINS))


def _reworded(finding: Finding, claim: Claim) -> Finding:
    words = {"where": claim.where, "says": claim.says, "how": claim.how, "untestable": claim.untestable}
    return finding.model_copy(update={"claim": finding.claim.model_copy(update=words)})


def _losses(result: Result) -> dict[str, dict[str, list[float]]]:
    """The mean of each domain, of every row of a study of Self-MoE."""
    tables = [table for table in result["tables"] if {"average", "minus base"} <= set(table["columns"])]
    return {
        row[0]: {
            domain: [float(mean)] for domain, mean in zip(table["columns"][1:], row[1:], strict=True) if domain in _DOMAINS
        }
        for table in reversed(tables)
        for row in table["rows"]
    }


def bounded_tests(claims: Sequence[Claim], result: Result) -> dict[str, ClaimTest]:
    """Tests between rows of written lessons, from their kept means and the intervals of their differences from the base.

    The values of the lessons were not kept. The standard error of a difference of two rows is at most the sum of the errors of both
    differences from the base, however they depend on each other. So the interval is at most this wide. It is corrected for all tests of
    the study, and these (Bonferroni).
    """
    [rows] = [table["rows"] for table in result["tables"] if table["title"] == "Written lessons"] or [[]]
    minus_base = {row[0]: [float(number) for number in row[6].split(" ± ")] for row in rows if " ± " in row[6]}
    pairs = [
        (claim, claim.than[0])
        for claim in claims
        if len(claim.than) == 1 and {claim.better, claim.than[0]} <= minus_base.keys()
    ]
    family = len(pairs) + sum(len(finding["tests"]) for finding in result["claims"])
    level, normal, tests = 1 - SIGNIFICANT / family, NormalDist(), {}
    for claim, rival in pairs:
        (better, half_better), (other, half_other) = minus_base[claim.better], minus_base[rival]
        error = (half_better + half_other) / normal.inv_cdf(1 - SIGNIFICANT / 2)
        half, difference = error * normal.inv_cdf((1 + level) / 2), round(other - better, 3)
        p = 2 * (1 - normal.cdf(abs(difference) / error))
        tests[claim.id] = ClaimTest(
            than=rival, difference=difference, measured_in="nats per token", interval=(difference - half, difference + half),
            level=level, p=p, p_holm=min(1.0, p * family), n=len(_DOMAINS) * result["plan"]["held_out"], unit="items",
            test=f"{BOUND} on paired bootstrap",
            detectable=half + normal.inv_cdf(POWER) * error,
        )  # fmt: skip
    return tests


def overview(studies: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """What every run together says of the claims of the papers, and how general that is."""
    links = {title: f"[{title}](#{title.lower().replace(' ', '-')})" for title in studies}
    outcomes = {
        title: {claim.id: _outcome(claim.id, runs) for claim in (finding.claim for finding in runs[0].papers)}
        for title, runs in studies.items()
    }
    every = [outcome for of_paper in outcomes.values() for outcome in of_paper.values()]
    outcomes_found = [outcome for outcome in _OUTCOMES if outcome in every]
    counts = ", ".join(f"{every.count(outcome)} {outcome}" for outcome in outcomes_found)
    ours = sum(len(runs[0].ours) for runs in studies.values())
    yield f"**{len(every)} claims of the papers: {counts}.** Every run counts.\n"
    yield f"{ours} more questions, of our own or of reviewers, are not counted.\n"
    for verdict in ("refuted", "confirmed"):
        yield f"{verdict.capitalize()} on at least one model:\n"
        for title, runs in studies.items():
            if names := [name for name, outcome in outcomes[title].items() if verdict in outcome]:
                yield f"- {links[title]}"
                yield from (f"  - {headline_of(name, runs)}" for name in names)
        yield ""
    rows = [
        (
            links[title],
            ", ".join(run.label for run in runs),
            str(len(of_paper)),
            *(str(list(of_paper.values()).count(outcome)) for outcome in outcomes_found),
        )
        for (title, runs), of_paper in zip(studies.items(), outcomes.values(), strict=True)
    ]
    yield _markdown(("paper", "runs", "claims", *outcomes_found), rows)
    yield _of_measured_tasks([finding for runs in studies.values() for run in runs for finding in run.papers])
    yield from _without_small_tasks(studies)
    yield _cheapest([(run, finding) for runs in studies.values() for run in runs for finding in run.papers])


def _cheapest(findings: Sequence[tuple[Run, Finding]]) -> str:
    """A sentence: the claims of papers that cost least to decide, by the work of their study."""
    open_claims = [
        (decision, f"`{finding.claim.better}` against `{test.than}`{_on_kinds(finding)} ({run.label})")
        for run, finding in findings
        if (decision := what_decides(finding)) and (test := finding.deciding) and not test.test.startswith(BOUND)
    ]
    first = sorted(open_claims, key=lambda entry: entry[0].cost)[:3]
    what = "; ".join(f"{sides}, {decision.text} ({decision.cost:.1f} times its study)" for decision, sides in first)
    return f"Cheapest to decide: {what}.\n"


def _on_kinds(finding: Finding) -> str:
    return f" on {enumeration(finding.claim.kinds)}" if finding.claim.kinds else ""


def _outcome(name: str, runs: Sequence[Run]) -> str:
    """What all runs together say of a claim."""
    verdicts = {run.verdicts[name] for run in runs}
    decided = [verdict for verdict in ("confirmed", "refuted") if verdict in verdicts]
    return " and ".join(decided) or next(
        verdict for verdict in ("undecided", "not measured", "not wired") if verdict in verdicts
    )


_OUTCOMES: Final = ("confirmed", "refuted", "confirmed and refuted", "undecided", "not measured", "not wired")
_TESTED: Final = ("confirmed", "refuted", "undecided")


def headline_of(name: str, runs: Sequence[Run]) -> str:
    """A claim with the number of its tasks, and the verdict of each run that measured it, with the seeds behind it."""
    findings = {
        run.label: finding
        for run in runs
        for finding in run.findings
        if finding.claim.id == name and finding.verdict in _TESTED
    }
    tested = next(iter(findings.values()))
    basis = _basis(tested)
    tasks = f"one {basis.unit}" if basis.tasks == 1 else counted(basis.tasks, basis.unit)
    says, found = re.subn(r"^On ([^,]+),", rf"On \1 ({tasks}),", tested.claim.says.rstrip("."))
    alike: dict[tuple[str, str], list[str]] = {}
    for label, finding in sorted(findings.items(), key=lambda item: item[1].verdict == "undecided"):
        alike.setdefault((verdict_text(finding), _seeds(finding)), []).append(label)
    on = [f"{verdict} on {enumeration(labels)} ({seeds})" for (verdict, seeds), labels in alike.items()]
    return f"{says if found else f'{says} ({tasks})'}: {'; '.join(on)}."


def _basis(finding: Finding) -> Basis:
    return (finding.deciding and finding.deciding.basis) or Basis(tasks=len(_DOMAINS), unit="domain", seeds=1)


def _seeds(finding: Finding) -> str:
    seeds = _basis(finding).seeds
    return counted(seeds, "seed") if seeds else "untrained"


def _of_measured_tasks(findings: Sequence[Finding]) -> str:
    """A sentence on the column "on the measured tasks"."""
    here = [(finding.claim, finding.here) for finding in findings if finding.verdict == "undecided" and finding.here]
    decided = [(claim, item) for claim, item in here if item.verdict in ("confirmed", "refuted")]
    verdicts = [item.verdict for _, item in decided]
    turning = sum(turns_on_one_task(claim, item.test) for claim, item in decided)
    return (
        f"{len(here)} undecided verdicts on claims of papers come from tests over tasks. On the measured tasks alone, "
        f'{verdicts.count("confirmed")} of them are confirmed and {verdicts.count("refuted")} refuted (column "on the measured tasks"); '
        f"{turning} of these {len(decided)} verdicts turn on one task.\n"
    )


def _without_small_tasks(studies: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """The decided differences that small tasks make or break: they weigh as much as the others."""
    lines = []
    for runs in studies.values():
        for run in (run for run in runs if "kinds" in run.result):
            for finding in run.findings:
                item = finding.here
                decided = {"confirmed", "refuted"} & {finding.verdict, item.verdict if item else ""}
                test = item.test if item and finding.verdict == "undecided" else finding.deciding
                if not decided or test is None or finding.claim.agreement or finding.claim.less_on:
                    continue
                tasks = run.scores.tasks(finding.claim.better, test.than, finding.claim.kinds)
                rest = [task for task in tasks if task not in SMALL_TASKS]
                left = (
                    list(run.scores.differences(finding.claim.better, test.than, rest).values()) if rest else [test.difference]
                )
                if float(np.mean(left)) / test.difference < 0.5:
                    sides = f"`{finding.claim.better}` against `{test.than}`"
                    lines.append(f"{sides} on {run.label}, {test.difference:+.3g} to {np.mean(left):+.3g}")
    yield (
        f"Cranfield and SciFact have five queries each and weigh as much as the other tasks. Without them, {len(lines)} of the decided "
        f"differences (in either column) lose more than half: {'; '.join(lines)}.\n"
    )


def study(runs: Sequence[Run]) -> Iterator[str]:
    """The command of each run; the claims of the first one, and what the others found differently."""
    first, *further = runs
    yield _source(first)
    findings = counted_findings(runs)
    papers, ours = ([finding for finding in findings if finding.claim.is_own == is_own] for is_own in (False, True))
    yield f"{claims_sheet(papers).body()}\n{method_notes(papers)}\n"
    stripped = [_without_prefix(finding) for finding in ours]
    condition = ", with human lessons unless they say otherwise" if stripped != ours else ""
    ours = stripped
    yield f"### {OURS}{condition}\n\n{claims_sheet(ours).body()}\n{method_notes(ours).removesuffix(common_method_note(papers)).rstrip()}\n"
    for run in further:
        yield _source(run)
        changed = [
            finding
            for finding in run.ours
            if finding.verdict in _TESTED and first.verdicts[finding.claim.id] != finding.verdict
        ]
        list_follows = "Of our questions, these have another verdict than in the first run:\n" if changed else ""
        yield f"{_common_direction(run, first)}Verdicts on claims of the paper are in the list at the top. {list_follows}"
        for finding in changed:
            before = first.verdicts[finding.claim.id]
            yield f"- {verdict_text(finding).capitalize()} (first run: {before}): {finding.claim.says}"
        yield ""


def _without_prefix(finding: Finding) -> Finding:
    says = finding.claim.says.removeprefix(WITH_HUMAN)
    return finding.model_copy(update={"claim": finding.claim.model_copy(update={"says": says})})


def counted_findings(runs: Sequence[Run]) -> list[Finding]:
    """The findings of the first run. For a claim that it did not measure, those of another run of the same model, which is named."""
    others = {
        finding.claim.id: _of_run(finding, run.label)
        for run in reversed(runs[1:])
        if run.model == runs[0].model
        for finding in run.findings
        if finding.verdict in _TESTED
    }
    return [
        finding if finding.verdict != "not measured" else others.get(finding.claim.id, finding) for finding in runs[0].findings
    ]


def _of_run(finding: Finding, label: str) -> Finding:
    how = f"In the run {label}. {finding.claim.how}".rstrip()
    return finding.model_copy(update={"claim": finding.claim.model_copy(update={"how": how})})


def _source(run: Run) -> str:
    result = run.result
    return (
        f"```\n{result['command']}\n```\nOn {run.model}; [all tables]({run.name}.md); [{len(result['data'])} sets of data, versions and "
        f"hardware]({run.name}.json). {counts_sentence(run.papers).replace(':', ' of papers:', 1)}\n"
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
