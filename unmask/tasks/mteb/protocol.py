"""mteb's protocol for encoders: what `mteb.evaluate` gives an encoder, in our words, and what it asks of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

OWN_OPTIONS = ("task_metadata", "hf_split", "hf_subset", "prompt_type", "batch_size", "show_progress_bar")
"""Options that mteb gives to every encoder. An encoder of ours bounds its batches by tokens, so it needs no batch size."""


def texts_of(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    """The texts of mteb's batches, in their order."""
    return [text for batch in batches for text in batch["text"]]


def is_document(prompt_type: Any) -> bool:
    """Whether texts are documents, which get no instruction."""
    return getattr(prompt_type, "value", None) == "document"


def instruction_of(metadata: Any, of_kind: str | None = None) -> str:
    """What a task asks, by its metadata; else what every task of its kind asks (`of_kind`, or as mteb knows the task by its name)."""
    from mteb.abstasks.abstask import get_abstask_prompt

    prompt = metadata.prompt
    stated = prompt.get("query") if isinstance(prompt, dict) else prompt
    return str(stated or (get_abstask_prompt(metadata.name) if of_kind is None else of_kind))


def model_meta(
    name: str, revision: str = "local", settings: Mapping[str, Any] | None = None, declared: Mapping[str, Any] | None = None
) -> Any:
    """mteb's metadata of a model.

    settings: what else its vectors depend on, besides the weights; mteb separates results by them. declared: further fields, which a
    submission to the leaderboard states.
    """
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    sparse = "sparse" in (declared or {}).get("model_type", ())
    fields = {
        "name": f"unmask/{name.replace('/', '-')}",
        "revision": revision,
        "modalities": ["text"],
        "similarity_fn_name": ScoringFunction.DOT_PRODUCT if sparse else ScoringFunction.COSINE,
    }
    return ModelMeta.create_empty({**fields, **(declared or {}), "experiment_kwargs": dict(settings) if settings else None})
