"""Map of a corpus: a sample of its texts as points. One thread embeds them under one design after another."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from unmask.encoding.encoder import Tally
from unmask.encoding.quantization import normalized, unit_cosines
from unmask.encoding.tokenization import TokenizedText
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.rows import field as read_field
from unmask.io.rows import read_rows
from unmask.server.middleware import log_failure
from unmask.ui.embedders import Embedders
from unmask.ui.worker import Stop, Stopped

Layout = Literal["pca", "t-sne"]
Points = Float[NDArray[np.float32], "text two"]
UnitVectors = Float[NDArray[np.float32], "text dim"]
MAX_TEXTS = 20_000
_CACHE_SIZE = 2  # designs whose vectors stay in memory: 20,000 texts of 576 dimensions take 46 MB
_SNIPPET = 160
_NEIGHBOURS = 10
_NEAREST = 20
_PERPLEXITY = 30
_ABANDONED_SECONDS = 5.0  # a visible page polls more than twice a second


@dataclass(frozen=True)
class Corpus:
    """A sample of the texts of a file, in its order, perhaps with labels."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...] | None
    rows: int
    """Rows of the file."""

    @property
    def label_names(self) -> list[str]:
        """Distinct labels, most frequent first."""
        return [label for label, _ in Counter(self.labels or ()).most_common()]


def read_corpus(
    file: Path, column: str = "text", label: str | None = None, max_texts: int = MAX_TEXTS, seed: int = 0
) -> Corpus:
    """Read the texts of a file, or a random sample of them. Every row is checked; only the sample is kept in memory."""
    rng, rows = Random(seed), 0
    sample: list[tuple[int, str, str]] = []
    for line, row in read_rows(file):
        text = read_field(file, line, row, column)
        row_label = str(read_field(file, line, row, label, (str, int, float))) if label else ""
        slot = rows if rows < max_texts else rng.randrange(rows + 1)  # reservoir sampling (algorithm R)
        if slot < max_texts:
            sample[slot : slot + 1] = [(rows, text, row_label)]
        rows += 1
    if not sample:
        raise UnmaskError(f"{file} holds no row.")
    sample.sort()
    texts, labels = tuple(text for _, text, _ in sample), tuple(row_label for *_, row_label in sample)
    return Corpus(file.name, texts, labels if label else None, rows)


def project(vectors: UnitVectors) -> tuple[Points, float]:
    """The first two principal components of vectors, and the share of the variance that they explain."""
    from sklearn.decomposition import PCA

    points = np.zeros((len(vectors), 2), np.float32)
    if np.ptp(vectors, axis=0).max() < 1e-6:
        return points, 0.0
    pca = PCA(min(2, *vectors.shape), svd_solver="arpack" if min(vectors.shape) > 2 else "full", random_state=0)
    components = pca.fit_transform(vectors)
    points[:, : components.shape[1]] = components
    return points, float(pca.explained_variance_ratio_.sum())


def t_sne(vectors: UnitVectors, principal: Points) -> Points:
    """t-SNE initialised with the principal components, which are returned for too few or equal vectors."""
    from sklearn.manifold import TSNE

    spread = float(principal[:, 0].std())
    if len(vectors) < 5 or spread < 1e-6:
        return principal
    layout = TSNE(
        init=principal / spread * 1e-4,  # as init="pca" scales it
        perplexity=min(_PERPLEXITY, (len(vectors) - 1) / 3),
        random_state=0,
    )
    return np.asarray(layout.fit_transform(vectors), np.float32)


@dataclass
class Projection:
    """The map under one design, in progress or finished."""

    design: str
    total: int
    requested_at: float
    done: int = 0
    stop: Stop = field(default_factory=Stop)
    vectors: UnitVectors | None = None
    points: Points | None = None
    t_sne: Points | None = None
    t_sne_requested: bool = False
    explained_variance: float = 0.0
    truncated: int = 0
    error: str | None = None

    def advance(self, texts: int) -> None:
        """Count embedded texts. Raises Stopped if the map is no longer needed."""
        self.stop()
        self.done += texts


class CorpusMap:
    """Maps of one corpus. Thread-safe."""

    def __init__(self, embedders: Embedders, corpus: Corpus) -> None:
        self.corpus, self._embedders = corpus, embedders
        self._maps: dict[str, Projection] = {}
        self._lock = threading.Lock()
        self._t_sne_lock = threading.Lock()  # one layout at a time
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="unmask-map")
        self._folded = [text.casefold() for text in corpus.texts]

    @property
    def summary(self) -> dict[str, Any]:
        """Name and size, as JSON."""
        return {"texts": len(self.corpus.texts), "rows": self.corpus.rows, "name": self.corpus.name}

    def about(self) -> dict[str, Any]:
        """Snippets and labels of the texts, as JSON."""
        names = self.corpus.label_names
        numbers = {name: number for number, name in enumerate(names)}
        return {
            "name": self.corpus.name,
            "rows": self.corpus.rows,
            "snippets": [text[:_SNIPPET] for text in self.corpus.texts],
            "label_names": names,
            "labels": None if self.corpus.labels is None else [numbers[label] for label in self.corpus.labels],
        }

    def get(self, name: str, layout: Layout = "pca") -> dict[str, Any]:
        """The map under a design, or its progress, as JSON. The first call queues it; abandoned maps are cancelled."""
        design = self._embedders.design(name).name
        with self._lock:
            if design not in self._maps:
                parsed = self._embedders.design(name)
                parsed.require_dense("The map")
                self._embedders.base.backbone.check(parsed)
                self._maps[design] = projection = Projection(design, len(self.corpus.texts), time.monotonic())
                self._pool.submit(self._compute, name, projection)
            projection = self._maps[design] = self._maps.pop(design)
            now = projection.requested_at = time.monotonic()
            for key, waiting in list(self._maps.items()):
                if waiting.points is None and now - waiting.requested_at > _ABANDONED_SECONDS:
                    waiting.stop.set()
                    del self._maps[key]
        if projection.error:
            with self._lock:
                self._maps.pop(design, None)  # so that the next request tries again
            raise UnmaskError(projection.error)
        progress = {"ready": False, "design": design, "done": projection.done, "total": projection.total}
        if projection.points is None:
            return progress | {"stage": "embedding"}
        points = projection.points
        if layout == "t-sne":
            with self._lock:
                start, projection.t_sne_requested = not projection.t_sne_requested, True
            if start:  # in a daemon thread: scikit-learn cannot be interrupted
                threading.Thread(target=self._compute_t_sne, args=(projection,), name="unmask-t-sne", daemon=True).start()
            if projection.t_sne is None:
                return progress | {"stage": "t-sne"}
            points = projection.t_sne
        points = points - (points.min(axis=0) + points.max(axis=0)) / 2  # centre the bounding box
        scale = np.abs(points).max() or 1.0
        return {
            "ready": True,
            "design": design,
            "points": (points / scale).astype(float).round(4).tolist(),
            "share": projection.explained_variance,
            "dim": projection.vectors.shape[1] if projection.vectors is not None else 0,
            "cut": projection.truncated,
        }

    def neighbours(self, name: str, index: int) -> dict[str, Any]:
        """A text and its nearest neighbours by cosine, as JSON."""
        vectors = self.vectors(name)
        if not 0 <= index < len(self.corpus.texts):
            raise UnmaskError(f"There is no text {index}: the map has texts 0 to {len(self.corpus.texts) - 1}.")
        (cosines,) = unit_cosines(vectors[index : index + 1], vectors)
        order = [int(row) for row in np.argsort(-cosines, kind="stable")[: _NEIGHBOURS + 1] if row != index]
        return {
            "place": index,
            "text": self.corpus.texts[index],
            "neighbours": [{"place": row, "cosine": round(float(cosines[row]), 4)} for row in order[:_NEIGHBOURS]],
        }

    def vectors(self, name: str) -> UnitVectors:
        """The vectors under a design. Raises UnmaskError if its map is not ready."""
        projection = self._maps.get(self._embedders.design(name).name)
        if projection is None or projection.vectors is None:
            raise UnmaskError("This map is not ready yet.")
        return projection.vectors

    def nearest(self, name: str, query: str, stop: Stop) -> dict[str, Any]:
        """The texts with the highest cosine to a query, best first, as JSON."""
        vectors = self.vectors(name)
        (embedded,) = self._embedders.embed([name], [query], stop)
        (cosines,) = unit_cosines(embedded.vectors, vectors)
        order = np.argsort(-cosines, kind="stable")[:_NEAREST]
        return {"places": order.tolist(), "cosines": cosines[order].astype(float).round(4).tolist()}

    def search(self, query: str) -> dict[str, Any]:
        """The texts that contain a string, ignoring case, as JSON."""
        folded = query.casefold()
        return {"places": [index for index, text in enumerate(self._folded) if folded in text] if folded else []}

    def close(self) -> None:
        """Stop all work at its next step."""
        with self._lock:
            for projection in self._maps.values():
                projection.stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compute_t_sne(self, projection: Projection) -> None:
        try:
            with self._t_sne_lock:
                assert projection.vectors is not None and projection.points is not None
                projection.stop()
                projection.t_sne = t_sne(projection.vectors, projection.points)
        except Stopped:
            pass
        except Exception as error:
            log_failure(error)
            projection.error = "t-SNE failed on these texts. Choose PCA."

    def _compute(self, name: str, projection: Projection) -> None:
        try:
            projection.stop()
            with self._lock:
                finished = [design for design, cached in self._maps.items() if cached.points is not None]
                for design in finished[: -_CACHE_SIZE + 1]:
                    del self._maps[design]
            vectors, projection.truncated = self._embed(name, self.corpus.texts, projection)
            points, projection.explained_variance = project(vectors)
            projection.vectors, projection.points = vectors, points
        except Stopped:
            pass
        except UnmaskError as error:
            projection.error = str(error)
        except Exception as error:
            log_failure(error)
            projection.error = "The texts could not be embedded."

    def _embed(self, name: str, texts: Sequence[str], projection: Projection) -> tuple[UnitVectors, int]:
        embedder, tally = self._embedders.base.with_design(self._embedders.design(name)), Tally()
        tokenized: list[TokenizedText] = []
        for text in embedder.prompts.tokenize(texts):
            projection.stop()
            tokenized.append(text)
        designs = {embedder.design: embedder.fitted}
        vectors = embedder.encoder.encode_tokenized(tokenized, designs, tally=tally, progress=projection.advance)
        return normalized(vectors[embedder.design]), tally.truncated
