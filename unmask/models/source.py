"""Source: where a model comes from, which base model lies below it, and whose code may run.

An adapter and a mixture name their base model in a file. Only this module reads that name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.paths import expanded
from unmask.models.bundled import BUNDLED, HUB, is_path, resolve
from unmask.models.conversion import is_gguf
from unmask.models.hub import hub_file, hub_folder

TRUSTED = "UNMASK_TRUST_CODE_OF"
"""Environment variable: more repositories and folders whose code may run with `--trust-remote-code`, separated by commas."""

_ADAPTER, _MIXTURE = "adapter_config.json", "mixture.json"
_ADAPTER_FILES = ("adapter_*",)
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_INDEX = ".safetensors.index.json"


@dataclass(frozen=True)
class Source:
    """Where a model comes from and how to load it: everything that decides its weights.

    model: hub id, folder or bundled name. adapters: PEFT folders or hub ids, each trained on top of those before it, or the folder of one
    mixture (`model` is then its base). merge: add the adapter to the weights; several adapters are always merged. dtype, device: a name or
    "auto". device_map: in place of a device, a strategy of accelerate ("auto", "balanced") or a table as JSON. quantize: "8bit" or "4bit"
    weights of linear layers. attn_implementation: None lets transformers choose: sdpa where it exists, and never flash, whose sliding
    window is one token shorter. trust_remote_code: run the code that comes with `model`, but no code of another model that a file names.
    Raises UnmaskError for a device next to a device map.
    """

    model: str
    revision: str | None = None
    adapters: tuple[str, ...] = ()
    merge: bool = False
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | None = None
    quantize: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Refuse two ways of naming the device."""
        if self.device_map is not None and self.device != "auto":
            raise UnmaskError(
                f"--device {self.device} would be ignored, since --device-map places the model: give one of them."
            )

    @property
    def adapter_names(self) -> str | None:
        """The adapters in one string, lowest first, for records and reports. None without adapters."""
        return " + ".join(self.adapters) or None


def as_adapters(adapter: str | Path | Sequence[str | Path] | None) -> tuple[str, ...]:
    """The adapters of a source, from one name, several names in order, or None."""
    if adapter is None:
        return ()
    return (str(adapter),) if isinstance(adapter, str | Path) else tuple(map(str, adapter))


def is_mixture(folder: Path) -> bool:
    """Whether a folder holds a mixture of LoRA experts."""
    return (folder / _MIXTURE).is_file()


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds a PEFT adapter."""
    return (folder / _ADAPTER).is_file()


def adapter_weights(folder: Path) -> Path | None:
    """The file of weights in the folder of an adapter. Without one, PEFT would look for the name of the folder on the hub."""
    return next((folder / name for name in _ADAPTER_WEIGHTS if (folder / name).is_file()), None)


def place_of(source: Source) -> str:
    """The local folder of a model, or its hub id. An adapter on the hub is downloaded. Raises UnmaskError."""
    path = resolve(source.model)
    if Path(path).is_dir():
        inner = Path(path) / "0_Transformer"  # where older versions of sentence-transformers put the model
        is_inner = not (Path(path) / "config.json").is_file() and (inner / "config.json").is_file()
        return str(inner) if is_inner else path
    return str(hub_folder(path, _ADAPTER, source.revision, _ADAPTER_FILES) or path)


def adapter_folder(name: str) -> str:
    """The local folder of an adapter or mixture that is named by its folder, or of an adapter by its hub id. Raises UnmaskError."""
    path = resolve(name)
    folder = Path(path) if Path(path).is_dir() else hub_folder(path, _ADAPTER, None, _ADAPTER_FILES)
    if folder is None or not (is_adapter(folder) or is_mixture(folder)):
        raise UnmaskError(f"The adapter '{name}' could not be loaded: Can't find '{_ADAPTER}' there.")
    return str(folder)


def has_adapter(source: Source) -> bool:
    """Whether a PEFT adapter lies over the weights of a base model. Raises UnmaskError for a missing model."""
    if source.adapters:
        return not is_mixture(Path(resolve(source.adapters[0])))
    return is_adapter(Path(place_of(source)))


def below(folder: Path, source: Source) -> Source | None:
    """The base model that an adapter or a mixture in a folder names. None for any other folder.

    If `source` names a local folder, its revision applies to the base. Raises UnmaskError if the base is not named or missing, or if it
    comes with code that the user did not allow.
    """
    if is_mixture(folder):
        settings = read_json(folder / _MIXTURE)
        name, revision = settings.get("base"), settings.get("revision")
    elif is_adapter(folder):
        settings = read_json(folder / _ADAPTER)
        name, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    else:
        return None
    if not name:
        raise UnmaskError(
            f"The adapter in '{folder}' does not name its base model. Give both: --model BASE --adapter {folder}."
        )
    # the revision of `source` belongs to the base only if `source` names this folder
    names_the_folder = lasting_name(source.model) == str(folder.resolve())
    base = replace(
        source,
        model=base_name(str(name), folder),
        revision=(source.revision if names_the_folder or not source.model else None) or revision,
        adapters=(),
        merge=False,
    )
    if lasting_name(source.model) == base.model:
        return base
    return without_its_code(
        base, folder, "base model", f"name the base: --model {base.model} --adapter {folder} --trust-remote-code, or "
    )


def missing_adapter(name: str, folder: Path) -> str | None:
    """Why an adapter lacks another one below it, and what to do; None if nothing says so.

    LLM2Vec publishes adapters that were trained on a base with its MNTP adapter merged in. Their `adapter_config.json` names the base
    alone, so only their names (X-mntp-supervised, X-mntp-unsup-simcse) tell that X-mntp belongs below.
    """
    stacked = re.fullmatch(r"(.+-mntp)-[\w.-]+", name.rstrip("/"))
    if stacked is None:
        return None
    base = read_json(folder / _ADAPTER).get("base_model_name_or_path") or "BASE"
    return (
        f"By its name, '{name}' is an adapter of LLM2Vec that was trained on top of the MNTP adapter, but its adapter_config.json names "
        f"'{base}' alone. Without the MNTP adapter its vectors are wrong. Give both, in this order: --model {base} --adapter {stacked[1]} "
        f'--adapter {name} (in Python: adapter=["{stacked[1]}", "{name}"]).'
    )


def base_name(name: str, folder: Path) -> str:
    """The base that a file in a folder names. A path becomes absolute; it is looked up in that folder, then in the working directory."""
    if name in BUNDLED or name.startswith(HUB):
        return name
    path = expanded(name)
    for candidate in (path,) if path.is_absolute() else (folder / path, path):
        if candidate.is_dir() or is_gguf(candidate):
            return str(candidate.resolve())
    if is_path(name):
        raise UnmaskError(
            f"Folder '{name}', the base model that '{folder}' names, does not exist. If it was moved, give its new path: "
            f"--model BASE --adapter {folder}, or --base BASE for `unmask mix` and `unmask merge`."
        )
    return name


def lasting_name(model: str) -> str:
    """The name of a model for a record: a path becomes absolute, so that it works from any directory."""
    path = expanded(model)
    return str(path.resolve()) if model and model not in BUNDLED and (path.is_dir() or is_gguf(path)) else model


def short_name(model: str) -> str:
    """The last part of a model's name: of its folder, or of its hub id."""
    return Path(lasting_name(model)).name.removesuffix(".gguf")


def same_place(first: str, second: str) -> bool:
    """Whether two names mean the same model."""
    return first == second or lasting_name(resolve(first)) == lasting_name(resolve(second))


def without_its_code(source: Source, folder: Path, role: str = "model", otherwise: str = "") -> Source:
    """The source of a model that a file in a folder names, with trust_remote_code off unless UNMASK_TRUST_CODE_OF lists the model.

    role, otherwise: for the message, what it is and another way to allow its code. Raises UnmaskError if the user allows code and the
    model comes with code that is not listed.
    """
    if not source.trust_remote_code or is_trusted(source.model):
        return source
    if code_of(resolve(source.model), source.revision):
        raise UnmaskError(
            f"'{folder}' names the {role} '{source.model}', which includes Python code. --trust-remote-code covers "
            f"only the model that you name. To run that code, {otherwise}set {TRUSTED}={source.model}."
        )
    return replace(source, trust_remote_code=False)


def require_own_code(path: str, source: Source) -> None:
    """Raise UnmaskError if a model needs code of another repository that the user did not allow."""
    if not source.trust_remote_code:
        return
    for repository in sorted(code_of(path, source.revision) - {path}):
        if not is_trusted(repository):
            raise UnmaskError(
                f"'{source.model}' needs to run Python code of '{repository}'. --trust-remote-code covers only the model that you name. "
                f"To run that code, set {TRUSTED}={repository}."
            )


def require_safetensors(path: str, source: Source) -> None:
    """Raise UnmaskError if the config of a model or an index names weight files other than *.safetensors files in the same folder.

    transformers reads what is named there, and other files than *.safetensors with pickle.
    """
    config = file_of(path, "config.json", source.revision)
    weight_files: set[str] = set(_weights_in(read_json(config))) if config else set()
    _require_plain(weight_files, (".safetensors", _INDEX), source)
    for index in sorted({f"model{_INDEX}", *(name for name in weight_files if name.endswith(_INDEX))}):
        if (file := file_of(path, index, source.revision)) is not None:
            _require_plain(set(_leaves(read_json(file).get("weight_map"))), (".safetensors",), source)


def _require_plain(names: set[str], endings: tuple[str, ...], source: Source) -> None:
    for name in sorted(names):
        if not name.endswith(endings) or any(char in name for char in "/\\\0"):
            raise UnmaskError(
                f"'{source.model}' names {name!r} as a weight file. Only *.safetensors files next to its config are loaded, since "
                "files of other formats can run code."
            )


def _weights_in(config: Any) -> Iterator[str]:
    """The files of weights that a config names, for its model or for a model inside it."""
    if isinstance(config, dict):
        yield from _leaves(config.get("transformers_weights"))
        for part in config.values():
            yield from _weights_in(part)


def code_of(path: str, revision: str | None) -> set[str]:
    """The repositories and folders whose Python code runs when this model is loaded."""
    names = [name for class_names in own_classes(path, revision).values() for name in class_names]
    return {name.split("--")[0] if "--" in name else path for name in names}


def own_classes(path: str, revision: str | None) -> dict[str, list[str]]:
    """The custom classes in `auto_map` of a model: "AutoModel", "AutoTokenizer", ... -> file.Class."""
    classes: dict[str, list[str]] = {}
    for name in ("config.json", "tokenizer_config.json"):
        if (file := file_of(path, name, revision)) is not None:
            mapped = read_json(file).get("auto_map") or {}
            mapped = mapped if isinstance(mapped, dict) else {"AutoTokenizer": mapped}  # older tokenizers have a list
            for auto, value in mapped.items():
                classes.setdefault(auto, []).extend(_leaves(value))
    return classes


def stored_quantization(path: str, revision: str | None) -> str | None:
    """The method by which the weights of a model are stored quantised (gptq, awq, bitsandbytes, mxfp4, ...); None for full weights."""
    file = file_of(path, "config.json", revision)
    config = (read_json(file).get("quantization_config") if file else None) or {}
    return str(config.get("quant_method", "unknown")) if config else None


def is_language_model(path: str, revision: str | None) -> bool:
    """Whether the config of a model names the class of a causal language model, not that of its decoder."""
    file = file_of(path, "config.json", revision)
    return "ForCausalLM" in str((read_json(file).get("architectures") if file else None) or "")


def file_of(path: str, name: str, revision: str | None) -> Path | None:
    """A file of a model in a folder or on the hub, if it has it."""
    try:
        file = Path(path) / name if Path(path).is_dir() else hub_file(path, name, revision)
    except UnmaskError:
        return None  # loading gives the reason
    return file if file is not None and file.is_file() else None


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)


def is_trusted(model: str) -> bool:
    """Whether the user lists a model in UNMASK_TRUST_CODE_OF."""
    trusted = [name.strip() for name in os.environ.get(TRUSTED, "").split(",") if name.strip()]
    return model in trusted or lasting_name(model) in {lasting_name(name) for name in trusted}


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UnmaskError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnmaskError(f"'{file}' is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise UnmaskError(f"'{file}' holds no JSON object.")
    return content
