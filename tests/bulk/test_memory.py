"""Memory does not grow with the corpus: a process embeds a file that is larger than all that it may hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.proofs import ALL

SIZES = (12_000_000, 200_000_000) if ALL else (12_000_000, 30_000_000)
"""Bytes of a file that fills a window, and of a larger one."""
GROWTH = 120.0
"""Megabytes that the larger file may take more."""
PROGRAM = """
import resource, sys
from unmask.cli import main
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def peak_of(folder: Path, size: int) -> float:
    """Megabytes that the command takes at most for a file of so many bytes."""
    file = folder / f"texts-{size}.txt"
    with file.open("w") as lines:
        for number in range(size // 2000):
            lines.write(f"{number} {'many words follow and are cut off ' * 58}"[:1999] + "\n")
    words = [file, "-m", "pico", "-d", "mean", "--max-length", "8", "-o", folder / f"out-{size}", "--shard-rows", "5000"]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "embed", *map(str, words)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout.split()[-1])


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    small, large = (peak_of(tmp_path, size) for size in SIZES)
    print(f"{SIZES[0] / 1e6:.0f} MB: {small:.0f} MB; {SIZES[1] / 1e6:.0f} MB: {large:.0f} MB")
    assert large - small < GROWTH
