"""Views: the two forms of a sentence that SimCSE brings together. Dropout makes them differ; words that come twice do so too."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from unmask.training.data import Example
from unmask.training.schedule import ScheduledExample

_WORD = re.compile(r"\s*\S+")


def two_views(rows: Sequence[ScheduledExample], repeat: float, seed: int) -> list[ScheduledExample]:
    """Each sentence of a schedule as a pair: itself, and itself with some words twice (`with_repeated_words`).

    The choice of words depends on the seed and the place in the schedule only, so a resumed run sees what an unbroken one sees.
    """
    return [
        replace(
            row, example=Example(row.example.row, (text, with_repeated_words(text, repeat, random.Random(f"{seed}:{place}"))))
        )
        for place, row in enumerate(rows)
        for text in row.example.texts
    ]


def with_repeated_words(text: str, share: float, generator: random.Random) -> str:
    """A text in which some words stand twice: n of its N words, n drawn from 0 to max(2, share N); share 0 changes nothing.

    A text of one word, as in a language without spaces, repeats characters. Source: ESimCSE (arXiv 2109.04380), section 3.1, which
    repeats the tokens of a subword vocabulary.
    """
    if not share:
        return text
    words = _WORD.findall(text)
    space, units = (" ", words) if len(words) > 1 else ("", list(text))
    number = min(len(units), generator.randint(0, max(2, int(share * len(units)))))
    twice = set(generator.sample(range(len(units)), number))
    return "".join(unit + space + unit.lstrip() if place in twice else unit for place, unit in enumerate(units))
