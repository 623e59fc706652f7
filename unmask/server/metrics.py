"""Prometheus metrics. Labels are our own names, never anything from a request."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.requests = counter("unmask_requests_total", "Requests, by path and status.", ("path", "status"))
        self.seconds = Histogram("unmask_request_seconds", "Time of a request.", ["path"], buckets=_SECONDS, registry=registry)
        self.texts = counter("unmask_texts_total", "Texts of answered requests.", ("model",))
        self.tokens = counter("unmask_tokens_total", "Tokens of these texts, prompts included.", ("model",))
        self.truncated = counter("unmask_truncated_texts_total", "Texts truncated to the model's limit.", ("model",))
        self.disconnects = counter("unmask_gone_clients_total", "Requests whose client disconnected before the answer.")
        self.batch_texts = Histogram("unmask_batch_texts", "Texts of a batch.", buckets=_TEXTS, registry=registry)
        self.batch_tokens = counter("unmask_batch_tokens_total", "Tokens of all batches.")
        self.batch_seconds = Histogram("unmask_batch_seconds", "Time of a batch.", buckets=_SECONDS, registry=registry)

    def count_batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Count a computed batch."""
        self.batch_texts.observe(texts)
        self.batch_tokens.inc(tokens)
        self.batch_seconds.observe(seconds)

    def count_answer(self, model: str, texts: int, tokens: int, truncated: int) -> None:
        """Count the texts of an answered request."""
        self.texts.labels(model).inc(texts)
        self.tokens.labels(model).inc(tokens)
        self.truncated.labels(model).inc(truncated)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is read when the metrics are."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return bytes(generate_latest(self._registry))
