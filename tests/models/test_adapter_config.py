"""An adapter's configuration has the same bytes, in whatever order a process keeps names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from unmask.saving.saved_adapter import sort_adapter_config

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj")
EXCLUDED = ("x", "y", "z")


class Backwards(set[str]):
    """Names in an order that sorting has to change. The order of a plain set differs from process to process."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), reverse=True))


def test_the_order_of_names_does_not_change_the_bytes(tmp_path: Path) -> None:
    from peft import LoraConfig

    contents = set()
    for kind in (set, Backwards):
        folder = tmp_path / kind.__name__
        config = LoraConfig()
        config.target_modules, config.exclude_modules = kind(TARGETS), kind(EXCLUDED)
        config.save_pretrained(folder)
        before = json.loads((folder / "adapter_config.json").read_text())
        assert kind is set or before["target_modules"] == sorted(TARGETS, reverse=True), "peft keeps the order of a set"
        sort_adapter_config(folder)
        contents.add((folder / "adapter_config.json").read_bytes())
    assert len(contents) == 1 and json.loads(contents.pop())["target_modules"] == sorted(TARGETS)
