"""A comparison computes each text once for all designs that share its pass, computes nothing twice, and refuses early."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.messages import heard
from tests.proofs import ALL
from tests.tasks.test_mteb import by_mteb
from tests.tiny import give_code, labelled, write_rows, write_task
from unmask.designs.design import Design, parse_designs
from unmask.embedder import Embedder
from unmask.encoding import shared_prefix
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.encoding.stored_vectors import StoredVectors
from unmask.encoding.vector_store import LostRows, StoredRows, VectorStore
from unmask.errors import UnmaskError
from unmask.evaluation import compare as module
from unmask.evaluation import reference_rows
from unmask.evaluation.compare import ComparisonPlan, compare, forget_vectors, unscored
from unmask.evaluation.embedder_scores import score
from unmask.evaluation.outcomes import failed, model_revision
from unmask.evaluation.reference_rows import compare_reference
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.models.bundled import BUNDLED
from unmask.models.loading import Source
from unmask.reporting.grid import read_grid
from unmask.starter import reference_texts
from unmask.tasks.find import find_task, resolve_tasks
from unmask.tasks.mteb import evaluator
from unmask.tasks.task import LocalTask

FIVE = "mean,last,weighted-mean,max,causal/plain/mean@1"
MOE = "prompteol,routing,moee-concat,moee,causal/eol/last/sum:auto,causal/eol/last/routing~topk"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[LocalTask]:
    """Two tiny tasks."""
    folder = tmp_path_factory.mktemp("tasks")
    return [task_in(write_task(folder / kind, kind)) for kind in ("sts", "retrieval")]


@pytest.fixture
def folder(pico_folder: Callable[[str], Path]) -> Path:
    return pico_folder("llama")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of texts in the passes that were run."""
    seen: list[int] = []
    original = Backbone.read

    def read(self: Backbone, batch: Any, wanted: Any) -> Any:
        seen.append(len(batch.ids))
        return original(self, batch, wanted)

    monkeypatch.setattr(Backbone, "read", read)
    return seen


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Names of the designs that texts were encoded for, call by call."""
    seen: list[set[str]] = []

    encode = Encoder.encode_tokenized

    def watched(self: Encoder, texts: Any, designs: dict[Design, Any], **options: Any) -> Any:
        seen.append({design.name for design in designs})
        return encode(self, texts, designs, **options)

    monkeypatch.setattr(Encoder, "encode_tokenized", watched)
    return seen


def task_in(folder: Path) -> LocalTask:
    task = find_task(str(folder))
    assert isinstance(task, LocalTask)
    return task


def plan_of(folder: Path, designs: str, tasks: Sequence[LocalTask], **changes: Any) -> ComparisonPlan:
    plan = ComparisonPlan(
        Source(str(folder), dtype="float32", device="cpu"), parse_designs(designs), tasks, 128, reference_texts()[:20]
    )
    return replace(plan, **changes)


def scores(results: Sequence[Result]) -> dict[tuple[str, str], tuple[float, dict[str, float]]]:
    return {(result.design, result.task): (result.main_score, result.scores) for result in results}


def no_load(*_: Any) -> None:
    raise AssertionError("a model was loaded")


# --- one pass --------------------------------------------------------------------------------------------------------


def test_designs_of_one_attention_and_prompt_share_their_passes(
    folder: Path, tasks: list[LocalTask], reads: list[int], tmp_path: Path
) -> None:
    compare(plan_of(folder, "mean", tasks), ResultStore(tmp_path / "one"))
    alone = reads.copy()
    reads.clear()
    results = compare(plan_of(folder, FIVE, tasks), ResultStore(tmp_path / "five"))
    assert len(results) == 5 * 2
    assert reads == alone != []


def test_a_lexical_design_ranks_by_dot_products_from_the_pass_of_a_dense_one(
    pico_folder: Callable[[str], Path], reads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [task_in(write_task(tmp_path / kind, kind)) for kind in ("retrieval", "reranking", "sts")]
    folder, lexical, store = pico_folder("gemma2"), "causal/eol/last/lexical", ResultStore(tmp_path / "both")
    compare(plan_of(folder, "prompteol", tasks[:2]), ResultStore(tmp_path / "one"))
    alone = reads.copy()
    reads.clear()
    results = compare(plan_of(folder, f"prompteol,{lexical}", tasks[:2]), store)
    assert reads == alone != [] and len(results) == 4
    assert {result.dim for result in results if result.design == lexical} == {128}

    embedder = Embedder.from_pretrained(folder, lexical, dtype="float32", device="cpu", max_length=128)

    def dense(texts: Sequence[str], instruction: str | None) -> Any:
        return embedder.encode_sparse(texts).toarray()

    for task in tasks[:2]:
        expected = evaluator.evaluate(task, "by hand", dense, lambda one, other: np.asarray(one) @ np.asarray(other).T)
        [found] = [result for result in results if (result.design, result.task) == (lexical, task.name)]
        assert found.main_score == pytest.approx(expected.main_score)
    compare(plan_of(folder, f"prompteol,{lexical}", tasks), store)
    [failure] = store.failures
    assert not failure.applies and "only rank documents for a query" in failure.error


def test_an_attention_or_prompt_of_its_own_needs_passes_of_its_own(
    folder: Path, tasks: list[LocalTask], reads: list[int], tmp_path: Path
) -> None:
    compare(plan_of(folder, "mean", tasks[:1]), ResultStore(tmp_path / "one"))
    alone = len(reads)
    compare(plan_of(folder, "mean,bidirectional-mean,prompteol,max", tasks[:1]), ResultStore(tmp_path / "all"))
    assert len(reads) - alone >= 3 * alone


BOTH = "causal/eol+style/last"
SINGLE = "causal/style/last,causal/eol/last/zscore"


def test_an_average_of_prompts_that_are_compared_costs_no_pass(
    folder: Path, tasks: list[LocalTask], reads: list[int], tmp_path: Path
) -> None:
    compare(plan_of(folder, SINGLE, tasks), ResultStore(tmp_path / "single"))
    alone = reads.copy()
    reads.clear()
    results = compare(plan_of(folder, f"{BOTH},{SINGLE}", tasks), store := ResultStore(tmp_path / "all"))
    assert reads == alone != []
    assert {cost.prompt for cost in store.costs} == {"eol", "style"}
    by_label = {(one.label, one.task): one for one in results}
    for task in tasks:
        one, other, both = (by_label[label, task.name] for label in ("causal/eol/last/zscore", "causal/style/last", BOTH))
        assert both.tokens_by_prompt == {"eol": one.tokens, "style": other.tokens}
        assert both.tokens == one.tokens + other.tokens and both.texts == one.texts
    reads.clear()
    alone_again = compare(plan_of(folder, BOTH, tasks), ResultStore(tmp_path / "both"))
    assert 0 < len(reads) < len(alone), "nothing is read for a fit"
    assert scores(alone_again).items() <= scores(results).items()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "design",
    [
        BOTH,
        f"{BOTH}/zscore",
        "causal/eol+style/last+mean",
        "causal/instruction+plain/mean@all",
        "causal/eol+plain/mean/sum:auto",
    ],
)
def test_an_average_has_the_score_of_its_embedder(
    design: str, pico_folder: Callable[[str], Path], tasks: list[LocalTask], tmp_path: Path
) -> None:
    folder = pico_folder("olmoe")
    results = compare(plan_of(folder, design, tasks), ResultStore(tmp_path))
    embedder = Embedder.from_pretrained(folder, design, dtype="float32", device="cpu", max_length=128)
    own = score(embedder.fit(reference_texts()[:20]), tasks)
    assert {result.task: result.main_score for result in results} == pytest.approx(
        {task.name: own[task.name] for task in tasks}
    )


def test_averages_share_the_prompts_that_they_have_in_common(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    designs = f"{BOTH},causal/eol+plain/mean,causal/echo/mean"
    results = compare(plan_of(folder, designs, tasks[:1]), store := ResultStore(tmp_path))
    tokens = {prompt: count for result in results for prompt, count in result.tokens_by_prompt.items()}
    tokens["echo"] = results[-1].tokens
    assert {cost.prompt: cost.tokens for cost in store.costs} == tokens
    assert len(store.costs) == 4, "each prompt was read once"
    cost = read_grid(tmp_path).cost(results[0].system)
    assert cost.tokens_per_text == results[0].tokens / results[0].texts
    paces = [1000 * one.seconds / one.texts for one in store.costs if one.prompt in ("eol", "style")]
    assert cost.milliseconds_per_text == pytest.approx(sum(paces)) and len(paces) == 2


@pytest.mark.parametrize(
    ("family", "designs", "tried"),
    [
        ("llama", FIVE + ",bidirectional-mean,prompteol-z", "causal/plain/mean@1,bidirectional-mean,prompteol-z"),
        ("olmoe", MOE, "moee,causal/eol/last/sum:auto"),
    ],
)
def test_a_design_scores_the_same_alone_and_among_others(
    family: str, designs: str, tried: str, pico_folder: Callable[[str], Path], tasks: list[LocalTask], tmp_path: Path
) -> None:
    """Alone are tried one design of each pass and those that are fitted, in `make test-all` all."""
    folder, store = pico_folder(family), ResultStore(tmp_path / "together")
    together = compare(plan_of(folder, designs, tasks), store)
    for label in parse_designs(designs if ALL else tried):
        own = ResultStore(tmp_path / label.replace("/", "-"))
        alone = compare(plan_of(folder, label, tasks), own)
        assert [result.task for result in alone] == [task.name for task in tasks]
        assert scores(alone).items() <= scores(together).items()
        for result in alone:
            here, there = own.items(result), store.items(result)
            assert here is not None and there is not None
            assert here.columns and here.columns.keys() == there.columns.keys()
            for name, column in here.columns.items():
                np.testing.assert_array_equal(column, there.columns[name])


def test_designs_of_a_mixture_of_experts_have_their_widths(
    pico_folder: Callable[[str], Path], tasks: list[LocalTask], reads: list[int], tmp_path: Path
) -> None:
    results = compare(plan_of(pico_folder("olmoe"), MOE, tasks[:1]), ResultStore(tmp_path))
    assert [result.dim for result in results] == [64, 24, 88, 88, 88, 24]
    assert len({result.main_score for result in results if result.label in ("prompteol", "routing", "moee")}) == 3


# --- results ---------------------------------------------------------------------------------------------------------


def test_a_result_says_what_was_measured_on_what(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = compare(plan_of(folder, "prompteol,mean", tasks), store)
    assert [(one.label, one.task) for one in results] == [
        ("prompteol", "sts"),
        ("prompteol", "retrieval"),
        ("mean", "sts"),
        ("mean", "retrieval"),
    ]
    first = results[0]
    assert (first.model, first.design, first.kind, first.metric) == (str(folder), "causal/eol/last", "sts", "cosine_spearman")
    assert (first.n, first.dim, first.texts, first.truncated) == (24, 64, 48, 0)
    assert first.conditions.task_revision == tasks[0].revision
    assert first.conditions.model_revision == model_revision(Source(str(folder)))
    assert (first.conditions.max_length, first.conditions.dtype) == (128, "float32")
    assert set(first.provenance) == {"attention", "attn_implementation", "hardware", "versions"}
    assert first.interval is not None and first.interval[0] <= first.main_score <= first.interval[1]
    assert ResultStore(tmp_path).get(first.conditions) == first


def test_tokens_are_what_a_text_costs(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    found = {one.label: one for one in compare(plan_of(folder, "mean,max,echo", tasks[:1]), ResultStore(tmp_path))}
    assert found["mean"].tokens == found["max"].tokens
    assert found["echo"].tokens > 2 * found["mean"].tokens


def test_texts_that_were_cut_are_counted(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    short = compare(plan_of(folder, "mean", tasks[:1], max_length=4), store)[0]
    whole = compare(plan_of(folder, "mean", tasks[:1]), store)[0]
    assert (short.truncated, whole.truncated) == (48, 0)
    assert short.main_score != whole.main_score


def test_the_instruction_of_a_task_reaches_the_prompts_that_take_one(folder: Path, tmp_path: Path) -> None:
    tasks = [
        task_in(write_task(tmp_path / name, "sts", f'instruction = "{text}"'))
        for name, text in (("one", "Find paraphrases."), ("other", "Which of these is about the stock market?"))
    ]
    results = compare(plan_of(folder, "mean,causal/instruction/mean", tasks), ResultStore(tmp_path / "report"))
    plain, instructed = results[:2], results[2:]
    assert plain[0].main_score == plain[1].main_score
    assert instructed[0].main_score != instructed[1].main_score
    assert instructed[0].tokens > plain[0].tokens


# --- nothing twice ---------------------------------------------------------------------------------------------------


def test_a_second_run_computes_nothing(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(folder, "mean,prompteol-z", tasks)
    first = compare(plan, ResultStore(tmp_path))
    monkeypatch.setattr(Encoder, "load", no_load)
    assert compare(plan, ResultStore(tmp_path)) == first


def test_an_added_design_computes_only_itself(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, encoded: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(plan_of(folder, "mean,prompteol-z", tasks), ResultStore(tmp_path))
    encoded.clear()
    fitted: list[str] = []

    fit = Encoder.fit

    def watched(self: Encoder, designs: Sequence[Design], *args: Any, **options: Any) -> Any:
        fitted.extend(design.name for design in designs)
        return fit(self, designs, *args, **options)

    monkeypatch.setattr(Encoder, "fit", watched)
    results = compare(plan_of(folder, "mean,prompteol-z,prompteol", tasks), ResultStore(tmp_path))
    assert len(results) == 6
    assert set().union(*encoded) == {"causal/eol/last"}
    assert fitted == ["causal/eol/last"]


def test_an_added_task_computes_only_itself(folder: Path, tasks: list[LocalTask], reads: list[int], tmp_path: Path) -> None:
    compare(plan_of(folder, "mean", tasks[1:]), ResultStore(tmp_path / "new"))
    alone = reads.copy()
    compare(plan_of(folder, "mean", tasks[:1]), ResultStore(tmp_path))
    reads.clear()
    compare(plan_of(folder, "mean", tasks), ResultStore(tmp_path))
    assert reads == alone


def test_a_result_without_its_items_is_computed_again(
    folder: Path, tasks: list[LocalTask], encoded: list[set[str]], tmp_path: Path
) -> None:
    plan = plan_of(folder, "mean,max", tasks[:1])
    first = compare(plan, ResultStore(tmp_path))
    (tmp_path / "items" / f"{first[0].conditions.key}.npz").unlink()
    encoded.clear()
    assert compare(plan, ResultStore(tmp_path)) == first
    assert set().union(*encoded) == {"causal/plain/mean"}


def test_what_was_finished_before_a_stop_is_kept(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(folder, "mean,bidirectional-mean", tasks)
    original = Encoder.under

    def stop(self: Encoder, attention: Any) -> Encoder:
        if attention == "bidirectional" and (tmp_path / "results.jsonl").exists():
            raise KeyboardInterrupt
        return original(self, attention)

    monkeypatch.setattr(Encoder, "under", stop)
    with pytest.raises(KeyboardInterrupt):
        compare(plan, ResultStore(tmp_path))
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert {json.loads(line)["design"] for line in lines} == {"causal/plain/mean"}
    monkeypatch.undo()
    assert len(compare(plan, ResultStore(tmp_path))) == 4
    assert (tmp_path / "results.jsonl").read_text().splitlines()[:2] == lines


def test_another_name_for_a_design_that_was_scored_is_only_a_label(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compare(plan_of(folder, "prompteol", tasks), ResultStore(tmp_path))
    monkeypatch.setattr(Encoder, "load", no_load)
    again = compare(plan_of(folder, "causal/eol/last", tasks), ResultStore(tmp_path))
    assert [one.label for one in again] == ["causal/eol/last"] * 2
    assert scores(again) == scores(first)


# --- failures and costs ----------------------------------------------------------------------------------------------


def test_a_cell_that_fails_is_kept_with_its_error_and_the_others_go_on(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unmask.tasks.mteb import evaluator

    original = evaluator.evaluate

    def broken(task: Any, name: str, *more: Any) -> Any:
        if (task.kind, name) == ("sts", "causal/plain/mean"):
            raise ZeroDivisionError("nothing to divide by")
        return original(task, name, *more)

    monkeypatch.setattr(evaluator, "evaluate", broken)
    plan, store = plan_of(folder, "mean,max", tasks), ResultStore(tmp_path)
    assert [(one.label, one.task) for one in compare(plan, store)] == [
        ("mean", "retrieval"),
        ("max", "sts"),
        ("max", "retrieval"),
    ]
    (failure,) = ResultStore(tmp_path).failures
    assert (failure.label, failure.task, failure.error) == ("mean", "sts", "ZeroDivisionError: nothing to divide by")
    monkeypatch.undo()
    store = ResultStore(tmp_path)
    assert len(compare(plan, store)) == 4, "what failed is tried again"
    assert store.failures == ResultStore(tmp_path).failures == []
    assert (tmp_path / "failures.jsonl").read_bytes() == b"", "nor does the file say so any more"


def test_a_full_disk_is_no_failure_of_a_cell(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(folder, "mean,max", tasks)
    whole = compare(plan, ResultStore(tmp_path / "whole"))
    original = np.savez

    def full(stream: Any, **arrays: Any) -> None:
        original(stream, **arrays)
        if (tmp_path / "full" / "results.jsonl").exists():  # the first task is done
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*npz'"):
        compare(plan, ResultStore(tmp_path / "full"))
    monkeypatch.undo()
    assert ResultStore(tmp_path / "full").failures == []
    assert compare(plan, ResultStore(tmp_path / "full")) == whole
    assert (tmp_path / "full" / "results.jsonl").read_bytes() == (tmp_path / "whole" / "results.jsonl").read_bytes()


def test_what_passes_cost_is_kept(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = compare(plan_of(folder, "mean,max,echo", tasks), store)
    assert len(results) == 6
    costs = {(cost.prompt, cost.task): cost for cost in store.costs}
    assert costs.keys() == {(prompt, task.name) for prompt in ("plain", "echo") for task in tasks}
    for result in results:
        cost = costs["echo" if result.label == "echo" else "plain", result.task]
        assert cost.attention == "causal" and cost.seconds > 0 and cost.peak_memory > 2**20
        if result.task == tasks[0].name:
            assert (cost.texts, cost.tokens) == (result.texts, result.tokens)
        else:
            assert 0 < cost.texts < result.texts, "some of its texts stand in the first task as well"
    compare(plan_of(folder, "mean,max,echo", tasks), store)
    assert len(store.costs) == 4, "nothing was spent again"


def test_prompts_that_begin_alike_read_a_text_once(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []

    encode = Encoder.encode_prompts

    def watched(*args: Any, **options: Any) -> Any:
        result = encode(*args, **options)
        computed.append(result.tokens)
        return result

    monkeypatch.setattr(Encoder, "encode_prompts", watched)
    monkeypatch.setattr(shared_prefix, "CACHED_TOKEN_COST", 1)  # these texts are short
    designs = "prompteol,causal/style/last,causal/tone/last/zscore"
    store = ResultStore(tmp_path / "together")
    together = compare(plan_of(folder, designs, tasks), store)
    shared = sum(computed)
    computed.clear()
    for label in designs.split(","):
        own = ResultStore(tmp_path / label.replace("/", "-"))
        alone = compare(plan_of(folder, label, tasks), own)
        among = [result for result in together if result.label == label]
        assert [result.main_score for result in among] == pytest.approx([result.main_score for result in alone], abs=1e-3)
        assert [result.tokens for result in among] == [result.tokens for result in alone]
        assert [(cost.texts, cost.tokens) for cost in store.costs if cost.prompt == own.costs[0].prompt] == [
            (cost.texts, cost.tokens) for cost in own.costs
        ]
    assert shared < 0.9 * sum(computed)
    computed.clear()
    compare(plan_of(folder, "causal/eol+style+tone/last", tasks), ResultStore(tmp_path / "average"))
    assert sum(computed) == shared, "an average of the same prompts"


def test_vectors_leave_the_disk_when_all_is_done(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    compare(plan_of(folder, "mean", tasks), ResultStore(tmp_path))
    assert not (tmp_path / ".unmask-vectors").exists()


# --- conditions ------------------------------------------------------------------------------------------------------


def conditions(plan: ComparisonPlan, label: str) -> Any:
    return plan.conditions(plan.designs[label], plan.tasks[0], "revision", "float32")


def test_the_reference_texts_are_a_condition_of_designs_that_are_fitted_on_them(folder: Path, tasks: list[LocalTask]) -> None:
    plan = plan_of(folder, "mean,prompteol-z,causal/eol/last/sum:auto", tasks)
    other = replace(plan, reference=reference_texts()[1:21])
    assert conditions(plan, "mean") == conditions(other, "mean")
    for label in ("prompteol-z", "causal/eol/last/sum:auto"):
        assert conditions(plan, label).key != conditions(other, label).key


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 64},
        {"source": Source("other")},
        {"source": Source("x", adapters=("a",))},
        {"source": Source("x", attn_implementation="eager")},
    ],
)
def test_what_vectors_depend_on_is_a_condition(change: dict[str, Any], tasks: list[LocalTask]) -> None:
    plan = plan_of(Path("x"), "mean", tasks)
    assert conditions(plan, "mean").key != conditions(replace(plan, **change), "mean").key


def test_code_that_comes_with_a_model_is_a_condition_where_it_runs(
    folder: Path, tasks: list[LocalTask], tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    coded = give_code(Path(shutil.copytree(folder, tmp_path / "coded")), proof)
    for own, ran in ((folder, None), (coded, True)):
        plan = plan_of(own, "mean", tasks)
        trusting = replace(plan, source=replace(plan.source, trust_remote_code=True))
        assert conditions(plan, "mean").trust_remote_code is None
        assert conditions(trusting, "mean").trust_remote_code is ran
        assert (conditions(trusting, "mean").key != conditions(plan, "mean").key) is bool(ran)
    assert not proof.exists(), "nothing was run to find that out"


def test_vectors_of_a_model_with_and_without_its_code_are_kept_apart(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def watched(*given: Any) -> StoredVectors:
        names.append(given[3])
        return StoredVectors(*given)

    monkeypatch.setattr(module, "StoredVectors", watched)
    plan = plan_of(folder, "mean", tasks[:1])
    compare(plan, ResultStore(tmp_path / "plain"))
    monkeypatch.setattr(module, "runs_code", lambda _: True)
    store = ResultStore(tmp_path / "coded")
    [result] = compare(replace(plan), store)
    assert names == [names[0], f"{names[0]} own code"]
    assert store.costs[0].is_of(result.conditions) and not ResultStore(tmp_path / "plain").costs[0].is_of(result.conditions)


def test_other_reference_texts_give_other_scores(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    plan, store = plan_of(folder, "mean,causal/plain/mean/zscore", tasks[:1]), ResultStore(tmp_path)
    plain, fitted = compare(plan, store)
    plain_again, fitted_again = compare(replace(plan, reference=reference_texts()[20:40]), store)
    assert plain == plain_again
    assert fitted.main_score != fitted_again.main_score


def test_a_change_of_the_weights_is_another_measurement(
    folder: Path, tasks: list[LocalTask], encoded: list[set[str]], tmp_path: Path
) -> None:
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    first = compare(plan_of(own, "mean", tasks[:1]), ResultStore(tmp_path / "report"))
    encoded.clear()
    assert compare(plan_of(own, "mean", tasks[:1]), ResultStore(tmp_path / "report")) == first and not encoded
    (own / "config.json").write_text((own / "config.json").read_text() + "\n")
    [again] = compare(plan_of(own, "mean", tasks[:1]), ResultStore(tmp_path / "report"))
    assert encoded and again.conditions.model_revision != first[0].conditions.model_revision


def test_a_saved_embedder_is_measured_as_it_was_saved(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "attn_implementation": "eager", "max_length": 7}
    Embedder.from_pretrained(folder, "mean", **options).save_pretrained(tmp_path / "saved")
    plan = ComparisonPlan(
        Source(str(tmp_path / "saved"), device="cpu"), parse_designs("mean"), tasks[:1], None, reference_texts()[:20]
    )
    found = compare(plan, ResultStore(tmp_path / "report"))[0]
    assert (found.conditions.max_length, found.conditions.dtype) == (7, "float32")
    assert (found.conditions.attn_implementation, found.provenance["attn_implementation"]) == ("eager", "eager")
    assert compare(replace(plan, max_length=128), ResultStore(tmp_path / "report"))[0].conditions.max_length == 128
    assert replace(plan, source=Source(str(folder)), max_length=None).limit == 512


def test_a_saved_adapter_over_a_base_is_measured_as_it_was_saved(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    import peft
    from transformers import AutoModel

    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(AutoModel.from_pretrained(folder), config).save_pretrained(tmp_path / "lora")
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_length": 7}
    saved = Embedder.from_pretrained(folder, "causal/plain/mean/zscore", adapter=str(tmp_path / "lora"), **options)
    saved.fit(reference_texts()[:20]).save_pretrained(tmp_path / "saved")
    designs = parse_designs("causal/plain/mean/zscore")
    alone, over = (
        ComparisonPlan(source, designs, tasks[:1], None, reference_texts()[20:40])
        for source in (
            Source(str(tmp_path / "saved"), device="cpu"), Source(str(folder), adapters=(str(tmp_path / "saved"),), device="cpu")
        )
    )  # fmt: skip
    assert (over.limit, over.source.dtype, over.is_fitted(next(iter(designs.values())))) == (7, "float32", True)
    [one], [other] = (compare(plan, ResultStore(tmp_path / name)) for plan, name in ((alone, "a"), (over, "b")))
    assert one.main_score == other.main_score


def test_a_change_of_the_data_is_another_measurement(folder: Path, encoded: list[set[str]], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    found = []
    for seed, changed in ((0, True), (0, False), (1, True)):
        write_rows(data / "all.jsonl", labelled(seed, 20))
        encoded.clear()
        found += compare(plan_of(folder, "mean", [task_in(data)]), ResultStore(tmp_path / "report"))
        assert bool(encoded) == changed
    revisions = [result.conditions.task_revision for result in found]
    assert revisions[0] == revisions[1] != revisions[2]


def test_the_weights_of_a_model_and_its_adapter_both_name_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    alone, adapted = model_revision(Source(str(folder))), model_revision(Source(str(folder), adapters=(str(tmp_path),)))
    assert len(adapted) == len(alone) == 16 and adapted != alone
    (tmp_path / "adapter_model.bin").write_bytes(b"weights")
    assert model_revision(Source(str(folder), adapters=(str(tmp_path),))) not in (alone, adapted)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "designs", "message"),
    [
        ("llama", "mean,routing", "uses routing weights, but LlamaModel has no router"),
        ("llama", "mean,causal/plain/mean@4", "reads layer 4, but this model has 3 layers"),
        ("mamba", "mean,bidirectional-mean", "bidirectional"),
    ],
)
def test_a_design_that_the_model_cannot_serve_is_refused_before_anything_is_computed(
    family: str,
    designs: str,
    message: str,
    pico_folder: Callable[[str], Path],
    tasks: list[LocalTask],
    reads: list[int],
    tmp_path: Path,
) -> None:
    with pytest.raises(UnmaskError, match=message):
        compare(plan_of(pico_folder(family), designs, tasks), ResultStore(tmp_path))
    assert reads == []


def test_a_prompt_that_the_tokenizer_cannot_serve_is_refused_before_anything_is_computed(
    folder: Path, tasks: list[LocalTask], reads: list[int], tmp_path: Path
) -> None:
    own = tmp_path / "model"
    shutil.copytree(folder, own)
    (own / "chat_template.jinja").unlink()
    with pytest.raises(UnmaskError, match="needs a chat template, and this tokenizer has none"):
        compare(plan_of(own, "mean,causal/chat:plain/last", tasks), ResultStore(tmp_path / "report"))
    assert reads == []


@pytest.mark.parametrize("name", ["/nowhere/at/all", "no/such-model", "not a name!", "a/b/c"])
def test_a_model_that_does_not_exist_is_refused(name: str, tasks: list[LocalTask], tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=name):
        compare(plan_of(Path(name), "mean", tasks), ResultStore(tmp_path))


# --- several models --------------------------------------------------------------------------------------------------


def test_several_models_share_a_store(pico_folder: Callable[[str], Path], tasks: list[LocalTask], tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    plans = [plan_of(pico_folder(family), "mean,prompteol", tasks) for family in ("llama", "qwen3")]
    results = [result for plan in plans for result in compare(plan, store)]
    assert len({result.system for result in results}) == 4
    assert len({result.main_score for result in results}) == 8
    assert [result for plan in plans for result in compare(plan, ResultStore(tmp_path))] == results


# --- reference rows --------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(pico: Callable[..., Any], tmp_path: Path) -> Iterator[Path]:
    """A folder that sentence-transformers loads."""
    pico("causal/plain/mean").save_pretrained(tmp_path / "saved")
    yield tmp_path / "saved"


def test_a_reference_row_is_the_score_of_sentence_transformers(saved: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "report")
    reference = compare_reference(str(saved), tasks, store)
    ours = compare(plan_of(saved, "mean", tasks), store)
    assert len(reference) == len(tasks)
    for theirs, own in zip(reference, ours, strict=True):
        assert (theirs.design, theirs.label) == (SENTENCE_TRANSFORMERS, str(saved))
        assert theirs.main_score == pytest.approx(own.main_score, abs=0.01)
        assert (theirs.n, theirs.dim, theirs.metric) == (own.n, own.dim, own.metric)


def configured(saved: Path, **settings: Any) -> str:
    """The folder, with other settings of sentence-transformers."""
    config = saved / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    return str(saved)


def test_a_reference_row_has_the_prompts_and_the_similarity_of_its_model(
    saved: Path, tasks: list[LocalTask], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    before = compare_reference(str(saved), tasks, ResultStore(tmp_path / "before"))
    prompts = {"query": "Which of these is about it? ", "document": "Some words: ", "STS": "Compare with anything: "}
    name = configured(saved, prompts=prompts, similarity_fn_name="dot")
    results = compare_reference(name, tasks, ResultStore(tmp_path / "report"))
    model = SentenceTransformer(name, device="cpu")
    for result, plain, task in zip(results, before, tasks, strict=True):
        assert result.main_score == pytest.approx(by_mteb(model, task), abs=1e-6)
        assert (result.texts, result.n, result.dim) == (plain.texts, plain.n, plain.dim)
        assert result.conditions.own_prompts and plain.conditions.own_prompts is None
        assert result.conditions.key != result.conditions.model_copy(update={"own_prompts": None}).key
    assert [result.main_score for result in results] != pytest.approx([plain.main_score for plain in before])


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({}, False),
        ({"prompts": {"query": "", "document": None}, "similarity_fn_name": None}, False),
        ({"prompts": {"query": "query: "}}, True),
        ({"similarity_fn_name": "dot"}, True),
    ],
)
def test_prompts_and_similarity_are_read_without_loading_the_model(settings: dict[str, Any], own: bool, saved: Path) -> None:
    assert reference_rows.has_own_prompts(configured(saved, **settings)) is own


@pytest.mark.real
def test_the_bundled_reference_has_no_prompts() -> None:
    if not BUNDLED["minilm"].installed:
        pytest.skip(BUNDLED["minilm"].install_command)
    assert not reference_rows.has_own_prompts("minilm"), "its scores and their keys stay those of older versions"


def test_vectors_of_a_reference_with_prompts_are_finite_or_refused(
    saved: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reference_rows.load_reference(configured(saved, prompts={"query": "query: "}))
    monkeypatch.setattr(model, "encode", lambda inputs, **_: np.full((len(inputs), 4), np.nan, np.float32))
    monkeypatch.setattr(reference_rows, "load_reference", lambda _, **options: model)
    store = ResultStore(tmp_path / "report")
    assert compare_reference(str(saved), tasks, store) == []
    assert all("hold nan or infinite numbers" in failure.error for failure in store.failures) and len(store.failures) == 2


def test_a_reference_row_is_computed_once(
    saved: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compare_reference(str(saved), tasks, ResultStore(tmp_path / "report"))
    assert len(first) == len(tasks)
    monkeypatch.setattr(reference_rows, "load_reference", no_load)
    assert compare_reference(str(saved), tasks, ResultStore(tmp_path / "report")) == first


def test_a_saved_embedder_of_any_design_is_a_reference_unless_it_brings_code(
    pico: Callable[..., Embedder], tmp_path: Path
) -> None:
    embedder = pico("causal/eol+sentiment/last/zscore")
    embedder.save_pretrained(tmp_path / "saved")
    found = reference_rows.load_reference(str(tmp_path / "saved")).encode(["a cat", "two dogs"])
    np.testing.assert_allclose(found, embedder.encode(["a cat", "two dogs"]), atol=1e-5)
    (tmp_path / "saved" / "code.py").touch()
    with pytest.raises(UnmaskError, match="third-party code"):
        reference_rows.load_reference(str(tmp_path / "saved"))


def test_a_reference_that_does_not_exist_is_refused(tasks: list[LocalTask], tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="no/such-model"):
        compare_reference("no/such-model", tasks, ResultStore(tmp_path))


@pytest.mark.sample(0)
@pytest.mark.real
def test_the_bundled_reference_solves_the_starter_tasks(tmp_path: Path) -> None:
    if not BUNDLED["minilm"].installed:
        pytest.skip(BUNDLED["minilm"].install_command)
    results = compare_reference("minilm", resolve_tasks(["starter"]), ResultStore(tmp_path))
    assert {result.task: round(result.main_score, 1) for result in results} == {
        "starter-classification": 0.8,
        "starter-clustering": 0.5,
        "starter-retrieval": 0.8,
        "starter-sts": 0.6,
    }
    assert all(result.dim == 384 for result in results)


# --- what cannot be fitted, what is no number, what was damaged -------------------------------------------------------


def test_what_cannot_be_fitted_is_a_failed_cell_and_nothing_is_computed_for_it(
    folder: Path, tasks: list[LocalTask], reads: list[int], tmp_path: Path
) -> None:
    store = ResultStore(tmp_path / "one")
    compare(plan_of(folder, "mean", tasks), store)
    alone = reads.copy()
    reads.clear()
    store = ResultStore(tmp_path / "all")  # 20 reference texts, 64 dimensions
    results = compare(plan_of(folder, "causal/plain/mean/whiten,mean,causal/plain/last/whiten:99", tasks), store)
    assert [result.label for result in results] == ["mean"] * 2
    assert reads == [1, *alone], "one text for the width of vectors; the reference texts are not read for nothing"
    told = {(failure.label, failure.task): failure.error for failure in store.failures}
    for task in tasks:
        assert (
            "Whitening to 64 dimensions needs more than 64 reference texts, not 20"
            in told["causal/plain/mean/whiten", task.name]
        )
        assert "cannot keep 99 dimensions of vectors that have 64" in told["causal/plain/last/whiten:99", task.name]


def test_a_corpus_that_one_design_cannot_be_fitted_on_does_not_stop_the_others(
    folder: Path, tasks: list[LocalTask], tmp_path: Path
) -> None:
    store = ResultStore(tmp_path)
    alike = plan_of(folder, "causal/plain/mean/whiten:3,causal/plain/mean/zscore", tasks[:1], reference=["a text"] * 9)
    assert [result.label for result in compare(alike, store)] == ["causal/plain/mean/zscore"]
    assert "vary in fewer than half of the 3 dimensions" in store.failures[0].error


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_no_number_is_a_failed_cell(
    score: float, folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = evaluator.evaluate

    def evaluate(task: Any, name: str, *given: Any) -> Any:
        found = original(task, name, *given)
        scores = found.scores | {"ami": score}
        return replace(found, scores=scores, main_score=score if "last" in name else found.main_score)

    monkeypatch.setattr(evaluator, "evaluate", evaluate)
    store = ResultStore(tmp_path)
    [result] = compare(plan_of(folder, "mean,last", tasks[:1]), store)
    assert (result.label, "ami" in result.scores) == ("mean", False)
    assert store.failures[0].error == f"the cosine_spearman is {score}, which is not a score"
    assert len(ResultStore(tmp_path).results) == 1, "the folder can be read again"


def test_vectors_that_are_damaged_during_a_run_are_computed_again(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compare(plan_of(folder, "mean,last", tasks), ResultStore(tmp_path / "whole"))
    original, done = StoredRows.get, []

    def get(self: StoredRows, keys: Any) -> Any:
        for block in self.folder.glob("00000000.npz"):
            if block not in done:  # the first block of each shelf, just before it is read
                done.append(block)
                block.write_bytes(block.read_bytes()[:-9])
        return original(self, keys)

    monkeypatch.setattr(StoredRows, "get", get)
    with heard() as said:
        results = compare(plan_of(folder, "mean,last", tasks), ResultStore(tmp_path / "damaged"))
    assert scores(results) == scores(expected)
    assert done and any("blocks of vectors were damaged" in line for line in said)


def test_a_disk_that_never_gives_back_what_was_written_is_told(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoredRows, "_rows", lambda self, block: (_ for _ in ()).throw(LostRows("gone")))
    store = ResultStore(tmp_path)
    assert compare(plan_of(folder, "mean", tasks[:1]), store) == []
    assert "files change after they were written" in store.failures[0].error


def test_vectors_of_a_model_that_is_not_scored_yet_stay(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    """A run of two models was stopped at the second. The same command again does not throw away what that one had computed."""
    plan, store = plan_of(folder, "mean", tasks), ResultStore(tmp_path)
    compare(plan, store)
    left = VectorStore.beside(tmp_path)
    left.stored("of another model")
    compare(plan, store)
    assert left.folder.is_dir()
    forget_vectors(store)
    assert not left.folder.exists()


def test_failures_of_other_settings_are_not_those_of_this_run(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    plan, store = plan_of(folder, "mean,last", tasks), ResultStore(tmp_path)
    for length in (64, 128):
        conditions = replace(plan, max_length=length).conditions(
            plan.designs["mean"], tasks[0], model_revision(plan.source), "float32"
        )
        store.fail(failed(conditions, "mean", tasks[0], ValueError(f"at {length} tokens")))
    assert [failure.error for failure in unscored(plan, store)] == ["ValueError: at 128 tokens"]
    assert unscored(replace(plan, designs={"last": plan.designs["last"]}), store) == []


def test_an_average_does_not_fail_for_a_design_beside_it_that_needs_a_fit(
    folder: Path, tasks: list[LocalTask], tmp_path: Path
) -> None:
    beside = [Design.parse("causal/plain/mean@1/whiten:4"), Design.parse("causal/plain/mean@1")]
    plan = plan_of(folder, "causal/eol+plain/last", tasks[:1], beside=beside)
    store = ResultStore(tmp_path)
    [result] = compare(plan, store)
    assert result.main_score and unscored(plan, store) == []
