"""`unmask report`: a page that shows what a comparison found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.io.terminal import tell


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that `unmask compare -o` wrote.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the report; by default `report` in that folder."),
    ] = None,
) -> None:
    """Show a comparison: one HTML page to look at, figures as SVG and PNG, every number as CSV, JSON and LaTeX."""
    from unmask.reporting.report_folder import write_report

    tell(f"Saved to {write_report(folder, output or folder / 'report')}; it opens in any browser, without a network.")
