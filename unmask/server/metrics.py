"""Metrics: what a server counts, for Prometheus. Labels are names of ours, never anything that a request holds."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from unmask.server.batcher import Batch

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        """Make counters that stand at zero."""
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("unmask_requests_total", "Answers, by path and status.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "unmask_request_seconds", "From the first byte of a request to the end of its answer.", ["path"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.texts = Counter("unmask_texts_total", "Texts of requests that were answered.", ["model"], registry=registry)
        self.tokens = Counter("unmask_tokens_total", "Tokens of these texts, with their prompts.", ["model"], registry=registry)
        self.cut = Counter(
            "unmask_truncated_texts_total", "Texts that were cut to the model's limit.", ["model"], registry=registry
        )
        self.gone = Counter(
            "unmask_gone_clients_total", "Requests whose client did not wait for the answer.", registry=registry
        )
        self.batch_texts = Histogram("unmask_batch_texts", "Texts of a batch.", buckets=_TEXTS, registry=registry)
        self.batch_tokens = Counter("unmask_batch_tokens_total", "Tokens of all batches.", registry=registry)
        self.batch_seconds = Histogram("unmask_batch_seconds", "Time of a batch.", buckets=_SECONDS, registry=registry)

    def note_batch(self, batch: Batch) -> None:
        """Count a batch that was computed."""
        self.batch_texts.observe(batch.texts)
        self.batch_tokens.inc(batch.tokens)
        self.batch_seconds.observe(batch.seconds)

    def note_answer(self, model: str, texts: int, tokens: int, cut: int) -> None:
        """Count the texts of a request that was answered."""
        self.texts.labels(model).inc(texts)
        self.tokens.labels(model).inc(tokens)
        self.cut.labels(model).inc(cut)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Show a number that is asked for whenever somebody looks."""
        Gauge(name, about, registry=self._registry).set_function(value)

    def page(self) -> bytes:
        """All counters, in Prometheus' text format."""
        return bytes(generate_latest(self._registry))
