"""What the study of Self-MoE found: its tables and figures, verdicts on the paper's claims, and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.io.files import atomic
from unmask.moe.experts.lessons.specialise import Yield
from unmask.moe.routing.text_bootstrap import without_chance
from unmask.statistics.bootstrap import Items
from unmask.statistics.domain_differences import ModelScores, compare_by_domain, share_of_gain
from unmask.statistics.intervals import Estimate
from unmask.statistics.paired import PairedTest, paired_bootstrap
from unmask.studies.claims.carry import TaskScores, with_basis
from unmask.studies.claims.claim import Finding, findings
from unmask.studies.self_moe.measurements import Choices, Values
from unmask.studies.self_moe.plan import HUMAN, MIXSE, PAPER, SELF, VARIANTS, SelfMoEPlan
from unmask.studies.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHOICE_PARTS = ("right", "behind", "nats")
BASE, ORACLE, INSTANCE = "base", "oracle routing", "instance merging"


@dataclass
class SelfMoEFindings:
    """The findings so far. Each table holds rows by name. A row holds likelihoods by domain, one for each lesson."""

    plan: SelfMoEPlan
    model: str
    main: dict[str, Values] = field(default_factory=dict)
    ablations: dict[str, Values] = field(default_factory=dict)
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The usage of experts, by mixture."""
    growing: dict[str, Values] = field(default_factory=dict)
    """Mixtures of 0, 1, .. experts."""
    sizes: dict[int, dict[str, Values]] = field(default_factory=dict)
    """Instance merging and MiXSE, by number of lessons."""
    overhead: dict[str, Any] = field(default_factory=dict)
    abilities: dict[str, Values] = field(default_factory=dict)
    """For each row of any table, which items were answered correctly."""
    answers: dict[str, Values] = field(default_factory=dict)
    """Likelihoods of right answers, by ability test."""
    multiple_choice: dict[str, Choices] = field(default_factory=dict)
    chance: dict[str, float] = field(default_factory=dict)
    """The percentage of right choices by chance, by test."""
    written: dict[str, Values] = field(default_factory=dict)
    """Models that learned lessons written by a model, and as many human ones."""
    yields: Mapping[str, Yield] = field(default_factory=dict)
    """The yield of the writing model, by domain."""
    writer: str = SELF
    """The name of the writing model in the rows."""

    @property
    def is_complete(self) -> bool:
        """Whether all tables are there: the last one ends with the full number of lessons."""
        return self.plan.number in self.sizes

    @property
    def rows(self) -> dict[str, Values]:
        """Every row that a claim can name."""
        fewest = {f"{MIXSE}, fewest lessons": self.sizes[min(self.sizes)][MIXSE]} if len(self.sizes) > 1 else {}
        answers = {f"{row}, answers": values for row, values in self.answers.items()}
        choices = {f"{row}, multiple choice": choice.behind for row, choice in self.multiple_choice.items()}
        return {**self.main, **self.ablations, **self.growing, **fewest, **answers, **choices, **self.written}

    def choice_values(self, part: str) -> dict[str, Values]:
        """One part of every row of multiple choice: `right`, `behind` or `nats`."""
        return {row: getattr(choice, part) for row, choice in self.multiple_choice.items()}

    @property
    def shares(self) -> dict[str, Estimate | None]:
        """For each row of written lessons, the share of the gain of as many human lessons that it reaches; of an expert, on its domain."""
        shares = {}
        for row, values in self.written.items():
            model, _, lessons = row.rpartition(", ")
            if lessons == self.writer:
                on = [name for name in values if model == f"expert {name}"] or list(values)
                rows = (self.main[BASE], values, self.written[f"{model}, {HUMAN}"])
                start, part, full = ({name: row_values[name] for name in on} for row_values in rows)
                shares[row] = share_of_gain(start, part, full)
        return shares

    def as_json(self) -> dict[str, Any]:
        """Means, differences and intervals of every table."""
        sized = {f"{name}, {number} lessons": values for number, rows in self.sizes.items() for name, values in rows.items()}
        tables = {
            "main": self.main, "ablations": self.ablations, "experts": self.growing, "lessons": sized, "written": self.written,
        }  # fmt: skip
        return {
            "unit": "nats per response token of held-out lessons; differences with 95 % intervals (paired bootstrap over lessons)",
            **{name: [asdict(row) for row in rows_of(self, values)] for name, values in tables.items()},
            "abilities": [asdict(row) for row in compare_by_domain(self.abilities, BASE)] if self.abilities else [],
            "answers": [asdict(row) for row in compare_by_domain(self.answers, BASE)] if self.answers else [],
            "multiple choice": {
                "chance": self.chance,
                **{
                    part: [asdict(row) for row in compare_by_domain(self.choice_values(part), BASE)]
                    for part in CHOICE_PARTS
                    if self.multiple_choice
                },
            },
            "shares": {row: asdict(share) if share else None for row, share in self.shares.items()},
            "yields": {name: domain_yield.as_json() for name, domain_yield in self.yields.items()},
            "routing": self.usage,
            "overhead": self.overhead,
        }

    @property
    def claims(self) -> list[Finding]:
        """The verdict on every claim. A difference is in nats per token, the mean over domains, and positive if the claim is right.

        The test is a paired one over lessons, domain by domain. It is about these mixtures: the study has one seed.
        """
        rows = self.rows
        pairs = [
            (claim, opponent)
            for claim in self.plan.claims
            for opponent in claim.than
            if claim.better in rows and opponent in rows
        ]
        tests: dict[tuple[str, str], PairedTest] = {}
        for claim, opponent in pairs:
            better, rival = rows[claim.better], rows[opponent]
            domains = [name for name in better if not claim.kinds or name in claim.kinds]
            if not domains or not set(domains) <= set(rival) or set(claim.kinds) - set(domains):
                continue  # a domain was not measured
            if min(len(better[name]) for name in domains) < 2:
                continue
            loss, rival_loss = ([Items("mean", {"value": row[name]}) for name in domains] for row in (better, rival))
            # the lower loss is better
            tests[claim.id, opponent] = paired_bootstrap(rival_loss, loss, max(2000, 100 * len(pairs)))
        return with_basis(findings(self.plan.claims, tests, lambda _: "nats per token"), scores_of(self.rows))

    def tables(self) -> list[Sheet]:
        """Every table that has findings."""
        tables = []
        if self.main:
            tables.append(_likelihoods_sheet("Main table", self, self.main))
        if self.abilities:
            tables += _abilities_sheets(self)
        if self.answers:
            tables.append(_answers_sheet(self))
        if self.multiple_choice:
            tables += _multiple_choice_sheets(self)
        if self.ablations:
            tables.append(_likelihoods_sheet("Ablations", self, self.ablations))
        if self.usage:
            tables.append(_routing_sheet(self))
        if self.growing:
            tables.append(_likelihoods_sheet("Number of experts", self, self.growing))
        if self.sizes:
            sized = {f"{name}, {number}": values for number, rows in self.sizes.items() for name, values in rows.items()}
            tables.append(_likelihoods_sheet("Number of lessons of a domain", self, sized))
        if self.written:
            tables.append(_written_lessons_sheet(self))
        if self.yields:
            tables.append(_yields_sheet(self))
        if self.overhead:
            tables.append(_overhead_sheet(self))
        return tables

    def terminal_tables(self) -> list[Sheet]:
        """The same."""
        return self.tables()

    def report(self, folder: Path) -> str:
        """All tables that have findings. Drawing takes time, so the figures follow when the study is complete."""
        plan = self.plan
        figure_paths = draw_figures(self, folder / "figures") if self.is_complete else []
        figures = [f"![{file.stem}]({file.relative_to(folder)})\n" for file in figure_paths] or [
            "Figures follow when the study is complete.\n"
        ]
        kind = "lessons of public sets" if plan.lessons == "seeds" else "instructions that the model wrote itself"
        head = (
            f"# {PAPER} on {self.model}\n\n- Domains: {', '.join(plan.seeds)}.\n- For each domain: {plan.number} {kind}, and "
            f"{plan.held_out} held-out lessons.\n- Experts: LoRA of rank {plan.lora.r}, {plan.expert.steps} steps with batches of "
            f"{plan.batch} lessons. Experts of fewer lessons learn for fewer steps.\n"
            f"- Routers: {plan.router.steps} steps.\n- Seed: {plan.seed}. There is only one seed, so the intervals cover other lessons of "
            "the same kind, but not other trainings.\n"
        )
        descriptions = [f"- {row}: {VARIANTS[row].about}" for row in self.ablations if row in VARIANTS]
        legend = "\n".join(["## What the ablations are", *descriptions]) + "\n" if descriptions else ""
        return "\n".join([head, *(sheet.markdown() for sheet in self.tables()), legend, *figures])


def scores_of(rows: Mapping[str, Mapping[str, Any]]) -> TaskScores:
    """Rows as scores: the higher, the better. Each was measured once on every domain or test."""
    scores = {name: {domain: [-float(np.mean(losses))] for domain, losses in row.items()} for name, row in rows.items()}
    kinds = {domain: domain for row in scores.values() for domain in row}
    return TaskScores(scores, kinds, {name: name for name in scores if not name.startswith(BASE)}, "domain")


def rows_of(findings: SelfMoEFindings, values: dict[str, Values], against: str = BASE) -> list[ModelScores]:
    """The rows of a table, in its order. Each is compared with one row of the main table."""
    compared = {row.model: row for row in compare_by_domain({against: findings.main[against]} | values, against)}
    return [compared[name] for name in values]


def _likelihoods_sheet(title: str, findings: SelfMoEFindings, values: dict[str, Values]) -> Sheet:
    """Nats per token by domain, their average, and its difference from the base and from instance merging."""
    against = [rows_of(findings, values, row) for row in (BASE, INSTANCE)]
    domains = tuple(against[0][0].domains)
    rows = tuple(
        (
            row.model,
            *(f"{row.domains[domain]:.3f}" for domain in domains),
            f"{row.average:.3f}",
            _difference(row, BASE),
            _difference(instance_row, INSTANCE),
        )
        for row, instance_row in zip(*against, strict=True)
    )
    note = (
        "Nats per response token on held-out lessons; lower is better. The last two columns are the average minus the base's average, and "
        "minus instance merging's, ± half of the 95 % interval (paired bootstrap over lessons)."
    )
    return Sheet(title, ("", *domains, "average", "minus base", "minus instance merging"), rows, note)


def _abilities_sheets(findings: SelfMoEFindings) -> Iterator[Sheet]:
    """Percent of correct items, for the rows of the main table and then for all other rows."""
    rows = compare_by_domain(findings.abilities, BASE)
    tests = tuple(rows[0].domains)
    numbers = ", ".join(f"{test} {len(findings.abilities[BASE][test])}" for test in tests)
    note = f"Percent of correct items. Items: {numbers}. Last column: average minus base, ± half of the 95 % interval (paired bootstrap)."
    ablations = [row for row in rows if row.model not in findings.main]
    for title, table_rows in (
        ("Abilities", [row for row in rows if row.model in findings.main]),
        ("Abilities of ablations, fewer experts and fewer lessons", [rows[0], *ablations] if ablations else []),
    ):
        cells = []
        for row in table_rows:
            value, low, high = row.difference
            minus_base = "" if row.model == BASE else f"{value:+.1f} ± {(high - low) / 2:.1f}"
            cells.append((row.model, *(f"{row.domains[test]:.1f}" for test in tests), f"{row.average:.1f}", minus_base))
        if cells:
            yield Sheet(title, ("", *tests, "average", "minus base"), tuple(cells), note)


def _answers_sheet(findings: SelfMoEFindings) -> Sheet:
    """Nats per token of right answers by ability test, and their differences from the base."""
    header, cells = _means_minus_base(findings.answers, 3)
    numbers = ", ".join(f"{test} {len(findings.answers[BASE][test])}" for test in header[1:])
    note = (
        "Nats per token; lower is better. Of a test with choices: how much less likely the right choice is than the likeliest wrong one "
        "(below 0: the right one is the likeliest). Of other tests: the loss on the reference answer. In brackets: minus base, ± half of "
        f"the 95 % interval (paired bootstrap over items). Items: {numbers}."
    )
    return Sheet("Answers of ability tests", header, cells, note)


def _multiple_choice_sheets(findings: SelfMoEFindings) -> Iterator[Sheet]:
    """The percentage of right choices, how far right choices are behind, and the likelihood of human answers."""
    base = findings.multiple_choice[BASE].nats
    numbers = ", ".join(f"{test} {len(items)}" for test, items in base.items())
    caption = f"In brackets: minus base, ± half of the 95 % interval (paired bootstrap over items). Items: {numbers}."
    header, cells = _means_minus_base(findings.choice_values("right"), 1)
    by_chance = ("chance", *(f"{findings.chance[test]:.1f}" for test in header[1:]))
    note = f"Percent of items whose right answer is likelier than all wrong answers of its form. {caption}"
    yield Sheet("Multiple choice", header, (by_chance, *cells), note)
    note = (
        "Nats per token; lower is better: how much less likely the right answer is than the likeliest wrong one (below 0: the right one is "
        f"the likeliest). {caption}"
    )
    yield Sheet(
        "Multiple choice: distance to the likeliest wrong answer", *_means_minus_base(findings.choice_values("behind"), 3), note
    )
    note = f"Nats per token of the human answer to the question; lower is better. {caption}"
    yield Sheet("Multiple choice: likelihood of the human answer", *_means_minus_base(findings.choice_values("nats"), 3), note)


def _means_minus_base(values: dict[str, Values], digits: int) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
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
        means = (f"{row.domains[test]:.{digits}f}{change}" for test, change in zip(tests, minus_base, strict=True))
        cells.append((row.model, *means))
    return ("", *tests), tuple(cells)


def _written_lessons_sheet(findings: SelfMoEFindings) -> Sheet:
    """Nats per token after training on written lessons and on as many human ones, and the share of the human gain that is reached."""
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


def _yields_sheet(findings: SelfMoEFindings) -> Sheet:
    """How many of the lessons that a model wrote were kept, by domain."""
    rows = tuple(
        (
            domain,
            str(domain_yield.written),
            str(domain_yield.instructions),
            str(domain_yield.kept),
            ", ".join(f"{why} {number}" for why, number in sorted(domain_yield.dropped.items(), key=lambda reason: -reason[1])),
            f"{domain_yield.nearest:.2f}",
            f"{domain_yield.words:.0f}",
        )
        for domain, domain_yield in findings.yields.items()
    )
    note = "Nearest: the mean ROUGE-L of an instruction to the nearest other or seed. Words: of a response, the mean."
    header = ("", "instructions written", "kept", "lessons", "dropped", "nearest", "words")
    return Sheet("What the model wrote", header, rows, note)


def _difference(row: ModelScores, against: str) -> str:
    value, low, high = row.difference
    return "" if row.model == against else f"{value:+.3f} ± {(high - low) / 2:.3f}"


def _routing_sheet(findings: SelfMoEFindings) -> Sheet:
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


def _overhead_sheet(findings: SelfMoEFindings) -> Sheet:
    overhead = findings.overhead
    base = overhead["parameters"]
    rows: Sequence[tuple[str, str, str, str]] = (
        ("parameters", f"{base:,}", f"{base + overhead['added']:,}", f"x {1 + overhead['added'] / base:.3f}"),
        ("of these, router", "", f"{overhead['router']:,}", ""),
        ("FLOPs of a forward pass", "", "", f"x {overhead['flops']:.3f}"),
        ("time of a forward pass", "", "", f"x {overhead['forward']:.2f}"),
    )
    return Sheet(f"Overhead of {overhead['experts']} experts", ("", "base", "mixture", ""), tuple(rows))


_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#666666"  # colour-blind people can tell these apart


def draw_figures(findings: SelfMoEFindings, folder: Path) -> list[Path]:
    """Write every figure that has data. Returns the files."""
    paths = []
    for name, figure in (
        ("routing", _routing_figure(findings)),
        ("growth", _growth_figure(findings)),
        ("overhead", _overhead_figure(findings)),
    ):
        if figure is not None:
            file = folder / f"{name}.png"
            with atomic(file) as scratch:
                figure.savefig(scratch, format="png", dpi=150, bbox_inches="tight")
            paths.append(file)
    return paths


def _panels(columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, columns)))


def _routing_figure(findings: SelfMoEFindings) -> Figure | None:
    """The share of each domain's tokens that go to each expert first, one panel for each mixture."""
    usages = list(findings.usage.items())[:6]
    if not usages:
        return None
    figure, axes = _panels(len(usages), 1.2 + 2.3 * len(usages), 2.9)
    for index, (axis, (name, usage)) in enumerate(zip(axes, usages, strict=True)):
        load = np.array(usage["load"])
        axis.imshow(load, vmin=0, vmax=1, cmap="Blues")
        for (row, column), share in np.ndenumerate(load):
            axis.text(
                column, row, f"{share:.2f}", ha="center", va="center", fontsize=8, color="white" if share > 0.6 else "black"
            )
        axis.set_xticks(range(len(usage["experts"])), usage["experts"], rotation=45, ha="right", fontsize=8)
        axis.set_yticks(range(len(load)), usage["domains"] if index == 0 else [""] * len(load), fontsize=8)
        axis.set_title(f"{name}\nI(D;E) {without_chance(usage['information'], usage['shuffled']):.2f}", fontsize=9)
    figure.suptitle("Share of each domain's tokens (row) that go to each expert first (column)", fontsize=9)
    return figure


def _growth_figure(findings: SelfMoEFindings) -> Figure | None:
    """Average loss by number of experts, and by number of lessons."""
    panels: list[Any] = [part for part in (findings.growing, findings.sizes) if part]
    if not panels:
        return None
    figure, axes = _panels(len(panels), 4.6 * len(panels), 3.2)
    if findings.growing:
        axis = axes[0]
        axis.plot([_average(values) for values in findings.growing.values()], marker="o", color=_BLUE, label="MiXSE")
        axis.axhline(_average(findings.main[INSTANCE]), color=_ORANGE, linestyle="--", label=INSTANCE)
        axis.set_xticks(range(len(findings.growing)), [name.replace(": ", "\n") for name in findings.growing], fontsize=8)
        axis.set_xlabel("experts")
    if findings.sizes:
        axis = axes[-1]
        numbers = sorted(findings.sizes)
        for name, colour, mark in (("MiXSE", _BLUE, "o"), (INSTANCE, _ORANGE, "s")):
            axis.plot(
                numbers, [_average(findings.sizes[number][name]) for number in numbers], marker=mark, color=colour, label=name
            )
        axis.set_xticks(numbers)
        axis.set_xlabel("lessons of a domain")
    for axis in axes:
        axis.axhline(_average(findings.main[ORACLE]), color=_GREY, linestyle=":", label=ORACLE)
        axis.set_ylabel("nats a response token")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_title(f"base: {_average(findings.main[BASE]):.2f}", fontsize=9, loc="left")
    return figure


def _overhead_figure(findings: SelfMoEFindings) -> Figure | None:
    """Parameters, operations and time of a mixture, as shares of its base."""
    if not findings.overhead:
        return None
    overhead = findings.overhead
    shares = {
        "parameters": 1 + overhead["added"] / overhead["parameters"],
        "FLOPs of a forward pass": overhead["flops"],
        "its time": overhead["forward"],
    }
    figure, (axis,) = _panels(1, 5.2, 1.5)
    positions = range(len(shares))[::-1]
    axis.barh(positions, list(shares.values()), color=_BLUE, height=0.55)
    axis.axvline(1, color=_GREY, linestyle=":")
    for position, share in zip(positions, shares.values(), strict=True):
        axis.annotate(f"{share:.2f}", (share, position), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(positions, list(shares), fontsize=8)
    axis.set_xlim(0, 1.15 * max(shares.values()))
    axis.set_title(f"{overhead['experts']} experts, times the base model", fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _average(values: Any) -> float:
    return float(np.mean([losses.mean() for losses in values.values()]))
