"""Corpus map: the texts of a corpus as points. One thread embeds them under one design after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from unmask.encoding.encoder import Tally
from unmask.encoding.quantization import normalized, unit_cosines
from unmask.encoding.tokenization import TokenizedText
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.server.gate import note
from unmask.ui.corpus import Corpus
from unmask.ui.work import Stop, Stopped
from unmask.ui.workbench import Workbench

Layout = Literal["pca", "t-sne"]
Points = Float[NDArray[np.float32], "text two"]
Unit = Float[NDArray[np.float32], "text dim"]
_KEPT = 2  # designs whose vectors stay in memory: 20 000 texts of 576 dimensions take 46 MB
_SNIPPET = 160
_NEIGHBOURS = 10
_NEAREST = 20  # texts that a search by meaning returns
_PERPLEXITY = 30  # of t-SNE: about how many neighbours each text keeps
_PATIENCE = 5.0  # seconds; a page in view asks more than twice a second
_SUBSPACE = 12  # directions of the iteration: the more, the fewer rounds
_MOST_ROUNDS = 40
_SETTLED = 1e-5  # by how much the directions still turn


def project(vectors: Unit, step: Callable[[], None] = lambda: None) -> tuple[Points, float]:
    """The two first principal components of the vectors, and the share of the variance that they hold.

    Subspace iteration: the memory is that of the vectors, however wide they are. step: called before each round; what it raises ends the
    work. The largest coordinate of each component's direction is positive, so that the same vectors give the same map.
    """
    step()
    centred = vectors - vectors.mean(axis=0)
    total = float(np.einsum("td,td->t", centred, centred).sum(dtype=np.float64))
    directions = _top_directions(centred, step)
    signs = np.where(directions[np.abs(directions).argmax(axis=0), range(directions.shape[1])] < 0, -1, 1)
    points = np.zeros((len(vectors), 2), np.float32)
    points[:, : directions.shape[1]] = centred @ (directions * signs.astype(np.float32))
    return points, float(np.square(points, dtype=np.float64).sum() / total) if total > 1e-12 else 0.0


def _top_directions(centred: Unit, step: Callable[[], None]) -> Float[NDArray[np.float32], "dim two"]:
    """The directions of the largest variance: two, or one if the vectors have one dimension or are one."""
    width = min(_SUBSPACE, *centred.shape)
    start = np.random.default_rng(0).standard_normal((centred.shape[1], width), np.float32)
    subspace, found = np.linalg.qr(start)[0], np.zeros((centred.shape[1], 0), np.float32)
    for _ in range(_MOST_ROUNDS):
        step()
        subspace = np.linalg.qr(centred.T @ (centred @ subspace))[0]
        before, found = found, (subspace @ np.linalg.svd(centred @ subspace, full_matrices=False)[2].T)[:, :2]
        if np.linalg.norm(found - before @ (before.T @ found)) < _SETTLED:
            break
    return found


def t_sne(vectors: Unit, principal: Points) -> Points:
    """t-SNE of the vectors, started from their principal components. Too few or equal vectors keep those."""
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
    """The map under one design. vectors are at unit length, and None until all texts are embedded. error: why there is no map.

    asked: when a page last asked for it, in seconds of a monotonic clock. points: by principal components; t_sne: None until a page has
    asked for it and it is computed.
    """

    name: str
    total: int
    asked: float
    done: int = 0
    stop: Stop = field(default_factory=Stop)
    vectors: Unit | None = None
    points: Points | None = None
    t_sne: Points | None = None
    t_sne_requested: bool = False
    share: float = 0.0
    cut: int = 0
    error: str | None = None

    def advance(self, texts: int) -> None:
        """Count texts that were embedded. Raises Stopped if nobody wants the map any more."""
        self.stop()
        self.done += texts


class CorpusMap:
    """Maps of one corpus. Several threads may use it."""

    def __init__(self, workbench: Workbench, corpus: Corpus, number: int = 1) -> None:
        """Compute nothing yet. number: of the corpora that the page has opened."""
        self.corpus, self.number, self._workbench = corpus, number, workbench
        self._maps: dict[str, Projection] = {}
        self._lock = threading.Lock()
        self._t_sne_lock = threading.Lock()  # one layout at a time
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="unmask-map")
        self._folded = [text.casefold() for text in corpus.texts]

    @property
    def summary(self) -> dict[str, Any]:
        """Which corpus this is, as JSON."""
        corpus = self.corpus
        return {"number": self.number, "texts": len(corpus.texts), "rows": corpus.rows, "name": corpus.name}

    def about(self) -> dict[str, Any]:
        """What the page needs to know once: beginnings and labels of the texts, as JSON."""
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
        """The map under a design, or its progress, as JSON. The first call puts it at the end of the queue.

        Designs that no page asks for any more make way for it. Raises UnmaskError for a name that is no design or that the model cannot
        serve.
        """
        design = self._workbench.design(name).name
        with self._lock:
            if design not in self._maps:
                self._enqueue(name, design)
            found = self._maps[design] = self._maps.pop(design)
            found.asked = time.monotonic()
            if found.points is None:
                self._stop_unwanted(found.asked)
        if found.error:
            with self._lock:
                self._maps.pop(design, None)  # another try may go better
            raise UnmaskError(found.error)
        progress = {"ready": False, "design": design, "done": found.done, "total": found.total}
        if found.points is None:
            return progress | {"stage": "embedding"}
        points = found.points if layout == "pca" else self._t_sne_of(found)
        if points is None:
            return progress | {"stage": "t-sne"}
        points = points - (points.min(axis=0) + points.max(axis=0)) / 2  # a far point takes room on its own side only
        scale = np.abs(points).max() or 1.0
        return {
            "ready": True,
            "design": design,
            "points": (points / scale).astype(float).round(4).tolist(),
            "share": found.share,
            "dim": found.vectors.shape[1] if found.vectors is not None else 0,
            "cut": found.cut,
        }

    def neighbours(self, name: str, place: int) -> dict[str, Any]:
        """One text, and the texts with the highest cosine to it, as JSON. Raises UnmaskError if there is no such text or no map yet."""
        vectors = self.vectors(name)
        if not 0 <= place < len(self.corpus.texts):
            raise UnmaskError(f"There is no text {place}: the map has texts 0 to {len(self.corpus.texts) - 1}.")
        (cosines,) = unit_cosines(vectors[place : place + 1], vectors)
        order = [int(other) for other in np.argsort(-cosines, kind="stable")[: _NEIGHBOURS + 1] if other != place]
        return {
            "place": place,
            "text": self.corpus.texts[place],
            "neighbours": [{"place": other, "cosine": round(float(cosines[other]), 4)} for other in order[:_NEIGHBOURS]],
        }

    def vectors(self, name: str) -> Unit:
        """The vectors of all texts under a design. Raises UnmaskError if its map is not ready."""
        found = self._maps.get(self._workbench.design(name).name)
        if found is None or found.vectors is None:
            raise UnmaskError("This map is not ready yet.")
        return found.vectors

    def nearest(self, name: str, query: str, stop: Stop) -> dict[str, Any]:
        """The texts with the highest cosine to a query under a design, best first, as JSON. Raises UnmaskError if there is no map yet."""
        vectors = self.vectors(name)
        (embedded,) = self._workbench.embed([name], [query], stop)
        (cosines,) = unit_cosines(embedded.vectors, vectors)
        order = np.argsort(-cosines, kind="stable")[:_NEAREST]
        return {"places": order.tolist(), "cosines": cosines[order].astype(float).round(4).tolist()}

    def search(self, query: str) -> dict[str, Any]:
        """The places of the texts that contain a string, whatever its case, as JSON."""
        wanted = query.casefold()
        return {"places": [place for place, text in enumerate(self._folded) if wanted in text] if wanted else []}

    def close(self) -> None:
        """End all work at its next step."""
        with self._lock:
            for projection in self._maps.values():
                projection.stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _t_sne_of(self, projection: Projection) -> Points | None:
        """The points by t-SNE, or None while they are computed: in a daemon thread, since scikit-learn cannot be interrupted."""
        with self._lock:
            start = not projection.t_sne_requested
            projection.t_sne_requested = True
        if start:
            threading.Thread(target=self._compute_t_sne, args=(projection,), name="unmask-t-sne", daemon=True).start()
        return projection.t_sne

    def _compute_t_sne(self, projection: Projection) -> None:
        try:
            with self._t_sne_lock:
                assert projection.vectors is not None and projection.points is not None
                projection.stop()
                projection.t_sne = t_sne(projection.vectors, projection.points)
        except Stopped:
            pass
        except Exception as error:
            note(error)
            projection.error = "t-SNE failed on these texts. Choose PCA."

    def _enqueue(self, name: str, design: str) -> None:
        asked = self._workbench.design(name)
        asked.require_dense("The map")
        self._workbench.base.backbone.check(asked)
        self._maps[design] = projection = Projection(design, len(self.corpus.texts), time.monotonic())
        self._pool.submit(self._compute, name, projection)

    def _stop_unwanted(self, now: float) -> None:
        for design, projection in list(self._maps.items()):
            if projection.points is None and now - projection.asked > _PATIENCE:
                projection.stop.set()
                del self._maps[design]

    def _make_room(self) -> None:
        with self._lock:
            finished = [design for design, projection in self._maps.items() if projection.points is not None]
            for design in finished[: -_KEPT + 1]:
                del self._maps[design]

    def _compute(self, name: str, projection: Projection) -> None:
        try:
            projection.stop()
            self._make_room()
            vectors, projection.cut = self._embed(name, self.corpus.texts, projection)
            points, projection.share = project(vectors, projection.stop)
            projection.vectors, projection.points = vectors, points
        except Stopped:
            pass
        except UnmaskError as error:
            projection.error = str(error)
        except Exception as error:
            note(error)
            projection.error = "The texts could not be embedded."

    def _embed(self, name: str, texts: Sequence[str], projection: Projection) -> tuple[Unit, int]:
        embedder, tally = self._workbench.base.with_design(self._workbench.design(name)), Tally()
        tokenized: list[TokenizedText] = []
        for text in embedder.prompts.tokenize(texts):
            projection.stop()
            tokenized.append(text)
        designs = {embedder.design: embedder.fitted}
        vectors = embedder.encoder.encode_tokenized(tokenized, designs, tally=tally, progress=projection.advance)
        return normalized(vectors[embedder.design]), tally.truncated
