"""Word-level tasks are scored by one probe a layer, and shown next to text tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.tiny import write_rows, write_task
from unmask.cli import app
from unmask.designs.design import parse_designs
from unmask.encoding.encoder import Encoder
from unmask.evaluation import word_scores as module
from unmask.evaluation.outcomes import why_not_scored
from unmask.evaluation.results import Result, ResultStore
from unmask.evaluation.scoring import ScoringPlan, score_designs
from unmask.evaluation.verdict import labels_by_layer
from unmask.models.loading import Source
from unmask.probing.word_probe import entities, probe_words, probe_words_at_layers
from unmask.saving.load_model import load_encoder
from unmask.starter import reference_texts
from unmask.statistics.bootstrap import score
from unmask.tasks.find import find_task
from unmask.tasks.tagged import read_sentences
from unmask.tasks.task import LocalTask, Task

pytestmark = pytest.mark.usefixtures("sketched")

READ = "mean,last,causal/plain/mean@1,bidirectional-mean"

NOT_READ = {
    "prompteol": "without a prompt",
    "causal/plain/mean@all": "at one layer",
    "causal/plain/mean@mean": "at one layer",
    "echo": "without a prompt",
}


@pytest.fixture
def folder(pico_folder: Callable[[str], Path]) -> Path:
    return pico_folder("llama")


@pytest.fixture
def words(tmp_path: Path) -> LocalTask:
    found = find_task(str(write_task(tmp_path / "words", "word-level")))
    assert isinstance(found, LocalTask)
    return found


@pytest.fixture
def texts(tmp_path: Path) -> Task:
    return find_task(str(write_task(tmp_path / "sts", "sts")))


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, list[int]]]]:
    """Attention and layers of the probes that were fitted."""
    seen: list[tuple[str, list[int]]] = []
    original = probe_words_at_layers

    def probe(model: Encoder, train: Any, test: Any, layers: Any, **options: Any) -> Any:
        seen.append((model.backbone.attention, list(layers)))
        return original(model, train, test, layers, **options)

    monkeypatch.setattr(module, "probe_words_at_layers", probe)
    yield seen


def run(folder: Path, designs: str, tasks: list[Any], store: ResultStore) -> dict[tuple[str, str], Result]:
    source = Source(str(folder), dtype="float32", device="cpu")
    plan = ScoringPlan(source, parse_designs(designs), tasks, 128, reference_texts()[:20])
    return {(result.label, result.task): result for result in score_designs(plan, store)}


@pytest.mark.sample(2)
@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_the_score_is_that_of_probe_words_on_the_same_files(
    attention: Any, layer: int | None, folder: Path, words: LocalTask, tmp_path: Path
) -> None:
    design = f"{attention}/plain/max" + (f"@{layer}" if layer else "")
    (found,) = run(folder, design, [words], ResultStore(tmp_path / "out")).values()
    model = load_encoder(Source(str(folder), dtype="float32", device="cpu"), attention)
    train, test = (read_sentences(tmp_path / "words" / f"{part}.jsonl") for part in ("train", "test"))
    probe = probe_words(model, train, test, layer=layer)
    assert (found.metric, found.main_score, found.n, found.dim) == ("accuracy", probe.value, 10, probe.dim)
    assert found.interval == pytest.approx(probe.interval, abs=0.05)  # other draws
    assert (found.provenance["probe"]["c"], found.scores["majority"]) == (probe.c, probe.majority)
    assert probe.majority < found.main_score < 1.0
    assert (found.texts, found.truncated) == (34, 0) and found.tokens > 34


def test_entities_are_scored_by_their_f1(folder: Path, tmp_path: Path) -> None:
    tags = {"man": "B-PER", "dog": "B-PER", "plays": "O", "runs": "O", "red": "I-PER", "wet": "O"}
    names = list(tags)
    rows = [[names[(number * 7 + k * 3 + number // 5) % 6] for k in range(5)] for number in range(30)]
    tagged = [{"tokens": row, "tags": [tags[word] for word in row]} for row in rows]
    unseen = {"tokens": ["dog", "dog"], "tags": ["B-LOC", "B-PER"]}  # a type that training lacks
    write_rows(tmp_path / "train.jsonl", tagged[:20])
    write_rows(tmp_path / "test.jsonl", [*tagged[20:], unseen])
    task, store = find_task(str(tmp_path)), ResultStore(tmp_path / "out")
    (found,) = run(folder, "causal/plain/mean@1", [task], store).values()
    assert found.metric == "entity_f1" and found.scores["accuracy"] != found.main_score
    items = store.items(found)
    assert items is not None and items.metric == "ratio"
    assert score(items) == pytest.approx(found.main_score)
    assert items.columns["gold"].sum() == sum(len(entities(row["tags"])) for row in [*tagged[20:], unseen])


def test_designs_of_one_attention_share_passes_and_those_of_one_layer_the_probe(
    folder: Path, words: LocalTask, tmp_path: Path, probes: list[tuple[str, list[int]]]
) -> None:
    found = run(folder, READ, [words], ResultStore(tmp_path / "out"))
    depth = found["mean", "words"].provenance["probe"]["layer"]
    assert probes == [("causal", [1, depth]), ("bidirectional", [depth])]
    assert found["mean", "words"].main_score == found["last", "words"].main_score
    assert labels_by_layer(list(found.values())) == {
        f"causal@{depth}": ["mean", "last"],
        "causal@1": ["causal/plain/mean@1"],
        f"bidirectional@{depth}": ["bidirectional-mean"],
    }


@pytest.mark.parametrize(
    ("design", "reason"),
    [
        *NOT_READ.items(),
        ("causal/plain/last/routing", "not from routing weights"),
        ("causal/plain/layer-attention", "trained pooling"),
    ],
)
def test_a_design_that_reads_no_words_says_why(design: str, reason: str, words: LocalTask, texts: Task) -> None:
    (one,) = parse_designs(design).values()
    assert reason in (why_not_scored(one, words) or "")
    assert why_not_scored(one, texts) is None


def test_a_sentence_that_is_too_long_fails_its_task_and_no_other(folder: Path, texts: Task, tmp_path: Path) -> None:
    write_task(tmp_path / "long", "word-level")
    write_rows(tmp_path / "long" / "test.jsonl", [{"tokens": ["word"] * 3000, "tags": ["NUM"] * 3000}])
    store = ResultStore(tmp_path / "out")
    found = run(folder, "mean,last", [find_task(str(tmp_path / "long")), texts], store)
    assert set(found) == {("mean", "sts"), ("last", "sts")}
    assert {(one.label, one.applies) for one in store.failures} == {("mean", True), ("last", True)}
    assert "positions of the model. Leave it out" in store.failures[0].error


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    typer.main.get_command(app).main([str(one) for one in arguments], standalone_mode=False)
    found = capsys.readouterr()
    return found.out, found.err


def test_the_command_shows_words_in_a_table_of_their_own(
    folder: Path,
    words: LocalTask,
    texts: Task,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    given = [
        "-m",
        str(folder),
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "-t",
        str(tmp_path / "sts"),
        "-t",
        str(tmp_path / "words"),
    ]
    out, err = command(capsys, "compare", *given, "-d", f"{READ},prompteol", "-o", str(tmp_path / "out"))
    first, second = out.split("Main score x 100")[1:]
    assert "prompteol" in first and "words" not in first
    assert "prompteol" not in second and "words" in second and "causal@1" in second
    assert "word-level: " in second
    assert "mean, last" in second
    assert "no score on words for prompteol: does not apply: words are read in the plain text" in " ".join(err.split())
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    systems: dict[tuple[str, ...], set[str]] = {tuple(test["tasks"]): set() for test in content["comparisons"]}
    for test in content["comparisons"]:
        systems[tuple(test["tasks"])] |= {test["a"]["design"], test["b"]["design"]}
    assert {tasks: len(found) for tasks, found in systems.items()} == {("sts",): 5, ("words",): 3}
