"""Reports: found by what they say they are, addressed by number, served into a sandbox, and nothing beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ui.running import Client
from unmask.errors import UnmaskError
from unmask.ui.reports import as_json, find_reports

PAGE = "<!doctype html><html><head><title>unmask report: {}</title></head></html>"


def page(file: Path, title: str = "a &amp; b") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PAGE.format(title), encoding="utf-8")
    return file


def test_pages_of_this_program_are_found_in_folders_below(tmp_path: Path) -> None:
    page(tmp_path / "report.html")
    page(tmp_path / "b" / "atlas.html", "atlas")
    page(tmp_path / "a" / "1" / "2" / "report.html", "deep")
    page(tmp_path / "a" / "1" / "2" / "3" / "report.html", "too deep")
    (tmp_path / "other.html").write_text("<title>unmasked</title>")
    (tmp_path / "empty.html").write_text("")
    found = find_reports([tmp_path])
    assert sorted(report.title for report in found) == ["unmask report: a & b", "unmask report: atlas", "unmask report: deep"]
    assert len(find_reports([tmp_path, tmp_path / "b", tmp_path])) == 3  # each once


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = page(tmp_path / "secret" / "report.html")
    page(tmp_path / "given" / "report.html")
    (tmp_path / "given" / "link.html").symlink_to(secret)
    (tmp_path / "given" / "folder").symlink_to(tmp_path / "secret", target_is_directory=True)
    (tmp_path / "given" / "figures").symlink_to(tmp_path / "secret", target_is_directory=True)
    (report,) = find_reports([tmp_path / "given"])
    assert report.file == tmp_path / "given" / "report.html" and report.files == {}


def test_a_folder_without_reports_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="unmask report FOLDER"):
        find_reports([tmp_path])
    with pytest.raises(UnmaskError, match="no folder"):
        find_reports([tmp_path / "nowhere"])
    with pytest.raises(UnmaskError, match="no folder"):
        find_reports([page(tmp_path / "report.html")])


def test_the_list_says_where_and_when(tmp_path: Path) -> None:
    (listed,) = as_json(find_reports([page(tmp_path / "report.html").parent]), "key")
    assert listed["address"] == "/reports/key/0/" and listed["file"].endswith("report.html") and "T" in listed["changed"]


def address(client: Client, number: int = 0) -> str:
    return f"/reports/{client.server.page.key}/{number}/"


def test_a_report_is_served_into_a_sandbox_without_the_token(dense: Client) -> None:
    answer = dense.get(address(dense), x_unmask_token="", sec_fetch_site="cross-site")  # as a link inside of a report asks
    assert answer.status == 200 and b"<title>unmask report" in answer.body
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts allow-downloads; default-src 'none'")
    assert "allow-same-origin" not in policy and "connect-src" not in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_figures_and_data_beside_it_are_served_by_their_names(dense: Client) -> None:
    figure = dense.get(address(dense) + "figures/ranking.svg", x_unmask_token="")
    assert figure.status == 200 and figure.headers["content-type"] == "image/svg+xml"
    assert figure.headers["content-security-policy"].startswith("sandbox")
    table = dense.get(address(dense) + "data/results.csv", x_unmask_token="")
    assert table.status == 200 and table.headers["content-disposition"] == "attachment"


OTHERS = (
    "../other.html", "..%2fother.html", "figures/../../other.html", "figures/%2e%2e/report.html", "/etc/passwd", "%00",
    "report.html", "figures",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is(name: str, dense: Client) -> None:
    assert dense.get(address(dense) + name, x_unmask_token="").status == 404


@pytest.mark.parametrize("number", ["1", "-1", "00", "x", "%30", "%c2%b2"])
def test_only_numbers_of_the_list_are_reports(number: str, dense: Client) -> None:
    path = f"/reports/{dense.server.page.key}/{number}/"
    assert dense.get(path).status == (200 if number == "%30" else 404)


def test_a_report_needs_the_key(dense: Client) -> None:
    for key in ("x", dense.server.token, ""):
        assert dense.get(f"/reports/{key}/0/").status in (401, 404)
    assert dense.get("/reports/x/0/").status == 401


def test_the_key_is_not_the_token(dense: Client) -> None:
    assert dense.server.page.key != dense.server.token
    assert dense.get("/api/state", x_unmask_token=dense.server.page.key).status == 401
