"""The atlas's scripts without a browser: what they compute of their data."""

from __future__ import annotations

from tests.node import atlas, value_of


def test_values_without_a_mark_of_their_own_share_one_that_no_other_has() -> None:
    found = value_of(
        atlas("core.js", "maps.js")
        + """
        const counts = (size) => Array.from({ length: size }, (_, at) => 100 - at);
        const result = [8, 9, 24].map((size) => counts(size).map((_, value) => looks(counts(size))(value)));"""
    )
    for looks in found:
        own, rest = looks[:8], looks[8:]
        assert len({mark for mark, _ in own}) == len({tint for _, tint in own}) == 8
        assert len({mark for mark, _ in rest}) == (len(rest) > 0)
        assert not {mark for mark, _ in rest} & {mark for mark, _ in own}
