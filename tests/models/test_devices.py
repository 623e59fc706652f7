"""Precisions: which ones a processor computes in hardware, and the warning about those that it emulates."""

from __future__ import annotations

import warnings

import pytest
import torch

from unmask.models.devices import is_native, warn_if_emulated
from unmask.models.loading import pick_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("machine", "avx512_bf16", "amx", "onednn", "native"),
    [
        ("x86_64", True, False, True, True),
        ("x86_64", False, True, True, True),
        ("x86_64", False, False, True, False),  # AVX-512 without bf16 instructions: oneDNN emulates it
        ("x86_64", True, True, False, False),  # limited by ONEDNN_MAX_CPU_ISA
        ("aarch64", False, False, True, True),
        ("aarch64", False, False, False, False),
    ],
)
def test_bf16_is_native_where_the_processor_and_onednn_compute_it(
    machine: str, avx512_bf16: bool, amx: bool, onednn: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: onednn)
    assert is_native(torch.bfloat16, CPU) == native
    assert is_native(torch.float32, CPU)


def test_an_emulated_precision_is_computed_with_a_warning_that_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.models.devices.is_native", lambda dtype, device: dtype == torch.float32)
    warn_if_emulated.cache_clear()
    with pytest.warns(UserWarning, match=r"emulates bfloat16: .* \d+ times as long as in float32.* Use --dtype auto"):
        assert pick_dtype("bfloat16", CPU) == torch.bfloat16
    with warnings.catch_warnings(action="error"):
        pick_dtype("bfloat16", CPU)  # once is enough
        pick_dtype("float32", CPU)
    warn_if_emulated.cache_clear()
