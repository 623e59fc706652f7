"""`unmask report`: a page that shows what a comparison found, what routers do, or what became of the claims of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.io.terminal import tell


def report(
    folder: Annotated[
        list[Path],
        typer.Argument(
            help="Folder that `unmask compare -o` wrote; one or two that `unmask probe routing -o` wrote, side by side; or the folder "
            "of a model below the one that `unmask reproduce -o` wrote.",
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
    """Show a comparison: an HTML page, figures as SVG and PNG, all numbers as CSV, JSON and LaTeX. Or routers, or claims: one page."""
    from unmask.errors import UnmaskError
    from unmask.reporting.atlas.page import is_record, write_atlas
    from unmask.reporting.report_folder import write_report
    from unmask.studies.claims.report import write_claims
    from unmask.studies.results import is_study, refuse_several

    output = output or folder[0] / "report"
    if all(map(is_record, folder)):
        page = write_atlas(folder, output)
    elif len(folder) == 1 and is_study(folder[0]):
        page = write_claims(folder[0], output)
    elif len(folder) == 1:
        refuse_several(folder[0])
        page = write_report(folder[0], output)
    else:
        other = next(one for one in folder if not is_record(one))
        raise UnmaskError(
            f"'{other}' holds no routing record. Give one folder of a comparison, or one or two of routing records."
        )
    tell(f"Saved to {page}; it opens in any browser, without a network.")
