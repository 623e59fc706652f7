"""Report: from a folder of results, a page, its figures and its data. Reads what is saved; loads no model."""

from __future__ import annotations

from pathlib import Path

from unmask.errors import UnmaskError, require_package
from unmask.io.files import atomic, check_output, make_folder, only_run_in
from unmask.reporting.exports import FILES, export
from unmask.reporting.figures import draw
from unmask.reporting.grid import read_grid, require_results
from unmask.reporting.page import render
from unmask.reporting.plotting import METADATA, arrange, write_figure
from unmask.reporting.summary import summarise
from unmask.reporting.svg import as_svg, figure_style, inline

TITLES = {
    "ranking": "Designs, best first, with 95 % intervals",
    "critical": "Critical-difference diagram of mean ranks",
    "layers": "Score by layer",
    "cost": "Score against cost",
    "memory": "Score against peak memory",
    "dimensions": "Score against dimensions",
}


_MARKER = ".unmask-report"


def write_report(folder: Path, output: Path) -> Path:
    """Write `report.html`, `figures/` and `data/` to `output`, from the results in `folder`; the page.

    Raises UnmaskError where there is nothing to report, while a comparison is writing to the folder, and where a file of another program
    would be replaced.
    """
    require_package("matplotlib")
    require_results(folder)
    check_output(output, folder=True)
    page = output / "report.html"
    figures = {(name, kind): output / "figures" / f"{name}.{kind}" for name in TITLES for kind in METADATA}
    if not (output / _MARKER).is_file() and not (page.is_file() and b"<title>unmask report" in page.read_bytes()):
        for file in (page, *figures.values(), *(output / "data" / name for name in FILES)):
            if file.exists():
                raise UnmaskError(
                    f"'{file}' was not written by unmask, and the report would replace it: give another folder (-o)."
                )
    with only_run_in(folder):
        grid = read_grid(folder)
        summary = summarise(grid)
        make_folder(output)
        (output / _MARKER).touch()
        data = export(grid, summary, output / "data")
        charts = {}
        with figure_style():
            charts_by_name = draw(grid, summary)
            for (name, _), file in figures.items():
                if name not in charts_by_name:  # an earlier report may have had it
                    file.unlink(missing_ok=True)
            for name, figure in charts_by_name.items():
                arrange(figure, 200)
                svg = as_svg(figure)
                charts[name] = inline(svg, f"chart-{name}", TITLES[name])
                with atomic(figures[name, "svg"]) as scratch:
                    scratch.write_text(svg, encoding="utf-8")
                for kind in ("png", "pdf"):
                    with atomic(figures[name, kind]) as scratch:
                        write_figure(figure, scratch, kind, 200)
        with atomic(page) as scratch:
            scratch.write_text(render(grid, summary, charts, data), encoding="utf-8")
    return page
