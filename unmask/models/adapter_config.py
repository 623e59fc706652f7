"""The configuration that peft writes beside an adapter, with the same bytes in every process."""

from __future__ import annotations

import json
from pathlib import Path

_SETS = ("target_modules", "exclude_modules")


def sort_adapter_config(folder: Path) -> None:
    """Sort the module names in `adapter_config.json` of a folder that peft wrote.

    peft holds them as sets and writes them in the order of Python's hashes, which differ between processes: the same training would
    leave other bytes after it was stopped and started again.
    """
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    for key in _SETS:
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    file.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
