"""Embed texts with the model in this folder: `python embed.py "A man plays a guitar."`

Needs numpy, tokenizers, and the runtime of the model: onnxruntime (model.onnx), openvino (model.xml) or xllamacpp (model.gguf).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

BATCH = 8
STEP = 1024  # tokens. Texts on two sides of a multiple share no batch: LongRoPE rotates a batch by its longest text
THREADS = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


class Embedder:
    """Texts in, vectors of unit length out, float32 of shape (text, dim)."""

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer, how a text becomes tokens, and the model."""
        self.layout: dict[str, Any] = json.loads((folder / "input.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = self.layout["split_special_tokens"]  # tokenizer.json does not say it
        runtimes: dict[str, Callable[[Path, dict[str, Any]], Run]] = {
            "model.onnx": _onnx,
            "model.xml": _openvino,
            "model.gguf": LlamaCpp,
        }
        file, load = next((folder / name, load) for name, load in runtimes.items() if (folder / name).is_file())
        self.run = load(file, self.layout)

    def encode(self, texts: Sequence[str], instruction: str | None = None) -> Any:
        """Vectors of texts. instruction: for a prompt that takes one."""
        if isinstance(texts, str):
            raise ValueError("encode takes a list of texts, not one string: encode([text]).")
        if len(texts) == 0:
            return self.encode(["a"], instruction)[:0]
        tokens = [self.tokenize(text, instruction) for text in texts]
        vectors: list[Any] = [None] * len(texts)
        for indices in _batches([len(ids) for ids, _ in tokens]):
            for index, vector in zip(indices, self.run([tokens[index] for index in indices]), strict=True):
                vectors[index] = vector
        return np.stack(vectors)

    def tokenize(self, text: str, instruction: str | None = None) -> tuple[list[int], int]:
        """The ids of a text in its prompt, and the place of the first token that is pooled (the others are only attended to)."""
        rendered, copies = self.render(text, instruction)
        encoded = self.tokenizer.encode(rendered, add_special_tokens=self.layout["add_special_tokens"])
        end = len(encoded.ids) - self.layout["appended"]
        ids, offsets = encoded.ids[:end], _untrimmed(encoded.offsets[:end], encoded.special_tokens_mask[:end])
        before_special = offsets[: len(offsets) - self.layout.get("special_after", 0)]
        spans = [_token_range(before_special, *copy) for copy in copies]
        pools_all = self.layout.get("pools_all", [False, False])[bool(instruction)]
        start = 0 if pools_all else spans[-1][0]
        ids += self.layout["end"] or ([self.layout["empty"]] if start == len(ids) else [])
        excess = len(ids) - self.layout["max_length"]
        if excess <= 0:
            return ids, start
        # a token that also holds characters after the text belongs to the prompt; each copy of the text loses the same number
        spans = [(a, b - (b > a and offsets[b - 1][1] > stop)) for (a, b), (_, stop) in zip(spans, copies, strict=True)]
        kept_length = (sum(b - a for a, b in spans) - excess) // len(spans)
        if kept_length < 1:
            raise ValueError(f"max_length {self.layout['max_length']} leaves no room for a text in its prompt.")
        result: list[int] = []
        position = 0
        for a, b in spans:
            start = len(result) + a - position
            result += ids[position : min(b, a + kept_length)]
            position = b
        return result + ids[position:], 0 if pools_all else start

    def render(self, text: str, instruction: str | None) -> tuple[str, list[tuple[int, int]]]:
        """The prompt around a text, and the characters of each copy of the text in it."""
        prompt = self.layout["prompt_with_instruction"] if instruction else self.layout["prompt"]
        if prompt is None:
            raise ValueError("The prompt of this model takes no instruction.")
        text, instruction = _encodable(text), instruction and _encodable(instruction)
        rendered, copies = "", []
        for literal, field in prompt:
            rendered += literal
            if field == "text":
                copies.append((len(rendered), len(rendered) + len(text)))
            rendered += {"text": text, "instruction": instruction or ""}.get(field, "")
        return rendered, copies


def _batches(lengths: list[int]) -> Iterator[list[int]]:
    """Places of texts, batch by batch. Texts of similar length share a batch."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for _, group in groupby(order, key=lambda index: (lengths[index] - 1) // STEP):
        indices = list(group)
        yield from (indices[begin : begin + BATCH] for begin in range(0, len(indices), BATCH))


def _encodable(text: str) -> str:
    """A text in which lone surrogates, which no encoding can hold, are U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _untrimmed(offsets: Sequence[tuple[int, int]], special: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets in which every token but the special ones holds characters: some tokenizers leave none to a token of spaces alone."""
    spans, before = [], 0
    for (start, stop), mark in zip(offsets, special, strict=True):
        if start == stop and not mark:
            start, stop = (before, stop) if before < stop else (0, 1) if stop == 0 else (start, stop)
        before = before if mark else max(before, stop)
        spans.append((start, stop))
    return spans


def _token_range(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """The tokens of the characters [start, end). Tokens without characters (BOS) come before them."""
    first = next((k for k, (_, stop) in enumerate(offsets) if stop > start), len(offsets))
    stop = next((k for k in range(first, len(offsets)) if offsets[k][0] >= end and offsets[k][1] > start), len(offsets))
    return first, max(first, stop)


Run = Callable[[list[tuple[list[int], int]]], Any]


def _padded(texts: list[tuple[list[int], int]], pad: int) -> dict[str, Any]:
    """A batch, padded on the right. embed_mask: the tokens that are pooled."""
    longest = max(len(ids) for ids, _ in texts)
    ids = np.array([ids + [pad] * (longest - len(ids)) for ids, _ in texts], np.int64)
    columns, ends = np.arange(longest), np.array([[len(ids)] for ids, _ in texts])
    starts = np.array([[start] for _, start in texts])
    attention_mask = columns < ends
    return {
        "input_ids": ids,
        "attention_mask": attention_mask.astype(np.int64),
        "embed_mask": (attention_mask & (columns >= starts)).astype(np.int64),
    }


def _onnx(file: Path, layout: dict[str, Any]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def run(texts: list[tuple[list[int], int]]) -> Any:
        batch = _padded(texts, layout["pad"])
        return session.run(None, {name: batch[name] for name in names})[0]

    return run


def _openvino(file: Path, layout: dict[str, Any]) -> Run:
    import openvino

    # without the hint, OpenVINO computes in bf16 where the processor can
    model = openvino.Core().compile_model(
        str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS}
    )
    names = [
        next(name for name in ("input_ids", "attention_mask", "embed_mask") if name in node.names) for node in model.inputs
    ]

    def run(texts: list[tuple[list[int], int]]) -> Any:
        batch = _padded(texts, layout["pad"])
        return model({name: batch[name] for name in names})[0].copy()

    return run


class LlamaCpp:
    """A GGUF file in llama.cpp, which computes each text in one batch."""

    def __init__(self, file: Path, layout: dict[str, Any]) -> None:
        """Load the file. Attention computes in fp32: llama.cpp's flash attention and its cache use fp16 by default."""
        import xllamacpp

        options = xllamacpp.CommonParams()
        options.model.path = str(file)
        options.embedding = True
        # a text is one batch, and must be shorter than the context
        options.n_ctx = options.n_batch = options.n_ubatch = layout["max_length"] + 1
        options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = THREADS
        options.verbosity = -1
        self._server = xllamacpp.Server(options)

    def __call__(self, texts: list[tuple[list[int], int]]) -> Any:
        """Vectors of token ids."""
        return self.vectors([ids for ids, _ in texts])

    def vectors(self, inputs: Sequence[str | list[int]]) -> Any:
        """Vectors of texts inside their prompt, which llama.cpp tokenizes itself, or of token ids."""
        answer = self._server.handle_embeddings({"input": list(inputs)})
        if "data" not in answer:
            raise RuntimeError(f"llama.cpp: {answer}")
        return np.array([row["embedding"] for row in answer["data"]], np.float32)


if __name__ == "__main__":
    print(Embedder(Path(__file__).parent).encode(sys.argv[1:]))
