"""Words in any script, and texts with half of a surrogate pair, which JSON may hold and no tokenizer reads."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.encoding.tokenization import tokenize_bare
from unmask.encoding.words import composed, keyword_spans, words
from unmask.io.unicode import without_surrogates
from unmask.moe.experts.lessons.lessons import tokenize_pairs
from unmask.tasks.mteb.tables import table
from unmask.training.collate import chunk_tokens

HALF = "half \ud83d of it"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("पानी और नदी", ["पानी", "और", "नदी"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("cafe\u0301s", ["caf\u00e9s"]),
        ("It's 2 a_b", ["It", "s", "2", "a", "b"]),
        ("手机 x", ["手机", "x"]),
    ],
)
def test_marks_belong_to_their_letters(text: str, expected: list[str]) -> None:
    assert words(text) == expected
    joined = [composed(text[start:end]) for start, end in keyword_spans(text)]
    assert joined == (["It", "s", "2", "a_b"] if "a_b" in text else expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b 手机壳, x", ["a_b", "手机", "机壳", "x"]),
        ("iPhone手机", ["iPhone", "手机"]),
        ("猫 犬", ["猫", "犬"]),
        ("カフェー・ラテ", ["カフ", "フェ", "ェー", "ラテ"]),
        ("한국어 पानी", ["한국어", "पानी"]),
    ],
)
def test_keywords_of_scripts_without_spaces_are_pairs(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in keyword_spans(text)] == expected


def test_half_of_a_surrogate_pair_is_a_replacement_character(tokenizer: Any) -> None:
    read = without_surrogates(HALF)
    assert read == "half \ufffd of it"
    assert tokenize_bare(tokenizer, HALF) == tokenize_bare(tokenizer, read)
    assert tokenize_pairs(tokenizer, [(HALF, HALF)]) == tokenize_pairs(tokenizer, [(read, read)])
    assert chunk_tokens(tokenizer, [HALF], 64, False) == chunk_tokens(tokenizer, [read], 64, False)
    assert list(table([{"text": HALF, "more": [HALF], "number": 2}])) == [{"text": read, "more": [read], "number": 2}]
