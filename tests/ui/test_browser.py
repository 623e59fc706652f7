"""The page in a real browser: every view, hostile texts, the keyboard, a phone and the dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.chromium import CHROMIUM, CONTRAST
from tests.ui.conftest import HOSTILE
from tests.ui.running import Client
from unmask.reporting.page import DASH

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look with: `make browser` installs it")

VIEWS = ("compare", "tokens", "routing", "map")


def views_of(client: Client) -> list[str]:
    """The views that a page has: routing needs experts."""
    return [view for view in VIEWS if view != "routing" or client.server.page.embedders.base.backbone.routers]


class Opened:
    """A page under observation: what went wrong on it, and what it asked for."""

    def __init__(self, page: Page, client: Client) -> None:
        self.page, self.client = page, client
        self.problems: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        self.reopen()

    def reopen(self) -> None:
        """Load the page anew."""
        self.page.goto(self.client.server.address)
        self.page.locator("[role=tab][aria-selected=true]").wait_for()  # before that, a click on a tab does nothing

    def sound(self) -> None:
        """Fail if anything has gone wrong, or was asked of anybody else."""
        assert self.problems == []
        ours = (f"http://127.0.0.1:{self.client.server.port}/", "data:")
        assert [url for url in self.asked if not url.startswith(ours)] == []

    def view(self, name: str) -> Locator:
        """Go to a view, and wait until it shows something."""
        self.page.locator(f"#tab-{name}").click()
        section = self.page.locator(f"#{name}")
        if name == "compare":
            section.locator("table.heat").first.wait_for()
        elif name == "map" and section.locator("canvas").count():
            section.locator(".board").wait_for()
        return section

    def fill(self, view: str, text: str) -> Locator:
        """Ask a view about a text, and wait for the answer."""
        section = self.view(view)
        section.locator("textarea").fill(text)
        section.locator("button.primary").click()
        section.locator(".result > *, .problem:visible").first.wait_for()
        section.locator(".result[aria-busy]").wait_for(state="detached")
        return section

    def choose(self, place: int, design: str) -> None:
        """Choose one of the two designs."""
        self.page.locator(f"#design-{place}").select_option(design)

    def focused(self) -> str:
        return str(self.page.evaluate("() => document.activeElement.textContent"))


@pytest.fixture(scope="module")
def tabs(browser: Browser) -> Iterator[dict[tuple[int, int], Opened]]:
    """Tabs by client and width. Tests take turns in them, since a new one costs a process."""
    opened: dict[tuple[int, int], Opened] = {}
    yield opened
    for seen in opened.values():
        seen.page.context.close()


@pytest.fixture
def look(browser: Browser, tabs: dict[tuple[int, int], Opened]) -> Iterator[Callable[..., Opened]]:
    """Open a page. At the end nothing may have gone wrong."""
    used: list[Opened] = []

    def at(client: Client, width: int = 1280) -> Opened:
        if seen := tabs.get((client.server.port, width)):
            seen.page.unroute_all()
            seen.page.set_viewport_size({"width": width, "height": 900})
            seen.reopen()
        else:
            context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
            seen = tabs[client.server.port, width] = Opened(context.new_page(), client)
        used.append(seen)
        return seen

    yield at
    for seen in used:
        problems, seen.problems = list(seen.problems), []
        assert problems == []
        seen.sound()


# --- opening ---------------------------------------------------------------------------------------------------------


def test_it_opens_and_forgets_the_token(look: Any, dense: Client) -> None:
    seen = look(dense)
    seen.page.locator("#compare table.heat").first.wait_for()
    assert "token" not in seen.page.url and seen.page.url.endswith("/#compare")
    assert "unmask: LlamaModel" in seen.page.title()
    assert seen.page.evaluate("() => document.cookie") == ""
    seen.page.reload()
    seen.page.locator("#compare table.heat").first.wait_for()


def test_without_the_token_it_says_what_to_do(browser: Browser, dense: Client) -> None:
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{dense.server.port}/")
    page.locator("#problem:visible").wait_for()
    assert "Open the address that unmask ui printed" in page.locator("#problem").inner_text()
    page.close()


def test_its_policy_stops_what_escaping_might_miss(look: Any, dense: Client) -> None:
    seen = look(dense)
    seen.view("compare")
    seen.page.evaluate(
        """() => {
            document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}));
            document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.ran = 1">');
            document.body.insertAdjacentHTML('beforeend', '<iframe srcdoc="x"></iframe>');
        }"""
    )
    seen.page.wait_for_timeout(200)
    assert seen.page.evaluate("() => window.ran") is None
    assert any("Content Security Policy" in problem for problem in seen.problems)
    seen.problems.clear()


# --- compare ---------------------------------------------------------------------------------------------------------


def test_two_designs_stand_side_by_side(look: Any, dense: Client) -> None:
    section = look(dense).fill("compare", "one song\nanother song\n\n   \nthe team")
    assert section.locator("table.heat").count() == 2
    answer = dense.post("/api/similarities", designs=["mean", "last"], texts=["one song", "another song", "the team"]).json
    for table, design in zip(section.locator("table.heat").all(), answer["designs"], strict=True):
        shown = [[cell.inner_text() for cell in row.locator("td").all()] for row in table.locator("tbody tr").all()]
        assert [row[place] for place, row in enumerate(shown)] == [DASH] * 3
        for row, values in zip(shown, design["cosines"], strict=True):
            for text, value in zip(row, values, strict=True):
                assert text == DASH or float(text.replace("\u2212", "-")) == pytest.approx(value, abs=0.0051)
        assert table.locator("td.h9").count() >= 2  # the most similar pair, in both triangles
    assert "3\u00a0pairs" in section.inner_text()


def test_a_design_of_ones_own_and_a_wrong_one(look: Any, dense: Client) -> None:
    seen = look(dense)
    section = seen.view("compare")
    seen.choose(0, "own")
    field = seen.page.get_by_label("Design A, attention/prompt/pooling")
    field.fill('causal/"The topic of <i>{text}</i> is"/last')
    field.press("Enter")
    section.locator("h3", has_text="The topic of <i>").first.wait_for()
    field.fill("causal/plain/meen")
    field.press("Enter")
    section.locator(".problem:visible").wait_for()
    assert (
        section.locator(".problem").inner_text() == dense.post("/api/tokens", designs=["causal/plain/meen"], text="x").problem
    )
    seen.problems = [problem for problem in seen.problems if "the server responded with a status of 4" not in problem]


# --- tokens and routing ----------------------------------------------------------------------------------------------


def test_tokens_are_the_text_and_the_darkest_one_leads(look: Any, dense: Client) -> None:
    text = "The film is long, but the end is good."
    seen = look(dense)
    section = seen.fill("tokens", text)
    for panel in section.locator(".panel").all():
        assert panel.locator(".tokens").text_content() == text
        values = [float(value) for value in panel.locator("tbody td.cosine").all_inner_texts()]
        assert values == sorted(values, reverse=True) and len(values) == 8
        assert panel.locator(".token.h9").count() >= 1
        legend = panel.locator(".legend").inner_text()
        assert f"{values[0]:.4f}" in legend
    section.locator(".token").nth(2).hover()
    assert section.locator(".token.marked").count() == 2
    section.locator(".token").first.focus()
    seen.page.keyboard.press("End")
    assert all(told.startswith(".") for told in section.locator(".detail").all_inner_texts())


def test_the_routing_of_a_mixture(look: Any, routed: Client) -> None:
    seen = look(routed)
    section = seen.fill("routing", "A man plays a guitar.")
    assert section.locator("table.routing").count() == 2  # mean and prompteol have different prompts
    answer = routed.post("/api/routing", designs=["mean", "prompteol"], text="A man plays a guitar.").json
    route = answer["routes"][1]
    table = section.locator("table.routing").nth(1)
    assert table.locator("tbody tr").count() == len(route["tokens"])
    shown = [[int(cell) for cell in row.locator("td").all_inner_texts()] for row in table.locator("tbody tr").all()]
    assert shown == [[choices[0] for choices in points] for points in route["experts"]]
    assert table.locator("tr.prompt").count() == route["start"]
    table.locator("td").first.focus()
    seen.page.keyboard.press("ArrowRight")
    assert "at layer 2: expert" in section.locator(".detail").nth(1).inner_text()
    seen.choose(1, "last")
    section.locator("table.routing").nth(1).wait_for(state="detached")  # the same attention and prompt: the same routing
    assert section.locator(".under .badge").count() == 2


# --- map -------------------------------------------------------------------------------------------------------------


def test_the_map_shows_finds_and_selects(look: Any, dense: Client) -> None:
    seen = look(dense)
    section = seen.view("map")
    assert "46\u00a0texts in view" in section.inner_text() and "principal components" in section.inner_text()
    section.locator("input[type=search]").fill("CHOIR number 3")
    section.locator("h3", has_text="1\u00a0text found").wait_for()
    section.locator(".beside > ol button").click()
    selection = section.locator(".selection")
    selection.wait_for()
    assert selection.locator(".whole").inner_text() == "choir number 3 of the band"
    assert "music" in selection.inner_text()
    near = dense.post("/api/neighbours", design="mean", place=7).json["neighbours"]
    assert [float(value) for value in selection.locator(".value").all_inner_texts()] == [
        pytest.approx(one["cosine"], abs=0.0051) for one in near
    ]
    selection.locator("ol button").nth(2).click()
    section.locator("input[type=search]").fill("")
    section.locator("h3", has_text="in view").wait_for()
    selection.get_by_role("button", name="Clear").click()
    assert not selection.is_visible()


# --- hostile texts ---------------------------------------------------------------------------------------------------


def test_no_text_runs_or_hides(look: Any, dense: Client, routed: Client) -> None:
    seen, other = look(dense), look(routed)
    section = seen.fill("compare", "\n".join(HOSTILE))
    for row in range(len(HOSTILE)):
        section.locator("table.heat").first.locator("button.number").nth(row).click()
    require_harmless(seen, section.text_content() or "", whole=True)
    section = seen.view("map")
    shown = ""
    for word in ("script", "onerror", "admin", "bell", "bold", "combined"):
        section.locator("input[type=search]").fill(word)
        section.locator("h3", has_text="1\u00a0text found").wait_for()
        section.locator(".beside > ol button", has_text=word).click()
        section.locator(".selection .whole", has_text=word).wait_for()
        shown += section.text_content() or ""
    require_harmless(seen, shown, whole=True)
    for opened, view in ((seen, "tokens"), (other, "routing")):
        section = opened.fill(view, " ".join(HOSTILE[:4]))
        require_harmless(opened, section.text_content() or "")


def require_harmless(seen: Opened, shown: str, whole: bool = False) -> None:
    """Nothing of the texts has run, became an element or hides. whole: whether they are shown in one piece."""
    assert seen.page.evaluate("() => window.ran") is None
    assert seen.page.locator("main script, main img, main b:has-text('odd')").count() == 0
    assert not set(shown) & {"\u202e", "\0", "\x07"}
    for text in ("<script>window.ran = 1</script>", "admin\\u202egnp.exe", "nul\\x00 and bell\\x07") if whole else ():
        assert text in shown


# --- everybody -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, 360])
def test_every_view_fits_and_can_be_read(width: int, look: Any, dense: Client, routed: Client) -> None:
    for client, views in ((dense, views_of(dense)), (routed, ["routing", "map"])):  # the others are the same
        seen = look(client, width)
        for view in views:
            section = seen.view(view)
            if section.locator("button.primary").count() and view != "compare":
                seen.fill(view, "The film is long, but the end is good.")
            if view == "map" and client is dense:
                section.locator(".beside > ol button").first.click()
                section.locator(".selection").wait_for()
            assert seen.page.evaluate("() => document.documentElement.scrollWidth") == width, view
            for scheme in ("dark", "light") if width > 1000 else ():  # colours do not depend on the width
                seen.page.emulate_media(color_scheme=scheme)
                assert seen.page.evaluate(CONTRAST) >= 4.5, (view, scheme)
