"""Folders of data: documents, vectors and words of an index. Every update writes a new one, which the record then names."""

from __future__ import annotations

from pathlib import Path

from unmask.io.seals import Damaged, check_seal
from unmask.search.record import STORE, IndexRecord, remedy
from unmask.search.stores import STORES
from unmask.search.stores.store import Store


def open_data(folder: Path, record: IndexRecord) -> Store:
    """The store of an index that lies in `folder`. Raises Damaged if a file of its data is missing or was changed."""
    data = folder / record.data
    if not data.is_dir():
        raise Damaged(f"'{folder}' is damaged: '{record.data}' is missing. {remedy(folder)}")
    try:
        check_seal(data)
        return STORES[record.store].open(data / STORE, record.layout)
    except Damaged as error:
        raise Damaged(f"{error} {remedy(folder)}") from error
