"""Export to OpenVINO: the ONNX graph, converted for Intel's runtime."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from unmask.saving.exports.check import check_vectors
from unmask.saving.exports.graph import load_reader, reader_usage, write_graph, write_reader
from unmask.saving.exports.target import Checked, Exportable, Target

_TOLERANCE = 1e-4


def _write(embedder: Exportable, folder: Path) -> None:
    openvino = _without_statistics()
    (graph := folder / "graph").mkdir()
    write_graph(embedder, graph)
    model = openvino.Core().read_model(graph / "model.onnx")
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    del model  # it holds the graph's files open
    shutil.rmtree(graph)
    write_reader(embedder, folder)


def _without_statistics() -> Any:
    """The module, kept from sending statistics of its use, which it would do as soon as it is imported."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def _check(embedder: Exportable, folder: Path) -> Checked:
    _without_statistics()
    return check_vectors(embedder, load_reader(folder).encode, _TOLERANCE)


OPENVINO = Target(
    name="openvino",
    meaning="OpenVINO, on Intel's processors and GPUs",
    precision="float32",
    writes=("onnx", "openvino"),
    checks=("openvino",),
    refusal=lambda _: None,
    write=_write,
    check=_check,
    usage=reader_usage,
)
