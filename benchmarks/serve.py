"""`unmask serve` against encoding offline and against a plain FastAPI + sentence-transformers server; and its memory over many requests.

    python -m benchmarks.serve [--model smollm2] [--clients 32] [--per-request 4] [--seconds 10] [--repeats 2] [--requests 10000] [--smoke]

Each client sends its next request as soon as it has the answer to the last one. No text is sent twice before all were. The machine also
runs the clients. Both servers and encoding offline take turns.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import numpy as np

from benchmarks._common import head, row, start, texts
from unmask import Embedder

ROOT = Path(__file__).parents[1]
Request = tuple[list[str], int]
"""Texts and the number of their tokens."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare speeds, then measure memory."""
    args = start(
        __file__, __doc__, arguments, texts=(2400, 12), clients=(32, 4), per_request=4, seconds=(10.0, 0.5), repeats=(2, 1),
        requests=(10_000, 40),
    )  # fmt: skip
    compare(args)
    measure_memory(args.requests)


def compare(args: argparse.Namespace) -> None:
    """The best of several turns: tokens per second and latencies."""
    some = list(dict.fromkeys(texts(args.texts, args.smoke)["mixed"]))
    embedder = Embedder.from_pretrained(args.model, "mean")
    lengths = [len(text.ids) for text in embedder.prompt.tokenize(some)]
    parts = [slice(k, k + args.per_request) for k in range(0, len(some), args.per_request)]
    requests = [(some[part], sum(lengths[part])) for part in parts]
    best: dict[str, tuple[float, Sequence[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        embedder.save_pretrained(f"{folder}/saved")
        with (
            running("unmask", "serve", f"{folder}/saved", "--port", "{port}") as (ours, _),
            running("benchmarks._plain_server", f"{folder}/saved", "{port}") as (plain, _),
        ):
            for _ in range(args.repeats):
                begin = time.perf_counter()
                embedder.encode(some, show_progress=False)
                results: dict[str, tuple[float, Sequence[float]]] = {}
                results["offline"] = (sum(lengths) / (time.perf_counter() - begin), [0.0])
                for name, port, path in (("unmask serve", ours, "/v1/embeddings"), ("plain server", plain, "/embed")):
                    results[name] = send(port, path, cycle(requests), args.clients, args.seconds)
                best = {name: max(result, best.get(name, result)) for name, result in results.items()}
    head("", "tokens/s", "half of the answers within, s", "99 % within, s")
    for name, (speed, latencies) in best.items():
        row(name, f"{speed:,.0f}", *(f"{np.quantile(latencies, share):.1f}" for share in (0.5, 0.99)))


def measure_memory(count: int) -> None:
    """The resident memory of a server with the pico model, so that a leak would show, at each quarter of many requests."""
    draw = random.Random(0)

    def request() -> Request:
        words = [draw.choice((1, 5, 20, 80)) for _ in range(draw.choice((1, 1, 1, 2, 8)))]
        return [" ".join(draw.choices(("a", "man", "plays", "the", "guitar"), k=k)) + str(draw.random()) for k in words], 0

    with running("unmask", "serve", "pico", "-d", "mean", "--port", "{port}") as (port, process):
        sizes = []
        for _ in range(5):
            status = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
            sizes.append(next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS")))
            if len(sizes) < 5:
                send(port, "/v1/embeddings", [request() for _ in range(count // 4)], 1, float("inf"), "mean")
    print(f"\nMemory over {count} requests, at each quarter: {', '.join(map(str, sizes))} MB.")


@contextmanager
def running(*command: str) -> Iterator[tuple[int, int]]:
    """Start a server in a process of its own and wait until it answers. Yields its port and the id of the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", *(word.replace("{port}", str(port)) for word in command)]
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                pass
            if process.poll() is not None:
                raise SystemExit(f"it does not start: {' '.join(words)}")
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def send(
    port: int, path: str, requests: Iterable[Request], clients: int, seconds: float, model: str = "saved"
) -> tuple[float, Sequence[float]]:
    """Send requests in order from several clients. Returns tokens per second and the seconds of each answer."""
    begin, waiting, lock = time.perf_counter(), iter(requests), threading.Lock()
    latencies: list[float] = []
    answered: list[int] = []

    def client(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while time.perf_counter() < begin + seconds:
            with lock:
                some, tokens = next(waiting, ([], 0))
            if not some:
                return
            body = json.dumps({"model": model, "input": some, "encoding_format": "float"})
            sent = time.perf_counter()
            connection.request("POST", path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise SystemExit(f"{path} answers {answer.status}")
            latencies.append(time.perf_counter() - sent)
            answered.append(tokens)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return sum(answered) / (time.perf_counter() - begin), latencies


if __name__ == "__main__":
    main()
