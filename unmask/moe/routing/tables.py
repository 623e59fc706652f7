"""Tables of routing records and expert losses for a terminal."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.io.terminal import counted
from unmask.moe.routing.record import EXPERTS
from unmask.reporting.probe_tables import ProbeTable, interval_text, proof_note, range_text

if TYPE_CHECKING:
    from unmask.moe.routing.agreement import Agreement
    from unmask.moe.routing.record import ExpertLosses, RoutingRecord

_SHOWN_EXPERTS = 15
_HEAD = ("", "value", "95 %", "by chance")
MEANINGS = {
    "confidence": "The largest probability of a token, mean over tokens. 1: each router is sure of one expert.",
    "uncertainty": "Entropy of a token's probabilities / log n. 0: sure; 1: all experts are equally likely.",
    "balance": "Entropy of the mean probabilities / log n. 1: all experts are used equally; 0: one expert takes all.",
    "distinctness": "Balance minus uncertainty. 0: all tokens are routed in the same way; 1: each has one expert, and all are used.",
    "max violation": "Largest load / mean load - 1. 0: even. 1: one expert has twice its share.",
    "repetition": "Neighbouring tokens with one first choice, beyond what loads give. 0: by chance.",
    "vocabulary specialisation": "How much the token id decides the expert. 1: a word always goes to the same one.",
    "layer agreement": "How much the expert of one layer tells about the expert of the next. 1: everything.",
    "information": "How much the first choice tells about the label. 0: nothing; 1: everything.",
    "specialisation": "How far the experts of one label differ from the average. 0: not at all.",
    "probe, routing weights": "Accuracy of a linear probe on routing weights of held-out texts.",
    "probe, hidden states": "The same on hidden states: how much there is to know.",
}
"""How to read each measure. docs/routers.md has the formulas."""


def routing_table(record: RoutingRecord, result: dict[str, Any]) -> ProbeTable:
    """Measures of a routing record."""
    rows = [_measure_row(name, measure) for name, measure in result["general"].items()]
    measure_names = dict.fromkeys(
        [*result["general"], *(name for label in result["labels"].values() for name in label["measures"])]
    )
    label_notes = []
    for label, measures in result["labels"].items():
        rows += [_measure_row(f"{label}: {name}", measure) for name, measure in measures["measures"].items()]
        if readout := measures["readout"]:
            for key, probe in readout["probes"].items():
                rows.append(
                    _measure_row(f"{label}: probe, {'routing weights' if key == 'routing' else 'hidden states'}", probe)
                )
            why = "" if readout["probes"] else "; no probe, since a label has fewer than five texts"
            label_notes.append(
                f"{label}: probes show accuracy on held-out texts (always the most frequent label: {readout['majority']:.3f}){why}."
            )
    settings = record.settings
    first = settings.points[0]
    notes = [
        f"{settings.model}: {len(settings.points)} routing points, {first.chosen} of {first.experts} experts per token; "
        f"{settings.tokens} tokens of {result['texts']} texts.",
        "Means over routing points, corrected for chance: 0 is what shuffled labels (or loads) give.",
        *(f"{name}: {MEANINGS[name]}" for name in measure_names),
        *label_notes,
    ]
    if unused := result["unused"]:
        point, expert = unused[0]
        notes.append(f"{len(unused)} experts were never chosen, such as expert {expert} of {record.points[point].name}.")
    notes.append(f"Written to {record.folder}/: record.json, parts, measures.json.")
    return ProbeTable("Routers", rows, notes, _HEAD)


def agreement_table(result: Agreement) -> ProbeTable:
    """Agreement of two routing records."""
    notes = [
        f"{result.tokens} tokens in {' and '.join(result.folders)}; mean over routing points.",
        "AMI: agreement of first choices, 0 by chance. Experts need not be matched: two runs number them differently.",
    ]
    return ProbeTable("Agreement of two records", [_measure_row("AMI", result.ami.as_json())], notes, _HEAD)


def experts_table(result: ExpertLosses, output: Path) -> ProbeTable:
    """How much worse a model predicts without each expert."""
    order = sorted(range(len(result.removals)), key=lambda index: -result.changes[index].value)
    rows = [_expert_row(result, index) for index in order[:_SHOWN_EXPERTS]]
    if all(point.chosen == point.experts for point in result.points):
        replacement = "All experts act, so the gates of the others grow instead."
    else:
        replacement = "The best expert that was not chosen replaces it."
    interval = f" ({interval_text(result.loss.interval, 1, 3)})" if result.loss.interval else ""
    left_out = f" Left out: {result.left_out} texts of one token." if result.left_out else ""
    notes = [
        f"{result.model}: {result.loss.value:.3f}{interval} nats per token with all experts, on {counted(result.texts, 'text')} of "
        f"{result.tokens} tokens.{left_out}",
        f"The table shows the increase of this loss without an expert. {replacement}",
        "Each interval covers one expert alone. Among many experts, some lie above 0 by chance.",
    ]
    if (omitted := len(result.removals) - _SHOWN_EXPERTS) > 0:
        notes.append(f"{omitted} further experts are in {EXPERTS} only.")
    notes.append(
        f"Written to {output}/: {EXPERTS}. If the folder has a routing record, `unmask report {shlex.quote(str(output))}` shows "
        "these losses."
    )
    notes.append(proof_note(result))
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
    interval = range_text(measure["interval"], 1, 3) if measure["interval"] else ""
    return name, f"{measure['corrected']:.3f}", interval, f"{measure['chance']:.3f}" if measure["chance"] else ""


def _signed(change: float) -> str:
    text = f"{change:+.3f}"
    return text if text.strip("+-0.") else "0.000"
