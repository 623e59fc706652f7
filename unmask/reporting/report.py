"""Report: from a folder of results, a page, its figures and its data. Reads what is saved; loads no model."""

from __future__ import annotations

from pathlib import Path

from unmask.files import atomic, only_run_in
from unmask.progress import progress_bar
from unmask.reporting.exports import export
from unmask.reporting.figures import draw
from unmask.reporting.grid import read_grid, require_results
from unmask.reporting.page import render
from unmask.reporting.standing import standing
from unmask.reporting.svg import as_svg, drawing, inline

TITLES = {
    "ranking": "Designs, best first, with 95 % intervals",
    "critical": "Critical-difference diagram of mean ranks",
    "layers": "Score by layer",
    "cost": "Score against cost",
    "memory": "Score against peak memory",
    "dimensions": "Score against dimensions",
}


def write_report(folder: Path, output: Path) -> Path:
    """Write `report.html`, `figures/` and `data/` to `output`, from the results in `folder`; the page.

    Raises UnmaskError where there is nothing to report, and while a comparison is writing to the folder.
    """
    require_results(folder)
    with only_run_in(folder):
        return _write(folder, output)


def _write(folder: Path, output: Path) -> Path:
    grid = read_grid(folder)
    with progress_bar("resampling", len(grid.cells)) as advance:
        found = standing(grid, advance)
    data = export(grid, found, output / "data")
    charts = {}
    with drawing():
        for name, figure in draw(grid, found).items():
            svg = as_svg(figure)
            charts[name] = inline(svg, f"chart-{name}", TITLES[name])
            with atomic(output / "figures" / f"{name}.svg") as scratch:
                scratch.write_text(svg, encoding="utf-8")
            with atomic(output / "figures" / f"{name}.png") as scratch:
                figure.savefig(scratch, format="png", dpi=200)
    page = output / "report.html"
    with atomic(page) as scratch:
        scratch.write_text(render(grid, found, charts, data), encoding="utf-8")
    return page
