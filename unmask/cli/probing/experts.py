"""`unmask probe experts`: what each expert of a mixture is for."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import AsJson, ModelOptions
from unmask.cli.probing.common import Seed, between, show

if TYPE_CHECKING:
    from unmask.moe.routing.record import ExpertLosses
    from unmask.moe.routing.text_bootstrap import Measured

_SHOWN = 15


def experts(
    model: Annotated[str, typer.Option("--model", "-m", help="Mixture of experts that predicts tokens: hub id or folder.")],
    texts: Annotated[
        list[str],
        typer.Option("--texts", "-t", help="File of rows or task folder; PATH#100 samples 100 rows. Repeat for several."),
    ],
    label: Annotated[list[str] | None, typer.Option(help="Column with a label for each text. Repeat for several.")] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for the result. The atlas of a routing record in it shows the losses.",
        ),
    ] = Path("routing"),
    column: Annotated[
        list[str] | None, typer.Option(help="Column that holds the text. Default: text. Repeat if files differ.")
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Remove expert 1 of all layers together, then expert 2, and so on. Use it if each expert came from one branch.",
        ),
    ] = False,
    seed: Seed = 0,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Remove each expert in turn: how much worse the model predicts texts without it, and how different experts are."""
    from unmask.moe.routing.expert_losses import measure_experts
    from unmask.moe.routing.labelled_texts import read_labelled
    from unmask.moe.routing.recording import check_folder
    from unmask.saving.load_model import load_predicting_model

    given = read_labelled(texts, label or [], column or ["text"], seed)
    if given.token_labels:
        warnings.warn(
            f"Labels of words are left out, since a loss is that of a text: {', '.join(given.token_labels)}.", stacklevel=2
        )
    check_folder(output)
    loaded = load_predicting_model(options.source(model), "causal")
    found = measure_experts(
        loaded, given, output, together=together, seed=seed, max_length=options.max_length, batch_tokens=options.batch_tokens
    )
    head = ("layer", "expert", "loss grows", "95 %", "most for", "there")
    show("Without an expert", found, _rows(found), _notes(found, output), as_json, head, prose=False)


def _rows(found: ExpertLosses) -> list[tuple[str, ...]]:
    order = sorted(range(len(found.removals)), key=lambda place: -found.changes[place].value)
    return [_row(found, place) for place in order[:_SHOWN]]


def _row(found: ExpertLosses, place: int) -> tuple[str, ...]:
    removal, change = found.removals[place], found.changes[place]
    layer = str(found.points[removal.points[0]].layer) if len(removal.points) == 1 else "all"
    name = found.experts[removal.expert] if found.experts else str(removal.expert)
    width = " to ".join(map(_signed, change.interval or ()))
    missed = [
        (one.value, f"{label}: {value}")
        for label, losses in found.labels.items()
        for value, one in zip(losses.values, losses.changes[place], strict=True)
        if _is_above_0(one)
    ]
    most, there = max(missed, default=(0.0, ""))
    return layer, name, _signed(change.value), width, there, _signed(most) if there else ""


def _is_above_0(change: Measured) -> bool:
    return change.interval is not None and change.interval[0] > 0


def _signed(change: float) -> str:
    """A change with its sign; 0 has none."""
    text = f"{change:+.3f}"
    return text if text.strip("+-0.") else "0.000"


def _notes(found: ExpertLosses, output: Path) -> list[str]:
    from unmask.io.terminal import counted
    from unmask.moe.routing.record import EXPERTS

    more = len(found.removals) - _SHOWN
    left_out = f" Left out: {found.left_out} of one token." if found.left_out else ""
    read = f"{counted(found.texts, 'text')} of {found.tokens} tokens"
    return [
        f"{found.model}: {_with_interval(found.loss, 3)} nats per token with all experts, on {read}.{left_out}",
        f"The table shows how much this loss grows without an expert. {_instead(found)}",
        "Each interval is that of one expert alone. Of many experts, some lie above 0 by chance.",
        *_differences(found),
        *([f"{more} experts that matter less are in {EXPERTS} only."] if more > 0 else []),
        f"Written to {output}/: {EXPERTS}. If a routing record lies there, `unmask report {shlex.quote(str(output))}` shows these losses.",
    ]


def _instead(found: ExpertLosses) -> str:
    if all(point.chosen == point.experts for point in found.points):
        return "All experts act, so the gates of the others grow instead."
    return "The best expert that was not chosen takes its place."


def _differences(found: ExpertLosses) -> list[str]:
    """How different the experts are: the mean over layers with its interval, or over linear maps, and the range."""
    if found.overlaps:
        values = list(found.overlaps.values())
        mean = f"{sum(values) / len(values):.2f} in common ({_range(values)} by linear map)"
        return [f"Directions that experts write to: {mean}. 1: the same directions. Weights alone, so no interval."]
    if found.differences is None:
        return []
    whole, points = found.differences, found.differences.points
    measures: list[tuple[str, Measured | None, list[Measured | None]]] = [
        ("cosine", whole.cosine, [one.cosine for one in points]),
        ("CKA", whole.cka, [one.cka for one in points]),
    ]
    said = [
        f"{name} {_with_interval(mean, 2)}, {_range([one.value for one in own if one])} by layer"
        for name, mean, own in measures
        if mean
    ]
    return [f"Outputs of a layer's experts for the same tokens: {'; '.join(said)}. 1: copies."]


def _with_interval(found: Measured, digits: int) -> str:
    width = f" ({between(found.interval, 1, digits)})" if found.interval else ""
    return f"{found.value:.{digits}f}{width}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
