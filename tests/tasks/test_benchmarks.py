"""A task set is a benchmark of mteb as mteb filters it, or what a paper was evaluated on; what cannot be compared is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from tests.messages import heard
from tests.tiny import write_task
from unmask.cli import app
from unmask.errors import UnmaskError
from unmask.tasks.benchmarks import TaskSet, find_set, stated_sets
from unmask.tasks.find import resolve_tasks
from unmask.tasks.kinds import TEXT_KINDS
from unmask.tasks.task import MtebTask


def found(name: str) -> TaskSet:
    one = find_set(name)
    assert one is not None
    return one


def resolved(*specs: str) -> dict[str, MtebTask]:
    return {task.name: task for task in resolve_tasks(specs) if isinstance(task, MtebTask)}


def test_mteb_v1_is_its_56_tasks() -> None:
    # platform notes and Muennighoff et al., 2023, table 1 (English): so many of each
    kinds = {"retrieval": 15, "classification": 12, "clustering": 11, "sts": 10, "reranking": 4, "pair-classification": 3}
    assert found("MTEB(eng, v1)").kinds == {**kinds, "summarization": 1}
    assert not found("MTEB(eng, v1)").refused


@pytest.mark.parametrize("name", ["MTEB(eng, v2)", "mteb-eng-v2", "MTEB eng v2", "mteb(ENG,V2)", "MTEB(eng)"])
def test_a_set_has_many_spellings(name: str) -> None:
    assert found(name) == found("MTEB(eng, v2)")
    assert list(resolved(name)) == [task.name for task in found("MTEB(eng, v2)").tasks]


@pytest.mark.parametrize("name", ["llm2vec-15", "moee"])
def test_tasks_of_a_paper_are_those_of_the_benchmark_they_are_from(name: str) -> None:
    whole = resolved("mteb-eng-v1")
    assert all(whole[task.name] == task for task in found(name).tasks)
    assert "arXiv" in found(name).source


@pytest.mark.parametrize(
    ("name", "subsets", "splits"),
    [
        ("AmazonCounterfactualClassification", {"en", "en-ext"}, ("validation", "test")),
        ("STS17", {"en-en"}, ("test",)),  # not en-de, which is half German
        ("STS22", {"en"}, ("test",)),
        ("MLQARetrieval", {"eng-eng"}, ("validation", "test")),
        ("MedrxivClusteringS2S", {"default"}, ("test",)),
        ("GermanSTSBenchmark", {"default"}, ("validation", "test")),  # no English there: as mteb runs it
    ],
)
def test_a_task_by_name_is_scored_on_its_english_subsets_and_all_splits(
    name: str, subsets: set[str], splits: tuple[str, ...]
) -> None:
    one = resolved(name)[name]
    assert (set(one.subsets), one.splits) == (subsets, splits)


def test_what_sets_share_is_there_once() -> None:
    both = resolved("llm2vec-15", "moee", "STSBenchmark")
    assert len(both) == 15 + 19 - 7
    shared = {task.name for task in found("moee").tasks} & {task.name for task in found("llm2vec-15").tasks}
    assert len(shared) == 7


def test_a_task_on_other_subsets_than_those_of_a_set_is_not_mixed_up_with_it() -> None:
    with pytest.raises(UnmaskError, match="Two sets hold 'AmazonCounterfactualClassification' on other data"):
        resolve_tasks(["mteb-eng-v2", "AmazonCounterfactualClassification"])


def test_tasks_that_cannot_be_compared_are_named_with_the_reason() -> None:
    with heard() as told:
        tasks = resolve_tasks(["MTEB(Multilingual, v2)"])
    refused = found("MTEB(Multilingual, v2)").refused
    assert len(tasks) + len(refused) == 131
    assert len(refused) == 13
    assert "'Tatoeba' is a BitextMining task: it matches sentences of two languages" in refused["Tatoeba"]
    (sentence,) = told
    assert "13 of its 131 tasks cannot be compared" in sentence
    assert all(name in sentence for name in refused)


def test_a_set_without_any_task_of_ours_is_refused() -> None:
    with pytest.raises(UnmaskError, match=r"No task of 'minersbitextmining' can be compared: '.*' is a BitextMining task"):
        resolve_tasks(["minersbitextmining"])


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("mteb-eng-v3", "'MTEB(eng, v2)'"), ("llm2vec15", "'llm2vec-15'"), ("moe", "'moee'"), ("SciFac", "'SciFact'")],
)
def test_a_name_that_is_not_there_gives_the_nearest_ones(given: str, nearest: str) -> None:
    with pytest.raises(UnmaskError, match=f"Unknown task '{given}'. Did you mean .*") as caught:
        resolve_tasks([given])
    assert nearest in str(caught.value)


def test_a_limit_on_a_set_is_refused() -> None:
    with pytest.raises(UnmaskError, match="A limit works on local folders only, and 'moee' is a task set"):
        resolve_tasks(["moee#10"])


def test_a_folder_comes_before_a_set_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "moee", "sts")
    monkeypatch.chdir(tmp_path)
    assert [task.kind for task in resolve_tasks(["moee"])] == ["sts"]
    assert [task.name for task in resolve_tasks(["moee#5"])] == ["moee#5"]
    assert [task.name for task in resolve_tasks(["moee:sts"])] == ["moee"]


def test_what_is_stated_of_a_set_is_what_it_is() -> None:
    assert set(stated_sets()) >= {"mteb-eng-v1", "mteb-eng-v2", "llm2vec-15", "moee"}
    for name, stated in stated_sets().items():
        assert found(name).kinds == stated.kinds
        assert found(name).source == stated.source
        assert len(set(stated.tasks)) == len(stated.tasks)


# --- unmask tasks ----------------------------------------------------------------------------------------------------


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    typer.main.get_command(app).main(["tasks", *arguments], standalone_mode=False)
    found: str = capsys.readouterr().out
    return found


def test_the_tasks_of_a_set_are_listed_with_kind_metric_and_revision(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "mteb-eng-v2").splitlines()
    (row,) = [line.split() for line in lines if line.startswith("STS17 ")]
    assert row == ["STS17", "sts", "cosine_spearman", "test", "(en-en)", "faeb7627"]
    assert lines[0].startswith("MTEB(eng, v2), 41 tasks: 10 retrieval, 9 sts")
    assert "Source: Enevoldsen et al., MMTEB, ICLR 2025 (arXiv 2502.13595)." in lines


def test_the_tasks_of_a_set_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(listed(capsys, "MTEB(Multilingual, v2)", "--json"))
    assert (content["name"], len(content["tasks"]), len(content["refused"])) == ("MTEB(Multilingual, v2)", 118, 13)
    rows = {row["task"]: row for row in content["tasks"]}
    assert all(row["kind"] in TEXT_KINDS and row["main score"] and row["revision"] for row in content["tasks"])
    assert rows["SICK-R"] == {
        "task": "SICK-R",
        "kind": "sts",
        "revision": "20a6d6f312dd54037fe07a32d58e5e168867909d",
        "main score": "cosine_spearman",
        "splits": ["test"],
        "subsets": ["default"],
    }


def test_one_task_and_a_folder_are_listed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_task(tmp_path / "mine", "sts")
    (row,) = json.loads(listed(capsys, str(folder), "--json"))["tasks"]
    assert (row["task"], row["kind"], row["items"]) == ("mine", "sts", 24)
    assert listed(capsys, "stsbenchmark").splitlines()[2].startswith("STSBenchmark  sts   cosine_spearman")
