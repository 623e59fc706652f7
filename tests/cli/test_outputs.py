"""No command takes an output that is one of its inputs, or that cannot be written: each is refused before anything is done.

The cases come from the tree of commands, so that a new command and a new option are in them by existing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from tests.cases import cases
from tests.tiny import write_task
from unmask.cli import app, main
from unmask.cli.outputs import EITHER, FILE, FOLDER, MODELS, OUTPUTS, READ, Command, check_outputs
from unmask.errors import UnmaskError

# text options that name nothing on the disk; a new one belongs here or into READ
NOT_READ = {
    "attn_implementation",
    "baseline",
    "choice",
    "column",
    "condition",
    "design",
    "designs",
    "device",
    "document_instruction",
    "dtype",
    "engine",
    "host",
    "id_column",
    "instruction",
    "keep",
    "label",
    "language",
    "mask_token",
    "query",
    "query_instruction",
    "ray_address",
    "revision",
    "scale",
    "settings",
    "store",
    "tags",
    "title_column",
    "to",
    "tokens",
    "where",
}
# paths that are read; any other path is an output
READ_PATHS = {
    *("against", "avoid", "corpus", "data", "experts", "fit_on", "folder", "folders", "keys", "learned", "lessons", "pairs"),
    *("queries", "seeds", "shared", "source", "start_from", "test", "texts", "train", "triples"),
}
# how an option writes its path
FORMS = {
    "texts": ("{}", "{}#20"),
    "lessons": ("NAME={}",),
    "branch": ("NAME={}",),
    "ability": ("NAME={}",),
    "task": ("{}", "{}#20", "{}:sts", "{}:sts#20"),
}


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


GROUP = typer.main.get_command(app)
COMMANDS = dict(leaves(GROUP))
WRITING = {path: command for path, command in COMMANDS.items() if any(one.name in OUTPUTS for one in command.params)}


def hints(command: Any) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(command.callback).items() if name != "return"}


def is_path(hint: Any) -> bool:
    return hint is Path or any(is_path(part) for part in get_args(hint))


def is_text(hint: Any) -> bool:
    return hint is str or any(is_text(part) for part in get_args(hint) if get_origin(hint) is not Literal)


def reads(command: Any) -> list[Any]:
    """The parameters of a command that may name something to read."""
    known = hints(command)
    return [one for one in command.params if one.name not in OUTPUTS and (is_path(known.get(one.name)) or one.name in READ)]


def forms(command: Any, name: str) -> tuple[str, ...]:
    return FORMS.get(name, ("{}",)) if is_text(hints(command)[name]) else ("{}",)


def arguments(command: Any, given: dict[str, list[str]]) -> list[str]:
    """A command line with these values, and any value for what else is required."""
    options, positional = [], []
    for one in command.params:
        values = given.get(one.name) or (
            [f"nowhere-{one.name}"] if one.required or (one.name == "model" and command.requires_model) else []
        )
        if one.param_type_name == "argument":
            positional += values
        else:
            options += [part for value in values for part in (one.opts[0], value)]
    return [*options, "--", *positional]


CASES = [
    (path, output.name, given.name, form)
    for path, command in WRITING.items()
    for output in command.params
    if output.name in OUTPUTS
    for given in reads(command)
    for form in forms(command, given.name)
]


def of_files(path: tuple[str, ...], output: str, given: str) -> bool:
    """Whether a command writes a file here, and may read a folder there."""
    kind = next(one.metavar for one in COMMANDS[path].params if one.name == output)
    return kind == FILE and given != "recipe"


Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """Run a command in an empty folder; its one sentence of refusal. whole: by the program's own door, which is slower."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def invoke(path: tuple[str, ...], given: dict[str, list[str]], whole: bool = False) -> str:
        typed = [*path, *arguments(COMMANDS[path], given)]
        if not whole:
            with pytest.raises(UnmaskError) as error:
                GROUP.main(typed, standalone_mode=False)
            assert "\n" not in str(error.value)
            return str(error.value)
        monkeypatch.setattr(sys, "argv", ["unmask", *typed])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        assert (stop.value.code, out) == (2, ""), err
        assert err.startswith("unmask: ") and err.count("\n") == 1, err
        return err

    return invoke


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def content(place: Path, folder: bool) -> Path:
    """Something to read: a file of rows, or a folder with one."""
    if folder:
        place.mkdir()
    (place / "test.jsonl" if folder else place).write_text('{"text": "seven years"}\n')
    return place


def other_names(place: Path) -> dict[str, Path]:
    """Other names of a file or a folder."""
    names = {"detour": place.parent / "here" / ".." / place.name, "link": place.parent / f"link{place.suffix}"}
    names["link"].symlink_to(place)
    if place.is_file():
        names["hard link"] = place.parent / f"hard{place.suffix}"
        os.link(place, names["hard link"])
    return {"itself": place, "relative": Path(os.path.relpath(place)), **names}


# ---- nothing is forgotten -----------------------------------------------------------------------------------------------------


def test_there_are_commands_to_look_at() -> None:
    assert len(COMMANDS) > 25 and len(WRITING) > 15 and len(CASES) > 60


@cases("path", COMMANDS)
def test_every_command_checks_its_outputs(path: tuple[str, ...]) -> None:
    assert isinstance(COMMANDS[path], Command)
    for one in COMMANDS[path].params:
        written = is_path(hints(COMMANDS[path]).get(one.name)) and one.name not in READ_PATHS
        assert ("-o" in one.opts or written) == (one.name in OUTPUTS), one.name
        assert one.name not in OUTPUTS or (
            is_path(hints(COMMANDS[path])[one.name]) and one.metavar in (FILE, FOLDER, EITHER)
        ), one.name


@cases("path", WRITING)
def test_every_text_option_is_known_to_name_something_or_nothing(path: tuple[str, ...]) -> None:
    unknown = {name for name, hint in hints(COMMANDS[path]).items() if is_text(hint)} - NOT_READ - set(READ)
    assert not unknown, f"say in READ or NOT_READ whether these name something to read: {unknown}"


# ---- an output is no input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "output", "given", "form"), CASES, ids=lambda value: str(value).replace("/", ""))
def test_an_output_that_is_an_input_is_refused(
    path: tuple[str, ...], output: str, given: str, form: str, refused: Refused, tmp_path: Path
) -> None:
    kind = next(one.metavar for one in COMMANDS[path].params if one.name == output)
    ending = ".toml" if given == "recipe" else "" if kind == FOLDER else ".jsonl"
    place = content(tmp_path / f"input{ending}", folder=not ending)
    names = other_names(place)
    before = everything(tmp_path)
    for name in names.values():
        assert "is an input" in refused(path, {output: [str(name)], given: [form.format(place)]})
    assert "is an input" in refused(path, {output: [str(place)], given: [form.format(names["link"])]})
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("path", "output", "given"),
    sorted({case[:3] for case in CASES if of_files(*case[:3])}),
    ids=lambda value: str(value).replace("/", ""),
)
def test_a_file_of_a_folder_that_is_read_is_not_written_over(
    path: tuple[str, ...], output: str, given: str, refused: Refused, tmp_path: Path
) -> None:
    folder = content(tmp_path / "folder", folder=True)
    before = everything(tmp_path)
    form = forms(COMMANDS[path], given)[0]
    assert "is a file of the input" in refused(path, {output: [str(folder / "test.jsonl")], given: [form.format(folder)]})
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("path", "output", "given", "form"),
    [case for case in CASES if case[2] in MODELS],
    ids=lambda value: str(value).replace("/", ""),
)
def test_an_output_inside_a_model_is_refused(
    path: tuple[str, ...], output: str, given: str, form: str, refused: Refused, tmp_path: Path
) -> None:
    """Its files would count as files of the model, and the next command would read another one."""
    folder = content(tmp_path / "my-model", folder=True)
    before = everything(tmp_path)
    for place in other_names(folder).values():
        said = refused(path, {output: [str(folder / "new" / "out.jsonl")], given: [form.format(place)]})
        assert "lies inside the model folder" in said and "give an output outside" in said
    assert everything(tmp_path) == before


@pytest.mark.parametrize("record", ['adapter_config.json {"base_model_name_or_path": "BASE"}', 'mixture.json {"base": "BASE"}'])
def test_so_is_one_inside_the_base_that_only_an_adapter_or_a_mixture_names(
    record: str, refused: Refused, tmp_path: Path
) -> None:
    base, model = content(tmp_path / "base", folder=True), tmp_path / "model"
    name, _, settings = record.partition(" ")
    model.mkdir()
    (model / name).write_text(settings.replace("BASE", str(base)))
    output = {"output": [str(base / "new" / "out.parquet")]}
    assert f"lies inside the model folder '{base}'" in refused(("embed",), {"model": [str(model)], **output})


@pytest.mark.parametrize("command", ["compare", "recommend"])
def test_so_is_the_usual_output_in_the_folder_of_the_model(command: str, refused: Refused) -> None:
    assert "lies inside the model folder '.'" in refused((command,), {"model": ["."]})


def test_training_does_not_write_into_its_base_model(refused: Refused, tmp_path: Path) -> None:
    base, recipe = content(tmp_path / "base", folder=True), tmp_path / "own.toml"
    settings = f'model = "{base}"\ndesigns = ["mean"]\nstages = ["simcse"]\n'
    recipe.write_text(f'{settings}[data.texts]\npath = "starter:reference"\n[simcse]\ndata = ["texts"]\nsteps = 1\nlr = 1e-3\n')
    assert "lies inside the model folder" in refused(("train",), {"recipe": [str(recipe)], "output": [str(base / "run")]})


def test_vectors_beside_their_texts_are_written_again(tmp_path: Path) -> None:
    folder = content(tmp_path / "data", folder=True)
    vectors = folder / "vectors.parquet"
    words = ["embed", str(folder), "-m", "pico", "-d", "mean", "--device", "cpu", "-o", str(vectors)]
    for _ in range(2):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.exception
    Path(f"{vectors}.manifest.json").unlink()
    before = vectors.read_bytes()
    assert "is a file of the input" in str(CliRunner().invoke(app, words).exception), "it may be somebody else's"
    assert vectors.read_bytes() == before


def test_two_outputs_are_two_files(refused: Refused, tmp_path: Path) -> None:
    lessons = content(tmp_path / "lessons.jsonl", folder=False)
    for other in ("one.jsonl", "../here/one.jsonl"):
        given = {"source": [str(lessons)], "output": ["one.jsonl"], "held_out": [other]}
        assert "is given for two outputs" in refused(("seeds",), given)
    assert not list(Path.cwd().iterdir())
    Path("one.jsonl").write_text("old")
    os.link("one.jsonl", "two.jsonl")
    assert "is given for two outputs" in refused(("seeds",), {**given, "held_out": ["two.jsonl"]})


def test_a_task_named_by_its_split_is_its_folder(refused: Refused, tmp_path: Path) -> None:
    folder = content(tmp_path / "task", folder=True)
    assert "is an input" in refused(("compare",), {"output": [str(folder)], "task": [str(folder / "test.jsonl")]})


def test_the_files_that_specialise_writes_are_none_that_it_reads(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    lessons = content(tmp_path / "out" / "lessons.jsonl", folder=False)
    before = everything(tmp_path)
    for option in ("seeds", "avoid"):
        given = {"domain": ["math"], "model": ["pico"], "output": [str(tmp_path / "out")]}
        assert "is an input" in refused(
            ("specialise",), {"seeds": [str(tmp_path / "x.jsonl")], **given, option: [str(lessons)]}
        )
    assert everything(tmp_path) == before


# ---- what cannot be written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WRITING, ids=" ".join)
def test_an_output_that_cannot_be_written_is_refused_first(path: tuple[str, ...], refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    before = everything(tmp_path)
    for output in (one for one in COMMANDS[path].params if one.name in OUTPUTS):
        assert "is a file, not a folder" in refused(path, {output.name: [str(tmp_path / "file" / "a" / "b.jsonl")]})
        wrong = tmp_path / ("folder" if output.metavar == FILE else "file")
        assert "the output is a" in refused(path, {output.name: [str(wrong)]}, whole=True)
    assert everything(tmp_path) == before


# ---- what is harmless ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "given"),
    [
        (("upcycle",), {"model": "smollm2", "output": "smollm2"}),
        (("train",), {"recipe": "llm2vec", "output": "llm2vec"}),
        (("specialise",), {"domain": "math", "output": "math"}),
        (("compare",), {"task": ["starter"], "output": "starter", "model": ["pico"]}),
        (("compare",), {"designs": ["mean"], "output": "mean", "task": ["starter"]}),
        (("train",), {"recipe": "llm2vec", "data": Path(), "output": "runs"}),
        (("compare",), {"task": ["tasks/mine"], "output": "."}),
        (("embed",), {"texts": [Path("a.jsonl")], "output": "b.jsonl", "model": "pico"}),
        (("probe", "prefix"), {"model": ["pico:causal"], "output": "pico"}),
    ],
    ids=str,
)
def test_a_name_that_is_no_path_is_no_input(
    path: tuple[str, ...], given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = given["output"] if given["output"] not in (".", "b.jsonl") else "tasks/mine"
    Path(folders).mkdir(parents=True)
    check_outputs(COMMANDS[path].params, {**given, "output": Path(given["output"])})


def test_a_folder_with_the_name_of_a_model_of_ours_is_read_where_it_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2").mkdir()
    with pytest.raises(UnmaskError, match="is an input"):
        check_outputs(COMMANDS["upcycle",].params, {"model": "./smollm2", "output": Path("smollm2")})


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "~nobody-here/x", "[a]", "naïve 🎉", ""])
def test_any_text_may_be_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_outputs(COMMANDS["compare",].params, {"model": [name], "task": [name], "output": Path("report")})


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("embed {texts} -d causal/plain/mean/zscore --fit-on=~/texts.txt", "vectors.npy"),
        ("embed {texts} -d causal/plain/mean/zscore --fit-on=~/texts.txt", "vectors"),
        ("index {texts} -d causal/plain/mean/zscore --fit-on=~/texts.txt", "index"),
        ("index ~ -d mean", "index"),
        ("compare -t ~/sts -d mean", "report"),
    ],
)
def test_a_tilde_that_the_shell_leaves_is_the_home_folder(
    command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    (home / "texts.txt").write_text("a song\na market\n")
    if "sts" in command:
        write_task(home / "sts", "sts")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    words = [*command.format(texts="~/texts.txt").split(), "-m", "pico", "--device", "cpu", f"--output=~/{output}"]
    for _ in range(2):  # the second run finds what the first one wrote
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.exception
    assert (home / output).exists() and not list(here.iterdir())


def test_a_file_of_queries_below_a_tilde_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts.txt").write_text("a song\na market\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for words in (
        ["index", "~/texts.txt", "-m", "pico", "-d", "mean", "-o", "~/index"],
        ["search", "~/index", "--bm25", "--queries=~/texts.txt"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.exception
    assert done.stdout.count('"hits"') == 2


def of_one_value(command: Any) -> list[Any]:
    """The options of a command that take one value."""
    return [one for one in command.params if one.param_type_name == "option" and not one.multiple and not one.is_flag]


@cases("path", [path for path, command in COMMANDS.items() if of_one_value(command)])
def test_no_value_of_two_is_dropped(path: tuple[str, ...], refused: Refused) -> None:
    for option in of_one_value(COMMANDS[path]):
        said = refused(path, {option.name: ["1", "1"]})
        assert said == f"{option.opts[0]} takes one value, and it was given 2 times."


def test_values_of_an_option_that_repeats_are_all_kept() -> None:
    command = COMMANDS["recommend",]
    context = command.make_context("recommend", ["-m", "pico", "-t", "a", "-d", "mean", "-t", "b", "-d", "last"])
    assert context.params["designs"] == ["mean", "last"] and context.params["task"] == ["a", "b"]
