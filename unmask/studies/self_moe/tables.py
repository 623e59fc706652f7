"""Tables of the study, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unmask.moe.routing.text_bootstrap import without_chance
from unmask.statistics.domain_differences import ModelScores, compare_by_domain
from unmask.studies.self_moe.measurements import Values
from unmask.studies.self_moe.run import BASE, INSTANCE, Findings, rows_of
from unmask.studies.sheet import Sheet


def sheets(findings: Findings) -> Iterator[Sheet]:
    """Every table that has findings."""
    if findings.main:
        yield _likelihoods("Main table", findings, findings.main)
    if findings.abilities:
        yield from _abilities(findings)
    if findings.answers:
        yield _answers(findings)
    if findings.multiple_choice:
        yield from _multiple_choice(findings)
    if findings.ablations:
        yield _likelihoods("Ablations", findings, findings.ablations)
    if findings.usage:
        yield _routing(findings)
    if findings.growing:
        yield _likelihoods("Number of experts", findings, findings.growing)
    if findings.sizes:
        sized = {f"{name}, {number}": values for number, rows in findings.sizes.items() for name, values in rows.items()}
        yield _likelihoods("Number of lessons of a domain", findings, sized)
    if findings.written:
        yield _written(findings)
    if findings.yields:
        yield _yields(findings)
    if findings.overhead:
        yield _overhead(findings)


def _likelihoods(title: str, findings: Findings, values: dict[str, Values]) -> Sheet:
    """Nats per token by domain, their average, and its difference from the base and from instance merging."""
    against = [rows_of(findings, values, row) for row in (BASE, INSTANCE)]
    domains = tuple(against[0][0].domains)
    rows = tuple(
        (
            row.model,
            *(f"{row.domains[domain]:.3f}" for domain in domains),
            f"{row.average:.3f}",
            _difference(row, BASE),
            _difference(other, INSTANCE),
        )
        for row, other in zip(*against, strict=True)
    )
    note = (
        "Nats per response token on held-out lessons; lower is better. The last two columns are the average minus the base's average, and "
        "minus instance merging's, ± half of the 95 % interval (paired bootstrap over lessons)."
    )
    return Sheet(title, ("", *domains, "average", "minus base", "minus instance merging"), rows, note)


def _abilities(findings: Findings) -> Iterator[Sheet]:
    """Percent of correct items, for the rows of the main table and then for all other rows."""
    rows = compare_by_domain(findings.abilities, BASE)
    tests = tuple(rows[0].domains)
    numbers = ", ".join(f"{test} {len(findings.abilities[BASE][test])}" for test in tests)
    note = f"Percent of correct items. Items: {numbers}. Last column: average minus base, ± half of the 95 % interval (paired bootstrap)."
    others = [row for row in rows if row.model not in findings.main]
    for title, shown in (
        ("Abilities", [row for row in rows if row.model in findings.main]),
        ("Abilities of ablations, fewer experts and fewer lessons", [rows[0], *others] if others else []),
    ):
        cells = []
        for row in shown:
            value, low, high = row.difference
            minus_base = "" if row.model == BASE else f"{value:+.1f} ± {(high - low) / 2:.1f}"
            cells.append((row.model, *(f"{row.domains[test]:.1f}" for test in tests), f"{row.average:.1f}", minus_base))
        if cells:
            yield Sheet(title, ("", *tests, "average", "minus base"), tuple(cells), note)


def _answers(findings: Findings) -> Sheet:
    """Nats per token of right answers by ability test, and their differences from the base."""
    header, cells = _beside_base(findings.answers, 3)
    numbers = ", ".join(f"{test} {len(findings.answers[BASE][test])}" for test in header[1:])
    note = (
        "Nats per token; lower is better. Of a test with choices: how much less likely the right choice is than the likeliest wrong one "
        "(below 0: the right one is the likeliest). Of other tests: the loss on the reference answer. In brackets: minus base, ± half of "
        f"the 95 % interval (paired bootstrap over items). Items: {numbers}."
    )
    return Sheet("Answers of ability tests", header, cells, note)


def _multiple_choice(findings: Findings) -> Iterator[Sheet]:
    """The percentage of right choices, how far right choices are behind, and the likelihood of human answers."""
    base = findings.multiple_choice[BASE].nats
    numbers = ", ".join(f"{test} {len(items)}" for test, items in base.items())
    about = f"In brackets: minus base, ± half of the 95 % interval (paired bootstrap over items). Items: {numbers}."
    header, cells = _beside_base(findings.chosen("right"), 1)
    by_chance = ("chance", *(f"{findings.chance[test]:.1f}" for test in header[1:]))
    note = f"Percent of items whose right answer is likelier than all wrong answers of its form. {about}"
    yield Sheet("Multiple choice", header, (by_chance, *cells), note)
    note = (
        "Nats per token; lower is better: how much less likely the right answer is than the likeliest wrong one (below 0: the right one is "
        f"the likeliest). {about}"
    )
    yield Sheet("Multiple choice: distance to the likeliest wrong answer", *_beside_base(findings.chosen("behind"), 3), note)
    note = f"Nats per token of the human answer to the question; lower is better. {about}"
    yield Sheet("Multiple choice: likelihood of the human answer", *_beside_base(findings.chosen("nats"), 3), note)


def _beside_base(values: dict[str, Values], digits: int) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The header and the rows of a table: the mean of each test, and its difference from the base's with half of its interval."""
    rows = compare_by_domain(values, BASE)
    tests = tuple(rows[0].domains)
    cells = []
    for row in rows:
        differences = (row.differences[test] for test in tests)
        minus_base = (
            "" if row.model == BASE else f" ({value:+.{digits}f} ± {(high - low) / 2:.{digits}f})"
            for value, low, high in differences
        )
        means = (f"{row.domains[test]:.{digits}f}{than}" for test, than in zip(tests, minus_base, strict=True))
        cells.append((row.model, *means))
    return ("", *tests), tuple(cells)


def _written(findings: Findings) -> Sheet:
    """Nats per token of what learned written lessons and as many human ones, and how much of the human gain the written ones reach."""
    rows, shares = [], findings.shares
    for row in rows_of(findings, {BASE: findings.main[BASE], **findings.written}):
        share = shares.get(row.model)
        reached = f"{share.value:.0%} ({share.interval[0]:.0%} .. {share.interval[1]:.0%})" if share else ""
        nats = (f"{row.domains[domain]:.3f}" for domain in row.domains)
        rows.append((row.model, *nats, f"{row.average:.3f}", _difference(row, BASE), reached))
    note = (
        "Nats per response token on held-out human lessons; lower is better. Experts learn equally many lessons for equally many steps. "
        "The last column divides the gain of written lessons over the base by that of human lessons, with its 95 % interval (paired "
        "bootstrap over lessons). For an expert, this is measured on its own domain. The cell is empty if human lessons gain nothing for "
        "certain. Lessons that are near a held-out lesson are left out."
    )
    header = ("", *findings.main[BASE], "average", "minus base", "share of the human gain")
    return Sheet("Written lessons", header, tuple(rows), note)


def _yields(findings: Findings) -> Sheet:
    """What became of all that a model wrote, by domain."""
    rows = tuple(
        (
            domain,
            str(done.written),
            str(done.instructions),
            str(done.kept),
            ", ".join(f"{why} {number}" for why, number in sorted(done.dropped.items(), key=lambda reason: -reason[1])),
            f"{done.nearest:.2f}",
            f"{done.words:.0f}",
        )
        for domain, done in findings.yields.items()
    )
    note = "Nearest: the mean ROUGE-L of an instruction to the nearest other or seed. Words: of a response, the mean."
    header = ("", "instructions written", "kept", "lessons", "dropped", "nearest", "words")
    return Sheet("What the model wrote", header, rows, note)


def _difference(row: ModelScores, against: str) -> str:
    value, low, high = row.difference
    return "" if row.model == against else f"{value:+.3f} ± {(high - low) / 2:.3f}"


def _routing(findings: Findings) -> Sheet:
    """How well the first expert of a token predicts its domain, and how large the gates are."""
    rows = []
    for name, usage in findings.usage.items():
        chance = usage["shuffled"]
        value, low, high = (without_chance(raw, chance) for raw in (usage["information"], *usage["interval"]))
        own_first = "" if usage["own"] is None else f"{usage['own'] * len(usage['domains']):.0f} of {len(usage['domains'])}"
        corrected = f"{value:.3f} ({low:.3f} .. {high:.3f})"
        measured = f"{usage['information']:.3f}, {chance:.3f}"
        of_responses = without_chance(usage["responses"], usage.get("responses_shuffled", chance))  # older measurements lack it
        rows.append((name, corrected, measured, f"{of_responses:.3f}", own_first, f"{usage['strength']:.2f}"))
    note = (
        "I(D;E): how well a token's first expert tells its domain. It is their mutual information, divided by log |D|, without what chance "
        "gives: 0 is chance, and at 1 the expert tells the domain. By chance: the mean value after the domains are shuffled. Responses "
        "only: the same on the tokens of responses. Own expert "
        "first: the number of domains that use their own expert most. Sum of gates: its mean."
    )
    header = ("", "I(D;E)", "measured, by chance", "responses only", "own expert first", "sum of gates")
    return Sheet("Routing", header, tuple(rows), note)


def _overhead(findings: Findings) -> Sheet:
    overhead = findings.overhead
    base = overhead["parameters"]
    rows: Sequence[tuple[str, str, str, str]] = (
        ("parameters", f"{base:,}", f"{base + overhead['added']:,}", f"x {1 + overhead['added'] / base:.3f}"),
        ("of these, router", "", f"{overhead['router']:,}", ""),
        ("FLOPs of a forward pass", "", "", f"x {overhead['flops']:.3f}"),
        ("time of a forward pass", "", "", f"x {overhead['forward']:.2f}"),
    )
    return Sheet(f"Overhead of {overhead['experts']} experts", ("", "base", "mixture", ""), tuple(rows))
