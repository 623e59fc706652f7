"""The models of a study of embedders. Models are large and scores are small, so a model may be removed once it is scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from unmask.designs.design import Design
from unmask.encoding.heads import DEFAULTS
from unmask.errors import UnmaskError
from unmask.evaluation.outcomes import why_not_scored
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.scoring import texts_hash
from unmask.io.files import inside
from unmask.io.records import Record
from unmask.io.terminal import say
from unmask.models.identity import identity_of
from unmask.models.loading import Source, load_base_language_model, load_decoder
from unmask.models.routers import verify_routers
from unmask.moe.upcycling import UpcycleOptions, save_upcycled, upcycle
from unmask.starter import reference_texts
from unmask.studies.embedders.plan import BASE, NOT_TRAINING, EmbeddersPlan, ModelSpec
from unmask.studies.plan import digest_of
from unmask.studies.study import Study
from unmask.tasks.task import Task
from unmask.training.recipe import Recipe, read_sets
from unmask.training.recipe_run import run_recipe
from unmask.training.train import Listener


class ModelNote(Record):
    """What stays known of a trained model once it is removed."""

    made_by: str
    """A hash of its recipe, its rows and the model that it was made of."""
    revision: str
    """Of its weights."""
    dtype: str | None = None
    """The precision that it was scored in; None if no embedder reads it."""


@dataclass(frozen=True)
class StudyModel:
    """A model of a study. One that is not trained has no folder. The base model has neither folder, settings nor parent."""

    make: Callable[[], Source]
    """Makes it, or takes the one that exists."""
    folder: Path | None = None
    """Where it is trained."""
    settings: Callable[[], object] | None = None
    """What it is made by, as `digest_of` takes it."""
    parent: StudyModel | None = None
    """What it is made of."""

    @cached_property
    def source(self) -> Source:
        """The model on the disk, made if it does not exist.

        Raises UnmaskError if its parent was removed and made again with other weights, while models that were made of the old one are kept.
        """
        if self.parent is not None and self.parent.folder is not None:
            before = ModelNote.read(_note_file(self.parent.folder))
            now = identity_of(self.parent.source).revision
            if before is not None and before.revision != now:
                raise UnmaskError(
                    f"'{self.parent.folder}' was made again, and its weights are others than before: {before.revision} then, {now} now. "
                    "Bring the old ones back, or run the study in another folder: models of one recipe must be made from the same model."
                )
        return self.make()

    @cached_property
    def removed_note(self) -> ModelNote | None:
        """The note of a trained model that was removed. None if it exists, or if its recipe, rows or base have changed."""
        if self.folder is None or self.folder.exists():
            return None
        note = ModelNote.read(_note_file(self.folder))
        return note if note is not None and note.made_by == self._settings_digest else None

    @cached_property
    def _settings_digest(self) -> str:
        assert self.settings is not None and self.parent is not None
        return digest_of([self.settings(), self.parent.revision])

    @property
    def revision(self) -> str:
        """The hash of its weights, or of its definition if it is not trained."""
        if self.folder is None and self.settings is not None:
            return self._settings_digest
        return self.removed_note.revision if self.removed_note else identity_of(self.source).revision

    def write_note(self, results: Sequence[Result] = ()) -> None:
        """Note a trained model with its results, and those that it was made of."""
        if self.parent is not None:
            self.parent.write_note()
        if self.folder is None or not self.folder.exists():
            return
        before, revision = ModelNote.read(_note_file(self.folder)), identity_of(self.source).revision
        dtype = results[0].conditions.dtype if results else None
        if before is None or before.revision != revision:
            ModelNote(made_by=self._settings_digest, revision=revision, dtype=dtype).write(_note_file(self.folder))
        elif dtype not in (None, before.dtype):  # its rows may have changed since it was made
            before.model_copy(update={"dtype": dtype}).write(_note_file(self.folder))

    def stored_results(
        self, designs: Mapping[str, Design], tasks: Sequence[Task], max_length: int, dtype: str, store: ResultStore
    ) -> list[Result] | None:
        """The results of a model that was removed. None if it exists, or if one of them is missing. dtype: as requested."""
        if self.removed_note is None:
            return None
        requested = (self.removed_note.revision, self.removed_note.dtype if dtype == "auto" else dtype, max_length)
        references = (None, "as saved", texts_hash(reference_texts()))
        stored = {}
        for result in store.results:
            conditions = result.conditions
            if (
                (conditions.model_revision, conditions.dtype, conditions.max_length) == requested
                and conditions.reference in references
                and store.get(conditions)
            ):
                stored[conditions.design, result.task, conditions.task_revision] = result
        keys = [
            (label, (design.name, task.name, task.revision))
            for label, design in designs.items()
            for task in tasks
            if why_not_scored(design, task) is None
        ]
        if not all(key in stored for _, key in keys):
            return None
        return [stored[key].model_copy(update={"label": label}) for label, key in keys]


def _note_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


@dataclass(frozen=True)
class ModelBuilder:
    """Makes the models of a plan below the folder of a study. Existing models are reused, and a stopped training continues."""

    plan: EmbeddersPlan
    study: Study
    tasks: Sequence[Task]
    """No training sees the texts of those that are folders."""

    def models(self, name: str) -> list[StudyModel]:
        """A model by its name, once for each seed of its training. It is made when its source is requested."""
        if name == BASE:
            return [StudyModel(lambda: self.study.source)]
        spec = self.plan.made[name]
        parent = self.models(spec.of)[0]
        folder = inside(self.study.folder / "models", name)
        if spec.experts is not None:
            upcycled = folder.with_name(f"{name}-upcycled")
            if not upcycled.exists() and verify_routers(load_decoder(parent.source)[0]):
                return [parent]  # it is a mixture of experts already
            options, dense_parent = UpcycleOptions(spec.experts), parent

            def make() -> Source:
                if not upcycled.exists():
                    say(f"{self.study.source.model}: upcycling")
                    dense, tokenizer = load_base_language_model(dense_parent.source)
                    save_upcycled(upcycle(dense, options), tokenizer, upcycled, dense_parent.source.model, options)
                return replace(self.study.source, model=str(upcycled))

            parent = StudyModel(make, None, lambda: options, dense_parent)
        if spec.recipe is None:
            return [parent]
        # each seed has its own folder, so that seeds can be added later
        return [self._trained_model(spec, parent, folder / f"seed{seed}", seed) for seed in spec.seeds or self.plan.seeds]

    def _trained_model(self, spec: ModelSpec, parent: StudyModel, folder: Path, seed: int) -> StudyModel:
        def recipe(base: str) -> Recipe:
            recipe = spec.recipe_at(self.study.scale, f"model={json.dumps(base)}", f"seeds=[{seed}]")
            assert recipe is not None
            return recipe

        def train() -> Source:
            say(f"{self.study.source.model}: {folder.parent.name}, seed {seed}, by the recipe {spec.recipe}")
            listener = Listener(callbacks=self.study.callbacks)
            [trained] = run_recipe(recipe(parent.source.model), folder, self.study.root, listener, excluded_tasks=self.tasks)
            # named as the study's folder was, so that results do not depend on where it is
            return replace(self.study.source, model=str(folder / trained.result.relative_to(folder.resolve())))

        def settings() -> object:
            planned = recipe("")
            rows = {
                stage: {rows.name: rows.revision for rows in read_sets(planned, stage, self.study.root, seed)}
                for stage in planned.stages
            }
            # until November 2026 each layer matrix was centred, and no setting said so
            head = planned.head or DEFAULTS
            layered = any(Design.parse(design).pooling == "layer-attention" for design in planned.designs)
            start = ["random layer matrix"] if layered and head.layer_matrix and not head.centred else []
            return [planned.model_dump(exclude=NOT_TRAINING), rows, *start]

        return StudyModel(train, folder, settings, parent)
