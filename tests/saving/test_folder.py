"""Saved embedders: loaded again by unmask the vectors are equal bit for bit, and sentence-transformers gives them too."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoModelForCausalLM

from tests.conftest import TEXTS, make_tokenizer
from tests.encoding.test_encoder import with_longrope
from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.encoding.heads import HEADS, HeadOptions, build_head
from unmask.encoding.quantization import normalized
from unmask.errors import UnmaskError
from unmask.io.seals import SEAL, Damaged
from unmask.models.provenance import versions
from unmask.saving import folder as persistence
from unmask.saving.folder import FIT, HEAD, SETTINGS, sentence_transformers_modules

INSTRUCTIONS = {"query": "Find what answers it.", "document": "Keep it.", "topic": "Name its topic."}
PLAIN = ["causal/plain/last", "bidirectional/plain/mean", "causal/plain/weighted-mean/zscore"]
HEADED = ["causal/plain/layer-attention", "bidirectional/eol/latent-attention"]
OWN = [
    "bidirectional/instruction-eos/last",
    "causal/chat:eol/last",
    'causal/"Topic of: {text}\\n\\"so/\\""/mean',
    "bidirectional/plain/last@all",
    "causal/eol+echo+eos/last/whiten:20",
    "causal/eol+echo+eos/last+mean+mean/zscore",
    "causal/eol/last+0.7mean@2+3/zscore",
]
MOE = ["causal/eol+plain/last/sum:auto/zscore", "bidirectional/plain/mean/routing~topk"]
CASES = [*((name, "llama") for name in (*PLAIN, *HEADED, *OWN)), *((name, "olmoe") for name in MOE)]
LONG = " ".join(f"number {k} of many," for k in range(60))
MIXED = [*TEXTS, LONG, " with spaces around ", "", "naïve café, 日本 🎉", "\n"]
Make = Callable[..., Embedder]
Vectors = NDArray[np.float32]
tokenizer_of = cache(make_tokenizer)


def vectors(embedder: Embedder, texts: Sequence[str] = MIXED, **options: Any) -> Vectors:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*texts were cut")
        return np.asarray(embedder.encode(texts, **options), np.float32)


def head_of(name: str) -> Any:
    """A head with random weights for a design that has one, of the size of the pico families."""
    pooling = name.split("/")[2]
    return build_head(pooling, 64, 3, HeadOptions(latents=4, heads=4)) if pooling in HEADS else None


def theirs(folder: Path, trust: bool, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=trust, **options)


def saved(embedder: Embedder, folder: Path) -> Path:
    embedder.save_pretrained(folder)
    return folder


def modules_of(folder: Path) -> str:
    return (folder / "modules.json").read_text()


def assert_equal(ours: Vectors, other: Vectors) -> None:
    """Equal up to rounding at unit length, and as long."""
    np.testing.assert_allclose(normalized(ours), normalized(other), rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), np.linalg.norm(other, axis=1), rtol=2e-6)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# ---- the same vectors, in both libraries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "family"), CASES)
def test_a_loaded_embedder_gives_the_same_bits(name: str, family: str, pico: Make, tmp_path: Path) -> None:
    embedder = pico(name, family=family, max_length=48, head=head_of(name))
    before = vectors(embedder)
    loaded = Embedder.from_pretrained(saved(embedder, tmp_path / "saved"), device="cpu")
    assert loaded.design == embedder.design and loaded.max_length == 48
    assert np.array_equal(before, vectors(loaded)) and np.array_equal(before, vectors(embedder))


# a BOS token decides how a plain design is saved
@pytest.mark.parametrize(
    ("name", "family", "add_bos"),
    [("causal/plain/last", "llama", True), ("bidirectional/plain/mean", "llama", True), *((*case, False) for case in CASES)],
)
def test_sentence_transformers_gives_the_same_vectors(name: str, family: str, add_bos: bool, tmp_path: Path) -> None:
    embedder = Embedder.from_model(FAMILIES[family].build(), tokenizer_of(add_bos), name, max_length=48, head=head_of(name))
    plain = sentence_transformers_modules(embedder) == "plain"
    folder = saved(embedder, tmp_path / "saved")
    assert ("unmask" in modules_of(folder)) != plain
    model = theirs(folder, trust=not plain)
    assert_equal(vectors(embedder), model.encode(MIXED, batch_size=4))
    for text in (TEXTS[1], ""):
        assert_equal(vectors(embedder, [text]), model.encode([text]))
    assert model.get_embedding_dimension() == vectors(embedder).shape[1]


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exported_as_we_read_it(family: str, pico: Make, tmp_path: Path) -> None:
    attention = "bidirectional" if FAMILIES[family].bidirectional == "yes" else "causal"
    embedder = pico(f"{attention}/plain/mean", family=family)
    before = vectors(embedder, TEXTS)
    folder = saved(embedder, tmp_path / "saved")
    assert np.array_equal(before, vectors(Embedder.from_pretrained(folder, device="cpu"), TEXTS))
    assert_equal(before, theirs(folder, trust=False).encode(TEXTS))


@pytest.mark.parametrize(
    ("name", "add_bos", "expected"),
    [
        *((name, False, "plain") for name in PLAIN),
        ("causal/plain/first", False, "unmask"),  # they have no such pooling
        ("causal/plain/last", True, "plain"),
        ("causal/plain/mean", True, "unmask"),  # theirs would average the BOS token too
        (OWN[0], False, "unmask"),
        (HEADED[0], False, "unmask"),
    ],
)
def test_plain_modules_are_used_where_they_can_express_the_design(name: str, add_bos: bool, expected: str) -> None:
    embedder = Embedder.from_model(FAMILIES["llama"].build(), tokenizer_of(add_bos), name, head=head_of(name))
    assert sentence_transformers_modules(embedder) == expected


def test_a_tokenizer_that_appends_eos_does_not_change_the_exported_vectors(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    embedder = Embedder.from_model(FAMILIES["llama"].build(), tokenizer, "causal/plain/mean")
    model = theirs(saved(embedder, tmp_path / "saved"), trust=True)
    assert_equal(vectors(embedder), model.encode(MIXED))


def test_the_sides_of_the_tokenizer_do_not_change_the_exported_vectors(
    pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(pico_folder("llama"), tmp_path / "model"))
    edit(folder / "tokenizer_config.json", padding_side="left", truncation_side="left")
    embedder = Embedder.from_pretrained(folder, "causal/plain/weighted-mean", max_length=20, dtype="float32", device="cpu")
    assert_equal(vectors(embedder), theirs(saved(embedder, tmp_path / "saved"), trust=False).encode(MIXED))
    assert embedder.tokenizer.padding_side == embedder.tokenizer.truncation_side == "left"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_kwargs": {"device_map": "cpu"}}, "model_kwargs 'device_map' would change nothing"),
        ({"backend": "onnx"}, "runs on the backend 'torch' only, not on 'onnx'"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    options: dict[str, Any], message: str, pico: Make, tmp_path: Path
) -> None:
    from unmask.sentence_transformers_module import UnmaskModule

    folder = saved(pico("causal/eol/last"), tmp_path / "saved")
    with pytest.raises(UnmaskError, match=message):
        UnmaskModule.load(str(folder), **options)


def test_sentence_transformers_sets_the_limit_of_tokens(pico: Make, tmp_path: Path) -> None:
    model = theirs(saved(pico("causal/plain/mean@2", max_length=48), tmp_path / "saved"), trust=True)
    assert model.max_seq_length == 48
    model.max_seq_length = 12
    assert_equal(vectors(pico("causal/plain/mean@2", max_length=12)), model.encode(MIXED))
    model.save_pretrained(str(tmp_path / "theirs"))
    assert Embedder.from_pretrained(tmp_path / "theirs", device="cpu").max_length == 12
    model.max_seq_length = 100_000
    assert model.max_seq_length == 512  # the positions of the pico model
    for wrong in (0, None):
        with pytest.raises(UnmaskError, match=f"max_seq_length should be a whole number of at least 1, not {wrong}"):
            model.max_seq_length = wrong


def test_a_neighbour_beyond_the_border_of_longrope_changes_no_vector_of_theirs() -> None:
    from sentence_transformers import SentenceTransformer

    from unmask.sentence_transformers_module import UnmaskModule

    embedder = Embedder.from_model(
        with_longrope().backbone.model, tokenizer_of(False), "causal/eol+plain/last", max_length=4096
    )
    texts = ["a b" * length for length in (1019, 1029)]
    short, long = (text.lengths for text in embedder.prompts.tokenize(texts))
    assert min(short) <= 1024 < min(long)
    model = SentenceTransformer(modules=[UnmaskModule(embedder)], device="cpu")
    alone = np.concatenate([model.encode([text]) for text in texts])
    np.testing.assert_allclose(model.encode(texts), alone, rtol=0, atol=1e-4)


# ---- instructions -------------------------------------------------------------------------------------------------------------


def test_instructions_are_saved_and_used_by_both(pico: Make, tmp_path: Path) -> None:
    embedder = pico("bidirectional/instruction-eos/last", instructions=INSTRUCTIONS)
    folder = saved(embedder, tmp_path / "saved")
    loaded, model = Embedder.from_pretrained(folder, device="cpu"), theirs(folder, trust=True)
    query, document = (np.asarray(encode(TEXTS), np.float32) for encode in (embedder.encode_query, embedder.encode_document))
    assert not np.allclose(query, document) and not np.allclose(query, vectors(embedder, TEXTS))
    assert np.array_equal(query, loaded.encode_query(TEXTS)) and np.array_equal(document, loaded.encode_document(TEXTS))
    assert_equal(query, model.encode_query(TEXTS))
    assert_equal(document, model.encode_document(TEXTS))
    assert_equal(vectors(embedder, instruction_name="topic"), model.encode(MIXED, prompt_name="topic"))
    assert_equal(vectors(embedder, instruction="Anew:"), model.encode(MIXED, prompt="Anew:"))
    assert_equal(vectors(embedder), model.encode(MIXED))


# ---- what the folder says -----------------------------------------------------------------------------------------------------


def test_the_settings_say_where_the_vectors_come_from(pico_folder: Callable[[str], Path], tmp_path: Path) -> None:
    base = pico_folder("olmoe")
    embedder = Embedder.from_pretrained(base, "causal/eol/last/sum:auto/zscore", dtype="float32", device="cpu", max_length=77)
    folder = saved(embedder, tmp_path / "saved")
    settings = json.loads((folder / SETTINGS).read_text())
    assert settings["format"] == 1 and settings["source"] == str(base) and settings["versions"] == versions()
    assert settings["design"] == "causal/eol/last/sum:auto/zscore" and settings["max_length"] == 77
    assert settings["dtype"] == "float32" and settings["alpha"] == embedder.fitted.alpha
    assert settings["attention"] == "causal, proven in 3 layers with and without padding"
    assert (folder / FIT).is_file()


def test_low_precision_stays_low_where_the_device_computes_it(
    pico_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Embedder.from_pretrained(pico_folder("llama"), "causal/eol/last", dtype="bfloat16", device="cpu")
    folder = saved(embedder, tmp_path / "saved")
    assert np.array_equal(vectors(embedder), vectors(Embedder.from_pretrained(folder, dtype="bfloat16", device="cpu")))
    monkeypatch.setattr("unmask.saving.folder.is_native", lambda dtype, device: True)
    assert next(theirs(folder, trust=True).parameters()).dtype == torch.bfloat16
    in_fp32 = theirs(folder, trust=True, model_kwargs={"torch_dtype": "float32"})
    assert_equal(vectors(Embedder.from_pretrained(folder, dtype="float32", device="cpu")), in_fp32.encode(MIXED))
    assert np.array_equal(vectors(embedder), vectors(Embedder.from_pretrained(folder, device="cpu")))
    monkeypatch.setattr("unmask.saving.folder.is_native", lambda dtype, device: dtype == torch.float32)
    with pytest.warns(UserWarning, match="saved in bfloat16, which this cpu emulates, so it is loaded in float32"):
        emulated = Embedder.from_pretrained(folder, device="cpu")
    assert emulated.backbone.dtype == torch.float32
    assert np.allclose(vectors(embedder), vectors(emulated), atol=0.02 * np.abs(vectors(embedder)).max())


def test_a_saved_filter_needs_no_output_layer(language_model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    loading: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
    embedder = Embedder.from_pretrained(language_model_folder("llama"), "causal/plain/mean/filter:16", **loading)
    folder = saved(embedder, tmp_path / "saved")  # it holds no language-model head, and the head is not tied
    assert np.array_equal(vectors(Embedder.from_pretrained(folder, **loading)), vectors(embedder))


def test_arguments_win_over_what_was_saved(pico: Make, tmp_path: Path) -> None:
    folder = saved(pico("causal/instruction/mean/zscore", instructions=INSTRUCTIONS), tmp_path / "saved")
    loaded = Embedder.from_pretrained(folder, "bidirectional/plain/max", device="cpu", max_length=9, instructions={})
    assert np.array_equal(vectors(loaded), vectors(pico("bidirectional/plain/max", max_length=9)))


@pytest.fixture
def lora(pico_folder: Callable[[str], Path], tmp_path: Path) -> str:
    """An adapter of the pico model, by its folder."""
    import peft

    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(AutoModel.from_pretrained(pico_folder("llama")), config).save_pretrained(tmp_path / "lora")
    return str(tmp_path / "lora")


def test_a_fit_does_not_serve_the_weights_under_another_adapter(
    lora: str, pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    name = "causal/plain/mean/zscore"
    loading: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
    folder = saved(Embedder.from_pretrained(pico_folder("llama"), name, **loading).fit(TEXTS[:5]), tmp_path / "saved")
    adapted = Embedder.from_pretrained(folder, adapter=lora, **loading)
    assert not adapted.is_fitted
    fresh = Embedder.from_pretrained(pico_folder("llama"), name, adapter=lora, **loading)
    assert np.array_equal(vectors(adapted), vectors(fresh))


@pytest.mark.parametrize(
    "named",
    [
        {"target_modules": ["q_proj"], "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 64}},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"target_modules": ".*(q_proj|lm_head)"},
    ],
    ids=str,
)
def test_an_adapter_of_the_whole_language_model_comes_back_without_its_head(
    named: dict[str, Any], tokenizer: Any, tmp_path: Path
) -> None:
    import peft

    base, tied = tmp_path / "base", replace(FAMILIES["llama"], changes={"tie_word_embeddings": True})
    tied.build_language_model().save_pretrained(base)
    tokenizer.save_pretrained(base)
    config = peft.LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **named)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for name, weight in model.named_parameters():
        if "modules_to_save" in name:
            torch.nn.init.normal_(weight)
    model.save_pretrained(tmp_path / "lora")
    loading: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
    embedder = Embedder.from_pretrained(base, "causal/eol/last", adapter=tmp_path / "lora", **loading)
    again = Embedder.from_pretrained(saved(embedder, tmp_path / "saved"), device="cpu")
    twice = Embedder.from_pretrained(saved(again, tmp_path / "again"), device="cpu")
    assert np.array_equal(vectors(embedder), vectors(again)) and np.array_equal(vectors(again), vectors(twice))
    assert not np.allclose(vectors(embedder), vectors(Embedder.from_pretrained(base, "causal/eol/last", **loading)), atol=1e-3)


# ---- writing ------------------------------------------------------------------------------------------------------------------


def test_a_saved_embedder_can_be_overwritten_even_by_itself(pico: Make, tmp_path: Path) -> None:
    folder = saved(pico("causal/plain/mean/zscore"), tmp_path / "saved")
    saved(pico("causal/eol/last"), folder)
    assert not (folder / FIT).exists() and not (folder / "1_Pooling").exists()
    loaded = Embedder.from_pretrained(folder, device="cpu")
    before = vectors(loaded)
    saved(loaded, folder)
    assert np.array_equal(before, vectors(Embedder.from_pretrained(folder, device="cpu")))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".saved.lock", "saved"]


def test_a_folder_that_holds_something_else_is_refused(pico: Make, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("seven years")
    with pytest.raises(UnmaskError, match="exists and is not a saved embedder, so it is not overwritten"):
        pico().save_pretrained(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "seven years" and len(list(tmp_path.iterdir())) == 1


def test_a_file_of_somebody_else_in_a_saved_embedder_is_not_removed(pico: Make, tmp_path: Path) -> None:
    folder = saved(pico(), tmp_path / "saved")
    (folder / "README.md").write_text("a model card")
    saved(pico(), folder)
    (folder / "sub").mkdir()
    (folder / "sub" / "data.bin").write_text("seven years")
    with pytest.raises(UnmaskError, match="is not of the saved embedder in its folder, which is therefore not overwritten"):
        saved(pico("causal/eol/last"), folder)
    assert (folder / "sub" / "data.bin").read_text() == "seven years"
    assert Embedder.from_pretrained(folder, device="cpu").design.name == "causal/plain/mean"


@pytest.mark.parametrize("step", ["_write_sentence_transformers", "seal"])
def test_a_crash_while_writing_leaves_the_old_folder(
    step: str, pico: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = pico("causal/plain/mean")
    folder = saved(old, tmp_path / "saved")

    def crash(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(persistence, step, crash)
    with pytest.raises(OSError, match="the disk is full"):
        pico("causal/eol/last").save_pretrained(folder)
    assert np.array_equal(vectors(Embedder.from_pretrained(folder, device="cpu")), vectors(old))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".saved.lock", "saved"]


def test_an_adapter_that_is_not_merged_is_saved_beside_the_name_of_its_base(
    lora: str, pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base, design = pico_folder("llama"), "bidirectional/plain/mean"
    adapted = Embedder.from_pretrained(base, design, adapter=lora, device="cpu")
    folder = saved(adapted, tmp_path / "saved")
    assert not (folder / "model.safetensors").exists()
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    loaded = Embedder.from_pretrained(folder, device="cpu")
    assert loaded.design == adapted.design and loaded.backbone.attention == design.partition("/")[0]
    assert np.array_equal(vectors(loaded), vectors(adapted))
    assert not np.allclose(vectors(loaded), vectors(Embedder.from_pretrained(base, design, device="cpu")), atol=1e-3)
    # as the error says for a base that was moved
    moved = Embedder.from_pretrained(shutil.copytree(base, tmp_path / "moved"), adapter=str(folder), device="cpu")
    assert moved.design == adapted.design and np.array_equal(vectors(moved), vectors(adapted))


def test_a_saved_adapter_over_a_saved_embedder_brings_its_own_settings(
    lora: str, pico_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """It was trained last, so its design is asked for, not that of the model below."""
    loading: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
    below = saved(
        Embedder.from_pretrained(pico_folder("llama"), "causal/plain/mean", max_length=9, **loading), tmp_path / "below"
    )
    design = "bidirectional/instruction/mean/zscore"
    limits: dict[str, Any] = {"max_length": 48, "instructions": INSTRUCTIONS}
    embedder = Embedder.from_pretrained(below, design, adapter=lora, **limits, **loading).fit(TEXTS[:5])
    above = saved(embedder, tmp_path / "above")
    for loaded in (Embedder.from_pretrained(below, adapter=above, **loading), Embedder.from_pretrained(above, **loading)):
        assert (loaded.design.name, loaded.max_length, loaded.instructions) == (design, 48, INSTRUCTIONS)
        assert loaded.is_fitted and np.array_equal(vectors(embedder), vectors(loaded))
    assert Embedder.from_pretrained(below, adapter=lora, **loading).design.name == "causal/plain/mean"


# ---- damage -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sealed(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved embedder with everything that one may hold: weights, tokenizer, a trained head, what was fitted."""
    name = "causal/eol/latent-attention/zscore"
    embedder = Embedder.from_model(FAMILIES["llama"].build(), tokenizer, name, head=head_of(name)).fit(TEXTS[:5])
    return saved(embedder, tmp_path_factory.mktemp("sealed") / "saved")


# tests/abuse/test_damage.py damages dozens of places in each file
@pytest.mark.parametrize("file", [SETTINGS, FIT, HEAD, "config.json", "model.safetensors", "tokenizer.json", SEAL])
def test_a_bit_that_flips_is_noticed_when_an_embedder_is_loaded(file: str, sealed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sealed, tmp_path / "saved"))
    content = bytearray((folder / file).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / file).write_bytes(content)
    with pytest.raises(UnmaskError) as caught:
        Embedder.from_pretrained(folder, device="cpu")
    assert "\n" not in str(caught.value)
    if file != SETTINGS:  # a setting may also be refused for what it says
        assert isinstance(caught.value, Damaged) and file in str(caught.value)


# ---- reading what others wrote ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"desing": "causal/plain/mean"}, "desing: this name is unknown"),
        ({"design": "causal/plain/maen"}, "Unknown pooling 'maen'. Did you mean 'mean'?"),
    ],
)
def test_settings_that_this_version_did_not_write_are_refused(
    changes: dict[str, Any], message: str, pico: Make, tmp_path: Path
) -> None:
    folder = saved(pico(), tmp_path / "saved")
    (folder / SEAL).unlink()  # as an older version left it
    edit(folder / SETTINGS, **changes)
    with pytest.raises(UnmaskError) as error:
        Embedder.from_pretrained(folder, device="cpu")
    assert message in str(error.value)
