"""A mixture on disk: the same bits again, as a language model and as an embedder; each expert still an adapter of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_tokenizer
from tests.moe.mixture.models import language_model, saved_experts, tokens
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.io.seals import SEAL, seal
from unmask.models.loading import Source, load_language_model
from unmask.moe.mixture.expert_folder import UNREADABLE, read_expert, require_alike
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import Mixture, build_mixture, load_mixture

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


def test_a_mixture_is_saved_and_read_by_its_own_methods(base: Path, tmp_path: Path) -> None:
    from unmask import Mixture as Public

    mixture = mixed(base)
    mixture.save_pretrained(tmp_path / "saved")
    again = Public.from_pretrained(tmp_path / "saved")
    assert_equal(again, mixture)
    assert again.tokenizer is not None and again.tokenizer("x")["input_ids"]
    assert Public.from_pretrained(tmp_path / "saved", dtype="float32").model.dtype == torch.float32
    with pytest.raises(UnmaskError, match="saved' exists"):
        mixture.save_pretrained(tmp_path / "saved")


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


def test_an_expert_of_the_hub_is_copied_though_its_files_are_links(base: Path, tmp_path: Path) -> None:
    math, blobs = tmp_path / "math", tmp_path / "blobs"
    (math / "README.md").unlink(missing_ok=True)
    (math / "expert.json").write_text("{}")
    seal(math)
    math.rename(blobs)
    math.mkdir()
    for file in blobs.iterdir():
        (math / file.name).symlink_to(file)
    before = mixed(base)
    before.save_pretrained(tmp_path / "saved")
    copied = tmp_path / "saved" / "experts" / "math"
    assert {file.name: file.read_bytes() for file in copied.iterdir()} == {
        file.name: file.read_bytes() for file in blobs.iterdir()
    }
    assert not any(file.is_symlink() for file in copied.iterdir())
    assert_equal(load_mixture(tmp_path / "saved", Source("saved"))[0], before)


def test_a_seal_that_lists_more_than_is_copied_is_not_copied(base: Path, tmp_path: Path) -> None:
    """Such as that of a saved embedder which is an adapter."""
    (tmp_path / "math" / "tokenizer.json").write_text("{}")
    seal(tmp_path / "math")
    before = mixed(base)
    before.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "experts" / "math" / SEAL).exists()
    assert_equal(load_mixture(tmp_path / "saved", Source("saved"))[0], before)


def test_an_expert_that_lacks_its_weights_is_not_completed_from_the_hub(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT would take a relative path such as experts/math for the name of a repository."""
    (base.parent / "math" / "adapter_model.safetensors").unlink()
    monkeypatch.chdir(base.parent.parent)
    monkeypatch.setattr("peft.utils.save_and_load.hf_hub_download", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(UnmaskError, match="math' is no expert: it has no weights"):
        read_expert(Path(base.parent.name) / "math")


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


def test_a_mixture_comes_back_with_its_own_tokenizer(base: Path, tmp_path: Path) -> None:
    embedder = Embedder.from_model(mixed(base).body, make_tokenizer(add_bos=True), "causal/plain/last")
    embedder.save_pretrained(tmp_path / "saved")
    sources: list[dict[str, Any]] = [{"model": tmp_path / "saved"}, {"model": base, "adapter": tmp_path / "saved"}]
    for source in sources:
        loaded = Embedder.from_pretrained(**source, device="cpu")
        assert np.array_equal(embedder.encode(TEXTS), loaded.encode(TEXTS))
        assert next(loaded.prompt.tokenize(["a"])).ids[0] == 1


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


@pytest.mark.parametrize("built", [True, False])
def test_a_mixture_whose_base_was_written_since_is_not_saved(built: bool, base: Path, tmp_path: Path) -> None:
    mixture = mixed(base)
    mixture.save_pretrained(tmp_path / "loaded")
    if not built:
        mixture = Mixture.from_pretrained(tmp_path / "loaded")
    embedder = Embedder.from_pretrained(tmp_path / "loaded", "causal/plain/last", device="cpu")
    language_model(vocab_size=512, rms_norm_eps=0.1).save_pretrained(base)
    for save in (mixture.save_pretrained, embedder.save_pretrained):
        with pytest.raises(UnmaskError, match=r"base', the base model, was written since it was loaded here"):
            save(tmp_path / "saved")


def test_a_mixture_is_saved_over_itself_again_and_again(base: Path, tmp_path: Path) -> None:
    Embedder.from_model(mixed(base).body, make_tokenizer(), "causal/plain/last").save_pretrained(tmp_path / "saved")
    embedder = Embedder.from_pretrained(tmp_path / "saved", device="cpu")
    for _ in range(2):
        embedder.save_pretrained(tmp_path / "saved")
        assert np.array_equal(embedder.encode(TEXTS), Embedder.from_pretrained(tmp_path / "saved", device="cpu").encode(TEXTS))


def test_a_mixture_has_the_lexical_vectors_of_its_language_model(base: Path, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    mixed(base).write_files(tmp_path / "saved")
    lexical = Embedder.from_pretrained(tmp_path / "saved", "causal/eol/last/lexical", dtype="float32", device="cpu")
    found = lexical.encode_sparse(TEXTS).toarray()
    model, tokenizer = load_language_model(Source(str(tmp_path / "saved"), dtype="float32", device="cpu"))
    for text, row in zip(TEXTS, found, strict=True):
        ids = tokenizer(f'This sentence : "{text}" means in one word:"', return_tensors="pt")["input_ids"]
        with torch.no_grad():
            values = torch.log(1 + model(input_ids=ids).logits[0, -1].clamp_min(0)).numpy()
        assert np.allclose(row[row > 0], values[row > 0], atol=1e-4)
    assert (found > 0).any()


def test_experts_of_one_base_under_two_names_are_alike(base: Path, tmp_path: Path) -> None:
    """A base may be moved between two trainings. Its weights say that it is the same."""
    [one] = saved_experts(tmp_path, language_model(), ["one"])
    moved = replace(one, name="moved", base="/another/place")
    require_alike([replace(one, base_weights="w"), replace(moved, base_weights="w")])
    with pytest.raises(UnmaskError, match="'moved' is an expert of '/another/place'"):
        require_alike([one, moved])
    with pytest.raises(UnmaskError, match="is an expert of"):
        require_alike([replace(one, base_weights="w"), replace(one, name="other", base_weights="v")])


def test_an_expert_in_the_current_folder_has_the_name_of_that_folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base.parent / "math")
    assert read_expert(Path()).name == "math" and read_expert(Path("../math")).name == "math"
    (base.parent / "math" / "inside").mkdir()
    monkeypatch.chdir(base.parent / "math" / "inside")
    assert read_expert(Path("..")).name == "math"


def test_experts_change_the_vectors(base: Path, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    mixed(base).write_files(tmp_path / "saved")
    options: dict[str, Any] = {"design": "mean", "dtype": "float32", "device": "cpu"}
    one, other = (Embedder.from_pretrained(folder, **options).encode(TEXTS) for folder in (tmp_path / "saved", base))
    assert np.abs(one - other).max() > 1e-2


def test_what_does_not_belong_together_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=r"is an expert of .*base', not of 'pico'"):
        build_mixture([tmp_path / "math"], Routing(), Source("pico"))
    (tmp_path / "saved").mkdir()
    mixed(base).write_files(tmp_path / "saved")
    with pytest.raises(UnmaskError, match="an adapter would change its base"):
        Embedder.from_pretrained(tmp_path / "saved", adapter=str(tmp_path / "math"))
    (tmp_path / "saved" / "router.safetensors").unlink()
    with pytest.raises(UnmaskError, match="a mixture without its routers"):
        load_mixture(tmp_path / "saved", Source("saved"))
    (tmp_path / "saved" / "mixture.json").write_text("{}")
    with pytest.raises(UnmaskError, match="is not what this version of unmask wrote: base: it is missing"):
        load_mixture(tmp_path / "saved", Source("saved"))


CHANGING = ("pissa", "pissa_niter_16", "olora", "corda", "lora_ga", "loftq")


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"use_dora": True}, "it trains DoRA"),
        ({"bias": "all"}, "it trains biases"),
        ({"peft_type": "IA3"}, "it is IA3"),
        ({"rank_pattern": {"q_proj": 4}}, "a rank for each module"),
        *(
            ({"init_lora_weights": kind}, r"on a base whose weights PEFT changed first \(init_lora_weights\)")
            for kind in CHANGING
        ),
        ({"alora_invocation_tokens": [3, 4]}, "aLoRA"),
        ({"use_qalora": True}, "QA-LoRA"),
        ({"kasa_config": {"beta": 1e-4}}, "KaSA"),
        ({"velora_config": {"num_groups": 64}}, "VeLoRA"),
        ({"monteclora_config": {"monteclora_n": 4}}, "MonteCLoRA"),
        ({"use_bdlora": {"nblocks": 2}}, "BD-LoRA"),
        ({"arrow_config": {"top_k": 3}}, "Arrow"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "copies of layers"),
    ],
    ids=str,
)
def test_adapters_that_are_no_plain_lora_are_refused(change: dict[str, Any], why: str, base: Path, tmp_path: Path) -> None:
    file = tmp_path / "code" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UnmaskError, match=why):
        build_mixture([tmp_path / "math", tmp_path / "code"], Routing())


@pytest.mark.parametrize("start", [True, False, "gaussian", "orthogonal", "eva", "mica"])
def test_another_start_of_the_factors_leaves_a_plain_lora(start: Any, base: Path, tmp_path: Path) -> None:
    file = tmp_path / "code" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"init_lora_weights": start}))
    assert read_expert(tmp_path / "code").factors


def test_every_variant_of_lora_that_peft_knows_is_refused() -> None:
    """A new version of PEFT may bring more of them."""
    from dataclasses import fields

    from peft import LoraConfig

    variants = {field.name for field in fields(LoraConfig) if field.metadata.get("is_lora_variant")}
    assert variants and variants <= UNREADABLE.keys()


@pytest.mark.parametrize("name", ["embed_tokens.weight", "q_proj.base.weight"])
def test_a_mixture_over_a_base_that_was_changed_in_memory_is_not_saved(name: str, base: Path, tmp_path: Path) -> None:
    mixture = mixed(base)
    weight = next(weight for place, weight in mixture.body.named_parameters() if place.endswith(name))
    with torch.no_grad():
        weight.mul_(1.5)
    with pytest.raises(UnmaskError, match=r"of the base model .* was changed in memory"):
        mixture.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
