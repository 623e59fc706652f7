"""A task set is a benchmark of mteb as mteb filters it, or what a paper was evaluated on; what cannot be compared is told."""

from __future__ import annotations

import json
import re
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
from unmask.tasks.mteb import catalogue
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


def test_mteb_v2_is_its_41_tasks() -> None:
    kinds = {"retrieval": 10, "sts": 9, "classification": 8, "clustering": 8, "pair-classification": 3, "reranking": 2}
    assert found("MTEB(eng, v2)").kinds == {**kinds, "summarization": 1}
    assert not found("MTEB(eng, v2)").refused


@pytest.mark.parametrize("name", ["MTEB(eng, v2)", "mteb-eng-v2", "MTEB eng v2", "mteb(ENG,V2)", "MTEB(eng)"])
def test_a_set_has_many_spellings(name: str) -> None:
    assert found(name) == found("MTEB(eng, v2)")
    assert list(resolved(name)) == [task.name for task in found("MTEB(eng, v2)").tasks]


def test_llm2vec_has_15_tasks_of_the_kinds_that_its_paper_counts() -> None:
    kinds = {"retrieval": 3, "clustering": 3, "classification": 3, "sts": 3, "reranking": 2, "pair-classification": 1}
    assert found("LLM2Vec-15").kinds == kinds
    assert resolved("llm2vec-15")["STS17"].subsets == ("en-en",)
    assert resolved("llm2vec-15")["MassiveIntentClassification"].subsets == ("en",)


def test_moee_has_the_tasks_of_its_six_kinds() -> None:
    kinds = {"sts": 8, "classification": 3, "reranking": 3, "clustering": 2, "pair-classification": 2, "summarization": 1}
    assert found("moee").kinds == kinds
    assert "20" in found("moee").source  # what the paper says, beside what there is


@pytest.mark.parametrize("name", ["llm2vec-15", "moee"])
def test_tasks_of_a_paper_are_those_of_the_benchmark_they_are_from(name: str) -> None:
    whole = resolved("mteb-eng-v1")
    assert all(whole[task.name] == task for task in found(name).tasks)
    assert "arXiv" in found(name).source


@pytest.mark.parametrize(
    ("task", "subsets", "splits"),
    [
        ("AmazonCounterfactualClassification", ("en",), ("test",)),
        ("MassiveIntentClassification", ("en",), ("test",)),
        ("STS17", ("en-en",), ("test",)),
        ("STS22", ("en",), ("test",)),
        ("MSMARCO", ("default",), ("dev",)),
    ],
)
def test_a_benchmark_says_which_subsets_and_splits(task: str, subsets: tuple[str, ...], splits: tuple[str, ...]) -> None:
    one = resolved("mteb-eng-v1")[task]
    assert (one.subsets, one.splits) == (subsets, splits)


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


def test_a_task_has_any_spelling_too() -> None:
    assert list(resolved("stsbenchmark", "sick r")) == ["STSBenchmark", "SICK-R"]


def test_every_revision_is_pinned_and_says_which_subsets_where_there_is_a_choice() -> None:
    tasks = resolved("mteb-eng-v1")
    for task in tasks.values():
        assert re.fullmatch(r"[0-9a-f]{40}(:[\w+-]+:[\w+]+)?|[0-9a-f]{16}", task.revision), task
    assert tasks["STS12"].revision == catalogue.english("STS12").metadata.dataset["revision"]
    assert tasks["STS17"].revision.endswith(":en-en:test")
    assert resolved("AmazonCounterfactualClassification").popitem()[1].revision.endswith(":validation+test")
    assert len({task.revision for task in tasks.values()}) == len(tasks)


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


def test_almost_every_english_text_task_of_mteb_can_be_compared() -> None:
    import mteb

    with catalogue.quiet():
        every = mteb.get_tasks(languages=["eng"], exclude_superseded=False, exclude_beta=False, exclude_private=False)
    texts = [task for task in every if task.metadata.modalities == ["text"]]
    refused = {task.metadata.type for task in texts if catalogue._refusal(task)}
    assert len(texts) > 600
    assert refused == {"BitextMining", "Regression", "Any2AnyRetrieval"}
    assert {catalogue._described(task).kind for task in texts if not catalogue._refusal(task)} == set(TEXT_KINDS)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("mteb-eng-v3", "'MTEB(eng, v2)'"), ("llm2vec15", "'llm2vec-15'"), ("moe", "'moee'"), ("SciFac", "'SciFact'")],
)
def test_a_name_that_is_not_there_gives_the_nearest_ones(given: str, nearest: str) -> None:
    with pytest.raises(UnmaskError, match=f"Unknown task '{given}'. Did you mean .*") as caught:
        resolve_tasks([given])
    assert nearest in str(caught.value)


def test_a_name_like_no_other_gives_no_hint() -> None:
    with pytest.raises(UnmaskError, match=r"Unknown task 'qqqqqq'\. A task is a folder"):
        resolve_tasks(["qqqqqq"])


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


def test_any_benchmark_of_mteb_is_a_set() -> None:
    assert found("beir").kinds == {"retrieval": 15}
    assert "BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation" in found("BEIR").source


def test_sizes_are_those_of_mteb_s_statistics() -> None:
    sizes = {name: catalogue.size(task) for name, task in resolved("SciFact", "STSBenchmark", "STS17").items()}
    # of the 5 346 pairs of STS17 in all languages, 250 are English
    expected = {"SciFact": {"queries": 300, "documents": 5183}, "STSBenchmark": 1379, "STS17": 250}
    assert sizes == expected
    (whole,) = resolve_tasks(["CQADupstackRetrieval"])
    assert isinstance(whole, MtebTask)
    forums = [catalogue.size(one) for one in map(catalogue.find, ("CQADupstackGamingRetrieval", "CQADupstackUnixRetrieval"))]
    summed = catalogue.size(whole)
    assert isinstance(summed, dict) and all(
        isinstance(one, dict) and summed["queries"] > one["queries"] > 500 for one in forums
    )


# --- unmask tasks ----------------------------------------------------------------------------------------------------


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    typer.main.get_command(app).main(["tasks", *arguments], standalone_mode=False)
    found: str = capsys.readouterr().out
    return found


def test_the_tasks_of_a_set_are_listed_with_kind_metric_size_and_revision(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "mteb-eng-v2").splitlines()
    (row,) = [line.split() for line in lines if line.startswith("STS17 ")]
    assert row == ["STS17", "sts", "cosine_spearman", "250", "test", "(en-en)", "faeb7627"]
    (row,) = [line.split() for line in lines if line.startswith("Touche2020Retrieval.v3 ")]
    assert row[1:7] == ["retrieval", "ndcg_at_10", "49", "queries,", "303732", "documents"]
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
        "items": 9927,
    }


def test_what_a_set_leaves_out_is_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys, "MTEB(Scandinavian, v1)").splitlines()
    assert "Left out: 'BornholmBitextMining' is a BitextMining task: it matches sentences of two languages." in lines


def test_one_task_and_a_folder_are_listed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_task(tmp_path / "mine", "sts")
    (row,) = json.loads(listed(capsys, str(folder), "--json"))["tasks"]
    assert (row["task"], row["kind"], row["items"]) == ("mine", "sts", 24)
    assert listed(capsys, "stsbenchmark").splitlines()[2].startswith("STSBenchmark  sts   cosine_spearman  1379   test")


def test_task_sets_are_listed_with_number_by_kind_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(listed(capsys, "--json"))
    assert [row["set"] for row in content["sets"]] == list(stated_sets())
    assert all(sum(row["tasks"].values()) > 10 and "arXiv" in row["source"] for row in content["sets"])
    text = " ".join(listed(capsys).split())
    assert "moee 19 tasks: 8 sts, 3 classification" in text
    assert "Li and Zhou, MoEE, ICLR 2025" in text
