"""Folders of data: documents, vectors and words of an index. Every update writes a new one, which the record then names."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from unmask.io.files import remove_own
from unmask.io.seals import Damaged, check_seal
from unmask.search.record import STORE, IndexRecord, remedy
from unmask.search.stores import STORES
from unmask.search.stores.store import Store

_DATA = "data-"


def next_data(folder: Path, before: IndexRecord | None) -> str:
    """A name for new data in the folder of an index: one above those of the index as it is, and not taken by anybody."""
    first = int(before.data.removeprefix(_DATA)) + 1 if before else 1
    return next(name for number in count(first) if not (folder / (name := f"{_DATA}{number}")).exists())


def remove_unfinished(folder: Path, before: IndexRecord | None) -> None:
    """Remove the data of a run that was killed before its record was written, or before the old data were removed.

    Only folders that `make_own` marked are removed: a folder of that name may be somebody else's.
    """
    for data in folder.glob(f"{_DATA}*"):
        if before is None or data.name != before.data:
            remove_own(data)


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
