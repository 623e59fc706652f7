"""Tables of evaluations of language models for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.io import terminal

if TYPE_CHECKING:
    from unmask.moe.experts.lm_evaluation import LMSection

_SECTIONS = {
    "likelihood": ("Nats per response token, lower is better", 3),
    "text_likelihood": ("Nats per token of text, lower is better", 3),
    "accuracy": ("Correct answers in percent, higher is better", 1),
}
_MAX_COLUMNS = 5  # domains that fit in 80 columns


def print_language_models(sections: Sequence[LMSection]) -> None:
    """A table for each kind of score."""
    for section in sections:
        title, digits = _SECTIONS[section.name]
        names = short_names(row.model for row in section.rows)
        first = next(iter(names.values()))
        values: dict[str, list[str]] = {}
        for row in section.rows:
            numbers = [f"{number:.{digits}f}" for number in (*row.domains.values(), row.average)]
            value, low, high = (f"{number:+.{digits}f}" for number in row.difference)
            values[names[row.model]] = [*numbers, f"{value} [{low}, {high}]" if row is not section.rows[0] else ""]
        table = terminal.table(title)
        domains = {terminal.visible(domain): str(section.items[domain]) for domain in section.rows[0].domains}
        if len(domains) <= _MAX_COLUMNS:
            table.add_column("model", overflow="fold")
            for heading in (*map(terminal.two_lines, domains, domains.values()), "average", f"minus {first}"):
                table.add_column(heading, justify="right")
            for name, cells in values.items():
                table.add_row(name, *cells)
        else:
            table.add_column("")
            for name in values:
                table.add_column(name, justify="right", overflow="fold")
            headings = [*(f"{domain} ({number})" for domain, number in domains.items()), "average", f"minus {first}"]
            for heading, *cells in zip(headings, *values.values(), strict=True):
                table.add_row(heading, *cells)
        console = terminal.console()
        console.print(table)
        console.print("Differences of averages with 95 % intervals, by a paired bootstrap over items.", style="dim")


def short_names(names: Iterable[str]) -> Mapping[str, str]:
    """The shortest distinct ends of model names. `unmask train` writes its result to FOLDER/model."""
    parts = {name: Path(re.sub(r"(/model)?/?(?=, |$)", "", name)).parts or (name,) for name in names}
    for number in range(1, max(map(len, parts.values())) + 1):
        short = {name: "/".join(path[-number:]) for name, path in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {name: name for name in parts}
