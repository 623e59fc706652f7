"""The command line says what there is, does what it says, and tells a mistake in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.conftest import TEXTS
from tests.in_process import run_program
from tests.tiny import write_rows, write_task
from unmask.cli import app
from unmask.designs.presets import PRESETS
from unmask.designs.prompts import PROMPTS
from unmask.embedder import Embedder
from unmask.models.bundled import BUNDLED
from unmask.starter import starter_folders
from unmask.tasks.kinds import KINDS


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def mistake(self) -> str:
        """The one line that tells a mistake, checked."""
        *progress, last = self.err.strip().splitlines()
        assert self.code == 2, self.err
        assert self.out == ""
        assert last.startswith("unmask: ")
        assert all(line.startswith(("unmask: ", "note: ")) for line in progress), self.err
        return last


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command line as the shell would, in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        monkeypatch.setenv(name, "error")

    def invoke(*arguments: str | Path) -> Ran:
        return Ran(*run_program(arguments, monkeypatch, capfd))

    return invoke


@pytest.fixture
def model(pico_folder: Callable[[str], Path]) -> Path:
    return pico_folder("llama")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "texts.jsonl", [{"name": f"n{number}", "text": text} for number, text in enumerate(TEXTS)])


@pytest.mark.parametrize(
    ("output", "said"),
    [("folder", "Stopped. Run the same command again to continue."), ("file.npy", "Stopped.")],
)
def test_ctrl_c_is_told_in_one_line(
    output: str, said: str, run: Run, model: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.bulk.loading.EmbedderArguments.check", stopped)
    found = run("embed", texts, "-m", model, "-d", "mean", "-o", output)
    assert (found.code, found.out, found.err.splitlines()[-1]) == (130, "", f"unmask: {said}")


# --- listings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("designs", [*PRESETS, *PROMPTS]),
        ("models", list(BUNDLED)),
        ("tasks", [*KINDS, *(f"starter-{folder.name}" for folder in starter_folders())]),
    ],
)
def test_a_listing_mentions_everything_of_its_family(command: str, names: list[str], run: Run) -> None:
    found = run(command)
    assert (found.code, found.err) == (0, "")
    words = found.out.replace("│", " ").split()
    assert [name for name in names if name not in words and f"{name}:" not in words] == []
    rows = [row for part in json.loads(run(command, "--json").out).values() for row in part]
    assert set(names) <= {value for row in rows for value in row.values() if isinstance(value, str)}


# --- compare ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "sts", "sts")


CPU = ("--device", "cpu", "--dtype", "float32")


def compared(run: Run, model: Path, *arguments: str | Path) -> Ran:
    return run("compare", "-m", model, *CPU, *arguments)


def test_compare_as_json_prints_one_object_and_nothing_else(run: Run, model: Path, task: Path, tmp_path: Path) -> None:
    other = write_task(tmp_path / "clusters", "clustering")
    found = compared(run, model, "-d", "mean,prompteol,prompteol-z", "-t", task, "-t", other, "-o", "out", "--json")
    assert found.code == 0
    content = json.loads(found.out)
    assert set(content) == {"results", "comparisons", "failures"} and content["failures"] == []
    assert content == json.loads(Path("out/comparison.json").read_text())
    assert [(row["label"], row["task"]) for row in content["results"]] == [
        (label, name) for label in ("mean", "prompteol", "prompteol-z") for name in ("sts", "clusters")
    ]
    assert len(content["comparisons"]) == 3
    for row in content["results"]:
        assert {"model", "design", "task", "kind", "metric", "main_score", "interval"} <= set(row)
        assert row["model"] == str(model)
        assert 0 <= row["main_score"] <= 1
        low, high = row["interval"]
        assert low <= row["main_score"] <= high
    for test in content["comparisons"]:
        assert {"a", "b", "test", "n", "unit", "difference", "p", "p_holm", "effect", "interval", "tasks"} <= set(test)


def test_compare_with_a_baseline_tests_each_against_it_alone(run: Run, model: Path, task: Path) -> None:
    found = compared(run, model, "-d", "mean,last,max", "-t", task, "-o", "out", "--baseline", "last", "--json")
    tests = json.loads(found.out)["comparisons"]
    assert {test["b"]["design"] for test in tests} == {"causal/plain/last"}
    assert sorted(test["a"]["design"] for test in tests) == ["causal/plain/max", "causal/plain/mean"]
    table = compared(run, model, "-d", "mean,last,max", "-t", task, "-o", "out", "--baseline", "last")
    assert table.code == 0 and "2 comparisons with last" in " ".join(table.out.split())


def test_recommend_prints_the_rounds_and_the_design(run: Run, model: Path, task: Path) -> None:
    given = ("recommend", "-m", model, *CPU, "-t", task, "-d", "mean,last,prompteol", "-o", "out")
    found = run(*given)
    assert found.code == 0
    for part in ("Round 1: 24 items", "Use ", "chosen from 6 candidates on all 24 items"):
        assert part in " ".join(found.out.split())
    content = json.loads(run(*given, "--json").out)
    assert content == json.loads(Path("out/recommendation.json").read_text())
    assert content["label"] in {design["label"] for design in content["rounds"][-1]["ranking"]}
    asked = run(*given, "--no-layers")
    assert "@" not in asked.out and "chosen from 3 candidates" in " ".join(asked.out.split())


def test_compare_prints_a_table_a_test_and_an_advice(run: Run, model: Path, task: Path) -> None:
    found = compared(run, model, "-d", "mean,prompteol", "-t", task, "-o", "out")
    assert found.code == 0
    for part in ("Main score x 100", "mean", "prompteol", "Row minus column", "What to use", "Saved to out/"):
        assert part in found.out
    last = found.out.rstrip().splitlines()[-1]
    assert last == "Next: unmask report out"
    assert run(*last.partition("unmask ")[2].split()).code == 0
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"-m": "no/such-model"}, "no/such-model"),
        ({"-d": "prompteoll"}, "Unknown design 'prompteoll'. Did you mean 'prompteol'?"),
        ({"-d": "mean,routing"}, "has no router"),
        ({"-t": "./nowhere"}, "There is no task folder './nowhere'"),
        ({"--fit-on": "nowhere.txt"}, "There is no file 'nowhere.txt'"),
        ({"--dtype": "float31"}, "'float31' is not a dtype: auto, float32"),
        ({"--adapter": "/nowhere"}, "Folder '/nowhere' does not exist"),
        ({"-r": "no/such-reference"}, "no/such-reference"),
        ({"-o": "occupied"}, "'occupied' is a file, and the output is a folder"),
    ],
)
def test_a_mistake_in_compare_is_told_in_one_line(
    change: dict[str, str], message: str, run: Run, model: Path, task: Path
) -> None:
    Path("occupied").touch()
    options = {"-m": str(model), "-d": "mean", "-t": str(task), "-o": "out", "--dtype": "float32", **change}
    found = run("compare", *(word for option in options.items() for word in option))
    assert message in found.mistake


def test_an_early_end_of_a_file_is_no_user_who_gave_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import unmask.reporting.report_folder

    def ended(*_: Any) -> None:
        raise EOFError("No data left in file")

    monkeypatch.setattr(unmask.reporting.report_folder, "write_report", ended)
    assert run("report", "out").mistake == "unmask: A file ended too early, so it is damaged: No data left in file."


def test_the_code_that_torch_compiles_for_batch_shapes_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name not in names})
    run("--version")
    assert {os.environ[name] for name in names} == {"256"}


def test_compare_leaves_what_others_made_alone(run: Run, model: Path, task: Path) -> None:
    mine = {"vectors/mine.npy": "a", "items/mine.npz": "b", "notes": "d"}
    for name, content in mine.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    assert compared(run, model, "-d", "mean", "-t", task, "-o", ".").code == 0
    assert {name: Path(name).read_text() for name in mine} == mine
    assert not Path(".unmask-vectors").exists()


def test_a_wrong_baseline_is_told_before_anything_is_loaded(
    run: Run, model: Path, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.saving.load_model.load_decoder", lambda _: pytest.fail("a model was loaded"))
    given = ("-d", "mean,last", "-t", task, "-o", "out")
    assert "Did you mean 'last'?" in compared(run, model, *given, "-b", "lats").mistake
    assert "Folder './nowhere' does not exist" in compared(run, model, *given, "-r", "./nowhere").mistake
    assert "Folder './other' does not exist" in compared(run, model, *given, "-m", "./other").mistake
    assert not Path("out").exists()


def test_brackets_in_a_design_are_shown_as_they_stand(run: Run, model: Path, task: Path) -> None:
    labels = [f'causal/"{template}"/last' for template in ("[INST] {text} [/INST]", "[topic] {text}", "<b>{text}</b>")]
    found = compared(run, model, *(word for label in labels for word in ("-d", label)), "-t", task, "-o", "[bold]")
    assert found.code == 0
    for label in labels:
        assert label in found.out and label in found.err
    assert "Saved to [bold]/" in found.out
    assert run("report", "[bold]").code == 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["compare", "-m", "m", "-t", "t", "--max-length", "0"], "--max-length"),
        (["compare", "-m", "m"], "--task"),
        (["embed", "texts.txt", "-m", "m", "-o", "v.npy", "--precision", "int4"], "--precision"),
        (["compere"], "compere"),
    ],
)
def test_a_mistake_in_the_usage_is_told_and_exits_with_two(arguments: list[str], part: str, run: Run) -> None:
    found = run(*arguments)
    assert (found.code, found.out) == (2, "")
    assert part in found.err
    assert "Traceback" not in found.err


# --- embed -----------------------------------------------------------------------------------------------------------


def embedded(run: Run, model: Path, texts: Path, *arguments: str | Path) -> Ran:
    return run("embed", texts, "-m", model, *CPU, *arguments)


def test_embed_writes_the_vectors_of_the_library(run: Run, model: Path, texts: Path) -> None:
    found = embedded(run, model, texts, "-d", "causal/plain/mean", "-o", "vectors.npy")
    assert (found.code, found.out) == (0, "")
    assert (
        found.err.splitlines()[-1]
        == "unmask: 6 vectors of 64 dimensions in vectors.npy; vectors.npy.manifest.json says how they were made."
    )
    expected = Embedder.from_pretrained(model, "mean", dtype="float32", device="cpu").encode(TEXTS)
    np.testing.assert_array_equal(np.load("vectors.npy"), expected)


def test_every_option_of_embed_reaches_the_manifest(run: Run, model: Path, texts: Path) -> None:
    options = """-d causal/instruction/mean -o v.jsonl --column text --id-column name --instruction Find --dim 8 --normalize
        --precision float16 --max-length 24 --batch-tokens 64"""
    found = embedded(run, model, texts, *options.split())
    assert found.code == 0
    manifest = json.loads(Path("v.jsonl.manifest.json").read_text())
    expected = {
        "column": "text",
        "id_column": "name",
        "instruction": "Find",
        "dim": 8,
        "normalize": True,
        "precision": "float16",
    }
    assert manifest["options"] == expected | {"keep": [], "chunk": None, "overlap": 0, "late": False}
    assert (manifest["max_length"], manifest["batch_tokens"], manifest["dtype"]) == (24, 64, "float32")
    assert "note: " in found.err and "cut to 24 tokens: text " in found.err and "--max-length" in found.err


def test_embed_splits_texts_and_tells_what_a_precision_loses(run: Run, model: Path, texts: Path) -> None:
    options = "-d mean -o chunks.jsonl --chunk 6 --overlap 2 --late --precision binary"
    found = embedded(run, model, texts, *options.split())
    assert found.code == 0 and "binary against float32, on " in found.err
    rows = [json.loads(line) for line in Path("chunks.jsonl").read_text(encoding="utf-8").splitlines()]
    assert list(rows[0]) == ["id", "chunk", "start", "end", "vector"] and len(rows[0]["vector"]) == 8
    manifest = json.loads(Path("chunks.jsonl.manifest.json").read_text())
    assert manifest["options"] | {"chunk": 6, "overlap": 2, "late": True} == manifest["options"]
    assert manifest["precision_loss"]["vectors"] == len(rows)


def test_embed_fits_on_the_texts_that_it_is_given(run: Run, model: Path, texts: Path) -> None:
    design = ("-d", "causal/plain/mean/zscore")
    embedded(run, model, texts, *design, "-o", "ours.npy")
    embedded(run, model, texts, *design, "-o", "own.npy", "--fit-on", texts)
    fitted = Embedder.from_pretrained(model, design[1], dtype="float32", device="cpu").fit(TEXTS)
    np.testing.assert_array_equal(np.load("own.npy"), fitted.encode(TEXTS))
    assert not np.array_equal(np.load("ours.npy"), np.load("own.npy"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"-d": "mena"}, "Unknown design 'mena'. Did you mean 'mean'?"),
        ({"-o": "vectors.csv"}, "vectors are written to .parquet, .npy, .jsonl, not '.csv'"),
        ({"--id-column": "name"}, "A .npy file holds vectors only"),
        ({"--workers": "2"}, "--workers applies to a folder of vectors: give -o a name without suffix"),
        ({"--column": "body"}, "line 1: column 'body' (str) is missing; there is name, text"),
        ({"--instruction": "Find"}, "has no {instruction}, so an instruction would change nothing"),
        ({"--dim": "65"}, "dim must be between 1 and 64, not 65"),
        ({"-o": "occupied/vectors.npy"}, "occupied"),
    ],
)
def test_a_mistake_in_embed_is_told_in_one_line(
    change: dict[str, str], message: str, run: Run, model: Path, texts: Path
) -> None:
    Path("occupied").touch()
    options = {"-m": str(model), "-d": "mean", "-o": "vectors.npy", "--dtype": "float32", **change}
    found = run("embed", texts, *(word for option in options.items() for word in option))
    assert message in found.mistake
    assert [file.name for file in Path.cwd().iterdir()] == ["occupied"]


def test_embed_into_a_folder_goes_on_and_tells_dead_letters_by_its_exit_code(run: Run, model: Path, texts: Path) -> None:
    arguments = ("-d", "mean", "-o", "vectors", "--shard-rows", "4", "--keep", "name")
    assert embedded(run, model, texts, *arguments).code == 0
    again = embedded(run, model, texts, *arguments)
    assert (again.code, again.out) == (0, "")
    assert "2 of 2 shards are done and as before" in again.err
    assert "6 vectors of 64 dimensions in vectors/vectors (2 shards)" in again.err
    texts.write_text(texts.read_text() + '{"text": 1, "name": "x"}\n')
    bad = embedded(run, model, texts, *arguments)
    assert bad.code == 1 and "Not embedded: 1 row. vectors/dead-letters says which, and why" in bad.err


# --- options that would change nothing ---------------------------------------------------------------------------------

UNUSED = [
    *(("probe routing", words, "does not apply to a finished record") for words in ("--label topic", "--device cpu")),
    *(("evaluate-lm -m pico --texts a={texts}", words, "applies to public tests") for words in ("--limit 5", "--run-code")),
    ("evaluate-lm -m pico --ability piqa={texts}", "--max-length 9", "applies to lessons and texts"),
    ("mix {texts} --lessons a={texts} -o out", "--r 8", "applies to new experts"),
    ("mix {texts} --lessons a={texts} -o out --steps 0", "--balance 0.1", "applies to training"),
    ("merge {texts} -o out --method ties", "--seed 3", "applies to dare"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "words", "message"), UNUSED, ids=[f"{command.split(' -')[0]} {words}" for command, words, _ in UNUSED]
)
def test_an_option_that_would_change_nothing_is_refused(
    command: str, words: str, message: str, run: Run, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.moe.experts.lm_evaluation.load_language_model", lambda _: pytest.fail("a model was loaded"))
    found = run(*f"{command} {words}".format(texts=texts).split())
    assert found.mistake.startswith(f"unmask: {words.split()[0]} {message}")
    assert not list(Path.cwd().iterdir())


# --- imports ---------------------------------------------------------------------------------------------------------

HEAVY = {"torch", "transformers", "mteb", "sentence_transformers", "datasets", "sklearn", "scipy", "pandas", "pyarrow"}


@pytest.mark.parametrize("arguments", [["mix", "--help"], ["tasks"], ["embed", "x", "-m", "m"]])
def test_what_computes_nothing_loads_no_heavy_library(arguments: list[str]) -> None:
    call = f"sys.argv = {['unmask', *arguments]!r}; from unmask.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code = f"import sys\n{call}print({HEAVY!r} & set(sys.modules), file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr.splitlines()[-1] == "set()"


def test_cells_that_failed_alike_are_told_once_and_the_exit_code_says_so(
    run: Run, model: Path, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unmask.tasks.mteb import evaluator

    original = evaluator.evaluate

    def broken(asked: Any, name: str, *given: Any) -> Any:
        if name != "causal/plain/mean":
            raise ValueError("no such thing")
        return original(asked, name, *given)

    monkeypatch.setattr(evaluator, "evaluate", broken)
    found = compared(run, model, "-d", "mean,last,max", "-t", task, "-o", "out")
    assert found.code == 1
    assert found.err.count("no score on sts for last and 1 more: ValueError: no such thing") == 1
    assert "mean" in found.out
    nothing = compared(run, model, "-d", "last,max", "-t", task, "-o", "other")
    assert nothing.code == 2 and "no such thing" in nothing.mistake


def test_quiet_json_and_a_missing_model(run: Run, model: Path, texts: Path) -> None:
    words = ["embed", texts, "-m", model, "-d", "mean"]
    spoken = run(*words, "-o", "a.npy")
    assert spoken.out == "" and spoken.err.startswith(f"unmask: loading {model} ...\n")
    assert run(*words, "-o", "b.npy", "--quiet") == Ran(0, "", "")
    printed = run(*words, "-o", "c.npy", "--json", "-q")
    assert printed.err == "" and json.loads(printed.out)["output"] == "c.npy"
    missing = run("embed", "absent.txt", "-m", model, "-o", "d.npy", "--quiet")
    assert missing.code == 2 and "absent.txt" in missing.err
    for command in (["serve"], ["compare", "-t", "starter"], ["upcycle", "-o", "x"]):
        assert run(*command).code == 2 and "'--model' / '-m'" in run(*command).err


def test_json_of_commands_that_print_for_people(run: Run, tmp_path: Path) -> None:
    recipes = json.loads(run("recipes", "list", "--json").out)
    assert {"recipe", "scales"} == set(recipes[0])
    assert "stages" in json.loads(run("recipes", "show", recipes[0]["recipe"], "--json").out)
    copied = run("recipes", "copy", recipes[0]["recipe"], tmp_path / "mine.toml", "--json")
    assert json.loads(copied.out) == {"file": str(tmp_path / "mine.toml")}


def test_tab_completes_commands_options_models_and_designs() -> None:
    for words, expected in (
        ("unmask emb", ["embed"]),
        ("unmask embed --prec", ["--precision"]),
        ("unmask embed x -m smol", ["smollm2"]),
        ("unmask compare -d mean,prompteol-", ["mean,prompteol-z"]),
    ):
        variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_UNMASK_COMPLETE": "complete_bash"}
        assert CliRunner().invoke(app, [], prog_name="unmask", env=variables).output.split() == expected
