"""Corpus map: the texts of a corpus as points. They are embedded once under each design, in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unmask.encoding.encode import Tally, encode_designs
from unmask.encoding.quantization import normalized
from unmask.errors import UnmaskError
from unmask.serving.gate import note
from unmask.ui.corpus import Corpus
from unmask.ui.work import Stop, Stopped
from unmask.ui.workbench import Workbench

Unit = Float[NDArray[np.float32], "text dim"]
_KEPT = 2  # designs whose vectors stay in memory: 20 000 texts of 576 dimensions take 46 MB
_SNIPPET = 160
_NEIGHBOURS = 10
_MOST_FOUND = 200


def project(vectors: Unit) -> tuple[Float[NDArray[np.float64], "text two"], float]:
    """The two first principal components of the vectors, and the share of the variance that they hold.

    The largest coordinate of each component's direction is positive, so that the same vectors give the same map.
    """
    centred = (vectors - vectors.mean(axis=0)).astype(np.float64)
    texts, dim = centred.shape
    if texts < dim:  # the eigenvectors of the smaller product
        values, sides = np.linalg.eigh(centred @ centred.T)
        directions = centred.T @ sides[:, ::-1][:, :2]
        directions /= np.maximum(np.linalg.norm(directions, axis=0), 1e-12)
    else:
        values, sides = np.linalg.eigh(centred.T @ centred)
        directions = sides[:, ::-1][:, :2]
    directions = directions * np.where(directions[np.abs(directions).argmax(axis=0), range(directions.shape[1])] < 0, -1.0, 1.0)
    points = np.zeros((texts, 2))
    points[:, : directions.shape[1]] = centred @ directions
    total = float(np.square(centred).sum())
    return points, float(np.clip(values, 0, None)[-2:].sum() / total) if total > 1e-12 else 0.0


@dataclass
class Projection:
    """The map under one design. vectors are at unit length, and empty until all texts are embedded. error: why there is none."""

    name: str
    total: int
    done: int = 0
    stop: Stop = field(default_factory=Stop)
    vectors: Unit | None = None
    points: Float[NDArray[np.float64], "text two"] | None = None
    share: float = 0.0
    cut: int = 0
    error: str | None = None

    def advance(self, texts: int) -> None:
        """Count texts that were embedded. Raises Stopped if nobody wants the map any more."""
        self.stop()
        self.done += texts


class CorpusMap:
    """Maps of one corpus. Several threads may use it."""

    def __init__(self, workbench: Workbench, corpus: Corpus) -> None:
        """Compute nothing yet."""
        self.corpus, self._workbench = corpus, workbench
        self._maps: dict[str, Projection] = {}
        self._lock = threading.Lock()
        self._folded = [text.casefold() for text in corpus.texts]

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

    def get(self, name: str) -> dict[str, Any]:
        """The map under a design, or how far it is, as JSON. The first call starts the work, and ends that for other designs.

        Raises UnmaskError for a name that is no design or that the model cannot serve.
        """
        design = self._workbench.design(name).name
        with self._lock:
            if design not in self._maps:
                self._start(name, design)
            found = self._maps[design] = self._maps.pop(design)
        if found.error:
            with self._lock:
                self._maps.pop(design, None)  # another try may go better
            raise UnmaskError(found.error)
        if found.points is None:
            return {"ready": False, "design": design, "done": found.done, "total": found.total}
        scale = np.abs(found.points).max() or 1.0
        return {
            "ready": True,
            "design": design,
            "points": (found.points / scale).round(4).tolist(),
            "share": found.share,
            "dim": found.vectors.shape[1] if found.vectors is not None else 0,
            "cut": found.cut,
        }

    def neighbours(self, name: str, place: int) -> dict[str, Any]:
        """One text, and the texts with the highest cosine to it, as JSON. Raises UnmaskError if there is no such text or no map yet."""
        found = self._maps.get(self._workbench.design(name).name)
        if found is None or found.vectors is None:
            raise UnmaskError("This map is not ready yet.")
        if not 0 <= place < len(self.corpus.texts):
            raise UnmaskError(f"There is no text {place}: the map has texts 0 to {len(self.corpus.texts) - 1}.")
        cosines = found.vectors @ found.vectors[place]
        order = [int(other) for other in np.argsort(-cosines, kind="stable")[: _NEIGHBOURS + 1] if other != place]
        return {
            "place": place,
            "text": self.corpus.texts[place],
            "neighbours": [{"place": other, "cosine": round(float(cosines[other]), 4)} for other in order[:_NEIGHBOURS]],
        }

    def search(self, query: str) -> dict[str, Any]:
        """The places of the texts that contain a string, whatever its case, as JSON; the first ones if there are many."""
        wanted = query.casefold()
        places = [place for place, text in enumerate(self._folded) if wanted in text] if wanted else []
        return {"found": len(places), "places": places[:_MOST_FOUND]}

    def close(self) -> None:
        """End all work at its next step."""
        for projection in self._maps.values():
            projection.stop.set()

    def _start(self, name: str, design: str) -> None:
        self._workbench.base.backbone.check(self._workbench.design(name))
        for other, projection in list(self._maps.items()):
            if projection.points is None:
                projection.stop.set()
                del self._maps[other]
        for old in list(self._maps)[: -_KEPT + 1]:
            del self._maps[old]
        self._maps[design] = projection = Projection(design, len(self.corpus.texts))
        threading.Thread(target=self._compute, args=(name, projection), name="unmask-map", daemon=True).start()

    def _compute(self, name: str, projection: Projection) -> None:
        try:
            projection.vectors, projection.cut = self._embed(name, self.corpus.texts, projection)
            projection.points, projection.share = project(projection.vectors)
        except Stopped:
            pass
        except UnmaskError as error:
            projection.error = str(error)
        except Exception as error:
            note(error)
            projection.error = "The texts could not be embedded."

    def _embed(self, name: str, texts: Sequence[str], projection: Projection) -> tuple[Unit, int]:
        embedder, tally = self._workbench.base.with_design(self._workbench.design(name)), Tally()
        vectors = encode_designs(
            embedder.backbone,
            embedder.prompt,
            {embedder.design: embedder.fitted},
            texts,
            batch_tokens=embedder.batch_tokens,
            tally=tally,
            progress=projection.advance,
        )
        return normalized(vectors[embedder.design]), tally.truncated
