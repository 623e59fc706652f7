"""The conclusion, in plain words, from the numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unmask.io.terminal import counted
from unmask.reporting.page import p_value
from unmask.statistics.paired import SIGNIFICANT, PairedTest, better_side
from unmask.statistics.rank_correlation import RankCorrelation
from unmask.studies.claims.claim import Finding
from unmask.studies.routers.analysis import ROUTING_SCORE, Row
from unmask.studies.routers.configurations import CONFIGURATIONS, OWN, STANDARD, Yardstick, reference_of
from unmask.studies.routers.contest import Contest

_AIMS: Mapping[Yardstick, str] = {
    "information": "Distinct routing",
    "gain": "Predicting held-out responses",
    "routing": "Routing weights as embeddings",
    "concat": "Routing weights beside hidden states",
    "sum": "The sum of both similarities",
}


def conclusion(
    rows: Mapping[str, Row],
    found: Mapping[str, RankCorrelation],
    contest: Contest | None = None,
    papers: Sequence[Finding] = (),
) -> list[str]:
    """Points in Markdown: for each aim, what is better and worse than its reference; whether distinct routing makes better embeddings.

    Then our own structure, what contradicts papers, and what was not measured. papers: what becomes of their claims.
    """
    aims = {aim: " ".join(_aim(yardstick, list(rows.values()))) for yardstick, aim in _AIMS.items()}
    return [
        *(f"**{aim}.** {found}" for aim, found in aims.items() if found),
        *_embeddings(found),
        *_own(contest),
        *_papers(papers),
        *_open(rows),
        f"The experts were trained once (those of joint training: once a seed), so nothing is said of other experts. The numbers are of "
        f"{counted(rows[STANDARD].seeds, 'router seed')}.",
    ]


def _papers(papers: Sequence[Finding]) -> Iterator[str]:
    """What contradicts papers here. Our own questions are no claims of papers."""
    papers = [one for one in papers if not one.claim.is_own]
    for one in papers:
        if one.verdict == "refuted":
            yield f"**Refuted here:** \u201c{one.claim.says}\u201d ({one.claim.where})."
    undecided = sum(one.verdict == "undecided" for one in papers)
    if undecided:
        yield f"{counted(undecided, 'claim')} of papers stay{'s' if undecided == 1 else ''} undecided."


def _open(rows: Mapping[str, Row]) -> Iterator[str]:
    """What was not measured."""
    if missing := [name for name in CONFIGURATIONS if name not in rows]:
        yield f"Not measured: {', '.join(missing)}."


def _aim(yardstick: Yardstick, rows: Sequence[Row]) -> Iterator[str]:
    tests = {row.name: test for row in rows if (test := row.tests.get(yardstick)) is not None}
    better = [name for name, test in tests.items() if better_side(test) > 0]
    worse = [name for name, test in tests.items() if better_side(test) < 0]
    open_ = len(tests) - len(better) - len(worse)
    for names, word in ((better, "better"), (worse, "worse")):
        if names:
            listed = ", ".join(f"{name} ({tests[name].difference:+.3g} against {reference_of(name)})" for name in names)
            yield f"{word.capitalize()}: {listed}."
    highest = _highest(yardstick, rows)
    if highest not in (None, STANDARD, *better, *worse):
        yield f"The highest mean of all trained configurations is that of {highest}, which is not shown to be better."
    if open_:
        what = "other configuration" if better or worse else "configuration"
        yield f"For {counted(open_, what)}, no difference was shown; there may be one."


def _highest(yardstick: Yardstick, rows: Sequence[Row]) -> str | None:
    """The configuration with the highest mean among those that can be compared: trained, and of the standard's domains."""
    values = {
        row.name: value
        for row in rows
        if CONFIGURATIONS[row.name].domains == CONFIGURATIONS[STANDARD].domains
        and not CONFIGURATIONS[row.name].choice
        and (value := {"information": row.information, "gain": row.gain, **row.scores}.get(yardstick)) is not None
    }
    return max(values, key=lambda name: values[name]) if values else None


def _embeddings(found: Mapping[str, RankCorrelation]) -> Iterator[str]:
    """Whether distinct routing makes better embeddings, and what else goes with it."""
    asked = found.get(ROUTING_SCORE)
    if asked is None:
        return
    if _shown(asked):
        direction = "better" if asked.rho > 0 else "worse"
        yield f"More distinct routing goes with routing weights that are {direction} embeddings {_known(asked)}. Why, this cannot say."
    else:
        yield (
            f"Whether more distinct routing goes with better embeddings is undecided {_known(asked)}. With this many "
            f"configurations, and without a correction, 80 % of studies find a true correlation of {asked.detectable:.2f}. A smaller one "
            "may be missed."
        )
    for name, other in found.items():
        if name != ROUTING_SCORE and _shown(other):
            yield f"More distinct routing goes with {'more' if other.rho > 0 else 'less'} of this: {name} {_known(other)}."


def _shown(found: RankCorrelation) -> bool:
    low, high = found.interval
    return found.p < SIGNIFICANT and not low <= 0 <= high


def _known(found: RankCorrelation) -> str:
    low, high = found.interval
    return f"(rho {found.rho:+.2f}, 95 % {low:+.2f} to {high:+.2f}, p {p_value(found.p)}, {found.n} configurations)"


def _own(contest: Contest | None) -> Iterator[str]:
    """Our own structure against the configuration that was best before, on fresh seeds."""
    if contest is None:
        return
    words = {1: "better", -1: "worse", 0: "not shown to differ"}
    sides = {yardstick: better_side(test) for yardstick, test in contest.tests.items()}
    yield (
        f"**Our own structure.** {CONFIGURATIONS[OWN].about.capitalize()}. It was compared with {contest.best}, which had the most "
        f"distinct routing of all other trained configurations, on {counted(contest.seeds, 'fresh seed')} and the same texts. "
        + " ".join(
            f"{_AIMS[yardstick]}: {words[side]} ({_difference(contest.tests[yardstick])})."
            for wanted in words
            for yardstick, side in sides.items()
            if side == wanted
        )
    )


def _difference(test: PairedTest) -> str:
    low, high = test.interval
    p = p_value(test.p if test.p_holm is None else test.p_holm)
    return f"{test.difference:+.3g}, interval {low:+.3g} to {high:+.3g}, p {p}"
