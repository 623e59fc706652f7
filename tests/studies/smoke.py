"""The command that runs a study at the smoke scale."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LITTLE: Final = ("number=5", "held_out=4", "sizes=[2]", "router.steps=2", "expert.steps=2")
"""Settings that make the study of Self-MoE shorter still."""
SETTINGS: Final = {"self-moe": (*LITTLE, 'ablations=["shared expert", "joint top-2"]')}


def command(study: str, folder: Path) -> list[str]:
    """The arguments of `unmask` for a study at the smoke scale."""
    words = ["reproduce", study, "--scale", "smoke", "-o", str(folder), "--dtype", "float32"]
    return words + [word for setting in SETTINGS.get(study, ()) for word in ("--set", setting)]
