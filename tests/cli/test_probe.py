"""What `unmask probe` writes replaces only what it wrote before."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from unmask.errors import UnmaskError
from unmask.reporting.plotting import new_figure, save_figure
from unmask.reporting.probe_tables import check_probe_folder


def test_only_files_of_a_probe_are_replaced(tmp_path: Path) -> None:
    save_figure(new_figure(2, 2)[0], tmp_path, "pairs")
    check_probe_folder(tmp_path, "pairs")
    for suffix in ("png", "svg", "pdf"):
        file = tmp_path / f"pairs.{suffix}"
        before = file.read_bytes()
        Figure().savefig(file)
        with pytest.raises(UnmaskError, match=rf"pairs\.{suffix}' was not written by unmask"):
            check_probe_folder(tmp_path, "pairs")
        file.write_bytes(before)
    (tmp_path / "pairs.json").write_text('{"provenance": {"attn_implementation": "sdpa"}}')
    check_probe_folder(tmp_path, "pairs")
    (tmp_path / "pairs.json").write_text('[{"sentence1": "a"}]')
    with pytest.raises(UnmaskError, match=r"pairs\.json' was not written by unmask"):
        check_probe_folder(tmp_path, "pairs")
