"""Start: reads what a page shows, before any model is loaded, and then loads the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.designs.design import Design, parse_designs
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.saving.folder import read_saved
from unmask.ui.app import Page
from unmask.ui.corpus import Corpus, read_corpus
from unmask.ui.corpus_map import CorpusMap
from unmask.ui.reports import Report, find_reports
from unmask.ui.workbench import Workbench

DEFAULT_DESIGNS = "prompteol,mean"


@dataclass(frozen=True)
class Inputs:
    """What the user gave beside a model: reports, perhaps a corpus, and designs by label (none: those of the model)."""

    reports: list[Report]
    corpus: Corpus | None
    designs: dict[str, Design]

    @property
    def summary(self) -> list[str]:
        """What was found, line by line."""
        lines = [f"reports: {len(self.reports)}"] if self.reports else []
        if corpus := self.corpus:
            sampled = f"{len(corpus.texts)} of {corpus.rows} texts, drawn at random"
            lines.append(f"{corpus.name}: {sampled if corpus.rows > len(corpus.texts) else f'{corpus.rows} texts'}")
        return lines


def read_inputs(
    folders: Sequence[Path], corpus: Path | None = None, column: str = "text", label: str | None = None, designs: str = ""
) -> Inputs:
    """Find the reports, read the corpus and parse the designs. Raises UnmaskError for what is missing or wrong."""
    parsed = parse_designs(designs) if designs else {}
    if len(parsed) > 2:
        raise UnmaskError(f"The page shows two designs side by side; {len(parsed)} were given. It can change them later.")
    return Inputs(find_reports(folders), read_corpus(corpus, column, label) if corpus else None, parsed)


def load_page(model: str, inputs: Inputs, **options: Any) -> Page:
    """Load a model and lay out a page. options: of `Embedder.from_pretrained`.

    Without designs, a saved embedder is shown as it was saved, and any other model by two common designs. Raises UnmaskError.
    """
    saved, designs = read_saved(model, options.get("revision"), options.get("adapter")), inputs.designs
    if not designs:
        designs = {saved.design: Design.parse(saved.design)} if saved else parse_designs(DEFAULT_DESIGNS)
    embedder = Embedder.from_pretrained(model, None if saved else next(iter(designs.values())), **options)
    workbench = Workbench(embedder, designs)
    return Page(workbench, CorpusMap(workbench, inputs.corpus) if inputs.corpus else None, inputs.reports)
