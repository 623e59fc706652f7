"""Export to ONNX: one graph, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path

from unmask.saving.exports.check import check_vectors
from unmask.saving.exports.graph import load_reader, reader_usage, write_graph
from unmask.saving.exports.target import Checked, Exportable, Target

_TOLERANCE = 1e-4


def _check(embedder: Exportable, folder: Path) -> Checked:
    return check_vectors(embedder, load_reader(folder).encode, _TOLERANCE)


ONNX = Target(
    name="onnx",
    meaning="onnxruntime, on processors and GPUs of all makers",
    precision="float32",
    writes=("onnx",),
    checks=("onnxruntime",),
    refusal=lambda _: None,
    write=write_graph,
    check=_check,
    usage=reader_usage,
)
