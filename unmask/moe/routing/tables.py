"""Tables of routing records and expert losses for a terminal."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.io.terminal import counted
from unmask.moe.routing.record import EXPERTS
from unmask.reporting.probe_tables import ProbeTable, interval_text, proof_note, range_text

if TYPE_CHECKING:
    from unmask.moe.routing.record import ExpertLosses, RoutingRecord
    from unmask.moe.routing.text_bootstrap import Measured

_SHOWN_EXPERTS = 15
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
            probe_note = "" if readout["probes"] else "; no probe, since a label has fewer than five texts"
            label_notes.append(
                f"{label}: probes show accuracy on held-out texts (always the most frequent label: {readout['majority']:.3f}){probe_note}. "
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


def agreement_table(result: Any, record: RoutingRecord, other_record: RoutingRecord) -> ProbeTable:
    """Agreement of two routing records."""
    rows = [_measure_row(name, measure) for name, measure in result.as_json()["measures"].items()]
    notes = [
        f"{result.tokens} tokens in {record.folder} and {other_record.folder}; means over routing points.",
        "kappa and AMI: agreement of first choices, 0 by chance; experts are matched first, since two runs number them differently.",
        f"saturation: share of the experts chosen in {other_record.folder} that are also chosen in {record.folder}, beyond chance.",
    ]
    return ProbeTable("Agreement of two records", rows, notes, ("", "value", "95 %", "by chance"))


def experts_table(result: ExpertLosses, output: Path) -> ProbeTable:
    """How much worse a model predicts without each expert."""
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
        for name, total_measure, by_layer in (
            ("cosine", total.cosine, [point.cosine for point in points]),
            ("CKA", total.cka, [point.cka for point in points]),
        ):
            if total_measure:
                values = [measured.value for measured in by_layer if measured]
                measures.append(f"{name} {_measured(total_measure, 2)}, {min(values):.2f} to {max(values):.2f} by layer")
        notes.append(f"Outputs of a layer's experts for the same tokens: {'; '.join(measures)}. 1: copies.")
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
    bounds = measure["interval"]
    interval = range_text(bounds, 1, 3) if bounds else ""
    return name, f"{measure['corrected']:.3f}", interval, f"{measure['chance']:.3f}" if measure["chance"] else ""


def _measured(measured: Measured, digits: int) -> str:
    interval = f" ({interval_text(measured.interval, 1, digits)})" if measured.interval else ""
    return f"{measured.value:.{digits}f}{interval}"


def _signed(change: float) -> str:
    text = f"{change:+.3f}"
    return text if text.strip("+-0.") else "0.000"
