"""Expert losses: what texts lose without each expert, and how different the experts are. A file beside a routing record keeps both."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unmask.encoding.loaded_model import LoadedModel
from unmask.errors import UnmaskError
from unmask.io.files import refuse_foreign
from unmask.io.seals import CHECKSUM
from unmask.models.loading import dtype_name
from unmask.moe.routing.ablation import ablate_experts
from unmask.moe.routing.expert_differences import factor_overlaps, output_differences
from unmask.moe.routing.expert_record import ExpertLosses, OutputDifferences, read_expert_losses
from unmask.moe.routing.labelled_texts import LabelledText, LabelledTexts
from unmask.moe.routing.record import EXPERTS, RECORD, RecordSettings
from unmask.moe.routing.recording import check_folder

_COMPARED = 2000
"""Tokens on which the outputs of experts are compared. All outputs of one layer are in memory."""


def check_experts_folder(folder: Path, weights: str) -> None:
    """Raise UnmaskError for a folder with other files, or with a routing record or losses of another model."""
    check_folder(folder)
    refuse_foreign(folder / EXPERTS, [CHECKSUM])
    for what, before in (("a routing record", RecordSettings.read(folder / RECORD)), ("losses", read_expert_losses(folder))):
        if before is not None and before.weights != weights:
            raise UnmaskError(f"'{folder}' holds {what} of '{before.model}' with other weights: give another folder.")


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
    if given.token_labels:
        warnings.warn(f"Labels of words are ignored, since losses are per text: {', '.join(given.token_labels)}.", stacklevel=2)
    weights = str(model.provenance["weights"])
    check_experts_folder(folder, weights)
    texts, tokens = _with_loss(model, given.texts, max_length)
    plain = [text.text for text in texts]
    mixture = getattr(model.backbone.model, "mixture", None)
    differences = None if mixture else _differences(model, _few(plain, tokens, seed), seed, max_length)
    ablation = ablate_experts(model, plain, together=together, max_length=max_length, batch_tokens=batch_tokens or 2048)
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
        points=ablation.points,
        experts=tuple(expert.name for expert in mixture.experts) if mixture else None,
        loss=ablation.whole(seed),
        removals=ablation.removals,
        changes=ablation.changes(seed),
        labels={name: ablation.by_label(values, seed) for name, values in labels.items()},
        differences=differences,
        overlaps=factor_overlaps(mixture.experts) if mixture and len(mixture.experts) > 1 else {},
        provenance=model.provenance,
    )
    folder.mkdir(parents=True, exist_ok=True)
    found.write(folder / EXPERTS)
    return found


def _differences(model: LoadedModel, texts: Sequence[str], seed: int, max_length: int | None) -> OutputDifferences | None:
    """How the outputs of experts differ; None, with a warning, if they cannot be called one by one."""
    if not model.backbone.routers:
        return None  # the ablation says why
    try:
        return output_differences(model, texts, seed, max_length)
    except UnmaskError as error:
        warnings.warn(f"The outputs of experts are not compared: {error}", stacklevel=3)
        return None


def _with_loss(
    model: LoadedModel, texts: Sequence[LabelledText], max_length: int | None
) -> tuple[list[LabelledText], list[int]]:
    """The texts of two tokens or more, and their numbers of tokens. Raises UnmaskError if there is none."""
    tokenized = model.prompt_tokenizer("plain", max_length).tokenize([text.text for text in texts])
    kept = [(text, len(tokens.ids)) for text, tokens in zip(texts, tokenized, strict=True) if len(tokens.ids) > 1]
    if not kept:
        raise UnmaskError("No text has two tokens, so there is no loss to measure.")
    return [text for text, _ in kept], [tokens for _, tokens in kept]


def _few(texts: Sequence[str], tokens: Sequence[int], seed: int) -> list[str]:
    """Texts drawn by the seed, up to so many tokens that the outputs of all experts fit in memory; one text at least.

    They are drawn, since files are often sorted by source or label.
    """
    few: list[str] = []
    total = 0
    for place in np.random.default_rng(seed).permutation(len(texts)):
        if few and total + tokens[place] > _COMPARED:
            break
        few.append(texts[place])
        total += tokens[place]
    return few
