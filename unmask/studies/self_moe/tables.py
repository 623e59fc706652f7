"""Tables of the study, for a terminal and as Markdown, from the same cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unmask.statistics.domain_differences import ModelScores, compare_by_domain
from unmask.studies.self_moe.measurements import Values
from unmask.studies.self_moe.run import BASE, INSTANCE, Findings, rows_of

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """A table: its title, what its columns are called, its cells, and a note below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """As Markdown, numbers to the right."""
        lines = [self.columns, ("---", *("--:" for _ in self.columns[1:])), *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"## {self.title}\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def rich(self) -> Table:
        """For a terminal."""
        from unmask.io.terminal import table as empty_table

        table = empty_table(self.title, caption=self.note or None, caption_justify="left", pad_edge=True)
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="right" if place else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def sheets(found: Findings) -> Iterator[Sheet]:
    """Every table that there is something for."""
    if found.main:
        yield _likelihoods("Main table", found, found.main)
    if found.abilities:
        yield from _abilities(found)
    if found.ablations:
        yield _likelihoods("Ablations", found, found.ablations)
    if found.usage:
        yield _routing(found)
    if found.growing:
        yield _likelihoods("Number of experts", found, found.growing)
    if found.sizes:
        sized = {f"{name}, {number}": values for number, some in found.sizes.items() for name, values in some.items()}
        yield _likelihoods("Number of lessons of a domain", found, sized)
    if found.overhead:
        yield _overhead(found)


def _likelihoods(title: str, found: Findings, values: dict[str, Values]) -> Sheet:
    """Nats a token by domain, the average, and how far it is from the base and from instance merging."""
    against = [rows_of(found, values, row) for row in (BASE, INSTANCE)]
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
        "Nats a response token on held-out lessons, lower is better; differences of averages to the base and to instance merging, with "
        "half of their 95 % intervals (paired bootstrap over lessons)."
    )
    return Sheet(title, ("", *domains, "average", "less base", "less instance"), rows, note)


def _abilities(found: Findings) -> Iterator[Sheet]:
    """Percent of items that rows got right: those of the main table, and all others."""
    rows = compare_by_domain(found.abilities, BASE)
    tests = tuple(rows[0].domains)
    numbers = ", ".join(f"{test} {len(found.abilities[BASE][test])}" for test in tests)
    note = f"Percent of items that are right ({numbers}); differences with half of their 95 % intervals (paired bootstrap over items)."
    others = [row for row in rows if row.model not in found.main]
    for title, shown in (
        ("Abilities", [row for row in rows if row.model in found.main]),
        ("Abilities of ablations, fewer experts and fewer lessons", [rows[0], *others] if others else []),
    ):
        cells = []
        for row in shown:
            value, low, high = row.difference
            less = "" if row.model == BASE else f"{value:+.1f} ± {(high - low) / 2:.1f}"
            cells.append((row.model, *(f"{row.domains[test]:.1f}" for test in tests), f"{row.average:.1f}", less))
        if cells:
            yield Sheet(title, ("", *tests, "average", "less base"), tuple(cells), note)


def _difference(row: ModelScores, against: str) -> str:
    value, low, high = row.difference
    return "" if row.model == against else f"{value:+.3f} ± {(high - low) / 2:.3f}"


def _routing(found: Findings) -> Sheet:
    """How much the expert says of the domain, and how strong experts are."""
    rows = []
    for name, usage in found.usage.items():
        chance = usage["shuffled"]
        low, high = (edge - chance for edge in usage["interval"])
        own = "" if usage["own"] is None else f"{usage['own'] * len(usage['domains']):.0f} of {len(usage['domains'])}"
        corrected = f"{usage['information'] - chance:.3f} ({low:.3f} .. {high:.3f})"
        measured = f"{usage['information']:.3f}, {chance:.3f}"
        responses = f"{usage['responses'] - usage.get('responses_shuffled', chance):.3f}"  # older measurements lack it
        rows.append((name, corrected, measured, responses, own, f"{usage['strength']:.2f}"))
    note = (
        "I(D;E) / log |D| of domain and first expert of the tokens (1: the expert tells the domain), less its value by chance: the mean "
        "after dealing out domains anew. Then both as measured; the corrected value of the tokens of responses alone; domains that use "
        "their own expert most; mean sum of the gates."
    )
    header = ("", "I(D;E) less chance", "measured, by chance", "of responses", "own expert first", "strength")
    return Sheet("Routing", header, tuple(rows), note)


def _overhead(found: Findings) -> Sheet:
    one = found.overhead
    base = one["parameters"]
    rows: Sequence[tuple[str, str, str, str]] = (
        ("parameters", f"{base:,}", f"{base + one['added']:,}", f"x {1 + one['added'] / base:.3f}"),
        ("of these, router", "", f"{one['router']:,}", ""),
        ("FLOPs of a forward pass", "", "", f"x {one['flops']:.3f}"),
        ("time of a forward pass", "", "", f"x {one['forward']:.2f}"),
    )
    return Sheet(f"Overhead of {one['experts']} experts", ("", "base", "mixture", ""), tuple(rows))
