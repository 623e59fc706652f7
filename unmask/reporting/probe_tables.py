"""Results of probes: small tables with notes for a terminal, and a folder with JSON and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unmask.statistics.intervals import Estimate

_SHORT = 12  # characters of a first column that is never wrapped
_KEY_OF_ALL_RESULTS = '"attn_implementation"'


@dataclass(frozen=True)
class ProbeTable:
    """A table and its notes. prose: the last column is text and may wrap."""

    title: str
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str]
    head: Sequence[str] = ("", "", "")
    prose: bool = False

    def print(self, notes: Sequence[str] = ()) -> None:
        """Print to the terminal, with further notes."""
        from unmask.io import terminal

        table = terminal.table(self.title, show_header=any(self.head))
        is_short = all(len(str(row[0])) <= _SHORT for row in self.rows)  # a narrow terminal wraps the other columns
        for column, name in enumerate(self.head):
            if self.prose and column == len(self.head) - 1:
                table.add_column(name, style="dim")
            else:
                no_wrap = column == 0 and is_short
                table.add_column(name, justify="right" if column else "left", no_wrap=no_wrap, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console = terminal.console()
        console.print(table)
        for note in (*self.notes, *notes):
            console.print(note, style="dim")


def check_probe_folder(folder: Path, name: str) -> None:
    """Raise UnmaskError, before any work, if `save_probe` would replace a file that unmask did not write.

    A figure next to our result is ours: the result is written first.
    """
    from unmask.io.files import refuse_foreign
    from unmask.reporting.plotting import MADE_BY, METADATA

    result = folder / f"{name}.json"
    refuse_foreign(result, [_KEY_OF_ALL_RESULTS])
    has_result = result.is_file() and result.stat().st_size > 0
    for suffix in METADATA:
        refuse_foreign(folder / f"{name}.{suffix}", ["" if has_result else MADE_BY])


def save_probe(result: Any, folder: Path, name: str, *names: Mapping[str, str]) -> str:
    """Write a result as JSON, then its figure. Returns a note. names: what the user calls the designs, for some figures."""
    from unmask.io.files import write_json
    from unmask.reporting.plotting import save_figure
    from unmask.reporting.probe_figures import DRAWN

    write_json(folder / f"{name}.json", result.as_json())
    files = save_figure(DRAWN[name](result, *names), folder, name)
    return f"Written to {folder}/: {name}.json, {', '.join(file.name for file in files)}."


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f}"


def interval_text(bounds: tuple[float, float] | None, scale: float = 100, digits: int = 1) -> str:
    """A 95 % interval in words, or nothing."""
    return "" if bounds is None else f"95 %: {range_text(bounds, scale, digits)}"


def with_interval(
    value: float, bounds: tuple[float, float] | None, scale: float = 100, digits: int = 1, mark: str = ""
) -> RenderableType:
    """A number with its 95 % interval on a second line."""
    from unmask.io.terminal import two_lines

    number = f"{scale * value:.{digits}f}{mark}"
    return two_lines(number, range_text(bounds, scale, digits)) if bounds else number


def words_table(result: Any) -> ProbeTable:
    """A linear probe on words."""
    rows = [
        ("accuracy of the most frequent tag", percent(result.majority), ""),
        ("accuracy", percent(result.accuracy), interval_text(result.accuracy_interval)),
    ]
    if result.metric == "entity_f1":
        rows.append(("F1 of entities, span and type", percent(result.value), interval_text(result.interval)))
    notes = [
        f"{result.test_words} words of {result.test_sentences} sentences, {result.classes} tags; probe fitted on "
        f"{result.train_words} words of {result.train_sentences} sentences, C {result.c:g}, "
        f"layer {result.layer}{', states shifted by -1' if result.shift else ''}.",
        *([f"{result.unseen} words have a tag that training lacks; they count as errors."] if result.unseen else []),
        *([] if result.converged else ["The fit did not converge."]),
        proof_note(result),
    ]
    return ProbeTable("Linear probe on words", rows, notes, prose=True)


def prefix_table(result: Any, triples: int) -> ProbeTable:
    """Shared prefixes, at several stages of training."""
    rows = [
        (
            stage.name,
            with_interval(stage.result.same, stage.result.same_interval, 1, 4),
            with_interval(stage.result.different, stage.result.different_interval, 1, 4),
            with_interval(stage.result.gap, stage.result.interval, 1, 4),
            with_interval(stage.result.accuracy, stage.result.accuracy_interval),
        )
        for stage in result.stages
    ]
    notes = [
        f"{triples} triples; cosines of the prefix's tokens if the continuation has the same or a different meaning; "
        "their gap; share of triples with a positive gap. Below each number: its 95 % interval over triples.",
    ]
    for stage in result.stages:
        if stage.step:
            change = f"{stage.step.difference:+.4f} ({interval_text(stage.step.interval, 1, 4)})"
            notes.append(f"{stage.name}: {change} compared with the gap of the previous stage.")
    notes += [
        f"{stage.name}: the gap is exactly 0: the states of a prefix do not depend on the continuation."
        for stage in result.stages
        if not any(stage.result.gaps)
    ]
    notes += [f"{stage.name}: layer {stage.result.layer}, {stage.result.provenance['proof']}." for stage in result.stages]
    return ProbeTable("Shared prefixes", rows, notes, ("", "same", "different", "gap", "above 0"))


def geometry_table(result: Any, design: str) -> ProbeTable:
    """Alignment and uniformity."""
    largest = min(result.dim, result.texts - 1)
    rows = [
        ("alignment", with_interval(result.alignment, result.alignment_interval, 1, 4), "lower: paraphrases are closer"),
        (
            "uniformity",
            with_interval(result.uniformity, result.uniformity_interval, 1, 4),
            "lower (more negative): texts are spread more evenly",
        ),
        ("mean cosine", with_interval(result.mean_cosine, result.mean_cosine_interval, 1, 4), "0: evenly around the origin"),
        ("effective rank", f"{result.effective_rank:.1f}", f"of at most {largest}; grows with the number of texts"),
    ]
    paraphrases = "" if result.positive_from is None else f" (score {result.positive_from:g} or more)"
    notes = [
        f"{result.positives} paraphrases{paraphrases}, {result.texts} distinct texts; {design}.",
        f"Below each number: 95 % over {result.groups} groups of texts that pairs link.",
        proof_note(result),
    ]
    return ProbeTable("Geometry", rows, notes, prose=True)


def masked_table(result: Any) -> ProbeTable:
    """Prediction of masked tokens."""
    rows = [
        ("accuracy @ 1", percent(result.accuracy_at_1), interval_text(result.accuracy_at_1_interval)),
        ("accuracy @ 5", percent(result.accuracy_at_5), interval_text(result.accuracy_at_5_interval)),
        ("cross-entropy (nats)", f"{result.cross_entropy:.3f}", interval_text(result.cross_entropy_interval, 1, 3)),
    ]
    notes = [
        f"{result.tokens} tokens of {result.texts} texts masked by '{result.mask_token}' (share {result.rate:g}, seed {result.seed}).",
        *([f"{result.skipped} texts have no token that can be masked."] if result.skipped else []),
        *_truncation_note(result),
        proof_note(result),
    ]
    return ProbeTable("Masked tokens, predicted from the previous position", rows, notes, prose=True)


def attribution_table(result: Any) -> ProbeTable:
    """Layers that a trained head reads."""
    top = sorted(range(len(result.shares)), key=lambda index: -result.shares[index])[:8]
    rows = [
        (
            f"layer {index + 1}",
            with_interval(result.shares[index], result.intervals[index]),
            f"80 % of texts: {percent(result.low[index])} to {percent(result.high[index])}",
        )
        for index in top
    ]
    notes = [
        f"Share of attention in percent, the most-read layers of {len(result.shares)}; {result.texts} texts. "
        "Below: 95 % of the mean.",
        proof_note(result),
    ]
    return ProbeTable("Layers that the head reads", rows, notes, prose=True)


def clusters_table(result: Any, labels: Mapping[str, str], gold_column: str | None) -> ProbeTable:
    """Agreement of the clusters of two designs. labels: of the designs, by readable name."""
    rows = [
        (
            agreement.measure,
            with_interval(agreement.value, agreement.interval),
            with_interval(agreement.chance, agreement.chance_interval),
            f"{agreement.p:.3f}",
            *map(with_interval, agreement.themselves, agreement.themselves_intervals),
        )
        for agreement in result.agreement
    ]
    designs = [labels[name] for name in result.designs]
    gold = [
        f"AMI with '{gold_column}': {name} {percent(sum(scores) / len(scores))} ({interval_text(bounds)})."
        for name, scores, bounds in zip(designs, result.gold or (), result.gold_intervals or (), strict=False)
    ]
    notes = [
        f"{result.texts} distinct texts, {result.clusters} clusters, mean of {result.seeds} seeds. {designs[0]} against {designs[1]}.",
        "Below each number: 95 % over texts, for fixed clusters. By chance: one clustering is permuted (middle 95 %). "
        "A, B: the first and the second design compared with itself under another seed.",
        *gold,
        proof_note(result),
    ]
    head = ("", "agreement", "by chance", "p", "A with itself", "B with itself")
    return ProbeTable("Agreement of clusters x 100", rows, notes, head)


def prompts_table(result: Any) -> ProbeTable:
    """Sensitivity of similarities to the prompt."""
    estimates: list[tuple[str, Estimate | None]] = [
        *((f"mean over pairs of prompts, {features}", estimate) for features, estimate in result.within.items()),
        ("RW minus HS: above 0, RW is steadier", result.steadier),
        ("mean between HS and RW, any two prompts", result.between),
        ("mean between HS and RW, same prompt", result.same_prompt),
        *(
            (f"with gold: {features} {prompt}", estimate)
            for (features, prompt), estimate in zip(result.readings, result.gold or (), strict=False)
        ),
    ]
    rows = [
        (name, f"{estimate.value:.3f}", interval_text(estimate.interval, 1, 3))
        for name, estimate in estimates
        if estimate is not None
    ]
    notes = [
        f"{result.pairs} pairs, {len(result.prompts)} prompts. HS: hidden states, RW: routing weights.",
        proof_note(result),
    ]
    return ProbeTable("Spearman of similarities", rows, notes, prose=True)


def pairs_table(result: Any, labels: Mapping[str, str]) -> ProbeTable:
    """Pairs that one design ranks better than another."""
    rows = [
        (
            f"{pair.margin:+.2f}",
            f"{pair.score:g}",
            f"{pair.gold_rank:.2f}",
            f"{pair.ranks[0]:.2f}",
            f"{pair.ranks[1]:.2f}",
            f"{pair.first.strip()} | {pair.second.strip()}",
        )
        for pair in (*result.first, *reversed(result.second))
    ]
    first, second = (labels[name] for name in result.designs)

    def signed_text(estimate: Any, digits: int = 3) -> str:
        return f"{estimate.value:+.{digits}f} ({interval_text(estimate.interval, 1, digits)})"

    spearman = [f"{estimate.value:.3f} ({interval_text(estimate.interval, 1, 3)})" for estimate in result.spearman]
    notes = [
        f"A: {first}, Spearman {spearman[0]}. B: {second}, {spearman[1]}. A minus B {signed_text(result.difference)}.",
        f"A wins {result.wins[0]} of {result.pairs} pairs, B {result.wins[1]}; mean margin {signed_text(result.margin, 4)}; "
        f"symmetric around 0: p = {result.p:.3g} (Wilcoxon).",
        *(f"Spearman of A's margin with {name}: {signed_text(correlation)}." for name, correlation in result.goes_with.items()),
        proof_note(result),
    ]
    head = ("A wins by", "gold", "rank", "by A", "by B", "pair")
    return ProbeTable(
        "Pairs that one design ranks right and the other wrong (ranks: 1 is most similar)", rows, notes, head, True
    )


def layers_table(result: Any, design: str) -> ProbeTable:
    """How vectors change from layer to layer, and scores by layer."""
    rows = []
    for index in range(len(result.cosine)):
        cosines = [
            with_interval(estimates[index].value, estimates[index].interval, 1, 3) if index < len(estimates) else ""
            for estimates in (result.next_cosine, result.next_centred)
        ]
        marks = ["*" if index + 1 == task.best else "=" if index + 1 in task.level else " " for task in result.scores]
        scores = [
            with_interval(task.scores[index], task.intervals[index] if task.intervals else None, mark=mark)
            for task, mark in zip(result.scores, marks, strict=True)
        ]
        rows.append((str(index + 1), *cosines, f"{result.intrinsic[index]:.1f}", *scores))
    notes = [
        f"Cosine of each layer with the next, raw and centred by the layer's mean, over {result.texts} texts; {design}. "
        "Below each number: its 95 % interval. TwoNN: the intrinsic dimension of the vectors.",
        *(["Scores x 100; * the best layer, = not significantly worse (paired bootstrap)."] if result.scores else []),
        proof_note(result),
    ]
    return ProbeTable("Layers", rows, notes, ("layer", "cosine", "centred", "TwoNN", *(task.task for task in result.scores)))


def states_table(result: Any) -> ProbeTable:
    """How states change when attention becomes bidirectional."""
    from unmask.probing.state_change import name_of

    rows = [
        (
            str(layer),
            with_interval(mean.value, mean.interval, 1, 3),
            with_interval(floor, bounds, 1, 3),
            *(f"{cosine:.2f}" for cosine in cosines),
        )
        for layer, (mean, floor, bounds, cosines) in enumerate(
            zip(result.mean, result.unrelated, result.unrelated_intervals, result.cosine, strict=True), start=1
        )
    ]
    notes = [
        "Mean over all tokens; any two: a token's causal state and a random token's bidirectional state; then by position from 0. "
        "Below: 95 % over texts; the JSON has the intervals of positions.",
        f"{sum(result.tokens)} tokens of {result.texts} texts.",
        *_truncation_note(result),
        proof_note(result),
    ]
    head = ("layer", "mean", "any two", *map(name_of, result.bins))
    return ProbeTable("Cosine of causal and bidirectional states", rows, notes, head)


def range_text(bounds: Sequence[float], scale: float, digits: int) -> str:
    """LOW to HIGH."""
    return f"{scale * bounds[0]:.{digits}f} to {scale * bounds[1]:.{digits}f}"


def _truncation_note(result: Any) -> list[str]:
    return [f"{result.truncated} texts were cut to {result.max_length} tokens (--max-length)."] if result.truncated else []


def proof_note(result: Any) -> str:
    """How the attention of the model was proven."""
    return f"{result.provenance['model']}: {result.provenance['proof']}."
