"""Serving: `unmask serve` against encoding offline, and against a plain FastAPI + sentence-transformers server; memory over many requests.

    python -m benchmarks.serve [--model smollm2] [--clients 32] [--per-request 4] [--seconds 10] [--repeats 2] [--smoke]

Texts are STSB sentences and SciFact abstracts (UNMASK_DATA). No text is sent twice before all were. Each client sends its next request as
soon as it has the answer to the last one. All three take turns on one machine, which also runs the clients; a ratio is that of their best
turns.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks import _inputs
from benchmarks.encode import PLAIN, texts

ROOT = Path(__file__).parents[1]


@dataclass
class Load:
    """What clients have measured. seconds: of each answer."""

    tokens: int = 0
    failures: int = 0
    seconds: list[float] = field(default_factory=list)
    speed: float = 0.0

    def latency(self, share: float) -> float:
        """The time within which this share of requests was answered."""
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[round(share * 100) - 1]


@dataclass(frozen=True)
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    path: str
    model: str

    @property
    def memory(self) -> float:
        """Resident memory, in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def body(self, some: Sequence[str]) -> bytes:
        """A request for the vectors of texts."""
        return json.dumps({"model": self.model, "input": some, "encoding_format": "float"}).encode()


@contextmanager
def started(command: Sequence[str], path: str, model: str) -> Iterator[Server]:
    """A server, from the moment at which it answers. `{port}` in the command stands for its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", *(word.replace("{port}", str(port)) for word in command)]
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        while _status(port) != 200:
            if process.poll() is not None:
                raise SystemExit(f"it does not start: {' '.join(words)}")
            time.sleep(0.1)
        yield Server(process, port, path, model)
    finally:
        process.terminate()
        process.wait()


def _status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def load(server: Server, requests: Sequence[tuple[bytes, int]], clients: int, seconds: float) -> Load:
    """Send requests (bodies, with their tokens) for some seconds, in order; clients take them from one line."""
    results, end = [Load() for _ in range(clients)], time.perf_counter() + seconds
    line, turn = cycle(requests), threading.Lock()

    def client(number: int) -> None:
        mine = results[number]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        while time.perf_counter() < end:
            with turn:
                body, tokens = next(line)
            begin = time.perf_counter()
            try:
                connection.request("POST", server.path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                mine.failures += 1
                connection.close()  # the next request connects again
                continue
            mine.seconds.append(time.perf_counter() - begin)
            mine.failures += answer.status != 200
            mine.tokens += tokens if answer.status == 200 else 0
        connection.close()

    begin = time.perf_counter()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - begin
    total = Load(sum(one.tokens for one in results), sum(one.failures for one in results))
    total.seconds = [value for one in results for value in one.seconds]
    total.speed = total.tokens / spent
    return total


def compare(given: argparse.Namespace) -> None:
    """Offline, our server and a plain one in turns, on the same model and texts."""
    from unmask import Embedder

    some = list(dict.fromkeys(texts(given.texts, given.smoke)["mixed"]))
    embedder = Embedder.from_pretrained(_inputs.model_of(given), PLAIN)
    lengths = [len(text.ids) for text in embedder.prompt.tokenize(some)]
    loads = dict[str, list[Load]]()
    offline = 0.0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        saved = Path(folder) / "saved"
        embedder.save_pretrained(saved)
        ours = ["unmask", "serve", str(saved), "--port", "{port}"]
        plain = ["benchmarks.serve", "--plain", str(saved), "{port}"]
        servers = {
            "ours": stack.enter_context(started(ours, "/v1/embeddings", "saved")),
            "plain": stack.enter_context(started(plain, "/embed", "")),
        }
        samples = [range(len(some))[k : k + given.per_request] for k in range(0, len(some), given.per_request)]
        for _ in range(given.repeats):
            begin = time.perf_counter()
            embedder.encode(some, show_progress=False)
            offline = max(offline, sum(lengths) / (time.perf_counter() - begin))
            print(f"offline: {offline:.0f} tokens/s on {len(some)} texts", flush=True)
            for name, server in servers.items():
                bodies = [(server.body([some[k] for k in sample]), sum(lengths[k] for k in sample)) for sample in samples]
                one = load(server, bodies, given.clients, given.seconds)
                loads.setdefault(name, []).append(one)
                print(
                    f"{name}: {one.speed:.0f} tokens/s, {len(one.seconds)} requests of {given.per_request} texts from "
                    f"{given.clients} clients, {one.failures} failed; p50 {one.latency(0.5):.2f} s, p99 {one.latency(0.99):.2f} s",
                    flush=True,
                )
    speeds = {name: max(one.speed for one in found) for name, found in loads.items()}
    print(f"ours: {speeds['ours'] / offline:.0%} of offline, {speeds['ours'] / speeds['plain']:.2f} x the plain server")


def memory(given: argparse.Namespace) -> None:
    """Resident memory of our server while it answers many requests of all sizes. The model is tiny, so that a leak would show."""
    draw = random.Random(0)
    words = ["a", "man", "plays", "the", "guitar", "while", "two", "dogs", "run", "across", "wet", "grass"]

    def body(server: Server) -> bytes:
        number = draw.choice((1, 1, 1, 2, 8))
        return server.body(
            [" ".join(draw.choices(words, k=draw.choice((1, 5, 20, 80)))) + str(draw.random()) for _ in range(number)]
        )

    with started(["unmask", "serve", "pico", "-d", "mean", "--port", "{port}"], "/v1/embeddings", "mean") as server:
        sizes, failures = [], 0
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for number in range(given.requests + 1):
            if number % max(1, given.requests // 4) == 0:
                sizes.append(server.memory)
            connection.request("POST", server.path, body(server), {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            failures += answer.status != 200
        connection.close()
    told = ", ".join(f"{size:.0f}" for size in sizes)
    print(f"memory over {given.requests} requests, at each quarter: {told} MB; {failures} failed")


def plain_server(folder: str, port: int) -> None:
    """What one writes first: a route that calls sentence-transformers."""
    import uvicorn
    from fastapi import Body, FastAPI
    from sentence_transformers import SentenceTransformer

    model, app = SentenceTransformer(folder), FastAPI()

    def embed(body: dict[str, Any] = Body()) -> list[list[float]]:  # noqa: B008
        return model.encode(body["input"], normalize_embeddings=True, show_progress_bar=False).tolist()  # type: ignore[no-any-return]

    app.add_api_route("/embed", embed, methods=["POST"])
    app.add_api_route("/health", lambda: "ok")
    uvicorn.run(app, host="127.0.0.1", port=port, access_log=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all of it."""
    parser = _inputs.parser(__doc__)
    parser.add_argument("--texts", type=int, default=2400)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--per-request", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10, help="of each turn")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--requests", type=int, default=10_000, help="of the measurement of memory; 0 leaves it out")
    parser.add_argument("--plain", nargs=2, metavar=("FOLDER", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.plain:
        plain_server(given.plain[0], int(given.plain[1]))
        return
    if given.smoke:
        given.texts, given.clients, given.seconds, given.repeats, given.requests = 12, 4, 0.5, 1, 40
    compare(given)
    if given.requests:
        memory(given)


if __name__ == "__main__":
    main()
