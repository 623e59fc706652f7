"""Building and updating an index: only texts that are new are embedded, and a run that is killed leaves the index as it was.

New vectors are stored in the folder of the index until it is finished, so that the same command resumes. Then a new folder of data
replaces the old one: the record of the index, written last, names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.bulk.text_rows import windows
from unmask.embedder import Embedder
from unmask.encoding.encoder import Tally
from unmask.encoding.shared_prefix import Progress
from unmask.encoding.vector_cache import CacheTable, VectorCache
from unmask.errors import UnmaskError, require_package
from unmask.io.files import atomic_folder, check_output, is_own, make_own, only_run_in, remove_own
from unmask.io.seals import seal
from unmask.io.terminal import progress_bar, say
from unmask.models.provenance import installed_versions, versions
from unmask.search.documents import Document, DocumentSource, Survey, as_type, common_type, read_documents, survey
from unmask.search.embedding import document_vectors, embedder_record, require_same_embedder, store_fit, with_stored_fit
from unmask.search.record import (
    DIGEST,
    ID,
    KEY,
    RECORD,
    TEXT,
    TITLE,
    VECTOR,
    WORDS,
    ColumnType,
    IndexRecord,
    Language,
    check_data,
    find_index,
)
from unmask.search.table import (
    add_rows,
    create_table,
    index_vectors,
    index_words,
    keywords,
    open_table,
    search_vectors,
    vectors_in,
)

EXACT_UP_TO = 100_000
"""Documents up to which a search compares all of them, unless the index is asked to be approximate."""
_SAVED = 512
"""Vectors that a killed run may lose."""
_SAMPLE, _NEAREST = 100, 10


@dataclass(frozen=True)
class IndexJob:
    """What to index, and how.

    model, revision, adapters: as given to load the embedder. language: for stems; None takes that of the index, else "none". approximate:
    build an approximate index, also for few documents. keep_missing: keep documents that are in none of the files. removed: ids of
    documents to remove, with keep_missing. fitted: the user has fitted the embedder; otherwise it gets the fit of the index.
    """

    corpus: DocumentSource
    output: Path
    model: str
    revision: str | None = None
    adapters: tuple[str, ...] = ()
    language: Language | None = None
    approximate: bool = False
    keep_missing: bool = False
    removed: frozenset[str] = frozenset()
    fitted: bool = False


@dataclass(frozen=True)
class IndexChanges:
    """The number of documents, and of those that were added, changed and removed; embedded, truncated: texts. recall: see IndexRecord."""

    documents: int
    added: int
    changed: int
    removed: int
    embedded: int
    truncated: int
    recall: float | None


class _PreviousIndex:
    """The index before this run; empty without a record."""

    def __init__(self, folder: Path, record: IndexRecord | None) -> None:
        self.record = record
        self.digests: dict[str, tuple[bytes, bytes]] = {}  # by id, as `Document.digests`
        self._rows: dict[bytes, int] = {}  # of the table, by key
        if record is None:
            return
        self._table = open_table(check_data(folder, record))
        for batch in self._table.search().select([ID, KEY, DIGEST]).to_batches():
            for name, key, digest in zip(*(batch[column].to_pylist() for column in (ID, KEY, DIGEST)), strict=True):
                self._rows[key] = len(self.digests)
                self.digests[name] = key, digest

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def vectors(self, keys: Iterable[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The vectors of those keys that the index has."""
        rows = sorted({self._rows[key] for key in keys if key in self})
        if not rows:
            return {}
        matches = self._table.take_offsets(rows).select([KEY, VECTOR]).to_arrow()
        return dict(zip(matches[KEY].to_pylist(), vectors_in(matches), strict=True))

    def read(self, ids: set[str], source: Path) -> Iterator[Document]:
        """The documents with these ids."""
        if not ids or self.record is None:
            return
        names = list(self.record.columns)
        for batch in self._table.search().select([ID, TITLE, TEXT, *names]).to_batches():
            for row in batch.to_pylist():
                if row[ID] in ids:
                    yield Document(row[ID], row[TITLE], row[TEXT], {name: row[name] for name in names}, source, 0)


def build(job: IndexJob, load: Callable[[], Embedder]) -> IndexChanges:
    """Make or update an index. load: loads the embedder, once all documents have been read and checked.

    Raises UnmaskError for a mistake in the documents, if another run writes to the index, and if it was made with another embedder.
    """
    require_package("lancedb")
    check_output(job.output, job.corpus.files, folder=True)
    if not is_own(job.output):
        raise UnmaskError(f"'{job.output}' has files that do not belong to an index: give another folder.")
    with only_run_in(job.output):
        make_own(job.output)
        previous = _PreviousIndex(job.output, find_index(job.output))
        surveyed = survey(job.corpus)
        if job.keep_missing and surveyed.numbered:
            say(
                "some documents have no id but their line. Where lines have moved, --keep-missing keeps what the index has under a line "
                "that is now missing, so a text may be there twice: give --id-column, or leave --keep-missing out"
            )
        retained = previous.digests.keys() - surveyed.digests.keys() - job.removed if job.keep_missing else set()
        digests = surveyed.digests | {name: previous.digests[name] for name in retained}
        if not digests:
            raise UnmaskError(f"An index needs a document, and none would remain: remove the folder '{job.output}' instead.")
        return _write(job, load(), previous, surveyed, digests, retained)


def _write(
    job: IndexJob,
    embedder: Embedder,
    previous: _PreviousIndex,
    surveyed: Survey,
    digests: dict[str, tuple[bytes, bytes]],
    retained: set[str],
) -> IndexChanges:
    """Write the index, unless nothing has changed. digests: of all documents, by id; retained: ids of those in none of the files."""
    before, cache = previous.record, VectorCache.in_folder(job.output)
    embedder.design.require_dense("An index")
    if before is not None:
        if not job.fitted:
            embedder = with_stored_fit(embedder, before.embedder, job.output / before.data)
        require_same_embedder(before.embedder, embedder)
    record = IndexRecord(
        data=f"data-{int(before.data.removeprefix('data-')) + 1 if before else 1}",
        documents=len(digests),
        dim=embedder.dim,
        columns=_columns(surveyed, before if job.keep_missing else None),
        language=job.language or (before.language if before else "none"),
        approximate=job.approximate or len(digests) > EXACT_UP_TO or (before is not None and before.approximate),
        embedder=embedder_record(embedder, job.model, job.revision, job.adapters),
        versions=versions() | installed_versions(("lancedb", "pyarrow")),
    )
    _remove_data(job.output, but=before)
    tally = Tally()
    content = digests, record.columns, record.language, record.approximate
    if before is not None and (previous.digests, before.columns, before.language, before.approximate) == content:
        record = before
    else:
        computed = cache.table(record.embedder.model_dump_json())
        missing = {key for key, _ in digests.values() if key not in previous and key not in computed}
        with atomic_folder(job.output / record.data) as data:
            table = create_table(data, record)
            with progress_bar("embedding", len(missing)) as advance:
                for block in windows(chain(_read_again(job.corpus, surveyed), previous.read(retained, job.output))):
                    texts = {digests[document.id][0]: document.full_text for document in block}
                    vectors = _vectors(texts, embedder, previous, computed, tally, advance)
                    rows = []
                    for document in block:
                        key, digest = digests[document.id]
                        row: dict[str, Any] = {
                            ID: document.id,
                            TITLE: document.title,
                            TEXT: document.text,
                            KEY: key,
                            DIGEST: digest,
                        }
                        row |= {name: as_type(document.columns.get(name), stored) for name, stored in record.columns.items()}
                        rows.append(row | {WORDS: keywords(document.full_text)})
                    add_rows(table, rows, np.stack([vectors[row[KEY]] for row in rows]))
            index_words(table, record.language)
            if record.approximate:
                index_vectors(table)
                record = record.model_copy(update={"recall": _recall(table, record.documents)})
            store_fit(embedder, data)
            seal(data)
            make_own(data)
        record.write(job.output / RECORD)
        _remove_data(job.output, but=record)
    cache.remove()
    return IndexChanges(
        documents=len(digests),
        added=len(digests.keys() - previous.digests.keys()),
        changed=sum(previous.digests.get(name, now) != now for name, now in digests.items()),
        removed=len(previous.digests.keys() - digests.keys()),
        embedded=tally.texts,
        truncated=tally.truncated,
        recall=record.recall,
    )


def _columns(surveyed: Survey, before: IndexRecord | None) -> dict[str, ColumnType]:
    """The type of each column. before: the index, if some of its documents are retained."""
    types = dict(surveyed.columns)
    for name, stored in (before.columns if before else {}).items():
        types[name] = common_type(types.get(name), stored)
    return {name: stored or "text" for name, stored in types.items()}


def _remove_data(folder: Path, but: IndexRecord | None) -> None:
    """Remove the data of earlier and of killed runs. Only folders that `make_own` marked are removed."""
    for data in folder.glob("data-*"):
        if but is None or data.name != but.data:
            remove_own(data)


def _read_again(corpus: DocumentSource, surveyed: Survey) -> Iterator[Document]:
    """The documents of the files, once more. Raises UnmaskError if they are not those of the survey, each of them once."""
    missing = dict(surveyed.digests)
    for document in read_documents(corpus):
        if missing.pop(document.id, None) != document.digests:
            raise UnmaskError(f"{document.file}, line {document.line} was changed while it was read: run the command again.")
        yield document
    if missing:
        raise UnmaskError(f"The document {min(missing)[:80]!r} was removed while the files were read: run the command again.")


def _vectors(
    texts: dict[bytes, str],
    embedder: Embedder,
    previous: _PreviousIndex,
    computed: CacheTable,
    tally: Tally,
    progress: Progress,
) -> dict[bytes, NDArray[np.float32]]:
    """The vectors of texts, by key: of the previous index, else of an earlier run that was stopped, else computed."""
    vectors = previous.vectors(texts)
    missing = [key for key in texts if key not in vectors and key not in computed]
    for start in range(0, len(missing), _SAVED):
        keys = missing[start : start + _SAVED]
        computed.add(keys, document_vectors(embedder, [texts[key] for key in keys], tally, progress))
    if keys := [key for key in texts if key not in vectors]:
        vectors.update(zip(keys, computed.get(keys), strict=True))
    return vectors


def _recall(table: Any, documents: int) -> float:
    """Share of the ten nearest documents that the approximate index finds, with a sample of documents as queries."""
    rows = np.unique(np.linspace(0, documents - 1, _SAMPLE).astype(int)).tolist()
    shares = []
    for vector in vectors_in(table.take_offsets(rows).select([VECTOR]).to_arrow()):
        exact, approximate = ({row[ID] for row in search_vectors(table, vector, _NEAREST, exact=e)} for e in (True, False))
        shares.append(len(exact & approximate) / len(exact))
    return float(np.mean(shares))
