"""A comparison computes each text once for all designs that share its pass, computes nothing twice, and refuses early."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.messages import heard
from tests.tasks.test_mteb import by_mteb
from tests.tiny import give_code, labelled, write_rows, write_task
from unmask.designs.design import Design, parse_designs
from unmask.embedder import Embedder
from unmask.encoding import shared_prefix
from unmask.encoding.backbone import Backbone
from unmask.encoding.encoder import Encoder
from unmask.encoding.vector_cache import CacheTable, VectorCache
from unmask.errors import UnmaskError
from unmask.evaluation import reference_models, scoring
from unmask.evaluation.embedder_scores import score
from unmask.evaluation.outcomes import make_failure, model_revision
from unmask.evaluation.reference_models import score_reference_model
from unmask.evaluation.results import SENTENCE_TRANSFORMERS, Result, ResultStore
from unmask.evaluation.scoring import ScoringPlan, failures_of, forget_vectors, score_designs
from unmask.models.loading import Source
from unmask.starter import reference_texts
from unmask.tasks.find import find_task
from unmask.tasks.mteb import evaluator
from unmask.tasks.task import LocalTask

FIVE = "mean,last,weighted-mean,max,causal/plain/mean@1"
AVERAGE = "causal/eol+style/last"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[LocalTask]:
    """Two tiny tasks."""
    folder = tmp_path_factory.mktemp("tasks")
    return [task_in(write_task(folder / kind, kind)) for kind in ("sts", "retrieval")]


@pytest.fixture
def folder(pico_folder: Callable[[str], Path]) -> Path:
    return pico_folder("llama")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of texts in the passes that were run."""
    sizes: list[int] = []
    read = Backbone.read

    def watched(self: Backbone, batch: Any, wanted: Any) -> Any:
        sizes.append(len(batch.ids))
        return read(self, batch, wanted)

    monkeypatch.setattr(Backbone, "read", watched)
    return sizes


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the designs that texts were encoded for."""
    designs_of_calls: set[str] = set()
    encode = Encoder.encode_tokenized

    def watched(self: Encoder, texts: Any, designs: dict[Design, Any], **options: Any) -> Any:
        designs_of_calls.update(design.name for design in designs)
        return encode(self, texts, designs, **options)

    monkeypatch.setattr(Encoder, "encode_tokenized", watched)
    return designs_of_calls


def task_in(folder: Path) -> LocalTask:
    task = find_task(str(folder))
    assert isinstance(task, LocalTask)
    return task


def plan_of(folder: Path, designs: str, tasks: Sequence[LocalTask], **changes: Any) -> ScoringPlan:
    plan = ScoringPlan(
        Source(str(folder), dtype="float32", device="cpu"), parse_designs(designs), tasks, 128, reference_texts()[:20]
    )
    return replace(plan, **changes)


def scores(results: Sequence[Result]) -> dict[tuple[str, str], tuple[float, dict[str, float]]]:
    return {(result.design, result.task): (result.main_score, result.scores) for result in results}


def no_load(*_: Any, **__: Any) -> None:
    raise AssertionError("a model was loaded")


# --- one pass --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "designs"),
    [
        ("llama", f"last,causal/plain/mean@1,bidirectional-mean,prompteol-z,{AVERAGE},{AVERAGE}/zscore"),
        ("olmoe", "prompteol,routing,moee-concat,moee,causal/eol/last/sum:auto,causal/eol+plain/mean/sum:auto"),
    ],
)
def test_every_design_scores_as_its_embedder_does_alone(
    family: str, designs: str, pico_folder: Callable[[str], Path], tasks: list[LocalTask], tmp_path: Path
) -> None:
    folder = pico_folder(family)
    results = score_designs(plan_of(folder, designs, tasks), ResultStore(tmp_path))
    assert len(results) == len(designs.split(",")) * len(tasks)
    for label in parse_designs(designs):
        embedder = Embedder.from_pretrained(folder, label, dtype="float32", device="cpu", max_length=128)
        alone = score(embedder.fit(reference_texts()[:20]), tasks)
        for result in (result for result in results if result.label == label):
            assert result.main_score == pytest.approx(alone[result.task], abs=1e-5), label
            assert result.dim == embedder.dim


def test_designs_of_one_attention_and_prompt_share_their_passes(
    folder: Path, tasks: list[LocalTask], passes: list[int], tmp_path: Path
) -> None:
    score_designs(plan_of(folder, "mean", tasks), ResultStore(tmp_path / "one"))
    alone = passes.copy()
    passes.clear()
    score_designs(plan_of(folder, FIVE, tasks), ResultStore(tmp_path / "five"))
    assert passes == alone != []


def test_an_average_of_prompts_that_are_compared_costs_no_pass(
    folder: Path, tasks: list[LocalTask], passes: list[int], tmp_path: Path
) -> None:
    single = "causal/style/last,causal/eol/last/zscore"
    score_designs(plan_of(folder, single, tasks), ResultStore(tmp_path / "single"))
    alone = passes.copy()
    passes.clear()
    results = score_designs(plan_of(folder, f"{AVERAGE},{single}", tasks), store := ResultStore(tmp_path / "all"))
    assert passes == alone != []
    assert {cost.prompt for cost in store.costs} == {"eol", "style"}
    by_label = {(result.label, result.task): result for result in results}
    for task in tasks:
        eol, style, both = (by_label[label, task.name] for label in ("causal/eol/last/zscore", "causal/style/last", AVERAGE))
        assert both.tokens_by_prompt == {"eol": eol.tokens, "style": style.tokens}
        assert both.tokens == eol.tokens + style.tokens and both.texts == eol.texts


def test_a_lexical_design_ranks_by_dot_products_from_the_pass_of_a_dense_one(
    pico_folder: Callable[[str], Path], passes: list[int], tmp_path: Path
) -> None:
    ranking, sts = (task_in(write_task(tmp_path / kind, kind)) for kind in ("retrieval", "sts"))
    folder, lexical, store = pico_folder("gemma2"), "causal/eol/last/lexical", ResultStore(tmp_path / "both")
    score_designs(plan_of(folder, "prompteol", [ranking]), ResultStore(tmp_path / "one"))
    alone = passes.copy()
    passes.clear()
    _, result = score_designs(plan_of(folder, f"prompteol,{lexical}", [ranking]), store)
    assert passes == alone != [] and result.dim == 128
    embedder = Embedder.from_pretrained(folder, lexical, dtype="float32", device="cpu", max_length=128)
    by_hand = evaluator.evaluate(
        ranking,
        "by hand",
        lambda texts, _: embedder.encode_sparse(texts).toarray(),
        lambda queries, documents: np.asarray(queries) @ np.asarray(documents).T,
    )
    assert result.main_score == pytest.approx(by_hand.main_score)
    score_designs(plan_of(folder, f"prompteol,{lexical}", [sts]), store)
    [failure] = store.failures
    assert not failure.applies and "only rank documents for a query" in failure.error


def test_prompts_that_share_a_prefix_read_a_text_once(
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
    together = score_designs(plan_of(folder, designs, tasks), ResultStore(tmp_path / "together"))
    shared = sum(computed)
    computed.clear()
    alone = [
        result
        for number, label in enumerate(designs.split(","))
        for result in score_designs(plan_of(folder, label, tasks), ResultStore(tmp_path / f"alone{number}"))
    ]
    assert [result.main_score for result in together] == pytest.approx([result.main_score for result in alone], abs=1e-3)
    assert [result.tokens for result in together] == [result.tokens for result in alone], "each is charged as if alone"
    assert shared < 0.9 * sum(computed)


# --- results ---------------------------------------------------------------------------------------------------------


def test_a_result_says_what_was_measured_and_what_passes_cost(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results = score_designs(plan_of(folder, "prompteol,mean,max", tasks), store)
    assert [(result.label, result.task) for result in results[:3]] == [
        ("prompteol", "sts"),
        ("prompteol", "retrieval"),
        ("mean", "sts"),
    ]
    first = results[0]
    assert (first.model, first.design, first.kind, first.metric) == (str(folder), "causal/eol/last", "sts", "cosine_spearman")
    assert (first.n, first.dim, first.texts, first.truncated) == (24, 64, 48, 0)
    assert first.conditions.task_revision == tasks[0].revision
    assert first.conditions.model_revision == model_revision(Source(str(folder)))
    assert set(first.provenance) == {"attention", "attn_implementation", "hardware", "versions"}
    assert first.interval is not None and first.interval[0] <= first.main_score <= first.interval[1]
    assert ResultStore(tmp_path).get(first.conditions) == first
    costs = {(cost.prompt, cost.task): cost for cost in store.costs}
    assert costs.keys() == {(prompt, task.name) for prompt in ("plain", "eol") for task in tasks}
    cost = costs["eol", "sts"]
    assert (cost.texts, cost.tokens) == (first.texts, first.tokens) and cost.seconds > 0 and cost.is_of(first.conditions)
    assert 0 < costs["eol", "retrieval"].texts < results[1].texts, "some of its texts are in the first task as well"
    [cut] = score_designs(plan_of(folder, "mean", tasks[:1], max_length=4), store)
    assert cut.truncated == 48 and cut.main_score != results[2].main_score


def test_the_instruction_of_a_task_reaches_the_prompts_that_take_one(folder: Path, tmp_path: Path) -> None:
    tasks = [
        task_in(write_task(tmp_path / name, "sts", f'instruction = "{text}"'))
        for name, text in (("first", "Find paraphrases."), ("second", "Which of these is about the stock market?"))
    ]
    results = score_designs(plan_of(folder, "mean,causal/instruction/mean", tasks), ResultStore(tmp_path / "report"))
    assert results[0].main_score == results[1].main_score
    assert results[2].main_score != results[3].main_score


# --- nothing twice ---------------------------------------------------------------------------------------------------


def test_a_second_run_computes_nothing_under_any_name_of_a_design(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(folder, "prompteol,prompteol-z", tasks)
    first = score_designs(plan, ResultStore(tmp_path))
    monkeypatch.setattr(scoring, "load_checked", no_load)
    assert score_designs(plan, ResultStore(tmp_path)) == first
    renamed = score_designs(plan_of(folder, "causal/eol/last", tasks), ResultStore(tmp_path))
    assert [result.label for result in renamed] == ["causal/eol/last"] * 2
    assert scores(renamed).items() <= scores(first).items()


def test_an_added_design_task_or_change_of_data_computes_only_itself(folder: Path, encoded: set[str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "all.jsonl", labelled(0, 20))
    store, task = ResultStore(tmp_path / "report"), task_in(tmp_path / "data")
    score_designs(plan_of(folder, "mean,prompteol-z", [task]), store)
    encoded.clear()
    score_designs(plan_of(folder, "mean,prompteol-z,prompteol", [task]), store)
    assert encoded == {"causal/eol/last"}
    write_rows(tmp_path / "data" / "all.jsonl", labelled(1, 20))
    encoded.clear()
    [changed] = score_designs(plan_of(folder, "mean", [task_in(tmp_path / "data")]), store)
    assert encoded == {"causal/plain/mean"} and changed.conditions.task_revision != task.revision


def test_what_was_finished_before_a_stop_is_not_computed_again(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(folder, "mean,bidirectional-mean", tasks)
    under = Encoder.under

    def stop(self: Encoder, attention: Any) -> Encoder:
        if attention == "bidirectional" and (tmp_path / "results.jsonl").exists():
            raise KeyboardInterrupt
        return under(self, attention)

    monkeypatch.setattr(Encoder, "under", stop)
    with pytest.raises(KeyboardInterrupt):
        score_designs(plan, ResultStore(tmp_path))
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert {json.loads(line)["design"] for line in lines} == {"causal/plain/mean"}
    monkeypatch.undo()
    assert len(score_designs(plan, ResultStore(tmp_path))) == 4
    assert (tmp_path / "results.jsonl").read_text().splitlines()[:2] == lines


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_cell_that_fails_is_stored_with_its_error_and_tried_again(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = evaluator.evaluate

    def broken(task: Any, name: str, *more: Any) -> Any:
        if (task.kind, name) == ("sts", "causal/plain/mean"):
            raise ZeroDivisionError("nothing to divide by")
        return evaluate(task, name, *more)

    monkeypatch.setattr(evaluator, "evaluate", broken)
    plan, store = plan_of(folder, "mean,max", tasks), ResultStore(tmp_path)
    assert [(result.label, result.task) for result in score_designs(plan, store)] == [
        ("mean", "retrieval"),
        ("max", "sts"),
        ("max", "retrieval"),
    ]
    (failure,) = ResultStore(tmp_path).failures
    assert (failure.label, failure.task, failure.error) == ("mean", "sts", "ZeroDivisionError: nothing to divide by")
    monkeypatch.undo()
    store = ResultStore(tmp_path)
    assert len(score_designs(plan, store)) == 4
    assert store.failures == ResultStore(tmp_path).failures == []


def test_a_design_that_cannot_be_fitted_is_a_failed_cell_and_nothing_is_computed_for_it(
    folder: Path, tasks: list[LocalTask], passes: list[int], tmp_path: Path
) -> None:
    score_designs(plan_of(folder, "mean", tasks), ResultStore(tmp_path / "one"))
    alone = passes.copy()
    passes.clear()
    store = ResultStore(tmp_path / "all")  # 20 reference texts, 64 dimensions
    results = score_designs(plan_of(folder, "causal/plain/mean/whiten,mean,causal/plain/last/whiten:99", tasks), store)
    assert [result.label for result in results] == ["mean"] * 2
    assert passes == [1, *alone], "one text for the width of vectors; the reference texts are not read"
    errors = {failure.label: failure.error for failure in store.failures}
    assert "needs more than 64 reference texts, not 20" in errors["causal/plain/mean/whiten"]
    assert "cannot keep 99 dimensions of vectors that have 64" in errors["causal/plain/last/whiten:99"]


def test_an_average_does_not_fail_for_a_linked_design_that_needs_a_fit(
    folder: Path, tasks: list[LocalTask], tmp_path: Path
) -> None:
    linked = [Design.parse("causal/plain/mean@1/whiten:4"), Design.parse("causal/plain/mean@1")]
    plan, store = plan_of(folder, "causal/eol+plain/last", tasks[:1], linked=linked), ResultStore(tmp_path)
    [result] = score_designs(plan, store)
    assert result.main_score and failures_of(plan, store) == []


def test_vectors_that_are_damaged_during_a_run_are_computed_again(
    folder: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = score_designs(plan_of(folder, "mean,last", tasks), ResultStore(tmp_path / "whole"))
    get, done = CacheTable.get, []

    def damage(self: CacheTable, keys: Any) -> Any:
        for block in self.folder.glob("00000000.npz"):
            if block not in done:  # the first block of each design, just before it is read
                done.append(block)
                block.write_bytes(block.read_bytes()[:-9])
        return get(self, keys)

    monkeypatch.setattr(CacheTable, "get", damage)
    with heard() as messages:
        results = score_designs(plan_of(folder, "mean,last", tasks), ResultStore(tmp_path / "damaged"))
    assert scores(results) == scores(expected)
    assert done and any("blocks of vectors were damaged" in message for message in messages)


def test_vectors_leave_the_disk_when_all_plans_are_done(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    """A run of two models was stopped at the second. The same command again does not throw away what that one had computed."""
    plan, store = plan_of(folder, "mean", tasks), ResultStore(tmp_path)
    score_designs(plan, store)
    assert not (tmp_path / ".unmask-vectors").exists()
    of_second_model = VectorCache.in_folder(tmp_path)
    of_second_model.table("of another model")
    score_designs(plan, store)
    assert of_second_model.folder.is_dir()
    forget_vectors(store)
    assert not of_second_model.folder.exists()
    of_second_model.folder.mkdir()
    (of_second_model.folder / "mine").write_text("mine")
    with pytest.raises(UnmaskError, match="the folder holds other files"):
        VectorCache.in_folder(tmp_path)
    assert (of_second_model.folder / "mine").read_text() == "mine"


def test_failures_of_other_settings_are_not_those_of_this_run(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    plan, store = plan_of(folder, "mean,last", tasks), ResultStore(tmp_path)
    for length in (64, 128):
        conditions = replace(plan, max_length=length).conditions(
            plan.designs["mean"], tasks[0], model_revision(plan.source), "float32"
        )
        store.add_failure(make_failure(conditions, "mean", tasks[0], ValueError(f"at {length} tokens")))
    assert [failure.error for failure in failures_of(plan, store)] == ["ValueError: at 128 tokens"]


# --- conditions ------------------------------------------------------------------------------------------------------


def conditions(plan: ScoringPlan, label: str) -> Any:
    return plan.conditions(plan.designs[label], plan.tasks[0], "revision", "float32")


@pytest.mark.parametrize(
    ("label", "change", "matters"),
    [
        ("mean", {"max_length": 64}, True),
        ("mean", {"source": Source("other")}, True),
        ("mean", {"source": Source("x", adapters=("a",))}, True),
        ("mean", {"source": Source("x", attn_implementation="eager")}, True),
        ("mean", {"fit_texts": ["other texts"]}, False),
        ("prompteol-z", {"fit_texts": ["other texts"]}, True),
        ("causal/eol/last/sum:auto", {"fit_texts": ["other texts"]}, True),
    ],
)
def test_what_vectors_depend_on_is_a_condition(
    label: str, change: dict[str, Any], matters: bool, tasks: list[LocalTask]
) -> None:
    plan = plan_of(Path("x"), label, tasks)
    assert (conditions(plan, label).key != conditions(replace(plan, **change), label).key) is matters


def test_code_that_comes_with_a_model_is_a_condition_where_it_runs(
    folder: Path, tasks: list[LocalTask], tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    coded = give_code(Path(shutil.copytree(folder, tmp_path / "coded")), proof)
    for path, ran in ((folder, None), (coded, True)):
        plan = plan_of(path, "mean", tasks)
        trusting = replace(plan, source=replace(plan.source, trust_remote_code=True))
        assert conditions(plan, "mean").trust_remote_code is None
        assert conditions(trusting, "mean").trust_remote_code is ran
    assert not proof.exists(), "nothing was run to find that out"


def test_a_saved_embedder_is_measured_as_it_was_saved(folder: Path, tasks: list[LocalTask], tmp_path: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "attn_implementation": "eager", "max_length": 7}
    design = "causal/plain/mean/zscore"
    saved = Embedder.from_pretrained(folder, design, **options).fit(reference_texts()[:20])
    saved.save_pretrained(tmp_path / "saved")
    plan = ScoringPlan(
        Source(str(tmp_path / "saved"), device="cpu"), parse_designs(design), tasks[:1], None, reference_texts()[20:40]
    )
    [result] = score_designs(plan, ResultStore(tmp_path / "report"))
    measured = result.conditions
    assert (measured.max_length, measured.dtype, measured.reference) == (7, "float32", "as saved")
    assert (measured.attn_implementation, result.provenance["attn_implementation"]) == ("eager", "eager")
    assert result.main_score == pytest.approx(score(saved, tasks[:1])["sts"], abs=1e-5)
    assert replace(plan, source=Source(str(folder)), max_length=None).limit == 512


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "designs", "message"),
    [
        ("llama", "mean,routing", "uses routing weights, but LlamaModel has no router"),
        ("mamba", "mean,bidirectional-mean", "bidirectional"),
        ("llama", "mean,causal/chat:plain/last", "needs a chat template, and this tokenizer has none"),
        ("llama", "mean,causal/eos/cross-attention", "needs a trained head"),
    ],
)
def test_a_design_that_the_model_cannot_serve_is_refused_before_anything_is_computed(
    family: str,
    designs: str,
    message: str,
    pico_folder: Callable[[str], Path],
    tasks: list[LocalTask],
    passes: list[int],
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(pico_folder(family), tmp_path / "model"))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(UnmaskError, match=message):
        score_designs(plan_of(folder, designs, tasks), ResultStore(tmp_path / "report"))
    assert passes == []


# --- reference rows --------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(pico: Callable[..., Any], tmp_path: Path) -> Path:
    """A folder that sentence-transformers loads."""
    pico("causal/plain/mean").save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def configured(saved: Path, **settings: Any) -> str:
    """The folder, with other settings of sentence-transformers."""
    config = saved / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    return str(saved)


def test_a_reference_row_is_the_score_of_sentence_transformers_computed_once(
    saved: Path, tasks: list[LocalTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ResultStore(tmp_path / "report")
    reference = score_reference_model(str(saved), tasks, store)
    ours = score_designs(plan_of(saved, "mean", tasks), store)
    for theirs, result in zip(reference, ours, strict=True):
        assert (theirs.design, theirs.label) == (SENTENCE_TRANSFORMERS, str(saved))
        assert theirs.main_score == pytest.approx(result.main_score, abs=0.01)
        assert (theirs.n, theirs.dim, theirs.metric) == (result.n, result.dim, result.metric)
    monkeypatch.setattr(reference_models, "load_sentence_transformer", no_load)
    assert score_reference_model(str(saved), tasks, ResultStore(tmp_path / "report")) == reference


def test_a_reference_row_has_the_prompts_and_the_similarity_of_its_model(
    saved: Path, tasks: list[LocalTask], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    before = score_reference_model(str(saved), tasks, ResultStore(tmp_path / "before"))
    prompts = {"query": "Which of these is about it? ", "document": "Some words: ", "STS": "Compare with anything: "}
    name = configured(saved, prompts=prompts, similarity_fn_name="dot")
    results = score_reference_model(name, tasks, ResultStore(tmp_path / "report"))
    model = SentenceTransformer(name, device="cpu")
    for result, plain, task in zip(results, before, tasks, strict=True):
        assert result.main_score == pytest.approx(by_mteb(model, task), abs=1e-6)
        assert (result.texts, result.n, result.dim) == (plain.texts, plain.n, plain.dim)
        assert result.conditions.own_prompts and plain.conditions.own_prompts is None
    assert [result.main_score for result in results] != pytest.approx([plain.main_score for plain in before])


@pytest.mark.parametrize(
    ("settings", "has_prompts"),
    [
        ({"prompts": {"query": "", "document": None}, "similarity_fn_name": None}, False),
        ({"prompts": {"query": "query: "}}, True),
        ({"similarity_fn_name": "dot"}, True),
    ],
)
def test_prompts_and_similarity_are_read_without_loading_the_model(
    settings: dict[str, Any], has_prompts: bool, saved: Path
) -> None:
    assert reference_models.has_own_prompts(configured(saved, **settings)) is has_prompts


def test_a_saved_embedder_of_any_design_is_a_reference_unless_it_brings_code(
    pico: Callable[..., Embedder], tmp_path: Path
) -> None:
    embedder = pico("causal/eol+sentiment/last/zscore")
    embedder.save_pretrained(tmp_path / "saved")
    vectors = reference_models.load_sentence_transformer(str(tmp_path / "saved")).encode(["a cat", "two dogs"])
    np.testing.assert_allclose(vectors, embedder.encode(["a cat", "two dogs"]), atol=1e-5)
    (tmp_path / "saved" / "code.py").touch()
    with pytest.raises(UnmaskError, match="third-party code"):
        reference_models.load_sentence_transformer(str(tmp_path / "saved"))
