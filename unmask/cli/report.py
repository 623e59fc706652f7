"""`unmask report`: an HTML page of a comparison, of routing records, or of a study's claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import OptionalFolder
from unmask.io.terminal import tell, tell_result


def report(
    folder: Annotated[
        list[Path],
        typer.Argument(
            help="Folder of `unmask compare -o`; or one or two folders of `unmask probe routing -o`, shown side by side; or the folder of "
            "one model inside the folder of `unmask reproduce -o`.",
            show_default=False,
        ),
    ],
    output: OptionalFolder = None,
) -> None:
    """Write an HTML report of a comparison (with figures and tables), of routing records, or of a study's claims.

    Without -o, it is written to `report` in the first folder.
    """
    from unmask.errors import UnmaskError
    from unmask.moe.atlas.page import is_record, write_atlas
    from unmask.reporting.report_folder import write_report
    from unmask.studies.claims.page import write_claims
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
        wrong = next(path for path in folder if not is_record(path))
        raise UnmaskError(
            f"'{wrong}' contains no routing record. Give one folder of a comparison, or one or two of routing records."
        )
    tell_result({"page": str(page)})
    tell(f"Saved to {page}. Open it in any browser; it needs no network.")
