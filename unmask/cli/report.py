"""`unmask report`: a page that shows what a comparison found, or what routers do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.io.terminal import tell


def report(
    folder: Annotated[
        list[Path],
        typer.Argument(
            help="Folder that `unmask compare -o` wrote; or one or two that `unmask probe routing -o` wrote, side by side.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the report; by default `report` in the first folder."
        ),
    ] = None,
) -> None:
    """Show a comparison: one HTML page, figures as SVG and PNG, all numbers as CSV, JSON and LaTeX. Or show routers: an HTML atlas."""
    from unmask.errors import UnmaskError
    from unmask.reporting.atlas.page import is_record, write_atlas
    from unmask.reporting.report_folder import write_report

    output = output or folder[0] / "report"
    if all(map(is_record, folder)):
        page = write_atlas(folder, output)
    elif len(folder) == 1:
        page = write_report(folder[0], output)
    else:
        other = next(one for one in folder if not is_record(one))
        raise UnmaskError(
            f"'{other}' holds no routing record. Give one folder of a comparison, or one or two of routing records."
        )
    tell(f"Saved to {page}; it opens in any browser, without a network.")
