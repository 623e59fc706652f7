"""What a device computes in hardware, and what it emulates. Everything that chooses a precision asks here."""

from __future__ import annotations

import platform
import time
import warnings
from functools import cache

import torch


def is_native(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the device has instructions for a precision. One that is emulated can be dozens of times slower than float32.

    oneDNN is asked as well as the processor, so the limits of ONEDNN_MAX_CPU_ISA count.
    """
    if dtype == torch.float32:
        return True
    if device.type == "cuda":
        return dtype == torch.float16 or bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return bool(dtype == torch.float16)
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    # On x86, oneDNN counts any AVX-512 as support, and emulates bf16 on the first generations
    has_instructions = (
        platform.machine() not in ("x86_64", "AMD64")
        or torch.cpu._is_avx512_bf16_supported()
        or torch.cpu._is_amx_tile_supported()
    )
    return has_instructions and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def warn_if_emulated(dtype: torch.dtype, device: torch.device) -> None:
    """Warn, once, that the device emulates this precision, with the slowdown measured on it."""
    if is_native(dtype, device):
        return
    name = str(dtype).removeprefix("torch.")
    times = _matmul_seconds(dtype, device) / _matmul_seconds(torch.float32, device)
    warnings.warn(
        f"This {device.type} emulates {name}: a matrix product takes {times:.0f} times as long as in float32, and long texts suffer most. "
        "Use --dtype auto (in Python dtype='auto'), which chooses float32 here.",
        stacklevel=3,
    )


def _matmul_seconds(dtype: torch.dtype, device: torch.device) -> float:
    """The time of a layer of about the size of a small LLM's; the best of three."""
    states, weights = torch.ones(256, 1024, dtype=dtype, device=device), torch.ones(1024, 1024, dtype=dtype, device=device)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        float(torch.nn.functional.linear(states, weights)[0, 0])  # waits for the device
        seconds.append(time.perf_counter() - start)
    return min(seconds)
