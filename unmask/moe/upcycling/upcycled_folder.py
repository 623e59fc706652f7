"""The folder of an upcycled model: weights, tokenizer and a card that says how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.io.files import atomic_folder, only_writer_of
from unmask.io.seals import seal
from unmask.models.loading import Source, dtype_name, load_base_language_model, places_of
from unmask.models.provenance import versions
from unmask.moe.upcycling.branches import load_branch
from unmask.moe.upcycling.upcycle import Upcycled, UpcycleOptions, sizes, upcycle

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def upcycle_to_folder(
    source: Source,
    branches: Mapping[str, str],
    folder: Path,
    *,
    experts: int | None = None,
    noise: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Upcycle a model to a new folder; returns sizes and the proof of equality as JSON.

    branches: trained copies by name, whose MLPs become the experts. experts: default 8 copies. noise: default 0.01 for copies, 0 for
    branches. options: further fields of UpcycleOptions.
    """
    if len(branches) == 1:
        raise UnmaskError("One branch makes one expert, but a mixture needs two or more: repeat --branch NAME=MODEL.")
    if branches and experts not in (None, len(branches)):
        raise UnmaskError(f"{len(branches)} branches make {len(branches)} experts: leave --experts out.")
    noise = noise if noise is not None else 0.0 if branches else 0.01
    settings = UpcycleOptions(experts=len(branches) or experts or 8, noise=noise, **options)
    check_free(folder)
    # the revision is the model's
    sources = {name: replace(source, model=model, revision=None) for name, model in branches.items()}
    for branch in sources.values():  # a wrong path is reported before anything is loaded
        places_of(branch)
    with only_writer_of(folder):
        dense, tokenizer = load_base_language_model(source)
        dense_parameters = sum(parameter.numel() for parameter in dense.parameters())
        loaded = [load_branch(name, branch, dense, tokenizer) for name, branch in sources.items()]
        result = upcycle(dense, settings, loaded)
        save_upcycled(result, tokenizer, folder, source.model, settings)
    total, active = sizes(result.model, settings.top_k)
    return {
        "folder": str(folder),
        "architecture": result.target.model_type,
        "dtype": dtype_name(result.model),
        "dense_parameters": dense_parameters,
        "parameters": total,
        "active_parameters": active,
        "difference": result.difference,
        "branches": result.branches,
    }


def save_upcycled(
    done: Upcycled, tokenizer: PreTrainedTokenizerBase, folder: Path, source: str, options: UpcycleOptions
) -> None:
    """Write the mixture, its tokenizer and a model card to a new folder, all or nothing. Raises UnmaskError if the folder exists."""
    check_free(folder)
    with atomic_folder(folder) as scratch:
        done.model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        (scratch / "README.md").write_text(_card(done, source, options), encoding="utf-8")
        seal(scratch)


def check_free(folder: Path) -> None:
    """Raise UnmaskError if a new folder cannot be made here, because a file or a folder with content exists."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UnmaskError(f"'{folder}' exists and is not empty. It is not overwritten: choose another folder.")


def _card(done: Upcycled, source: str, options: UpcycleOptions) -> str:
    total, active = sizes(done.model, options.top_k)
    shown = "\n".join(
        f"- {name}: {value}" for name, value in {**asdict(options), "architecture": done.target.model_type}.items()
    )
    used = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("unmask", "torch", "transformers"))
    return f"""---
base_model: {Path(source).name if Path(source).exists() else source}
tags: [upcycled, mixture-of-experts]
---
# {Path(source).name}, upcycled to {options.experts} experts

{_origin(done, Path(source).name)}

{total:,} parameters. A token uses {active:,} of them.
With plain copies as experts, the logits differed from the dense model's by at most {done.difference:.2g} of the largest logit
(in fp32, with and without padding).

{shown}

Made with {used}.
"""


def _origin(done: Upcycled, base: str) -> str:
    """What the experts were made of, and what they need."""
    if not done.branches:
        return (
            f"A mixture of experts, made by sparse upcycling (arXiv 2212.05055). Its experts are copies of the MLPs of `{base}`.\n"
            "It has NOT been trained: its routers are random and its experts almost equal. Train it before use."
        )
    experts = "\n".join(f"- expert {place}: {name}" for place, name in enumerate(done.branches))
    return (
        f"A mixture of experts, made by Branch-Train-MiX (arXiv 2403.07816). Its experts are the MLPs of branches of `{base}`:\n\n"
        f"{experts}\n\n"
        "All other weights are means over the branches. The routers have NOT been trained: they are random. Train them before use."
    )
