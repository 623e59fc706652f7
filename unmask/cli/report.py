"""`unmask report`: an HTML page of a comparison, of a routing record, or of a study's claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import OptionalFolder
from unmask.io.terminal import tell, tell_result


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of `unmask compare -o`, or of `unmask probe routing -o`; or the folder of one model inside the folder of "
            "`unmask reproduce -o`.",
            show_default=False,
        ),
    ],
    output: OptionalFolder = None,
) -> None:
    """Write an HTML report of a comparison (with figures and tables), of a routing record, or of a study's claims.

    Without -o, it is written to `report` in the folder.
    """
    from unmask.moe.atlas.page import is_record, write_atlas
    from unmask.reporting.report_folder import write_report
    from unmask.studies.claims.page import write_claims
    from unmask.studies.results import is_study, refuse_several

    output = output or folder / "report"
    if is_record(folder):
        page = write_atlas(folder, output)
    elif is_study(folder):
        page = write_claims(folder, output)
    else:
        refuse_several(folder)
        page = write_report(folder, output)
    tell_result({"page": str(page)})
    tell(f"Saved to {page}. Open it in any browser; it needs no network.")
