"""The page in a real browser: it sorts, filters, tells details, fits a phone and paper, and asks nothing of a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.chromium import CHROMIUM, CONTRAST
from tests.reporting.conftest import Written
from tests.reporting.synthetic import SCRIPT, SPECIAL

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look with: `make browser` installs it")


class Watched:
    """A page under observation: what it said, what went wrong, what it asked for."""

    def __init__(self, page: Page, report: Written) -> None:
        self.page = page
        self.problems: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", self._dismiss)
        page.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
        page.goto(report.page.as_uri())

    def _dismiss(self, dialog: Dialog) -> None:
        self.problems.append(dialog.message)
        dialog.dismiss()

    def names(self) -> list[str]:
        return self.page.locator("#heat tbody th").evaluate_all("all => all.map(one => one.dataset.v)")  # type: ignore[no-any-return]

    def column(self, head: str) -> list[float]:
        """Values of a column of the grid, top to bottom."""
        return self.page.evaluate(  # type: ignore[no-any-return]
            """head => {
                const heads = [...document.querySelectorAll("#heat thead th")];
                const at = heads.findIndex((one) => one.textContent.startsWith(head));
                return [...document.querySelectorAll("#heat tbody tr")].map((row) => Number(row.cells[at].dataset.v));
            }""",
            head,
        )

    def heads(self) -> list[str]:
        return [text.split("\n")[0] for text in self.page.locator("#heat thead th:visible").all_inner_texts()]


@pytest.fixture
def look(browser: Browser) -> Iterator[Any]:
    """Open a report in a context of its own; nothing may have gone wrong, and nothing but the file been asked for, at the end."""
    opened: list[tuple[Any, Watched]] = []

    def at(report: Written, width: int = 1280, **options: Any) -> Watched:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        opened.append((context, Watched(context.new_page(), report)))
        return opened[-1][1]

    yield at
    for context, watched in opened:
        assert watched.problems == []
        assert [url for url in watched.asked if not url.startswith("file:")] == []
        assert len(watched.asked) == 1
        context.close()


def test_a_click_sorts_and_another_turns_it_round(look: Any, small_report: Written) -> None:
    seen = look(small_report)
    assert seen.names() == ["echo", "mean", SCRIPT, SPECIAL]  # best first, as written
    head = seen.page.locator("#heat thead th", has_text="sts-0")
    for direction in ("descending", "ascending", "descending"):
        head.locator("button").click()
        values = seen.column("sts-0")
        assert values == sorted(values, reverse=direction == "descending")
        assert head.get_attribute("aria-sort") == direction
        assert seen.page.locator("#heat th[aria-sort]").count() == 1
    assert "Sorted by sts-0" in seen.page.locator("#said").inner_text()


@pytest.mark.sample(1)
@pytest.mark.parametrize("times", [1, 2])
def test_what_is_missing_stands_last_in_either_direction(times: int, look: Any, large_report: Written) -> None:
    seen = look(large_report)
    for _ in range(times):
        seen.page.locator("#heat thead th", has_text="retrieval-0").locator("button").click()
    assert seen.names()[-1] == "causal/plain/max"
    assert len(set(seen.names())) == 30


def test_a_filter_shows_the_tasks_of_a_kind(look: Any, large_report: Written) -> None:
    seen = look(large_report)
    everything = seen.heads()
    assert len(everything) == 18  # design, mean, 15 tasks, AMI
    button = seen.page.get_by_role("button", name="sts", exact=True)
    button.click()
    assert seen.heads() == ["design", "mean", *(f"sts-{place}" for place in range(6))]
    assert button.get_attribute("aria-pressed") == "true"
    assert seen.page.locator("[aria-pressed=true]").count() == 1
    cells = seen.page.locator("#heat tbody tr").first.locator("td:visible")
    values = [float(value) for value in cells.evaluate_all("all => all.map(one => one.dataset.v)")]
    assert values[0] == pytest.approx(sum(values[1:]) / 6, abs=1e-5)  # the mean is that of the tasks shown
    seen.page.get_by_role("button", name="all tasks").click()
    assert seen.heads() == everything


def test_pointing_at_a_cell_tells_its_details(look: Any, small_report: Written) -> None:
    seen = look(small_report)
    tip = seen.page.get_by_role("tooltip")
    assert not tip.is_visible()
    cell = seen.page.locator("#heat tbody tr", has_text=SCRIPT).locator("td[data-row]").first
    cell.hover()
    told = tip.inner_text()
    for said in (SCRIPT, "sts-0", "Spearman", "95 %", "[", "items", "20", "tokens", "3 of 100", "proven in 30 layers"):
        assert said in told
    assert cell.inner_text().split("±")[0].strip(" ●○\n").split(":")[-1].strip() in told
    assert cell.get_attribute("aria-describedby") == "tip"
    tip.hover()  # it can be read and copied from
    seen.page.wait_for_timeout(250)
    assert tip.is_visible()
    seen.page.mouse.move(5, 5)
    tip.wait_for(state="hidden")


def test_arrow_keys_reach_every_cell_and_tell_its_details(look: Any, small_report: Written) -> None:
    seen = look(small_report)
    tip = seen.page.get_by_role("tooltip")
    assert seen.page.locator("#heat td[tabindex='0']").count() == 1  # one stop, not a hundred
    seen.page.locator("#heat td[tabindex='0']").focus()
    at = "() => [document.activeElement.parentElement.rowIndex, document.activeElement.cellIndex]"
    reached = set()
    for row in range(4):
        seen.page.keyboard.press("Home")
        for _ in range(5):
            reached.add(tuple(seen.page.evaluate(at)))
            seen.page.keyboard.press("ArrowRight")
        if row < 3:
            seen.page.keyboard.press("ArrowDown")
    assert len(reached) == 20  # 4 designs; mean, 3 tasks, AMI
    assert tip.is_visible()
    assert SPECIAL in tip.inner_text()
    seen.page.keyboard.press("Escape")
    assert not tip.is_visible()
    seen.page.keyboard.press("ArrowUp")
    assert SCRIPT in tip.inner_text()
    seen.page.keyboard.press("Tab")  # to a place with nothing to tell
    tip.wait_for(state="hidden")
    seen.page.keyboard.press("Shift+Tab")
    assert tip.is_visible()
    outline = seen.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("width", [1280, 360])
def test_all_text_can_be_read(width: int, look: Any, large_report: Written) -> None:
    seen = look(large_report, width)
    for scheme in ("dark", "light"):
        seen.page.emulate_media(color_scheme=scheme)
        assert seen.page.evaluate(CONTRAST) >= 4.5, scheme


@pytest.mark.parametrize("name", ["small_report", "large_report"])
def test_a_phone_scrolls_tables_and_not_the_page(name: str, look: Any, request: pytest.FixtureRequest) -> None:
    seen = look(request.getfixturevalue(name), 360, has_touch=True)
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 360
    box = seen.page.locator(".scroll:has(#heat)")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    first = seen.page.locator("#heat tbody th").first
    before = first.bounding_box()
    box.evaluate("box => box.scrollTo(200, 0)")
    after = first.bounding_box()
    assert after is not None
    assert before is not None
    assert abs(after["x"] - before["x"]) <= 2  # the names stay, but for the gap between cells
    assert before["width"] < 180
    seen.page.locator("#heat tbody tr").first.locator("td[data-row]").nth(2).tap()
    assert seen.page.get_by_role("tooltip").is_visible()
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") == 360


def test_without_scripts_everything_can_be_read(look: Any, small_report: Written) -> None:
    seen = look(small_report, java_script_enabled=False)
    page = seen.page
    assert page.locator("button:visible").count() == 0  # no control that does nothing
    assert page.locator("#heat td:visible").count() == 20
    assert page.locator("#every tbody tr:visible").count() == 12
    assert "proven in 30 layers" in page.locator("#every").inner_text()
    assert page.locator("svg.chart:visible").count() >= 1


def test_on_paper_nothing_is_hidden_but_controls(look: Any, large_report: Written, tmp_path: Path) -> None:
    seen = look(large_report)
    seen.page.emulate_media(media="print", color_scheme="dark")
    assert seen.page.locator("#heat tbody tr:visible").count() == 30
    assert seen.page.locator(".tools:visible, nav:visible").count() == 0
    for box in seen.page.locator(".scroll").all():
        assert box.evaluate("box => getComputedStyle(box).overflow") == "visible"
    assert seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(254, 254, 254)"
    seen.page.set_viewport_size({"width": 1032, "height": 700})  # A4 across, less its margins
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 1032
    assert len(seen.page.pdf(prefer_css_page_size=True)) > 10_000


def test_no_name_runs(look: Any, small_report: Written) -> None:
    seen = look(small_report)
    assert seen.page.locator("script").count() == 1
    assert seen.page.locator("#heat tbody th", has_text=SCRIPT).count() == 1
    seen.page.evaluate(
        "() => document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert seen.page.evaluate("() => window.ran") is None  # the policy of the page stops what escaping might miss
    assert any("Content Security Policy" in problem for problem in seen.problems)
    seen.problems.clear()
