"""Conversion of GGUF files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unmask.errors import UnmaskError
from unmask.models.loading import Source, load_decoder


def test_a_damaged_gguf_file_gets_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguf import GGUFWriter

    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    writer = GGUFWriter(str(tmp_path / "whole.gguf"), "llama")
    writer.add_context_length(64)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", np.ones((2, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole = (tmp_path / "whole.gguf").read_bytes()
    damaged = {
        "cut in its tensors": whole[:-100],
        "cut in its header": whole[:60],
        "empty": b"",
        "a page of a website": b"<html>not found</html>",
    }
    for name, content in damaged.items():
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(content)
        with pytest.raises(
            UnmaskError, match=rf"{name}.gguf' is damaged, incomplete or not a GGUF file \(.+\). Download or copy"
        ):
            load_decoder(Source(str(file)))
    # it lacks what a model needs
    with pytest.raises(UnmaskError, match=r"whole.gguf' could not be read as a GGUF file: it does not say llama.block_count"):
        load_decoder(Source(str(tmp_path / "whole.gguf")))
