"""Speed and memory on a GPU, with random weights in the shapes of published models: nothing is downloaded.

    python -m benchmarks.gpu PART [--texts 2000] [--repeats 2] [--keep gpu.jsonl] [--smoke]

Parts: `shapes` (unmask and sentence-transformers, bf16, on the same weights and texts) and `placement` (an 8B model in fewer bits, and
with half of its layers in main memory). Lengths of texts are log-normal, as in mixed collections. Each result is printed and appended to
the file of --keep at once.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks._common import best_times, head, row, start
from unmask import Embedder
from unmask.encoding.encoder import Tally
from unmask.models.bundled import pico_tokenizer
from unmask.models.loading import pick_device
from unmask.models.placement import weight_bytes

DESIGN = "causal/plain/mean"
_LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "Llama-3.1-8B": _LLAMA_8B,
    "OLMoE-1B-7B": {
        "model_type": "olmoe",
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "vocab_size": 50304,
    },
}
_TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
_TINY |= {"vocab_size": 512, "head_dim": 16}
PLACEMENTS: dict[str, dict[str, Any]] = {"bf16": {}, "8bit": {"quantize": "8bit"}, "4bit": {"quantize": "4bit"}}


def config_of(shape: dict[str, Any], smoke: bool) -> Any:
    """The configuration of a model in this shape; in a smoke run, a tiny one of the same type."""
    from transformers import AutoConfig

    sizes = (
        {**shape, **_TINY, **({"num_experts": 4, "num_experts_per_tok": 2} if "num_experts" in shape else {})}
        if smoke
        else shape
    )
    return AutoConfig.for_model(**sizes, max_position_embeddings=4096, tie_word_embeddings=False, pad_token_id=0)


def random_model(config: Any, device: torch.device) -> Any:
    """A decoder with random weights in bf16."""
    from transformers import AutoModel

    torch.manual_seed(0)
    with device:
        return AutoModel.from_config(config, dtype=torch.bfloat16)


def mixed_texts(count: int) -> list[str]:
    """Texts of random words, from a few tokens to about 500."""
    draw = random.Random(0)
    words = ["the", "cat", "model", "of", "a", "market", "fell", "music", "and", "reads", "grass", "number"]
    return [" ".join(draw.choices(words, k=min(200, max(2, round(draw.lognormvariate(3.5, 1)))))) for _ in range(count)]


def synchronised(run: Callable[[], Any]) -> Callable[[], Any]:
    """A call that returns when the device is done."""

    def call() -> None:
        run()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    return call


class Peak:
    """The most GB of the GPU that a `with` block held; NaN on a CPU."""

    gigabytes = float("nan")

    def __enter__(self) -> Peak:
        """Start to measure."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        """Note the most that was held."""
        if torch.cuda.is_available():
            self.gigabytes = torch.cuda.max_memory_allocated() / 1e9


def shapes(args: Any, keep: Callable[..., None]) -> None:
    """Tokens a second of both libraries on the same weights, texts and device."""
    from sentence_transformers import SentenceTransformer

    device = pick_device("auto")
    texts = mixed_texts(args.texts)
    head(
        "shape",
        "parameters",
        "unmask, tokens/s",
        "GB",
        "sentence-transformers, tokens/s",
        "GB",
        "times as fast",
        "least cosine",
    )
    with tempfile.TemporaryDirectory() as folder:
        tiny = random_model(config_of(_LLAMA_8B, smoke=True), torch.device("cpu"))
        Embedder.from_model(tiny, pico_tokenizer(), DESIGN).save_pretrained(f"{folder}/plain")
        for name, shape in SHAPES.items():
            model = random_model(config_of(shape, args.smoke), device)
            theirs = SentenceTransformer(f"{folder}/plain", device=str(device))
            theirs[0].model = model
            result = compare(Embedder.from_model(model, pico_tokenizer(), DESIGN), theirs, texts, args.repeats)
            keep(shape=name, **result)
            (ours_speed, their_speed), (ours_peak, their_peak) = result["tokens_per_second"], result["gigabytes"]
            cells = (
                f"{ours_speed:,.0f}",
                f"{ours_peak:.1f}",
                f"{their_speed:,.0f}",
                f"{their_peak:.1f}",
                f"{ours_speed / their_speed:.2f}",
            )
            row(name, f"{result['parameters'] / 1e6:,.0f}M", *cells, f"{result['cosine']:.4f}")
            del model, theirs  # before the next one needs their memory


def compare(ours: Embedder, theirs: Any, texts: Sequence[str], repeats: int) -> dict[str, Any]:
    """Speed and peak memory of both libraries, and their least cosine."""
    tally = Tally()
    vectors = ours.encode(texts, tally=tally, show_progress=False)
    cosines = Embedder.similarity_pairwise(vectors, theirs.encode(texts, show_progress_bar=False))
    speeds, peaks = [], []
    for encode in (partial(ours.encode, texts, show_progress=False), partial(theirs.encode, texts, show_progress_bar=False)):
        with Peak() as peak:
            speeds.append(tally.tokens / best_times({"": synchronised(encode)}, repeats)[""])
        peaks.append(peak.gigabytes)
    parameters = sum(weight.numel() for weight in ours.backbone.model.parameters())
    return {"parameters": parameters, "tokens_per_second": speeds, "gigabytes": peaks, "cosine": float(cosines.min())}


def placement(args: Any, keep: Callable[..., None]) -> None:
    """An 8B model on one device in 16, 8 and 4 bits, and with every second layer in main memory."""
    device = pick_device("auto")
    texts = mixed_texts(args.texts // 4)
    config = config_of(_LLAMA_8B, args.smoke)
    head("weights", "GB", "seconds to load", "peak on the GPU, GB", "tokens/s", "least cosine")
    with tempfile.TemporaryDirectory() as folder:
        random_model(config, device).save_pretrained(folder)
        pico_tokenizer().save_pretrained(folder)
        main_device = 0 if device.type == "cuda" else "cpu"
        layers = {f"layers.{k}": "cpu" if k % 2 else main_device for k in range(config.num_hidden_layers)}
        half = {"device_map": {"embed_tokens": main_device, "rotary_emb": main_device, "norm": main_device, **layers}}
        exact = None
        for name, options in {**PLACEMENTS, "bf16, half of the layers in main memory": half}.items():
            result, vectors = load_and_encode(folder, options, texts, args.repeats)
            exact = vectors if exact is None else exact
            result["cosine"] = float(Embedder.similarity_pairwise(vectors, exact).min())
            keep(weights=name, **result)
            speed, cosine = f"{result['tokens_per_second']:,.0f}", f"{result['cosine']:.4f}"
            row(name, f"{result['gigabytes']:.1f}", f"{result['seconds']:.0f}", f"{result['peak']:.1f}", speed, cosine)


def load_and_encode(folder: str, options: dict[str, Any], texts: Sequence[str], repeats: int) -> tuple[dict[str, Any], Any]:
    """What it takes to load a model and to encode texts, and their vectors."""
    with Peak() as peak:
        begin = time.perf_counter()
        embedder = Embedder.from_pretrained(folder, DESIGN, dtype="bfloat16", **options)
        seconds, tally = time.perf_counter() - begin, Tally()
        vectors = embedder.encode(texts, tally=tally, show_progress=False)
        encode = partial(embedder.encode, texts, show_progress=False)
        speed = tally.tokens / best_times({"": synchronised(encode)}, repeats)[""]
    gigabytes = weight_bytes(embedder.backbone.model) / 1e9
    return {"gigabytes": gigabytes, "seconds": seconds, "peak": peak.gigabytes, "tokens_per_second": speed}, vectors


PARTS = {"shapes": shapes, "placement": placement}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one part; in a smoke run without a part, all of them."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parts = [given.pop(0)] if given and not given[0].startswith("-") else list(PARTS)
    if unknown := set(parts) - PARTS.keys():
        raise SystemExit(f"Unknown part '{unknown.pop()}'. Choose from: {', '.join(PARTS)}.")
    args = start(__file__, __doc__, given, texts=(2000, 12), repeats=(2, 1), keep="")
    device = pick_device("auto")
    print(f"Device: {torch.cuda.get_device_name() if device.type == 'cuda' else device}.")
    for part in parts:

        def keep(**result: Any) -> None:
            if args.keep:
                with Path(args.keep).open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"part": part, **result}) + "\n")  # noqa: B023

        PARTS[part](args, keep)


if __name__ == "__main__":
    main()
