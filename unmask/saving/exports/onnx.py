"""Export to ONNX and OpenVINO: model, pooling, standardisation, head and normalisation as one graph, with the files that read it.

The graph is traced from the code that embeds here, so it is what every design computes.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.encoding.backbone import TokenBatch
from unmask.encoding.batching import collate
from unmask.encoding.features import vectors
from unmask.errors import UnmaskError, cause_of
from unmask.saving.exports import standalone
from unmask.saving.exports.target import Checked, Exportable, Target, check_vectors

_OPSET, _TOLERANCE = 18, 1e-4


class VectorGraph(nn.Module):
    """Tokens in, vectors of unit length out, for tracing."""

    def __init__(self, embedder: Exportable) -> None:
        """Wrap an embedder; its model and head become submodules, so that their weights are the graph's."""
        super().__init__()
        self.embedder, self.fit = embedder, embedder.fitted
        self.model, self.head = embedder.backbone.model, embedder.backbone.head

    def forward(self, input_ids: Tensor, attention_mask: Tensor, embed_mask: Tensor | None = None) -> Tensor:
        """Vectors of shape (text, dim). embed_mask: the tokens that are pooled, if not all."""
        design, mask = self.embedder.design, attention_mask.bool()
        batch = TokenBatch(input_ids, mask, mask if embed_mask is None else embed_mask.bool())
        raw = self.embedder.backbone.raw(batch, [design])[design]
        return nn.functional.normalize(vectors(design, raw, self.fit), dim=1)


def write_graph(embedder: Exportable, folder: Path) -> None:
    """Write model.onnx, the tokenizer and what a reader needs. Raises UnmaskError for a model that torch cannot export.

    The model is traced by TorchScript, on one batch. A trace may hold something of its batch, so the check reads batches of other
    sizes. (torch's newer exporter, `dynamo=True`, takes 15 seconds for a model of three small layers, where a trace takes 0.6.)
    """
    inputs = _example(embedder)
    model = embedder.backbone.model
    try:
        with _silent(), _traceable_experts(model), torch.no_grad():
            torch.onnx.export(
                VectorGraph(embedder).eval(),
                tuple(inputs.values()),
                str(folder / "model.onnx"),
                dynamo=False,
                opset_version=_OPSET,
                input_names=list(inputs),
                output_names=["vectors"],
                dynamic_axes={**{name: {0: "text", 1: "token"} for name in inputs}, "vectors": {0: "text"}},
            )
    except RuntimeError as error:
        message = f"torch could not export {type(model).__name__} with '{embedder.design.name}' to ONNX: {cause_of(error)}"
        raise UnmaskError(message) from error
    write_reader(embedder, folder)


@contextmanager
def _traceable_experts(model: Any) -> Iterator[None]:
    """Compute experts by gathering their weights: other ways sort the tokens by expert, which a graph cannot hold."""
    config = model.config.get_text_config(decoder=True)
    before = getattr(config, "_experts_implementation", None)
    if before is None or not hasattr(model, "set_experts_implementation"):
        yield
        return
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextmanager
def _silent() -> Iterator[None]:
    """Without the exporter's remarks on names of dimensions, and on libraries that no model here needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def write_reader(embedder: Exportable, folder: Path) -> None:
    """Write the tokenizer, how a text becomes tokens, and the code that reads both and runs the model."""
    embedder.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "input.json").write_text(
        json.dumps(embedder.prompt.layout, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    shutil.copyfile(standalone.__file__, folder / "embed.py")


def load_reader(folder: Path) -> Any:
    """The reader that an exported folder carries, run by its own code; see `standalone.Embedder`."""
    import importlib.util

    spec: Any = importlib.util.spec_from_file_location("unmask_exported", folder / "embed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Embedder(folder)


def reader_usage(_: Exportable) -> str:
    """How to use an exported folder, for its card."""
    return (
        "from pathlib import Path\n\nfrom embed import Embedder  # embed.py in this folder\n\n"
        'model = Embedder(Path("FOLDER"))\nvectors = model.encode(["A man plays a guitar."])'
    )


def _example(embedder: Exportable) -> dict[str, Tensor]:
    """A batch of two texts with padding, as the inputs of the graph."""
    texts = list(embedder.prompt.tokenize(["A man plays a guitar.", "It rains."]))
    batch = collate(texts, embedder.prompt.pad_id)
    inputs = {"input_ids": batch.ids, "attention_mask": batch.attention_mask.long()}
    if pools_a_part(embedder):
        inputs["embed_mask"] = batch.pooling_mask.long()
    return {name: value.to(embedder.backbone.device) for name, value in inputs.items()}


def pools_a_part(embedder: Exportable) -> bool:
    """Whether some tokens are attended to but not pooled: of the prompt before the text, or BOS."""
    instruction = "x" if embedder.prompt.prompt.takes_instruction else None
    return embedder.design.pooling != "last" and next(embedder.prompt.tokenize(["a"], instruction)).start > 0


def _write_openvino(embedder: Exportable, folder: Path) -> None:
    openvino = _openvino_without_telemetry()
    (graph := folder / "graph").mkdir()
    write_graph(embedder, graph)
    model = openvino.Core().read_model(graph / "model.onnx")
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    del model  # it holds the graph's files open
    shutil.rmtree(graph)
    write_reader(embedder, folder)


def _openvino_without_telemetry() -> Any:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it would send usage statistics on import
    import openvino

    return openvino


def _check(embedder: Exportable, folder: Path) -> Checked:
    if (folder / "model.xml").is_file():
        _openvino_without_telemetry()
    return check_vectors(embedder, load_reader(folder).encode, _TOLERANCE)


_SHARED: dict[str, Any] = {"precision": "float32", "refusal": lambda _: None, "check": _check, "usage": reader_usage}
ONNX = Target(
    name="onnx",
    meaning="onnxruntime, on CPUs and GPUs of any vendor",
    writes=("onnx",),
    checks=("onnxruntime",),
    write=write_graph,
    **_SHARED,
)
OPENVINO = Target(
    name="openvino",
    meaning="OpenVINO, on Intel's processors and GPUs",
    writes=("onnx", "openvino"),
    checks=("openvino",),
    write=_write_openvino,
    **_SHARED,
)
