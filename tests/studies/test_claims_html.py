"""The page of a study says what its results say; it trusts no name and asks nothing of a network."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.chromium import CHROMIUM, CONTRAST
from tests.reporting.synthetic import SCRIPT, SPECIAL
from tests.reporting.test_page import Parsed
from tests.studies.synthetic import CLAIMS, VERDICTS, made, made_findings, paired
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.studies.claims.claim import Claim, Finding, findings
from unmask.studies.claims.page import Plot, plots, with_minus_signs, write_claims
from unmask.studies.claims.tables import VERDICT_MEANINGS, comparison_text, counts_sentence, difference_text, sample_size

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look with: `make browser` installs it")


def written(folder: Path, **changed: Any) -> Path:
    """The page of results with these changes."""
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(made(**changed)), encoding="utf-8")
    return write_claims(folder, folder / "report")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def page(file: Path) -> Parsed:
    return Parsed(file.read_text(encoding="utf-8"))


def articles(file: Path) -> dict[str, Parsed]:
    """The part of the page about each claim, in its order."""
    parts = re.findall(r'<article class="claim" data-claim="([^"]*)">(.*?)</article>', file.read_text("utf-8"), flags=re.DOTALL)
    return {name: Parsed(part) for name, part in parts}


def read(part: Parsed) -> dict[str, str]:
    """What the list of a claim says, by its terms."""
    return dict(zip([text for _, text in part.all("dt")], [text for _, text in part.all("dd")], strict=True))


def test_what_does_not_hold_comes_first_and_the_first_paragraph_counts(page: Parsed, file: Path) -> None:
    heads = [text for _, text in page.all("h2")]
    assert heads[:5] == ["Refuted", "Undecided", "Confirmed", "Not measured", "Not wired"]
    lead = "7 claims: 3 confirmed, 1 refuted, 1 undecided, 1 not measured, 1 not wired."
    assert page.all("p")[1][1] == counts_sentence(made_findings()) == lead
    assert list(articles(file)) == list(VERDICTS)
    assert [text for _, text in page.all("p", class_="intro")] == list(VERDICT_MEANINGS.values())


def test_each_claim_says_what_the_results_say(file: Path) -> None:
    found = {one.claim.id: one for one in made_findings()}
    for name, part in articles(file).items():
        one = found[name]
        texts = [text for _, text in part.all("p")]
        assert part.all("h3")[0][1] == one.claim.says
        assert texts[:3] == [VERDICTS[name], one.claim.where, comparison_text(one)]
        assert part.all("svg")[0][0]["class"].startswith("mark"), "a shape stands by the word"
        test = one.deciding
        if test is None:
            assert texts[3] == "Nothing is compared." and not part.all("dl")
            continue
        assert texts[3] == f"{with_minus_signs(difference_text(test))} {test.measured_in}"
        said = read(part)
        assert said["n"] == sample_size(test) and said["test"] == test.test
        assert float(said["detectable"]) == pytest.approx(test.detectable, rel=0.006)
        assert float(said["interval"].split()[0]) == pytest.approx(100 * test.level, rel=0.006)
        corrected, alone = re.findall(r"[\d.]+", said["p"])
        assert float(corrected) == pytest.approx(test.p_holm, abs=0.001) and float(alone) == pytest.approx(test.p, abs=0.001)


def test_numbers_can_be_read_back_from_the_plots(file: Path) -> None:
    found = {one.claim.id: one for one in made_findings()}
    drawn = {name: part.all("svg", role="img") for name, part in articles(file).items()}
    for name, images in drawn.items():
        test = found[name].deciding
        assert len(images) == (test is not None)
        if test:
            label = images[0][0]["aria-label"].replace("\u2212", "-")
            numbers = [float(number) for number in re.findall(r"[+-][\d.]+(?:e[+-]\d+)?", label)]
            assert numbers == pytest.approx([test.difference, *test.interval], rel=0.006, abs=1e-3)


def test_all_rivals_are_shown_and_the_one_that_decided_is_marked(file: Path) -> None:
    best = articles(file)["best"]
    one = next(one for one in made_findings() if one.claim.id == "best")
    assert one.deciding and one.deciding.than == SPECIAL
    rows = [text for attributes, text in best.all("th", scope="row")]
    assert rows == ["b", f"{SPECIAL}decided", "c"]
    cells = [text for _, text in best.all("td")]
    assert cells[0::3] == [with_minus_signs(difference_text(test)) for test in one.tests]
    assert "Not compared with f." in [text for _, text in articles(file)["left out"].all("p")]


def test_names_are_text(file: Path, page: Parsed) -> None:
    html = file.read_text(encoding="utf-8")
    assert SCRIPT not in html and "<script" not in html and "\u202e" not in html
    assert page.all("h3")[0][1] == f"{SCRIPT} is the best."


def test_it_is_one_file_that_runs_nothing_and_refers_to_nothing_outside(page: Parsed) -> None:
    [policy] = [attributes["content"] for attributes, _ in page.all("meta") if "http-equiv" in attributes]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    names = {name for _, attributes, _ in page.elements for name in attributes}
    assert not {"src", "srcset", "action", "style"} & names and not any(name.startswith("on") for name in names)
    assert not page.all("link") and not re.search(r"@import|url\(", "".join(text for _, text in page.all("style")))
    identifiers = Counter(attributes["id"] for _, attributes, _ in page.elements if "id" in attributes)
    assert max(identifiers.values()) == 1
    links = [attributes["href"] for attributes, _ in page.all("a")]
    assert len(links) == 7 and all(link[0] == "#" and link[1:] in identifiers for link in links)
    referred = {attributes["aria-labelledby"] for _, attributes, _ in page.elements if "aria-labelledby" in attributes}
    assert referred <= set(identifiers)
    style = "".join(text for _, text in page.all("style"))
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= set(re.findall(r"(--[\w-]+):", style))


def test_the_command_says_where_it_wrote(tmp_path: Path) -> None:
    written(tmp_path / "pico").unlink()
    ran = CliRunner().invoke(app, ["report", str(tmp_path / "pico")])
    assert ran.exit_code == 0 and str(tmp_path / "pico" / "report" / "claims.html") in ran.output.replace("\n", "")
    assert (tmp_path / "pico" / "report" / "claims.html").is_file()
    above = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(above.exception, UnmaskError) and str(tmp_path / "pico") in str(above.exception)


@pytest.fixture
def look(browser: Browser, file: Path) -> Iterator[Any]:
    """Open the page in a context of its own. Nothing may go wrong, and nothing but the file may be asked for."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []
    asked: list[str] = []

    def at(width: int = 1280, **options: Any) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        return page

    yield at
    assert problems == [] and asked == [file.as_uri()] * len(contexts)
    for context in contexts:
        context.close()


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_all_text_can_be_read_and_the_page_fits(width: int, scheme: str, look: Any) -> None:
    page = look(width, color_scheme=scheme)
    assert page.evaluate(CONTRAST) >= 4.5
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    clipped = page.locator("svg.forest text").evaluate_all(
        "all => all.filter((one) => { const box = one.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth; }).length"
    )
    assert clipped == 0
    overlapping = page.locator("svg.forest > svg").evaluate_all(
        """all => all.filter((one) => {
            const boxes = [...one.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
            return boxes.some((box, at) => at && box.left < boxes[at - 1].right);
        }).length"""
    )
    assert overlapping == 0


def drawn(*differences: float, noise: float = 0.1, within: float | None = None) -> list[Plot]:
    """Plots of claims with these differences."""
    claims = [
        Claim(id=f"{place}", where="1", says="a", better="a", than=("b",), within=within) for place in range(len(differences))
    ]
    tests = {(f"{place}", "b"): paired(value, noise) for place, value in enumerate(differences)}
    return [plot for plot in plots(findings(claims, tests, lambda _: "points")) if plot]


def found(name: str) -> tuple[Finding, Plot | None]:
    every = made_findings()
    place = [claim.id for claim in CLAIMS].index(name)
    return every[place], plots(every)[place]


@pytest.mark.parametrize("size", [1e-4, 0.03, 1.0, 7.0, 300.0])
def test_an_axis_shows_zero_both_sides_and_every_interval_at_round_numbers(size: float) -> None:
    shown = drawn(size, 0.4 * size, noise=0.1 * size)
    [axis] = {plot.axis for plot in shown}
    assert axis.low < 0 < axis.high and 0 in axis.ticks
    assert 4 <= len(axis.ticks) <= 7
    assert all(0 < edge < 100 for plot in shown for edge in plot.interval) and shown[0].is_clipped == (False, False)
    assert all(plot.interval[0] < plot.point < plot.interval[1] for plot in shown)


def test_a_wide_interval_is_clipped_beyond_the_axis() -> None:
    _, wide = found("wide")
    _, alike = found("alike")
    assert wide and wide.is_clipped == (True, True) and wide.interval == (0, 100)
    assert alike and alike.interval[1] - alike.interval[0] > 0.5, "the others can be seen"
