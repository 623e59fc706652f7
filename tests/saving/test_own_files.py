"""Saving over an earlier embedder: nothing of it is read again, and nothing of anybody else is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TEXTS
from tests.moe.mixture.models import saved_experts
from unmask.embedder import Embedder
from unmask.encoding.heads import HeadOptions, build_head
from unmask.errors import UnmaskError
from unmask.io.seals import SEAL
from unmask.models.source import Source
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import build_mixture
from unmask.saving.folder import FIT, files_in

Make = Callable[[str], Embedder]
HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}


def adapted(base: Path) -> Embedder:
    """An embedder whose adapter is not merged."""
    import peft
    from transformers import AutoModel

    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(AutoModel.from_pretrained(base), config).save_pretrained(base.parent / "adapter")
    return Embedder.from_pretrained(base, "causal/eol/last", adapter=str(base.parent / "adapter"), **HERE)


def mixed(base: Path) -> Embedder:
    """An embedder that is a mixture of LoRA experts."""
    from transformers import AutoModelForCausalLM

    experts = saved_experts(base.parent / "experts", AutoModelForCausalLM.from_pretrained(base), ("math", "code"))
    source = Source(str(base), **HERE)
    mixture, tokenizer = build_mixture([expert.folder for expert in experts], Routing(), source)
    return Embedder.from_model(mixture.body, tokenizer, "causal/eol/last", source=source)


def headed(base: Path) -> Embedder:
    """An embedder with a trained head."""
    plain = Embedder.from_pretrained(base, "causal/eol/last", **HERE)
    head = build_head("latent-attention", 64, 3, HeadOptions(latents=4, heads=4))
    return Embedder.from_model(plain.backbone.model, plain.tokenizer, "causal/eol/latent-attention", head=head)


KINDS: dict[str, Callable[[Path], Embedder]] = {
    "unfitted": lambda base: Embedder.from_pretrained(base, "causal/eol/last", **HERE),
    "fitted": lambda base: Embedder.from_pretrained(base, "causal/eol/last/zscore", **HERE),
    "headed": headed,
    "adapter": adapted,
    "mixture": mixed,
}


@pytest.fixture
def make(base: Path) -> Make:
    return lambda kind: KINDS[kind](base)


def saved(embedder: Embedder, folder: Path) -> Path:
    embedder.save_pretrained(folder)
    return folder


def save_by_theirs(embedder: Embedder, folder: Path) -> Path:
    """Save through sentence-transformers, as after a training there."""
    from sentence_transformers import SentenceTransformer

    from unmask.sentence_transformers_module import UnmaskModule

    SentenceTransformer(modules=[UnmaskModule(embedder)], device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def names(folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in files_in(folder)]


# --- through sentence-transformers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("earlier", "later"), [("fitted", "unfitted"), ("headed", "adapter"), ("mixture", "adapter")])
def test_nothing_of_an_earlier_embedder_is_read_again(earlier: str, later: str, make: Make, tmp_path: Path) -> None:
    folder, embedder = saved(make(earlier), tmp_path / "saved"), make(later)
    before = embedder.encode(TEXTS)
    save_by_theirs(embedder, folder)
    assert np.array_equal(before, Embedder.from_pretrained(folder, device="cpu").encode(TEXTS))
    assert names(folder) == names(save_by_theirs(embedder, tmp_path / "new"))
    assert not any(path.is_dir() and not any(path.iterdir()) for path in folder.rglob("*"))


def test_files_of_somebody_else_stay_where_sentence_transformers_saves(make: Make, tmp_path: Path) -> None:
    folder = saved(make("fitted"), tmp_path / "saved")
    for name in ("notes.md", "optimizer.pt", "1_Pooling/mine.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("seven years")
    save_by_theirs(make("unfitted"), folder)
    assert {"notes.md", "optimizer.pt", "1_Pooling/mine.txt"} <= set(names(folder)) and FIT not in names(folder)


@pytest.mark.parametrize("save", [saved, save_by_theirs])
def test_the_base_below_an_adapter_is_not_replaced_by_it(
    save: Callable[[Embedder, Path], Path], make: Make, tmp_path: Path
) -> None:
    folder = saved(make("unfitted"), tmp_path / "saved")
    make("adapter")
    embedder = Embedder.from_pretrained(folder, adapter=str(tmp_path / "adapter"), device="cpu")
    files = names(folder)
    with pytest.raises(UnmaskError, match="holds the base model of this embedder, so it is not overwritten"):
        save(embedder, folder)
    assert set(files) - set(names(folder)) <= {SEAL}
    assert Embedder.from_pretrained(save(embedder, tmp_path / "new"), device="cpu").encode(TEXTS).shape == (6, 64)
