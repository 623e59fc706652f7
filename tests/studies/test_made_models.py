"""Models of a study of embedders: what stays known of one that was removed, and when it has to be made again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from unmask.designs.design import Design
from unmask.errors import UnmaskError
from unmask.evaluation.compare import ComparisonPlan, reference_hash
from unmask.evaluation.results import Conditions, Result, ResultStore
from unmask.models.loading import Source
from unmask.starter import reference_texts
from unmask.statistics.bootstrap import Items
from unmask.studies.embedders import run
from unmask.studies.embedders.models import Made
from unmask.tasks.find import resolve_tasks

TASKS = resolve_tasks(["starter:sts"])
DESIGN = Design.parse("causal/plain/mean/zscore")


def trained(folder: Path, of: Made, rows: str = "rows", weights: str = "weights") -> Made:
    """A model whose training writes these weights."""

    def make() -> Source:
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_text(weights)
        return Source(str(folder))

    return Made(make, folder, lambda: rows, of)


@pytest.fixture
def base(tmp_path: Path) -> Made:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_text("base")
    return Made(lambda: Source(str(tmp_path / "base")))


def scored(made: Made, store: ResultStore, dtype: str = "float32", reference: str | None = None) -> Result:
    """A result of a model."""
    [task] = TASKS
    conditions = Conditions(
        model=made.source.model, model_revision=made.revision, design=DESIGN.name, task=task.name, task_revision=task.revision,
        max_length=64, dtype=dtype, reference=reference or reference_hash(reference_texts()),
    )  # fmt: skip
    result = Result(
        model=made.source.model, design=DESIGN.name, label="a", task=task.name, kind="sts", metric="cosine", main_score=0.5,
        interval=None, n=2, scores={}, dim=2, texts=1, tokens=1, truncated=0, conditions=conditions, provenance={},
    )  # fmt: skip
    store.add(result, Items("mean", {"value": np.ones(2)}))
    return result


def known(made: Made, store: ResultStore, dtype: str = "auto") -> list[str] | None:
    """The labels of the results that are known of a removed model."""
    results = made.results({"b": DESIGN}, TASKS, 64, dtype, store)
    return None if results is None else [result.label for result in results]


def test_the_scores_of_a_removed_model_are_known(base: Made, tmp_path: Path) -> None:
    store, folder = ResultStore(tmp_path / "scores"), tmp_path / "models" / "seed0"
    made = trained(folder, base)
    made.note([scored(made, store)])
    assert known(trained(folder, base), store) is None, "it exists"
    shutil.rmtree(folder)
    assert known(trained(folder, base), store) == ["b"] and not folder.exists()
    assert known(trained(folder, base), store, "float32") == ["b"]
    assert known(trained(folder, base), store, "bfloat16") is None, "it was scored in float32"
    assert known(trained(folder, base, rows="others"), store) is None
    other = Made(lambda: Source(str(tmp_path / "scores")))
    assert known(trained(folder, other), store) is None, "it was made of another model"


def test_rows_that_changed_after_a_model_was_made_do_not_enter_what_is_known_of_it(base: Made, tmp_path: Path) -> None:
    store, folder = ResultStore(tmp_path / "scores"), tmp_path / "models" / "seed0"
    for rows in ("rows", "others"):  # the second time, the finished training is taken as it is
        made = trained(folder, base, rows)
        made.note([scored(made, store)])
    shutil.rmtree(folder)
    assert known(trained(folder, base, "others"), store) is None
    assert known(trained(folder, base, "rows"), store) == ["b"]


def test_what_is_known_of_a_model_needs_no_rows_while_it_exists(base: Made, tmp_path: Path) -> None:
    store, folder = ResultStore(tmp_path / "scores"), tmp_path / "models" / "seed0"
    made = trained(folder, base)
    made.note([scored(made, store)])
    lost = Made(made.make, folder, lambda: pytest.fail("the rows were read"), base)
    lost.note([scored(lost, store)])


def test_scores_that_rest_on_other_reference_texts_do_not_count(base: Made, tmp_path: Path) -> None:
    store, folder = ResultStore(tmp_path / "scores"), tmp_path / "models" / "seed0"
    made = trained(folder, base)
    made.note([scored(made, store, reference="others")])
    shutil.rmtree(folder)
    assert known(trained(folder, base), store) is None


@pytest.mark.parametrize("parent_is_scored", [True, False])
def test_what_a_removed_model_was_made_of_need_not_exist(parent_is_scored: bool, base: Made, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "scores")
    places = [tmp_path / "models" / name / "seed0" for name in ("parent", "child")]
    parent = trained(places[0], base, weights="parent")
    child = trained(places[1], parent)
    child.note([scored(child, store)])
    if parent_is_scored:
        parent.note([scored(parent, store)])
    for place in places:
        shutil.rmtree(place)
    parent = trained(places[0], base, weights="parent")
    assert known(trained(places[1], parent), store) == ["b"]
    assert not places[0].exists(), "it was not made again"


def test_a_parent_that_was_made_again_with_other_weights_has_no_further_child(base: Made, tmp_path: Path) -> None:
    """Else the seeds of one model would come from two parents."""
    store = ResultStore(tmp_path / "scores")
    parent_place, first, second = (tmp_path / "models" / name for name in ("parent", "seed0", "seed1"))
    child = trained(first, trained(parent_place, base, weights="parent"))
    child.note([scored(child, store)])
    shutil.rmtree(first)
    shutil.rmtree(parent_place)
    again = trained(parent_place, base, weights="rounded otherwise")
    assert known(trained(first, again), store) == ["b"]
    with pytest.raises(UnmaskError, match="was made again, and its weights are others than before"):
        _ = trained(second, again).source
    same = trained(parent_place.with_name("parent"), base)
    shutil.rmtree(parent_place)
    (parent_place).mkdir()
    (parent_place / "model.safetensors").write_text("parent")
    assert trained(second, same).source.model == str(second)


def test_results_of_two_sets_of_weights_are_never_mixed(base: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one value of a removed model is missing, the model is made again, and all of its values are measured again."""
    store, folder = ResultStore(tmp_path / "scores"), tmp_path / "models" / "seed0"
    made = trained(folder, base)
    made.note([scored(made, store)])
    shutil.rmtree(folder)
    measured: list[list[str]] = []

    def compare(plan: ComparisonPlan, into: ResultStore) -> list[Result]:
        measured.append(list(plan.designs))
        again = trained(folder, base, weights="other weights")
        return [scored(again, into).model_copy(update={"label": label}) for label in plan.designs]

    monkeypatch.setattr(run, "compare", compare)
    whole, missing = ({"whole": DESIGN}, TASKS), ({"missing": Design.parse("causal/plain/last/zscore")}, TASKS)
    assert [one.label for one in run._results(trained(folder, base), [whole], 64, "auto", store)] == ["whole"] and not measured
    results = run._results(
        trained(folder, base, weights="other weights"), [whole, missing, ({"none": DESIGN}, [])], 64, "auto", store
    )
    assert [one.label for one in results] == ["whole", "missing"] and measured == [["whole"], ["missing"]]
    assert len({one.conditions.model_revision for one in results}) == 1
