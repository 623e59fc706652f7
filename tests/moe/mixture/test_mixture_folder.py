"""A mixture on disk: the same bits again, as a language model and as an embedder; each expert still an adapter of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.moe.mixture.models import language_model, saved_experts, tokens
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.models.loading import Source
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.model import Mixture, build_mixture, load_mixture

TEXTS = ["A man plays a guitar.", "x", "The stock market fell."]


@pytest.fixture
def base(tokenizer: Any, tmp_path: Path) -> Path:
    """A pico base model on disk, and two experts of it beside it."""
    model = language_model(vocab_size=512)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    saved_experts(tmp_path, model, ["math", "code"])
    for name in ("math", "code"):
        file = tmp_path / name / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(tmp_path / "base")}))
    return tmp_path / "base"


def mixed(base: Path, routing: Routing | None = None, spread: float = 0.5) -> Mixture:
    mixture, _ = build_mixture([base.parent / "math", base.parent / "code"], routing or Routing())
    torch.manual_seed(3)
    for router in mixture.routers.values():
        torch.nn.init.normal_(router.weight, std=spread)
    return mixture


def assert_equal(one: Mixture, other: Mixture) -> None:
    """Two mixtures give the same bits."""
    ids = tokens(other.model)
    with torch.no_grad():
        assert torch.equal(one.model(input_ids=ids).logits, other.model(input_ids=ids).logits)


def test_a_shared_expert_comes_back(base: Path, tmp_path: Path) -> None:
    mixture, _ = build_mixture([tmp_path / "math"], Routing(level="sequence"), shared=tmp_path / "code")
    (tmp_path / "saved").mkdir()
    mixture.write_files(tmp_path / "saved")
    again, _ = load_mixture(tmp_path / "saved", Source("saved"))
    assert_equal(again, mixture)
    assert again.shared is not None and again.shared.name == "code" and again.routing == Routing(level="sequence")


@pytest.mark.parametrize("router", ["block", "layer", "final"])
def test_a_mixture_comes_back_bit_by_bit(router: Any, base: Path, tmp_path: Path) -> None:
    mixture = mixed(base, Routing(router, top_k=2))
    (tmp_path / "saved").mkdir()
    mixture.write_files(tmp_path / "saved")
    again, _ = load_mixture(tmp_path / "saved", Source("saved"))
    assert_equal(again, mixture)
    assert again.routing == mixture.routing
    assert [expert.name for expert in again.experts] == ["math", "code"]
    for name in ("math", "code"):
        for file in (tmp_path / name).iterdir():
            assert (tmp_path / "saved" / "experts" / name / file.name).read_bytes() == file.read_bytes()


def test_only_the_files_of_an_expert_are_copied_and_no_links_of_strangers(base: Path, tmp_path: Path) -> None:
    math, secret = tmp_path / "math", tmp_path / "id_rsa"
    secret.write_text("secret")
    (math / "sub").mkdir()
    (math / "README.md").unlink(missing_ok=True)
    for name in ("README.md", "expert.json", "notes.txt", "sub/key", ".env"):
        (math / name).symlink_to(secret)
    mixed(base).save_pretrained(tmp_path / "saved")
    copied = tmp_path / "saved" / "experts" / "math"
    assert {path.name for path in copied.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in (tmp_path / "saved" / "experts" / "code").iterdir()} >= {"adapter_config.json", "README.md"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("design", ["mean", "moee", "causal/plain/mean/routing", "bidirectional/plain/mean"])
def test_a_mixture_is_a_backbone(design: str, base: Path, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    mixed(base).write_files(tmp_path / "saved")
    embedder = Embedder.from_pretrained(tmp_path / "saved", design=design, dtype="float32", device="cpu")
    vectors = embedder.encode(TEXTS)
    points, experts = 6, 2
    if "routing" in design:
        assert vectors.shape == (3, points * experts)
    alone = np.concatenate([embedder.encode([text]) for text in TEXTS])
    assert np.allclose(vectors, alone, atol=1e-5)
    embedder.save_pretrained(tmp_path / "embedder")
    assert np.array_equal(Embedder.from_pretrained(tmp_path / "embedder", device="cpu").encode(TEXTS), vectors)
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(tmp_path / "embedder"), trust_remote_code=True, device="cpu").encode(TEXTS)
    assert np.allclose(plain, vectors, atol=1e-5)
    embedder.save_pretrained(tmp_path / "embedder")  # over itself
    assert np.array_equal(Embedder.from_pretrained(tmp_path / "embedder", device="cpu").encode(TEXTS), vectors)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_a_mixture_whose_experts_have_changed_since_is_not_saved(built: bool, shared: bool, base: Path, tmp_path: Path) -> None:
    mixture, _ = build_mixture([tmp_path / "math"], Routing(level="sequence"), shared=tmp_path / "code")
    if not built:
        mixture.save_pretrained(tmp_path / "loaded")
        mixture = Mixture.from_pretrained(tmp_path / "loaded")
    expert = mixture.shared if shared else mixture.experts[0]
    assert expert is not None
    weights = expert.folder / "adapter_model.safetensors"
    before = weights.read_bytes()
    other = saved_experts(tmp_path / "other", language_model(vocab_size=512), ["math"], std=0.4)[0]
    weights.write_bytes((other.folder / weights.name).read_bytes())
    with pytest.raises(UnmaskError, match=f"The expert in '.*{expert.name}' has changed since this mixture was loaded"):
        mixture.save_pretrained(tmp_path / "saved")
    weights.write_bytes(before)
    mixture.save_pretrained(tmp_path / "saved")
    assert_equal(Mixture.from_pretrained(tmp_path / "saved"), mixture)
