"""`unmask probe routing`: records what the routers of a mixture do, and measures it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.options import AsJson, ModelOptions, refuse_given
from unmask.cli.probing.common import Seed, between, show
from unmask.designs.design import Attention
from unmask.io.terminal import tell_json

if TYPE_CHECKING:
    from unmask.moe.routing.record import RoutingRecord

Row = tuple[str, str, str, str]
_OF_A_NEW_RECORD = ("label", "column", "sample", "attention", *(field.name for field in fields(ModelOptions)))
_READ = {
    "confidence": "Largest probability of a token, mean over tokens.",
    "uncertainty": "Entropy of a token's probabilities / log n.",
    "balance": "Entropy of the mean probabilities / log n: 1 if experts are used alike.",
    "distinctness": "Balance minus uncertainty: 0 if all tokens are routed alike.",
    "max violation": "Largest load / mean load - 1.",
    "information": "How much the first choice tells about the label, 0 to 1.",
    "specialisation": "How far the experts of one label differ from those of all.",
    "repetition": "Neighbouring tokens with the same first choice, beyond their loads.",
}


def routing(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Mixture of experts: hub id or folder. Leave it out to read a finished record."),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(
            "--texts",
            "-t",
            help="File of rows or task folder; PATH#100 samples 100 rows. Repeat for several: the label `source` tells them apart.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Column of labels: one for each text, or a list with one for each word. Repeat for several."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for the record and its measures. Run the same command again to continue.",
        ),
    ] = Path("routing"),
    column: Annotated[
        list[str] | None, typer.Option(help="Column that holds the text. Default: text. Repeat if files differ.")
    ] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Record at most this many tokens, sampled with --seed.")] = None,
    attention: Annotated[Attention, typer.Option("--attention", "-a", help="Attention of the model.")] = "causal",
    against: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Another record of the same tokens. Shows how much both records agree."),
    ] = None,
    seed: Seed = 0,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Record which experts each token goes to, and measure how sure, balanced and specialised the routers are."""
    from unmask.errors import UnmaskError, require_package
    from unmask.moe.routing.record import read_record

    require_package("sklearn")
    if (model is None) != (not texts):
        raise UnmaskError("A record needs a model and texts: give -m and -t, or neither to read the finished record in -o.")
    if model is None:
        refuse_given(context, _OF_A_NEW_RECORD, "makes no difference to a finished record: give -m and -t to make a new one.")
    other = read_record(against) if against else None
    record = _recorded(model, texts, label, output, column, sample, attention, seed, options) if model else read_record(output)
    if other is not None:
        _show_agreement(record, other, seed, as_json)
    else:
        _show_measures(record, seed, as_json)


def _recorded(
    model: str,
    texts: list[str] | None,
    label: list[str] | None,
    output: Path,
    column: list[str] | None,
    sample: int | None,
    attention: Attention,
    seed: int,
    options: ModelOptions,
) -> RoutingRecord:
    from unmask.moe.routing.labelled_texts import read_labelled
    from unmask.moe.routing.recording import check_folder, record_routing
    from unmask.saving.load_model import load_model

    given = read_labelled(texts or [], label or [], column or ["text"], seed)
    check_folder(output)
    loaded = load_model(options.source(model), attention)
    return record_routing(
        loaded, given, output, sample=sample, seed=seed, max_length=options.max_length, batch_tokens=options.batch_tokens
    )


def _show_measures(record: RoutingRecord, seed: int, as_json: bool) -> None:
    from unmask.moe.routing.measures import measured_routing
    from unmask.moe.routing.text_bootstrap import Draws

    result = measured_routing(record, Draws(seed=seed))
    if as_json:
        tell_json(result)
        return
    rows = [_row(name, found) for name, found in result["general"].items()]
    for name, found in result["labels"].items():
        rows += [_row(f"{name}: {measure}", one) for measure, one in found["measures"].items()]
        rows += _readout_rows(name, found["readout"])
    settings = record.settings
    first = settings.points[0]
    notes = [
        f"{settings.model}: {len(settings.points)} routing points, {first.chosen} of {first.experts} experts a token; "
        f"{settings.tokens} tokens of {result['texts']} texts.",
        "Means over routing points. Chance is taken off: 0 means no more than shuffled labels (or loads) give.",
        *(f"{name}: {meaning}" for name, meaning in _READ.items()),
        *_notes_of_labels(result["labels"]),
        *_unused(record, result["unused"]),
        f"Written to {record.folder}/: record.json, parts, measures.json.",
    ]
    show("Routers", None, rows, notes, False, ("", "value", "95 %", "by chance"), prose=False)


def _show_agreement(record: RoutingRecord, other: RoutingRecord, seed: int, as_json: bool) -> None:
    from unmask.moe.routing.agreement import compare_records
    from unmask.moe.routing.text_bootstrap import Draws

    found = compare_records(record, other, Draws(seed=seed))
    result = found.as_json()
    notes = [
        f"{found.tokens} tokens in {record.folder} and {other.folder}; means over routing points.",
        "kappa and AMI: agreement of first choices, 0 by chance; experts are matched first, since two runs name them differently.",
        f"saturation: share of the experts chosen in {other.folder} that are chosen in {record.folder} too, beyond chance.",
    ]
    rows = [_row(name, one) for name, one in result["measures"].items()]
    show("Agreement of two records", found, rows, notes, as_json, ("", "value", "95 %", "by chance"), prose=False)


def _row(name: str, found: dict[str, Any]) -> Row:
    bounds = found["interval"]
    width = between((bounds[0], bounds[1]), 1, 3).removeprefix("95 %: ") if bounds else ""
    return name, f"{found['corrected']:.3f}", width, f"{found['chance']:.3f}" if found["chance"] else ""


def _readout_rows(label: str, readout: dict[str, Any] | None) -> list[Row]:
    if readout is None:
        return []
    names = {"routing": "routing weights", "hidden": "hidden states"}
    rows = [_row(f"{label}: probe, {names[one]}", found) for one, found in readout["probes"].items()]
    return rows + [_row(f"{label}: clusters, {names[one]}", found) for one, found in readout["groups"].items()]


def _unused(record: RoutingRecord, unused: list[list[int]]) -> list[str]:
    if not unused:
        return []
    point, expert = unused[0]
    return [f"{len(unused)} experts were never chosen, such as expert {expert} of {record.points[point].name}."]


def _notes_of_labels(labels: dict[str, Any]) -> list[str]:
    notes = []
    for name, found in labels.items():
        if readout := found["readout"]:
            always = f"always the most frequent label: {readout['majority']:.3f}"
            few = "; no probe, since a label has fewer than five texts" if not readout["probes"] else ""
            notes.append(f"{name}: probes show accuracy on texts not seen ({always}){few}. Clusters show AMI.")
    return notes
