"""The folder of an upcycled model: weights, tokenizer and a card that says how it was made."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.errors import UnmaskError
from unmask.io.files import atomic_folder
from unmask.io.seals import seal
from unmask.models.provenance import versions
from unmask.moe.upcycling.upcycle import Upcycled, UpcycleOptions, sizes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
