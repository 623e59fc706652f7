"""Models of a study. Models are large and scores are small, so a model may be removed once it is scored: its scores stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unmask.designs.design import Design
from unmask.evaluation.outcomes import why_not_scored
from unmask.evaluation.results import Result, ResultStore
from unmask.io.records import Record
from unmask.models.identity import identity_of
from unmask.models.loading import Source
from unmask.studies.settings_digests import digest_of
from unmask.tasks.task import Task


class ScoredModel(Record):
    """What stays known of a trained model that was scored.

    made_by: a hash of its recipe, its rows and the model that it was made of. revision: of its weights. dtype: what it was scored in.
    """

    made_by: str
    revision: str
    dtype: str


@dataclass(frozen=True)
class Made:
    """A model of a study.

    make: makes it, or takes the one that exists. folder: where it is trained. settings: what it is trained by, as `digest_of` takes it.
    of: what it is made of. The last three are None if nothing is trained.
    """

    make: Callable[[], Source]
    folder: Path | None = None
    settings: Callable[[], object] | None = None
    of: Made | None = None

    @cached_property
    def scored_before(self) -> ScoredModel | None:
        """What is known of a model that was removed after it had been scored. None if it exists, or would be made otherwise now."""
        if self.folder is None or self.folder.exists():
            return None
        known = ScoredModel.read(_note_of(self.folder))
        return known if known is not None and known.made_by == self._made_by else None

    @cached_property
    def _made_by(self) -> str:
        assert self.settings is not None and self.of is not None
        return digest_of([self.settings(), self.of.revision])

    @property
    def revision(self) -> str:
        """The hash of its weights."""
        return self.scored_before.revision if self.scored_before else identity_of(self.make()).revision

    def note(self, results: Sequence[Result]) -> None:
        """Note what has to stay known of a trained model. results: its own."""
        if self.folder is not None and self.folder.exists() and results:
            scored = results[0].conditions
            known = ScoredModel(made_by=self._made_by, revision=scored.model_revision, dtype=scored.dtype)
            if ScoredModel.read(_note_of(self.folder)) != known:
                known.write(_note_of(self.folder))

    def results(
        self, designs: Mapping[str, Design], tasks: Sequence[Task], max_length: int, store: ResultStore
    ) -> list[Result] | None:
        """The results of a model that was removed. None if it exists, or if one of them is missing."""
        known = self.scored_before
        if known is None:
            return None
        stored = {
            (one.conditions.design, one.task, one.conditions.task_revision): one
            for one in store.results
            if (one.conditions.model_revision, one.conditions.dtype) == (known.revision, known.dtype)
            if one.conditions.max_length == max_length and store.get(one.conditions) is not None
        }
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
