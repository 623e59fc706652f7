"""Building and updating an index: only texts that are new are embedded, and a run that is killed leaves the index as it was.

Vectors that are computed are kept beside the index until it is finished, so that the same command goes on. Documents, vectors and
words are then written to a new folder of data, and the record of the index, written last, names that folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unmask.designs.design import Design
from unmask.encoding.encoder import Tally
from unmask.encoding.lexical import Packed
from unmask.encoding.vector_store import LostRows, StoredRows, VectorStore
from unmask.errors import UnmaskError
from unmask.io.files import atomic_folder, make_own, only_run_in, remove
from unmask.io.seals import seal
from unmask.io.terminal import counted, progress_bar, say
from unmask.models.provenance import installed_versions, versions
from unmask.search.data import next_data, open_data, remove_unfinished
from unmask.search.documents import Document, Known, joined, read_documents, typed
from unmask.search.embedding import difference, document_vectors, note, save_fit, with_fit
from unmask.search.fusion import Rows
from unmask.search.job import Planned
from unmask.search.keywords import WORDS, Keywords
from unmask.search.lexical import lexical_design, read_packed, write_packed
from unmask.search.rankers import DenseRanker
from unmask.search.record import (
    DIGEST,
    ID,
    KEY,
    KEYWORDS,
    LEXICAL,
    RECORD,
    STORE,
    TEXT,
    TITLE,
    EmbedderRecord,
    IndexRecord,
    columns_of,
    find_index,
)
from unmask.search.stores import STORES
from unmask.search.stores.store import Block, Store
from unmask.search.vectors import Stored, restored

if TYPE_CHECKING:
    import pyarrow as pa

    from unmask.embedder import Embedder

_ROWS, _CHARACTERS = 512, 2_000_000
"""The most documents of a block, and the characters after which it ends."""
_SAMPLE, _NEAREST = 100, 10


@dataclass(frozen=True)
class Done:
    """What became of the documents, by number. embedded: texts that were computed. recall: as in the record of the index."""

    documents: int
    added: int
    changed: int
    removed: int
    embedded: int
    truncated: int
    recall: float | None

    @property
    def recall_told(self) -> str | None:
        """The recall in a sentence, with the numbers of documents behind it; None without one."""
        if self.recall is None or self.documents < 2:
            return None
        nearest, queries = min(_NEAREST, self.documents - 1), min(_SAMPLE, self.documents)
        return (
            f"The approximate index finds {self.recall:.1%} of the {counted(nearest, 'nearest document')} "
            f"({counted(queries, 'document')} as queries)."
        )


@dataclass(frozen=True)
class Old:
    """The index as it was. rows: where the vector of a key lies. words: the lexical vectors, by row."""

    store: Store
    known: dict[str, Known]
    rows: dict[bytes, int]
    words: Packed | None


@dataclass(frozen=True)
class Computed:
    """The vectors of new documents, kept until the index is finished. words: lexical ones, if the index has them."""

    vectors: StoredRows
    words: StoredRows | None

    def __contains__(self, key: bytes) -> bool:
        """Whether all vectors of a key are there."""
        return key in self.vectors and (self.words is None or key in self.words)


def build(embedder: Embedder, planned: Planned) -> Done:
    """Make or update an index.

    Raises UnmaskError if another run writes to it, if it has changed since the job was planned, and if it was made with another embedder
    or fit.
    """
    folder = planned.job.output
    embedder.design.require_dense("An index")
    embedder.encode([], precision=planned.precision)  # says what is wrong with the precision
    with only_run_in(folder):
        make_own(folder)
        _require_as_planned(folder, planned)
        remove_unfinished(folder, planned.before)
        old = _open_old(folder, planned)
        planned = replace(planned, kept=len(_known(planned, old)) - len(planned.survey.documents))
        planned.require_an_approximate_index()
        embedder, noted = _same_embedder(embedder, planned)
        pending = VectorStore.beside(folder)
        if planned.before is not None and old is not None and not _differs(planned, old):
            pending.forget()
            return Done(len(old.known), 0, 0, 0, 0, 0, planned.before.recall)
        named = f"{noted.model_dump_json()} {planned.precision}"
        lexical = lexical_design(embedder.design) if planned.lexical else None
        if lexical is not None:
            embedder.backbone.check(lexical)
        kept = Computed(pending.stored(named), pending.stored(f"{named} lexical") if lexical else None)
        tally = _embed(embedder, planned, old, kept, lexical)
        record = _write(embedder, planned, old, kept, noted)
        record.write(folder / RECORD)
        if planned.before is not None:
            remove(folder / planned.before.data)
        pending.forget()
        return _counts(planned, old, tally, record)


def _require_as_planned(folder: Path, planned: Planned) -> None:
    """Raise UnmaskError if the index was written or removed after this run was planned: the plan would remove what is new."""
    if find_index(folder) != planned.before:
        raise UnmaskError(f"'{folder}' has changed since this run began: run the command again.")


def _same_embedder(embedder: Embedder, planned: Planned) -> tuple[Embedder, EmbedderRecord]:
    """The embedder with the fit of the index, and its record. Raises UnmaskError if the index was made with another one."""
    job, before = planned.job, planned.before
    source = job.model, job.revision, job.adapters
    if before is None:
        return embedder, note(embedder, *source)
    fitted = with_fit(embedder, before.embedder, job.output / before.data)
    noted = note(fitted, *source)
    if (differs := difference(before.embedder, noted)) is not None:
        raise UnmaskError(f"'{job.output}' was made with another embedder: {differs}. Give another folder to keep both.")
    if job.fitted and note(embedder, *source) != noted:
        raise UnmaskError(
            f"'{job.output}' keeps the fit that it was made with, and --fit-on gives another. Leave --fit-on out to update the index, "
            "or give another folder."
        )
    return fitted, noted


def _open_old(folder: Path, planned: Planned) -> Old | None:
    before = planned.before
    if before is None:
        return None
    store = open_data(folder, before)
    known: dict[str, Known] = {}
    rows: dict[bytes, int] = {}
    row = 0  # not the number of ids, which is smaller if a document lies there twice
    for batch in store.batches([ID, KEY, DIGEST]):
        for name, key, digest in zip(*(batch[field].to_pylist() for field in (ID, KEY, DIGEST)), strict=True):
            rows[key] = row
            known[name] = Known(key, digest)
            row += 1
    return Old(store, known, rows, read_packed(folder / before.data / LEXICAL) if before.lexical else None)


def _differs(planned: Planned, old: Old | None) -> bool:
    """Whether the index would hold anything else, or in another order or type, or gets new keywords or an approximate index."""
    before, after = planned.before, _known(planned, old)
    if before is None or old is None or list(after.items()) != list(old.known.items()) or len(old.store) != len(after):
        return True
    return before.types != planned.types or before.keywords != WORDS or before.approximate != planned.approximate


def _known(planned: Planned, old: Old | None) -> dict[str, Known]:
    """All documents of the new index, in order."""
    found = planned.survey.documents
    kept = old.known if old is not None and planned.job.keep_missing else {}
    return found | {name: known for name, known in kept.items() if name not in found and name not in planned.job.removed}


def _embed(embedder: Embedder, planned: Planned, old: Old | None, kept: Computed, lexical: Design | None) -> Tally:
    """Compute the vectors that neither the old index nor an earlier run has."""
    tally, have = Tally(), old.rows if old is not None else {}
    missing = {known.key for known in planned.survey.documents.values()} - have.keys()
    missing = {key for key in missing if key not in kept}
    if damaged := sum(rows.damaged for rows in (kept.vectors, kept.words) if rows is not None):
        say(f"{damaged} blocks of vectors were damaged and are computed again")
    if not missing:
        return tally
    with progress_bar("embedding", len(missing)) as advance:
        new = (document for document in _documents(planned) if document.known.key in missing)
        for block in _blocks(new):
            texts = {document.known.key: document.joined for document in block}
            wanted = [key for key in texts if key in missing]
            missing.difference_update(wanted)
            if wanted:
                wanted_texts = [texts[key] for key in wanted]
                vectors, words = document_vectors(embedder, wanted_texts, planned.precision, lexical, tally, advance)
                kept.vectors.add(wanted, vectors)
                if kept.words is not None and words is not None:
                    kept.words.add(wanted, words)
    return tally


def _write(embedder: Embedder, planned: Planned, old: Old | None, kept: Computed, noted: EmbedderRecord) -> IndexRecord:
    """Write a new folder of data. The record that names it is returned."""
    job = planned.job
    record = IndexRecord(
        data=next_data(job.output, planned.before),
        store=planned.store,
        documents=len(_known(planned, old)),
        dim=embedder.dim,
        precision=planned.precision,
        approximate=planned.approximate,
        language=planned.language,
        keywords=WORDS,
        lexical=planned.lexical,
        columns=columns_of(planned.types),
        embedder=noted,
        versions=versions() | installed_versions(("lancedb", "usearch", "bm25s", "pyarrow")),
    )
    kind = STORES[record.store]
    with atomic_folder(job.output / record.data) as data:
        (data / STORE).mkdir()
        blocks = _filled_blocks(planned, old, kept, record)
        kind.write(data / STORE, record.layout, blocks, approximate=record.approximate)
        store = kind.open(data / STORE, record.layout)
        Keywords.build(_texts(store), record.language).save(data / KEYWORDS)
        if kept.words is not None:
            write_packed(data / LEXICAL, _words(store, old, kept.words), record.documents)
        save_fit(embedder, data)
        recall = measured_recall(store, record) if record.approximate else None
        seal(data)
        make_own(data)
    return record.model_copy(update={"recall": recall})


def _documents(planned: Planned) -> Iterator[Document]:
    """The documents of the files, once more. Raises UnmaskError if they are not those that were surveyed, each of them once."""
    missing = dict(planned.survey.documents)
    for document in read_documents(planned.job.corpus):
        if missing.pop(document.id, None) != document.known:
            raise UnmaskError(f"{document.file}, line {document.line} was changed while it was read: run the command again.")
        yield document
    if missing:
        raise UnmaskError(
            f"The files were changed while they were read: the document {next(iter(missing))[:80]!r} is no longer in them. Run the "
            "command again."
        )


def _kept_documents(planned: Planned, old: Old | None) -> Iterator[Document]:
    """Documents of the old index that are in none of the files, if they are kept."""
    if old is None or planned.before is None or not planned.job.keep_missing:
        return
    names = {column.field: column.name for column in planned.before.columns}
    missing = old.known.keys() - planned.survey.documents.keys() - planned.job.removed
    for batch in old.store.batches([ID, TITLE, TEXT, *names]):
        for row in batch.to_pylist():
            if row[ID] in missing:
                missing.remove(row[ID])
                columns = {name: row[field] for field, name in names.items()}
                yield Document(row[ID], row[TITLE], row[TEXT], columns, planned.job.output, 0)


def _blocks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    block: list[Document] = []
    characters = 0
    for document in documents:
        block.append(document)
        characters += len(document.text)
        if len(block) == _ROWS or characters >= _CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


def _filled_blocks(planned: Planned, old: Old | None, kept: Computed, record: IndexRecord) -> Iterator[Block]:
    """Documents with their vectors, as a store writes them."""
    known = _known(planned, old)

    def all_documents() -> Iterator[Document]:
        yield from _documents(planned)
        yield from _kept_documents(planned, old)

    with progress_bar("writing", len(known)) as advance:
        for block in _blocks(all_documents()):
            hashes = [known[document.id] for document in block]
            before = old.store.vectors if old is not None else None
            yield _batch(block, hashes, record), _rows_of([one.key for one in hashes], old, before, kept.vectors)
            advance(len(block))


def _batch(block: list[Document], hashes: list[Known], record: IndexRecord) -> pa.RecordBatch:
    import pyarrow as pa

    values: list[list[Any]] = [
        [document.id for document in block],
        [document.title for document in block],
        [document.text for document in block],
        [known.key for known in hashes],
        [known.digest for known in hashes],
        *([typed(document.columns.get(column.name), column.holds) for document in block] for column in record.columns),
    ]
    schema = record.layout.schema
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(values, schema.types, strict=True)], schema=schema
    )


def _words(store: Store, old: Old | None, kept: StoredRows) -> Iterator[Packed]:
    """The lexical vectors of all documents of a new store, in the order of its rows."""
    words = old.words if old is not None else None
    before = None if words is None else words.__getitem__
    return (_rows_of(batch[KEY].to_pylist(), old, before, kept) for batch in store.batches([KEY]))


def _rows_of(keys: list[bytes], old: Old | None, before: Callable[[Rows], Stored] | None, kept: StoredRows) -> Stored:
    """The vectors of these keys: from the old index, where `before` reads them by row, or as they were computed."""
    have = old.rows if old is not None else {}
    from_old = [place for place, key in enumerate(keys) if key in have]
    computed = [place for place, key in enumerate(keys) if key not in have]
    parts = []
    try:
        if before is not None and from_old:
            parts.append(before(np.array([have[keys[place]] for place in from_old], np.int64)))
        if computed:
            parts.append(kept.get([keys[place] for place in computed]))
    except (LostRows, KeyError) as error:
        raise UnmaskError("Vectors that were computed have been damaged or removed: run the command again.") from error
    order = np.argsort(np.array(from_old + computed))
    return np.asarray(np.concatenate(parts)[order])


def _texts(store: Store) -> Iterator[str]:
    for batch in store.batches([TITLE, TEXT]):
        yield from (joined(title, text) for title, text in zip(batch[TITLE].to_pylist(), batch[TEXT].to_pylist(), strict=True))


def measured_recall(store: Store, record: IndexRecord) -> float | None:
    """The share of the ten nearest documents that the approximate index finds, on a sample of documents as queries.

    None for a single document, which has no other one near it.
    """
    if len(store) < 2:
        return None
    rows: Rows = np.unique(np.linspace(0, len(store) - 1, _SAMPLE).astype(np.int64))
    vectors = restored(store.vectors(rows), record.precision)
    ranker = DenseRanker(store, record.layout, approximate=True)
    shares = []
    for row, vector, ranking in zip(rows, vectors, ranker.nearest(vectors, _NEAREST + 1), strict=True):
        nearest = [other for other in ranking.rows.tolist() if other != row][:_NEAREST]
        found = set(ranker.proposed(vector, _NEAREST + 1).tolist())
        shares.append(sum(other in found for other in nearest) / len(nearest))
    return float(np.mean(shares))


def _counts(planned: Planned, old: Old | None, tally: Tally, record: IndexRecord) -> Done:
    before = old.known if old is not None else {}
    after = _known(planned, old)
    changed = sum(name in before and before[name].digest != known.digest for name, known in after.items())
    return Done(
        documents=len(after),
        added=len(after.keys() - before.keys()),
        changed=changed,
        removed=len(before.keys() - after.keys()),
        embedded=tally.texts,
        truncated=tally.truncated,
        recall=record.recall,
    )
