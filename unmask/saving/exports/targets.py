"""The formats to export to, by name. A new one is a file beside this one, and a line here."""

from __future__ import annotations

from unmask.saving.exports.gguf import GGUF
from unmask.saving.exports.model2vec import MODEL2VEC
from unmask.saving.exports.onnx import ONNX
from unmask.saving.exports.openvino import OPENVINO
from unmask.saving.exports.sentence_transformers import SENTENCE_TRANSFORMERS
from unmask.saving.exports.target import Target

TARGETS: dict[str, Target] = {target.name: target for target in (SENTENCE_TRANSFORMERS, ONNX, OPENVINO, GGUF, MODEL2VEC)}
