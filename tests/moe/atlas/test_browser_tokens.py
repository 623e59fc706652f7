"""Single tokens in a real browser: what pointing, keys and a finger show is what the record holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chromium import CHROMIUM
from tests.moe.atlas.conftest import recorded
from tests.moe.atlas.looking import Look
from tests.moe.atlas.made_record import Made
from unmask.moe.atlas.page import write_atlas
from unmask.moe.routing.record import read_record

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look with: `make browser` installs it")
ROUNDED = 0.5 + 0.2  # points: to whole ones for the reader, and to 1/255 in the page


class Recorded:
    """What a record holds of single tokens, in the words of the page."""

    def __init__(self, folder: Path) -> None:
        self.record = read_record(folder)
        self.choices = self.record.choices(range(len(self.record.points)))
        self.names = self.record.settings.experts or tuple(map(str, range(self.record.points[0].experts)))

    def rows(self, text: int, token: int, point: int) -> list[tuple[str, float]]:
        """The first choice, the two most probable experts beside it, and the rest, each with its probability in percent."""
        own = self.choices.texts == text
        shares = self.choices.probabilities[point][own][token].astype(float)
        first = self.choices.chosen[point][own][token, 0]
        order = [first, *(expert for expert in np.argsort(-shares, kind="stable") if expert != first)]
        told = [(f"expert {self.names[expert]}", 100 * shares[expert]) for expert in order[:3]]
        rest = 100 * (1 - shares[order[:3]].sum())
        others = f"expert {self.names[order[3]]}" if len(order) == 4 else f"{len(order) - 3} others"
        return [*told, (others, rest)] if rest > ROUNDED else told

    def path(self, text: int, token: int) -> list[str]:
        """The name of the first choice at each routing point."""
        own = self.choices.texts == text
        return [self.names[chosen[own][token, 0]] for chosen in self.choices.chosen]


def require_told(seen: Look, recorded: Recorded, text: int, token: int, point: int) -> None:
    """The panel beside the text is about this token, and has what was recorded."""
    told = seen.view("tokens").locator(".told")
    word = seen.view("tokens").locator(".tok bdi").nth(token).text_content()
    assert told.locator("h3").inner_text() == f"\u201c{word}\u201d at layer {point + 1}"
    rows = list(
        zip(told.locator(".bars .name").all_text_contents(), told.locator(".bars .figure").all_text_contents(), strict=True)
    )
    expected = recorded.rows(text, token, point)
    assert [name for name, _ in rows][: len(expected)] == [name for name, _ in expected]
    for (_, shown), (name, share) in zip(rows, expected, strict=False):
        assert abs(float(shown.removesuffix("\u00a0%")) - share) <= ROUNDED, name
    assert told.locator(".path button").all_text_contents() == recorded.path(text, token)


def open_text(seen: Look, text: int) -> None:
    seen.view("tokens").get_by_role("combobox", name="Text").select_option(index=text)


@pytest.fixture(scope="module", params=["plain", "named, and the first choice is not the most probable expert"])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorded, Path]:
    folder = tmp_path_factory.mktemp("tokens")
    named = request.param != "plain"
    record = recorded(folder / "record", Made(texts=12, named=named, biased=named, experts=4 if named else 8))
    return Recorded(record), write_atlas([record], folder)


def test_pointing_at_a_token_shows_what_was_recorded(look: Any, shown: tuple[Recorded, Path]) -> None:
    of_record, page = shown
    seen = look(page)
    for text in (0, 7):
        open_text(seen, text)
        for token in (3, 0, 17):
            seen.view("tokens").locator(".tok").nth(token).hover()
            require_told(seen, of_record, text, token, point=1)
