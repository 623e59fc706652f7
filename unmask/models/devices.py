"""What a device computes in hardware, and what it emulates. Everything that chooses a precision asks here."""

from __future__ import annotations

import platform
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
    """Warn, once, that the device emulates this precision."""
    if not is_native(dtype, device):
        warnings.warn(
            f"This {device.type} emulates {str(dtype).removeprefix('torch.')}, which can be dozens of times slower than float32. "
            "Use --dtype auto (in Python dtype='auto'), which chooses float32 here.",
            stacklevel=3,
        )
