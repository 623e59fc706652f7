"""Vectors on disk: what was put there comes back, or is known to be lost."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.training.running import ended, forked
from unmask.encoding.vector_cache import CacheTable, VectorCache, text_key

ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
KEYS = [text_key(text, None) for text in "abcdef"]


def filled(folder: Path) -> CacheTable:
    table = CacheTable(folder)
    table.add(KEYS[:2], ROWS[:2])
    table.add(KEYS[2:], ROWS[2:])
    return table


def test_rows_come_back_in_any_order_now_and_later(tmp_path: Path) -> None:
    order = [4, 0, 0, 3, 1]
    for table in (filled(tmp_path), CacheTable(tmp_path)):
        found = table.get([KEYS[place] for place in order])
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, ROWS[order])
        assert all(key in table for key in KEYS) and text_key("g", None) not in table
        with pytest.raises(KeyError):
            table.get([KEYS[0], text_key("g", None)])
    table.add([KEYS[0], text_key("g", None)], np.full((2, 3), 7, np.float32))
    np.testing.assert_array_equal(
        table.get([KEYS[0], text_key("g", None)]), [ROWS[0], [7, 7, 7]]
    )  # the first row of a key stays
    pairs = [("a", None), ("a", "None"), ("None", "a"), ("", "a"), ("a", ""), ("\ud800", None)]
    assert len({text_key(*pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize("damage", ["one byte", "cut short", "empty", "other"])
def test_a_damaged_block_is_put_aside_and_the_others_stay(damage: str, tmp_path: Path) -> None:
    filled(tmp_path)
    file = sorted(tmp_path.glob("*.npz"))[0]
    content = bytearray(file.read_bytes())
    place = content.rindex(ROWS[1].tobytes())
    content[place] ^= 1
    changed = {
        "one byte": bytes(content),
        "cut short": bytes(content[: len(content) // 2]),
        "empty": b"",
        "other": b"no archive",
    }
    file.write_bytes(changed[damage])
    table = CacheTable(tmp_path)
    assert table.damaged == 1
    assert [key in table for key in KEYS] == [False] * 2 + [True] * 4
    table.add(KEYS[:2], ROWS[:2])
    for one in (table, CacheTable(tmp_path)):
        np.testing.assert_array_equal(one.get(KEYS), ROWS)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    filled(tmp_path)

    def overfill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # what a disk does that has so little left
        table = CacheTable(tmp_path)
        with pytest.raises(OSError, match="npz"):
            table.add([text_key(str(n), None) for n in range(1000)], np.zeros((1000, 100), np.float32))

    assert ended(forked(overfill)) == 0
    table = CacheTable(tmp_path)
    np.testing.assert_array_equal(table.get(KEYS), ROWS)
    assert (table.damaged, len(list(tmp_path.iterdir()))) == (0, 2)


def test_tables_of_other_names_hold_other_rows(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path / "vectors")
    cache.table("one").add(KEYS[:2], ROWS[:2])
    assert KEYS[0] not in cache.table("other")
    np.testing.assert_array_equal(VectorCache(tmp_path / "vectors").table("one").get(KEYS[:2]), ROWS[:2])
    cache.remove()
    assert not (tmp_path / "vectors").exists() and KEYS[0] not in cache.table("one")
