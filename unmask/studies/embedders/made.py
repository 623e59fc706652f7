"""Models of a study. Models are large and scores are small, so a model may be removed once it is scored: its scores stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.compare import reference_hash
from unmask.evaluation.outcomes import why_not_scored
from unmask.evaluation.results import Result, ResultStore
from unmask.io.records import Record
from unmask.models.identity import identity_of
from unmask.models.loading import Source
from unmask.starter import reference_texts
from unmask.studies.settings_digests import digest_of
from unmask.tasks.task import Task


class MadeModel(Record):
    """What stays known of a trained model.

    made_by: a hash of its recipe, its rows and the model that it was made of. revision: of its weights. dtype: what it was scored in; None
    if no embedder reads it.
    """

    made_by: str
    revision: str
    dtype: str | None = None


@dataclass(frozen=True)
class Made:
    """A model of a study.

    make: makes it, or takes the one that exists. folder: where it is trained. settings: what it is made by, as `digest_of` takes it. of:
    what it is made of. A model that is not trained has no folder. One that is taken as it is has none of the three.
    """

    make: Callable[[], Source]
    folder: Path | None = None
    settings: Callable[[], object] | None = None
    of: Made | None = None

    @cached_property
    def source(self) -> Source:
        """The model on the disk, made if it does not exist.

        Raises UnmaskError if it was removed and made again with other weights, while models that were made of the old one are kept.
        """
        if self.of is not None and self.of.folder is not None:
            before = MadeModel.read(_note_of(self.of.folder))
            now = identity_of(self.of.source).revision
            if before is not None and before.revision != now:
                raise UnmaskError(
                    f"'{self.of.folder}' was made again, and its weights are others than before: {before.revision} then, {now} now. "
                    "Bring the old ones back, or run the study in another folder: models of one recipe have to be made of the same model."
                )
        return self.make()

    @cached_property
    def removed(self) -> MadeModel | None:
        """What is known of a trained model that was removed. None if it exists, or if its recipe, rows or base have changed."""
        if self.folder is None or self.folder.exists():
            return None
        known = MadeModel.read(_note_of(self.folder))
        return known if known is not None and known.made_by == self._made_by else None

    @cached_property
    def _made_by(self) -> str:
        assert self.settings is not None and self.of is not None
        return digest_of([self.settings(), self.of.revision])

    @property
    def revision(self) -> str:
        """The hash of its weights, or of what it is made by, if it is not trained."""
        if self.folder is None and self.settings is not None:
            return self._made_by
        return self.removed.revision if self.removed else identity_of(self.source).revision

    def note(self, results: Sequence[Result] = ()) -> None:
        """Note what has to stay known of a trained model, and of those that it was made of. results: its own."""
        if self.of is not None:
            self.of.note()
        if self.folder is None or not self.folder.exists():
            return
        known, revision = MadeModel.read(_note_of(self.folder)), identity_of(self.source).revision
        dtype = results[0].conditions.dtype if results else None
        if known is None or known.revision != revision:
            MadeModel(made_by=self._made_by, revision=revision, dtype=dtype).write(_note_of(self.folder))
        elif dtype not in (None, known.dtype):  # its rows may have changed since it was made
            known.model_copy(update={"dtype": dtype}).write(_note_of(self.folder))

    def results(
        self, designs: Mapping[str, Design], tasks: Sequence[Task], max_length: int, dtype: str, store: ResultStore
    ) -> list[Result] | None:
        """The results of a model that was removed. None if it exists, or if one of them is missing. dtype: as asked for."""
        if self.removed is None:
            return None
        asked = (self.removed.revision, self.removed.dtype if dtype == "auto" else dtype, max_length)
        references = (None, "as saved", reference_hash(reference_texts()))
        stored = {}
        for one in store.results:
            how = one.conditions
            if (how.model_revision, how.dtype, how.max_length) == asked and how.reference in references and store.get(how):
                stored[how.design, one.task, how.task_revision] = one
        wanted = [
            (label, (design.name, task.name, task.revision))
            for label, design in designs.items()
            for task in tasks
            if why_not_scored(design, task) is None
        ]
        if not all(key in stored for _, key in wanted):
            return None
        return [stored[key].model_copy(update={"label": label}) for label, key in wanted]


def _note_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")
