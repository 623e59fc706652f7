"""An adapter's configuration has the same bytes in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.models.adapter_config import sort_adapter_config

WRITE = """
import sys; from peft import LoraConfig
LoraConfig(target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"], exclude_modules=["x", "y", "z"]).save_pretrained(sys.argv[1])
"""


def write_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["", str(folder)])
    exec(WRITE, {})


def write_elsewhere(folder: Path, _: pytest.MonkeyPatch) -> None:
    """In a process that orders sets in another way."""
    subprocess.run([sys.executable, "-c", WRITE, folder], env={"PYTHONHASHSEED": "1"}, check=True)


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = set()
    for write in (write_here, write_elsewhere):
        folder = tmp_path / write.__name__
        write(folder, monkeypatch)
        before = json.loads((folder / "adapter_config.json").read_text())
        sort_adapter_config(folder)
        content = (folder / "adapter_config.json").read_bytes()
        assert json.loads(content)["target_modules"] == sorted(before["target_modules"])
        assert {**json.loads(content), "target_modules": 0, "exclude_modules": 0} == {
            **before,
            "target_modules": 0,
            "exclude_modules": 0,
        }
        contents.add(content)
    assert len(contents) == 1


def test_one_name_or_pattern_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"target_modules": "zyx.*", "exclude_modules": null}')
    sort_adapter_config(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text()) == {"target_modules": "zyx.*", "exclude_modules": None}
