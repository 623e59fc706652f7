"""What to index, checked before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unmask.designs.design import Design
from unmask.encoding.precision import PRECISIONS, Precision
from unmask.errors import UnmaskError, require_package, unknown
from unmask.io.files import check_output, is_own
from unmask.io.terminal import say
from unmask.search.documents import Corpus, Survey, common_type, survey
from unmask.search.filters import ColumnType
from unmask.search.keywords import stemmer
from unmask.search.record import IndexRecord, find_index
from unmask.search.stores import STORES, default_store

EXACT_UP_TO: Final = 100_000
"""Documents up to which a search compares all of them, unless the index is asked to be approximate."""


@dataclass(frozen=True)
class Job:
    """What to index, and how. model, revision, adapters, design: as they were given to load the embedder.

    store, precision, language: None takes those of the index, and for a new one the first store that is installed, float32 and english.
    approximate: build an approximate index for fewer than 100 000 documents, too. keep_missing: keep documents that are in none of the
    files. lexical: keep a lexical vector of each document, too; an index that has them keeps them. fitted: the user has fitted the
    embedder, which is refused if the index was made with another fit. removed: ids of documents to remove, with keep_missing.
    """

    corpus: Corpus
    output: Path
    model: str
    revision: str | None = None
    adapters: tuple[str, ...] = ()
    store: str | None = None
    precision: Precision | None = None
    language: str | None = None
    approximate: bool = False
    keep_missing: bool = False
    fitted: bool = False
    lexical: bool = False
    design: str | None = None
    removed: frozenset[str] = frozenset()

    def check(self) -> Planned:
        """Read all documents, and find mistakes before a model is loaded. Raises UnmaskError."""
        for name, given, allowed in (("store", self.store, STORES), ("precision", self.precision, PRECISIONS)):
            if given is not None and given not in allowed:
                raise unknown(name, given, allowed)
        self._require_design()
        check_output(self.output, self.corpus.files, folder=True)
        if not is_own(self.output):
            raise UnmaskError(f"'{self.output}' holds files that are not of an index: give another folder.")
        before = find_index(self.output)
        self._require_as_before(before)
        store = self.store or (before.store if before else default_store())
        for module in (STORES[store].needs, "bm25s"):
            require_package(module)
        language = self.language or (before.language if before else "english")
        stemmer(language)
        found = survey(self.corpus)
        if self.keep_missing and found.numbered is not None:
            say(
                f"the documents of {found.numbered} have no id but their line. Where lines have moved, --keep-missing keeps what the index "
                "had under a line number that is now missing, so a text may be there twice: give --id-column, or leave --keep-missing out"
            )
        planned = Planned(self, before, found, store, self.precision or (before.precision if before else "float32"), language)
        planned.require_an_approximate_index()
        return planned

    def _require_design(self) -> None:
        """Raise UnmaskError for a design that an index cannot have, or not with lexical vectors."""
        from unmask.embedder import DEFAULT_DESIGN
        from unmask.saving.folder import read_saved
        from unmask.search.lexical import lexical_design

        saved = read_saved(self.model, self.revision, self.adapters, names_design=bool(self.design))
        design = Design.parse(self.design or (saved.design if saved else DEFAULT_DESIGN))
        design.require_dense("An index")
        if self.lexical:
            lexical_design(design)

    def _require_as_before(self, before: IndexRecord | None) -> None:
        """Raise UnmaskError for a setting that an index keeps for its life."""
        for name in ("store", "precision", "language"):
            given = getattr(self, name)
            if before is not None and given is not None and given != getattr(before, name):
                raise UnmaskError(
                    f"'{self.output}' was made with {name} {getattr(before, name)}, and {given} is given. Leave it out to update the "
                    f"index, or give another folder."
                )
        if before is not None and self.lexical and not before.lexical:
            raise UnmaskError(
                f"'{self.output}' was made without lexical vectors. Leave --lexical out to update the index, or give another folder."
            )


@dataclass(frozen=True)
class Planned:
    """A job that was checked. before: the record of the index as it is; None for a new one. survey: what the files hold.

    kept: documents of the index that stay though none of the files has them; they are counted when the index is opened.
    """

    job: Job
    before: IndexRecord | None
    survey: Survey
    store: str
    precision: Precision
    language: str
    kept: int = 0

    @property
    def approximate(self) -> bool:
        """Whether the index is to have an approximate index. One that has one keeps it."""
        asked = self.job.approximate or (self.before is not None and self.before.approximate)
        return asked or len(self.survey.documents) + self.kept > EXACT_UP_TO

    @property
    def lexical(self) -> bool:
        """Whether the index is to have lexical vectors. One that has them keeps them."""
        return self.job.lexical or (self.before is not None and self.before.lexical)

    @property
    def types(self) -> dict[str, ColumnType]:
        """What each column will hold. With documents that are kept, a column that holds something else now becomes text.

        A column that has no value in the files stays what it was. A new one becomes text.
        """
        before = self.before.types if self.before and self.job.keep_missing else {}
        found = {name: held or before.get(name, "text") for name, held in self.survey.columns.items()}
        return found | {name: common_type(held, *self.survey.held.get(name, ())) for name, held in before.items()}

    def require_an_approximate_index(self) -> None:
        """Raise UnmaskError if an approximate index is needed that the store does not have."""
        if self.approximate and self.precision not in STORES[self.store].approximates:
            # an index keeps its store and its precision for its life
            remedy = "Give another folder with" if self.before else "Use"
            raise UnmaskError(
                f"The store '{self.store}' has no approximate index of {self.precision} vectors, which more than {EXACT_UP_TO} "
                f"documents need. {remedy} --store usearch or another --precision."
            )
