"""Results of probes: small tables with notes for a terminal, and a folder with JSON and figures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from unmask.moe.routing.expert_record import ExpertLosses
    from unmask.moe.routing.record import RoutingRecord
    from unmask.moe.routing.statistics.text_bootstrap import Measured
    from unmask.statistics.intervals import Estimate

_SHORT = 12  # characters of a first column that is never wrapped
_SHOWN_EXPERTS = 15
_KEY_OF_ALL_RESULTS = '"attn_implementation"'
_MEASURES = {
    "confidence": "Largest probability of a token, mean over tokens.",
    "uncertainty": "Entropy of a token's probabilities / log n.",
    "balance": "Entropy of the mean probabilities / log n: 1 if all experts are used equally.",
    "distinctness": "Balance minus uncertainty: 0 if all tokens are routed in the same way.",
    "max violation": "Largest load / mean load - 1.",
    "information": "Information of the first choice about the label, 0 to 1.",
    "specialisation": "How far the experts of one label differ from all others.",
    "repetition": "Neighbouring tokens with the same first choice, beyond their loads.",
}


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
    """Raise UnmaskError, before any work, if `save_probe` would replace a file that unmask did not write."""
    from unmask.io.files import refuse_foreign
    from unmask.reporting.plotting import MADE_BY, METADATA

    refuse_foreign(folder / f"{name}.json", [_KEY_OF_ALL_RESULTS])
    for suffix in METADATA:
        refuse_foreign(folder / f"{name}.{suffix}", [MADE_BY])


def save_probe(result: Any, folder: Path, name: str, draw: Callable[[], Sequence[Path]]) -> str:
    """Write a result as JSON, then its figures. Returns a note."""
    from unmask.io.files import write_json

    write_json(folder / f"{name}.json", result.as_json())
    return f"Written to {folder}/: {name}.json, {', '.join(file.name for file in draw())}."


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f}"


def interval_text(bounds: tuple[float, float] | None, scale: float = 100, digits: int = 1) -> str:
    """A 95 % interval in words, or nothing."""
    return "" if bounds is None else f"95 %: {_range(bounds, scale, digits)}"


def with_interval(
    value: float, bounds: tuple[float, float] | None, scale: float = 100, digits: int = 1, mark: str = ""
) -> RenderableType:
    """A number with its 95 % interval on a second line."""
    from unmask.io.terminal import two_lines

    number = f"{scale * value:.{digits}f}{mark}"
    return two_lines(number, _range(bounds, scale, digits)) if bounds else number


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
        f"{result.train_words} words of {result.train_sentences} sentences, C {result.c:g} "
        f"({'chosen' if result.c_chosen else 'given'}), layer {result.layer}{', states shifted by -1' if result.shift else ''}.",
        *([f"{result.unseen} words have a tag that training lacks; they count as errors."] if result.unseen else []),
        *([] if result.converged else ["The fit did not converge."]),
        _proof(result),
    ]
    return ProbeTable("Linear probe on words", rows, notes, prose=True)


def prefix_table(result: Any, triples: int) -> ProbeTable:
    """Shared prefixes, at several stages of training."""
    rows = [
        (
            stage.name,
            with_interval(stage.found.same, stage.found.same_interval, 1, 4),
            with_interval(stage.found.different, stage.found.different_interval, 1, 4),
            with_interval(stage.found.gap, stage.found.interval, 1, 4),
            with_interval(stage.found.accuracy, stage.found.accuracy_interval),
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
        if not any(stage.found.gaps)
    ]
    notes += [f"{stage.name}: layer {stage.found.layer}, {stage.found.provenance['proof']}." for stage in result.stages]
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
        _proof(result),
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
        *_truncated(result),
        _proof(result),
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
        _proof(result),
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
        _proof(result),
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
        _proof(result),
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
            f"{pair.one.strip()} | {pair.other.strip()}",
        )
        for pair in (*result.first, *reversed(result.second))
    ]
    first, second = (labels[name] for name in result.designs)

    def signed(estimate: Any, digits: int = 3) -> str:
        return f"{estimate.value:+.{digits}f} ({interval_text(estimate.interval, 1, digits)})"

    spearman = [f"{estimate.value:.3f} ({interval_text(estimate.interval, 1, 3)})" for estimate in result.spearman]
    notes = [
        f"A: {first}, Spearman {spearman[0]}. B: {second}, {spearman[1]}. A minus B {signed(result.difference)}.",
        f"A wins {result.wins[0]} of {result.pairs} pairs, B {result.wins[1]}; mean margin {signed(result.margin, 4)}; "
        f"symmetric around 0: p = {result.p:.3g} (Wilcoxon).",
        *(f"Spearman of A's margin with {name}: {signed(correlation)}." for name, correlation in result.goes_with.items()),
        _proof(result),
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
        rows.append((str(index + 1), *cosines, *scores))
    notes = [
        f"Cosine of each layer with the next, raw and centred by the layer's mean, over {result.texts} texts; {design}. "
        "Below each number: its 95 % interval.",
        *(["Scores x 100; * the best layer, = not significantly worse (paired bootstrap)."] if result.scores else []),
        _proof(result),
    ]
    return ProbeTable("Layers", rows, notes, ("layer", "cosine", "centred", *(task.task for task in result.scores)))


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
        *_truncated(result),
        _proof(result),
    ]
    head = ("layer", "mean", "any two", *map(name_of, result.bins))
    return ProbeTable("Cosine of causal and bidirectional states", rows, notes, head)


def routing_table(record: RoutingRecord, result: dict[str, Any]) -> ProbeTable:
    """Measures of a routing record."""
    sources = {"routing": "routing weights", "hidden": "hidden states"}
    rows = [_measure_row(name, measure) for name, measure in result["general"].items()]
    label_notes = []
    for label, measures in result["labels"].items():
        rows += [_measure_row(f"{label}: {name}", measure) for name, measure in measures["measures"].items()]
        if readout := measures["readout"]:
            rows += [_measure_row(f"{label}: probe, {sources[key]}", probe) for key, probe in readout["probes"].items()]
            rows += [_measure_row(f"{label}: clusters, {sources[key]}", group) for key, group in readout["groups"].items()]
            few = "" if readout["probes"] else "; no probe, since a label has fewer than five texts"
            label_notes.append(
                f"{label}: probes show accuracy on held-out texts (always the most frequent label: {readout['majority']:.3f}){few}. "
                "Clusters show AMI."
            )
    settings = record.settings
    first = settings.points[0]
    notes = [
        f"{settings.model}: {len(settings.points)} routing points, {first.chosen} of {first.experts} experts per token; "
        f"{settings.tokens} tokens of {result['texts']} texts.",
        "Means over routing points, corrected for chance: 0 is what shuffled labels (or loads) give.",
        *(f"{name}: {meaning}" for name, meaning in _MEASURES.items()),
        *label_notes,
    ]
    if unused := result["unused"]:
        point, expert = unused[0]
        notes.append(f"{len(unused)} experts were never chosen, such as expert {expert} of {record.points[point].name}.")
    notes.append(f"Written to {record.folder}/: record.json, parts, measures.json.")
    return ProbeTable("Routers", rows, notes, ("", "value", "95 %", "by chance"))


def agreement_table(result: Any, record: RoutingRecord, other: RoutingRecord) -> ProbeTable:
    """Agreement of two routing records."""
    rows = [_measure_row(name, measure) for name, measure in result.as_json()["measures"].items()]
    notes = [
        f"{result.tokens} tokens in {record.folder} and {other.folder}; means over routing points.",
        "kappa and AMI: agreement of first choices, 0 by chance; experts are matched first, since two runs number them differently.",
        f"saturation: share of the experts chosen in {other.folder} that are also chosen in {record.folder}, beyond chance.",
    ]
    return ProbeTable("Agreement of two records", rows, notes, ("", "value", "95 %", "by chance"))


def experts_table(result: ExpertLosses, output: Path) -> ProbeTable:
    """How much worse a model predicts without each expert."""
    from unmask.io.terminal import counted
    from unmask.moe.routing.record import EXPERTS

    order = sorted(range(len(result.removals)), key=lambda index: -result.changes[index].value)
    rows = [_expert_row(result, index) for index in order[:_SHOWN_EXPERTS]]
    if all(point.chosen == point.experts for point in result.points):
        replacement = "All experts act, so the gates of the others grow instead."
    else:
        replacement = "The best expert that was not chosen replaces it."
    left_out = f" Left out: {result.left_out} texts of one token." if result.left_out else ""
    notes = [
        f"{result.model}: {_measured(result.loss, 3)} nats per token with all experts, on {counted(result.texts, 'text')} of "
        f"{result.tokens} tokens.{left_out}",
        f"The table shows the increase of this loss without an expert. {replacement}",
        "Each interval covers one expert alone. Among many experts, some lie above 0 by chance.",
    ]
    if result.overlaps:
        values = list(result.overlaps.values())
        mean = f"{sum(values) / len(values):.2f} in common ({min(values):.2f} to {max(values):.2f} by linear map)"
        notes.append(
            f"Directions that experts write to: {mean}. 1: the same directions. From weights alone, so without interval."
        )
    elif result.differences is not None:
        total, points = result.differences, result.differences.points
        measures = []
        for name, mean, by_layer in (
            ("cosine", total.cosine, [point.cosine for point in points]),
            ("CKA", total.cka, [point.cka for point in points]),
        ):
            if mean:
                values = [measured.value for measured in by_layer if measured]
                measures.append(f"{name} {_measured(mean, 2)}, {min(values):.2f} to {max(values):.2f} by layer")
        notes.append(f"Outputs of a layer's experts for the same tokens: {'; '.join(measures)}. 1: copies.")
    if (more := len(result.removals) - _SHOWN_EXPERTS) > 0:
        notes.append(f"{more} further experts are in {EXPERTS} only.")
    notes.append(
        f"Written to {output}/: {EXPERTS}. If the folder has a routing record, `unmask report {shlex.quote(str(output))}` shows "
        "these losses."
    )
    notes.append(_proof(result))
    return ProbeTable("Without an expert", rows, notes, ("layer", "expert", "loss grows", "95 %", "most for", "there"))


def _expert_row(result: ExpertLosses, index: int) -> tuple[str, ...]:
    removal, change = result.removals[index], result.changes[index]
    layer = str(result.points[removal.points[0]].layer) if len(removal.points) == 1 else "all"
    name = result.experts[removal.expert] if result.experts else str(removal.expert)
    significant = [
        (measured.value, f"{label}: {value}")
        for label, losses in result.labels.items()
        for value, measured in zip(losses.values, losses.changes[index], strict=True)
        if measured.interval is not None and measured.interval[0] > 0
    ]
    largest, label = max(significant, default=(0.0, ""))
    interval = " to ".join(map(_signed, change.interval or ()))
    return layer, name, _signed(change.value), interval, label, _signed(largest) if label else ""


def _measure_row(name: str, measure: dict[str, Any]) -> tuple[str, str, str, str]:
    bounds = measure["interval"]
    interval = _range(bounds, 1, 3) if bounds else ""
    return name, f"{measure['corrected']:.3f}", interval, f"{measure['chance']:.3f}" if measure["chance"] else ""


def _measured(measured: Measured, digits: int) -> str:
    interval = f" ({interval_text(measured.interval, 1, digits)})" if measured.interval else ""
    return f"{measured.value:.{digits}f}{interval}"


def _signed(change: float) -> str:
    text = f"{change:+.3f}"
    return text if text.strip("+-0.") else "0.000"


def _range(bounds: Sequence[float], scale: float, digits: int) -> str:
    return f"{scale * bounds[0]:.{digits}f} to {scale * bounds[1]:.{digits}f}"


def _truncated(result: Any) -> list[str]:
    return [f"{result.truncated} texts were cut to {result.max_length} tokens (--max-length)."] if result.truncated else []


def _proof(result: Any) -> str:
    return f"{result.provenance['model']}: {result.provenance['proof']}."
