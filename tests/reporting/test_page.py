"""The page holds every number once said, refers to nothing outside, and trusts no name."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from tests.loaded import loaded_by
from tests.reporting.conftest import Written
from tests.reporting.synthetic import SCRIPT, SPECIAL, Folder, small, write_exact
from unmask.evaluation.results import ResultStore
from unmask.reporting.grid import read_grid
from unmask.reporting.page import points, render
from unmask.reporting.report_folder import write_report
from unmask.reporting.summary import summarise

pytestmark = pytest.mark.usefixtures("sketched")  # the page holds its figures as SVG, which is drawn
VOID = {"meta", "wbr", "br", "path", "use", "line"}


class Parsed(HTMLParser):
    """The elements of a page in order, and the text inside each, its children's included."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))
        if tag not in VOID:
            self._open.append(self.elements[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        while self._open and tag not in VOID:
            if self._open.pop()[0] == tag:
                break

    def handle_data(self, data: str) -> None:
        for _, _, texts in self._open:
            texts.append(data)

    def all(self, tag: str, **attributes: str) -> list[tuple[dict[str, str], str]]:
        return [
            (attrs, " ".join("".join(texts).split()))
            for name, attrs, texts in self.elements
            if name == tag and all(attrs.get(key.strip("_").replace("_", "-")) == value for key, value in attributes.items())
        ]


@pytest.fixture(scope="module", params=["small_report", "large_report"])
def report(request: pytest.FixtureRequest) -> Written:
    found: Written = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def page(report: Written) -> Parsed:
    return Parsed(report.html)


def test_it_says_its_language_title_and_headings_in_order(page: Parsed) -> None:
    assert page.all("html", lang="en")
    [(_, title)] = page.all(
        "title",
    )[:1]
    assert title.startswith("unmask report: ")
    levels = [int(name[1]) for name, _, _ in page.elements if re.fullmatch("h[1-6]", name)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(next_one <= level + 1 for level, next_one in pairwise(levels))


def test_it_is_one_small_file_that_refers_to_nothing_outside(report: Written, page: Parsed) -> None:
    assert report.page.stat().st_size < 1_000_000
    for _, attrs, _ in page.elements:
        assert not {"src", "srcset", "data", "action"} & set(attrs)
        assert not re.search(r"url\((?!#)", attrs.get("style", ""))
    assert not page.all("link")
    assert not re.search(r"@import|url\(", "".join(text for _, text in page.all("style")))
    for attrs, _ in page.all("a"):
        target = attrs["href"]
        assert (
            target[1:] in {one.get("id") for _, one, _ in page.elements}
            if target[0] == "#"
            else (report.page.parent / target).is_file()
        )


def test_only_its_own_script_may_run(page: Parsed) -> None:
    [policy] = [attrs["content"] for attrs, _ in page.all("meta") if "http-equiv" in attrs]
    own = [text for name, _, texts in page.elements if name == "script" for text in ["".join(texts)]]
    assert len(own) == 1
    digest = base64.b64encode(hashlib.sha256(own[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert not any(name.startswith("on") for _, attrs, _ in page.elements for name in attrs)


def test_every_score_stands_in_the_grid_and_in_the_list(report: Written, page: Parsed) -> None:
    results = ResultStore(report.folder).results
    scored = [(attrs, text) for attrs, text in page.all("td") if re.search(r"\bh\d\b", attrs.get("class", ""))]
    assert sorted(attrs["data-v"] for attrs, _ in scored) == sorted(f"{one.main_score:.6f}" for one in results)
    for attrs, text in scored:
        [(_, row)] = page.all("tr", id=attrs["data-row"])
        shown = re.sub("^[●○](best of its task|tied with the best): ", "", text).split("±")[0]
        assert shown.strip() == points(float(attrs["data-v"]))
        assert shown.strip() in row
    assert len([attrs for attrs, _ in page.all("tr") if re.fullmatch(r"r\d+", attrs.get("id", ""))]) == len(results)


def test_the_darkest_cells_are_the_best(page: Parsed) -> None:
    best = [attrs for attrs, _ in page.all("td") if "best" in attrs.get("class", "").split()]
    assert best
    assert all("h9" in attrs["class"].split() for attrs in best)
    levels = {re.findall(r"\bh(\d)\b", attrs["class"])[0] for attrs, _ in page.all("td") if "±" in _}
    assert len(levels) >= 4


def test_names_are_text(small_report: Written) -> None:
    html = small_report.html
    assert SCRIPT not in html
    page = Parsed(html)
    heads = [text for attrs, text in page.all("th", scope="row") if attrs.get("data-v") in (SCRIPT, SPECIAL)]
    assert set(heads) == {SCRIPT, SPECIAL}
    assert f"{SCRIPT}-{SPECIAL}" in " ".join(text for _, text in page.all("th", scope="col"))
    assert any(SCRIPT in text for _, text in page.all("text"))  # in a chart


def test_a_failed_cell_says_so(large_report: Written) -> None:
    page = Parsed(large_report.html)
    [(attrs, text)] = [(attrs, text) for attrs, text in page.all("td") if "failed" in attrs.get("class", "")]
    assert text == "failed"
    [(_, row)] = page.all("tr", id=attrs["data-row"])
    assert f"AttentionError: layer 3 does not look ahead {SCRIPT}" in row


def test_the_lead_says_what_the_tests_say(small_report: Written, tmp_path: Path) -> None:
    assert "It is better than each of the 3 other designs." in small_report.html
    of = Folder({"mean": ("causal/plain/mean", 0.5), "twin": ("causal/plain/mean@all", 0.501)}, {"sts-0": "sts"})
    of.write(tmp_path)
    html = write_report(tmp_path, tmp_path / "report").read_text(encoding="utf-8")
    assert Parsed(html).all("h1")[0][1] == "mean ties with twin"
    assert "It is tied with twin (" in html
    assert "Separating mean from twin takes " in html


def test_reporting_needs_no_model(tmp_path: Path) -> None:
    small().write(tmp_path)
    code = "from unmask.reporting.report_folder import write_report; write_report(given[0], given[0] / 'out')"
    assert loaded_by(code, tmp_path) == {"matplotlib"}, "it draws"


def head_of(folder: Path) -> tuple[str, str, Parsed]:
    """The headline, the paragraph below it, and the page."""
    grid = read_grid(folder)
    page = Parsed(render(grid, summarise(grid), {}, []))
    (_, title), (_, lead) = *page.all("h1"), page.all("p", class_="lead")[0]
    return " ".join(title.split()), " ".join(lead.split()), page


THREE = {"best": "causal/echo/mean", "wide": "causal/plain/mean@all", "minilm": "sentence-transformers"}
HEADLINES = {
    (None, 0.9): "best is behind minilm",
    (None, 0.601): "best ties with minilm",
    (None, 0.3): "best is better than minilm",
    (0.4, 0.9): "best is the best design, behind minilm",
    (0.4, 0.601): "best is the best design, tied with minilm",
    (0.4, 0.599): "best is the best design, tied with minilm",
    (0.4, 0.3): "best leads",
    (0.599, 0.9): "best ties with wide, behind minilm",
    (0.599, 0.601): "best ties with wide, and with minilm",
    (0.599, 0.3): "best ties with wide",
}
"""By the scores of another design and of a reference. The best design scores 0.6."""


@pytest.mark.parametrize(("other", "reference"), HEADLINES)
def test_the_headline_says_how_the_reference_compares(other: float | None, reference: float, tmp_path: Path) -> None:
    """It never says "leads" above a higher reference, or beside one that the tests do not tell apart."""
    scores = {"best": 0.6, "minilm": reference} | ({} if other is None else {"wide": other})
    write_exact(tmp_path, THREE, {"sts-0": scores, "clustering-0": scores})
    title, lead, page = head_of(tmp_path)
    assert title == HEADLINES[other, reference]
    apart = {
        0.9: "The reference minilm is better: 90.0, 30.0 ahead [",
        0.3: "Better than the reference minilm: 30.0, 30.0 behind [",
    }
    assert apart.get(reference, f"Tied with the reference minilm: {100 * reference:.1f}, 0.1 ") in lead
    [card] = [text for _, text in page.all("article") if text.startswith("STS")]
    named = f"minilm, a reference: {100 * reference:.1f}, {'better' if reference == 0.9 else 'tied'}"
    assert (named in card) is (reference > 0.6)


def test_the_kinds_that_carry_a_mean_are_named(tmp_path: Path) -> None:
    """A design may lead over all tasks because of one kind alone."""
    ahead = {"retrieval-0": 0.7, "sts-0": 0.3, "classification-0": 0.301, "clustering-0": 0.2}
    designs = {name: THREE[name] for name in ("best", "wide")}
    write_exact(tmp_path, designs, {task: {"best": score, "wide": 0.3} for task, score in ahead.items()})
    title, lead, _ = head_of(tmp_path)
    assert title == "best leads"
    assert (
        "By kind of task, it is better than every other design on retrieval; tied with others on STS and classification; "
        "and worse than the best design on clustering." in lead
    )
