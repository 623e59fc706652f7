"""`unmask probe experts`: what each expert of a mixture is for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import AsJson, ModelOptions
from unmask.cli.probing.common import Seed, show

if TYPE_CHECKING:
    from unmask.probing.routing.expert_losses import ExpertLosses

_SHOWN = 15
EXPERTS = "experts.json"


def experts(
    model: Annotated[str, typer.Option("--model", "-m", help="Mixture of experts that predicts tokens: hub id or folder.")],
    texts: Annotated[
        list[str],
        typer.Option("--texts", "-t", help="File of rows or task folder; PATH#100 samples 100 rows. Repeat for several."),
    ],
    label: Annotated[list[str] | None, typer.Option(help="Column with a label for each text. Repeat for several.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the result. That of a routing record shows it.")
    ] = Path("routing"),
    column: Annotated[
        list[str] | None, typer.Option(help="Column that holds the text. Default: text. Repeat if files differ.")
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Remove an expert in all layers at once. Right if its copies have one origin.")
    ] = False,
    seed: Seed = 0,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Remove each expert in turn: how much worse the model predicts texts without it, and how different experts are."""
    from unmask.probing.routing.expert_losses import measure_experts
    from unmask.probing.routing.labelled_texts import read_labelled
    from unmask.probing.routing.recording import check_folder
    from unmask.saving.load_model import load_predicting_model

    given = read_labelled(texts, label or [], column or ["text"], seed)
    check_folder(output)
    loaded = load_predicting_model(options.source(model), "causal")
    found = measure_experts(
        loaded, given, output, together=together, seed=seed, max_length=options.max_length, batch_tokens=options.batch_tokens
    )
    head = ("layer", "expert", "loss", "95 %", "most for", "loss there")
    show("Without an expert", found, _rows(found), _notes(found, output), as_json, head, prose=False)


def _rows(found: ExpertLosses) -> list[tuple[str, ...]]:
    order = sorted(range(len(found.removals)), key=lambda place: -found.changes[place].value)
    return [_row(found, place) for place in order[:_SHOWN]]


def _row(found: ExpertLosses, place: int) -> tuple[str, ...]:
    removal, change = found.removals[place], found.changes[place]
    layer = str(found.points[removal.points[0]].layer) if len(removal.points) == 1 else "all"
    name = found.experts[removal.expert] if found.experts else str(removal.expert)
    width = " to ".join(map(_signed, change.interval or ()))
    by_value = [
        (one.value, f"{label}: {value}")
        for label, losses in found.labels.items()
        for value, one in zip(losses.values, losses.changes[place], strict=True)
    ]
    most, there = max(by_value, default=(0.0, ""))
    return layer, name, _signed(change.value), width, there, _signed(most) if there else ""


def _signed(change: float) -> str:
    """A change with its sign; 0 has none."""
    text = f"{change:+.3f}"
    return text if text.strip("+-0.") else "0.000"


def _notes(found: ExpertLosses, output: Path) -> list[str]:
    more = len(found.removals) - _SHOWN
    left_out = f" Left out: {found.left_out} of one token." if found.left_out else ""
    return [
        f"{found.model}: {found.loss:.3f} nats per token with all experts, on {found.texts} texts of {found.tokens} tokens.{left_out}",
        "The table shows how much this loss grows without an expert. The best expert that was not chosen takes its place.",
        *(_dominance(found, label) for label in found.labels),
        *_differences(found),
        *([f"{more} experts that matter less are in {EXPERTS} only."] if more > 0 else []),
        f"Written to {output}/: {EXPERTS}. If a routing record lies there, `unmask report {output}` shows these losses.",
    ]


def _dominance(found: ExpertLosses, label: str) -> str:
    share = found.dominance(label)
    if share is None:
        return f"dominance of {label}: not known, since no two values surely miss an expert of one layer."
    return f"dominance of {label}: {share:.2f}. 0: one expert matters most for all values; 1: each has its own."


def _differences(found: ExpertLosses) -> list[str]:
    """How different the experts are: the mean over layers, or over linear maps, and its range."""
    if found.overlaps:
        return [f"Directions that experts write to: {_mean_of(found.overlaps.values())} in common. 1: the same directions."]
    if not found.differences:
        return []
    cosine, cka = (_mean_of(values) for values in zip(*((one.cosine.value, one.cka) for one in found.differences), strict=True))
    return [f"Outputs of a layer's experts for the same tokens: cosine {cosine}, CKA {cka}. 1: copies."]


def _mean_of(values: Iterable[float]) -> str:
    found = list(values)
    return f"{sum(found) / len(found):.2f} ({min(found):.2f} to {max(found):.2f})"
