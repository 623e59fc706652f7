"""Expert losses: what texts lose without each expert, and how different the experts are. A file beside a routing record keeps both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from unmask.encoding.loaded_model import LoadedModel
from unmask.errors import UnmaskError
from unmask.io.records import Record
from unmask.models.loading import dtype_name
from unmask.probing.routing.ablation import LabelLosses, Removal, ablate_experts, dominance
from unmask.probing.routing.expert_differences import LayerDifference, factor_overlaps, output_differences
from unmask.probing.routing.labelled_texts import LabelledText, LabelledTexts
from unmask.probing.routing.record import EXPERTS, RECORD, Point, RecordSettings
from unmask.probing.routing.recording import check_folder, routing_points
from unmask.statistics.routing.text_bootstrap import Measured

_COMPARED = 2000
"""Tokens on which the outputs of experts are compared. All outputs of one layer are in memory."""


class ExpertLosses(Record):
    """What an ablation of experts found.

    weights: the identity of the model. points: the routing points. experts: names of the experts, if they have some. texts, tokens: that
    were read; left_out: texts of one token, which have no loss. loss: nats per token with all experts, mean over texts. changes: of
    the loss, for each removal. labels: the same by label. differences: of the experts' outputs, for a native mixture. overlaps: of the
    directions that LoRA experts write to, by linear map.
    """

    format: Literal[1] = 1
    model: str
    weights: str
    dtype: str
    max_length: int
    seed: int
    sources: tuple[str, ...]
    texts: int
    tokens: int
    left_out: int
    points: tuple[Point, ...]
    experts: tuple[str, ...] | None
    loss: float
    removals: tuple[Removal, ...]
    changes: tuple[Measured, ...]
    labels: dict[str, LabelLosses]
    differences: tuple[LayerDifference, ...]
    overlaps: dict[str, float]
    provenance: dict[str, Any]

    def dominance(self, label: str) -> float | None:
        """How far the values of a label differ in the expert that they miss most: 0 to 1; None if that is not certain."""
        return dominance(self.removals, self.labels[label])


def check_experts_folder(folder: Path, weights: str) -> None:
    """Raise UnmaskError for a folder with other files, or with a routing record of another model."""
    check_folder(folder)
    record = RecordSettings.read(folder / RECORD)
    if record is not None and record.weights != weights:
        raise UnmaskError(f"'{folder}' holds a routing record of '{record.model}' with other weights: give another folder.")


def measure_experts(
    model: LoadedModel,
    given: LabelledTexts,
    folder: Path,
    *,
    together: bool = False,
    seed: int = 0,
    max_length: int | None = None,
    batch_tokens: int | None = None,
) -> ExpertLosses:
    """Remove each expert in turn, compare the experts, and write `experts.json` into a folder. together: see `ablate_experts`.

    Labels of words are left out: the loss is that of a text. Raises UnmaskError for a dense model, for a folder of somebody else, and if no
    text has two tokens.
    """
    weights = str(model.provenance["weights"])
    check_experts_folder(folder, weights)
    texts, tokens = _with_loss(model, given.texts, max_length)
    plain = [text.text for text in texts]
    ablation = ablate_experts(model, plain, together=together, max_length=max_length, batch_tokens=batch_tokens or 2048)
    mixture = getattr(model.backbone.model, "mixture", None)
    labels = {name: [text.values[place] for text in texts] for place, name in enumerate(given.labels)}
    found = ExpertLosses(
        model=model.source.model,
        weights=weights,
        dtype=dtype_name(model.backbone.model),
        max_length=model.prompt_tokenizer("plain", max_length).max_length,
        seed=seed,
        sources=given.sources,
        texts=len(texts),
        tokens=sum(tokens),
        left_out=len(given.texts) - len(texts),
        points=tuple(routing_points(model.backbone).values()),
        experts=tuple(expert.name for expert in mixture.experts) if mixture else None,
        loss=float(ablation.loss.mean()),
        removals=ablation.removals,
        changes=ablation.changes(seed),
        labels={name: ablation.by_label(values, seed) for name, values in labels.items()},
        differences=() if mixture else tuple(output_differences(model, _few(plain, tokens), seed)),
        overlaps=factor_overlaps(mixture.experts) if mixture and len(mixture.experts) > 1 else {},
        provenance=model.provenance,
    )
    folder.mkdir(parents=True, exist_ok=True)
    found.write(folder / EXPERTS)
    return found


def read_expert_losses(folder: Path) -> ExpertLosses | None:
    """What `experts.json` of a folder holds; None without it, and with a warning if it is damaged."""
    return ExpertLosses.read(folder / EXPERTS)


def _with_loss(
    model: LoadedModel, texts: Sequence[LabelledText], max_length: int | None
) -> tuple[list[LabelledText], list[int]]:
    """The texts of two tokens or more, and their numbers of tokens. Raises UnmaskError if there is none."""
    tokenized = model.prompt_tokenizer("plain", max_length).tokenize([text.text for text in texts])
    kept = [(text, len(tokens.ids)) for text, tokens in zip(texts, tokenized, strict=True) if len(tokens.ids) > 1]
    if not kept:
        raise UnmaskError("No text has two tokens, so there is no loss to measure.")
    return [text for text, _ in kept], [tokens for _, tokens in kept]


def _few(texts: Sequence[str], tokens: Sequence[int]) -> list[str]:
    """The first texts, up to so many tokens that the outputs of all experts fit in memory; one text at least."""
    few: list[str] = []
    total = 0
    for text, number in zip(texts, tokens, strict=True):
        if few and total + number > _COMPARED:
            break
        few.append(text)
        total += number
    return few
