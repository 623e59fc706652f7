"""Memory does not grow with the corpus: a process embeds a file that is larger than all that it may hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proofs import ALL

SIZES, WINDOW = ((12_000_000, 200_000_000), 4_000_000) if ALL else ((1_200_000, 4_000_000), 400_000)
"""Bytes of a file of three windows and of a larger one, and characters of a window."""
GROWTH = 100.0
"""Megabytes that the larger file may take more. Its tokens alone take some hundreds."""
PROGRAM = """
import resource, sys
from unmask.bulk import documents
from unmask.cli import main
documents.WINDOW_CHARACTERS = int(sys.argv[1])
for line in sys.argv[2:]:
    sys.argv = ["unmask", *line.split("\\n")]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def line_of(folder: Path, size: int) -> str:
    """The command for a file of so many bytes, one word on each line."""
    file = folder / f"texts-{size}.txt"
    with file.open("w") as lines:
        for number in range(size // 2000):
            lines.write(f"{number} {'many words follow and are cut off ' * 58}"[:1999] + "\n")
    options = ["-m", "pico", "-d", "mean", "--max-length", "8", "--shard-rows", "5000"]
    return "\n".join(map(str, ["embed", file, "-o", folder / f"out-{size}", *options]))


@pytest.mark.sample(0)
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """One process embeds both, the smaller one first: what the larger one takes more is what its peak is higher by."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(WINDOW), *(line_of(tmp_path, size) for size in SIZES)],
        capture_output=True,
        text=True,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    small, large = (float(line) for line in done.stdout.split())
    print(f"{SIZES[0] / 1e6:.0f} MB: {small:.0f} MB; {SIZES[1] / 1e6:.0f} MB: {large:.0f} MB")
    assert large - small < GROWTH
