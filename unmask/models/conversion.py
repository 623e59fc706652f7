"""Conversion: GGUF files as safetensors in the cache.

A GGUF file takes long to read, and a model in this form can be neither trained nor saved. So it is converted once, into the user's cache
(`UNMASK_CACHE`, else `XDG_CACHE_HOME/unmask`, else `~/.cache/unmask`). A lock keeps other processes out, and the folder appears only when
it is complete. If it gets damaged later, it is converted again.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError, cause_of
from unmask.io.files import atomic_folder, make_folder, remove_with_scratch
from unmask.io.paths import cache_folder
from unmask.io.seals import Damaged, check_seal, is_sealed, read_record, seal, write_record
from unmask.models.digests import digest_of_file
from unmask.models.progress_bars import without_loading_bars

_EXACT = 2**31
"""Bytes up to which a GGUF file is converted to float32, which holds every quantised weight exactly. Larger ones become bfloat16: its
rounding is small next to that of 4 bits, and a model of 7 billion parameters takes 14 GB instead of 28."""


def is_gguf(path: Path) -> bool:
    """Whether a path names a GGUF file."""
    return path.suffix == ".gguf" and path.is_file()


def gguf_folder(file: Path) -> Path:
    """The folder of a GGUF file's weights as safetensors and of its tokenizer, made on first use.

    Raises UnmaskError for a file that transformers cannot read, and for a cache that cannot be written.
    """
    folder = cache_folder() / "models" / f"{file.stem}-{digest_of_file(file)[:16]}"
    return folder if is_whole(folder) else prepared(folder, lambda scratch: convert_gguf(file.absolute(), scratch))


@without_loading_bars()
def convert_gguf(file: Path, scratch: Path) -> None:
    """Write the weights and the tokenizer of a GGUF file to scratch/converted. Weights are read one by one, so memory holds them once."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    fields = _fields_of(file)
    options: dict[str, Any] = {"gguf_file": file.name}
    dtype = torch.float32 if file.stat().st_size <= _EXACT else torch.bfloat16
    try:
        # dequantize: without it the model can be neither saved nor trained
        config = GgufConfig(dequantize=True)
        decoder = AutoModelForCausalLM.from_pretrained(file.parent, dtype=dtype, quantization_config=config, **options)
        decoder.save_pretrained(scratch / "converted")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
        _add_special_tokens(tokenizer, fields)
        tokenizer.init_kwargs["local_files_only"] = False  # is saved, and would make the identity depend on HF_HUB_OFFLINE
        tokenizer.save_pretrained(scratch / "converted")
    except (torch.OutOfMemoryError, MemoryError, OSError):
        raise
    except Exception as error:  # of any class, since the file goes through code of several libraries
        raise UnmaskError(f"'{file}' could not be read as a GGUF file: {cause_of(error)}") from error


def _fields_of(file: Path) -> dict[str, Any]:
    """What a GGUF file says about itself. Raises UnmaskError for a file that ends early or is none; transformers would name no file."""
    from gguf import GGUFReader

    try:
        fields: dict[str, Any] = GGUFReader(file).fields  # it maps every tensor, so it notices that one is cut
    except MemoryError:
        raise
    except Exception as error:  # of any class: numpy and struct read what the bytes say
        raise UnmaskError(
            f"'{file}' is damaged, incomplete or not a GGUF file ({cause_of(error).rstrip('.')}). Download or copy it again."
        ) from error
    kind = fields["general.architecture"].contents() if "general.architecture" in fields else "general"
    if missing := [key for key in (f"{kind}.block_count", f"{kind}.embedding_length") if key not in fields]:
        # transformers would make a model of its default size, of many gigabytes
        raise UnmaskError(f"'{file}' could not be read as a GGUF file: it does not say {' and '.join(missing)}.")
    return fields


def _add_special_tokens(tokenizer: Any, fields: dict[str, Any]) -> None:
    """Set the special tokens that the file names and transformers left out, as it does for byte-level vocabularies of Llama."""
    for name in ("bos", "eos", "unk", "pad"):
        field = fields.get(f"tokenizer.ggml.{'unknown' if name == 'unk' else 'padding' if name == 'pad' else name}_token_id")
        if field is not None and getattr(tokenizer, f"{name}_token") is None:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(int(field.contents())))


def prepared(folder: Path, write: Callable[[Path], None]) -> Path:
    """A folder of the cache, made unless it is whole. write: puts its files into `converted` in a given folder."""
    from filelock import FileLock

    _require_writable(folder.parent)
    with FileLock(f"{folder}.lock"):
        if not is_whole(folder):  # another process may have made it while this one waited
            for abandoned in folder.parent.glob(f".{folder.name}-*"):  # by a process that was killed
                shutil.rmtree(abandoned, ignore_errors=True)
            remove_with_scratch(folder)
            scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                write(scratch)
                with atomic_folder(folder) as whole:
                    for file in (scratch / "converted").iterdir():
                        file.replace(whole / file.name)
                    seal(whole)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def is_whole(folder: Path) -> bool:
    """Whether a converted model exists and is undamaged.

    All files are read once a day, and whenever a size or a time has changed. That takes seconds for a model of 500 MB.
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
        intact = is_sealed(folder)
    except Damaged as error:
        warnings.warn(f"A converted model in the cache is damaged, so it is converted again: {error}", stacklevel=2)
        return False
    if intact:
        with suppress(OSError):  # the cache may be read-only
            write_record(note, state)
    return intact


def _require_writable(folder: Path) -> None:
    """Make the folder. Raises UnmaskError, with the way out, if it cannot be written: a home may be read-only, or missing."""
    try:
        make_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or error
        raise UnmaskError(
            f"The cache '{folder}' cannot be written: {reason}. Set UNMASK_CACHE to a folder that can be."
        ) from error
