"""Files of ours that were cut short or had a bit flipped: the answer is as before, or the damage is noticed. Never another answer.

Two ways to find out. What is read as a folder (saved embedders, experts, mixtures, models) is loaded by the library. What a command
leaves is damaged, finished or half done, and the same command runs again: it ends with what an undisturbed run leaves, or it says in
one sentence what is damaged.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.abuse.examples import CPU, EXAMPLES, must
from tests.abuse.recovery import Case, case_of
from tests.proofs import ALL
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

FLIPS, CUTS = (2000, 100) if ALL else (60, 10)
"""For each kind of folder: single bits, and places to cut at, spread over its files."""
AGAIN = 60 if ALL else 2
"""Times that a command is run again over damage: by turns, of a finished run and of a stopped one."""
FREE = (".md", ".png", ".svg", ".pdf", ".lock", ".jinja")
"""Files that a person may edit, or that nothing reads."""
TEXTS = ["A man plays a guitar.", "", "x"]


def damages(files: list[Path], flips: int, cuts: int, seed: str) -> Iterator[tuple[Path, str, bytes]]:
    """A file, what happens to it, and what it then holds; small files come as often as large ones."""
    chance = random.Random(seed)
    for number in range(flips + cuts):
        file = files[number % len(files)]
        content = file.read_bytes()
        if not content:
            continue
        if number < cuts:
            kept = chance.randrange(len(content))
            yield file, f"cut to {kept} bytes", content[:kept]
            continue
        place, bit = chance.randrange(len(content)), chance.randrange(8)
        yield file, f"bit {bit} of byte {place}", content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def files_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix not in FREE and file.name != ".lock")


def logits(folder: Path) -> Any:
    from unmask.models.loading import Source, load_language_model

    model, tokenizer = load_language_model(Source(str(folder), dtype="float32", device="cpu"))
    with torch.inference_mode():
        return model(**tokenizer(TEXTS[0], return_tensors="pt")).logits.numpy().tobytes(), tokenizer.encode(TEXTS[0])


def factors(folder: Path) -> Any:
    from unmask.moe.mixture.expert_folder import read_expert

    expert = read_expert(folder)
    return expert.name, expert.base, {name: [part.numpy().tobytes() for part in one] for name, one in expert.factors.items()}


def vectors(folder: Path) -> Any:
    return Embedder.from_pretrained(folder, device="cpu").encode(TEXTS, show_progress=False).tobytes()


MADE: dict[str, tuple[str, Callable[[Path], Any], tuple[str, ...]]] = {
    "head": ("headed", vectors, ()),
    "adapter": ("made/model", vectors, ("train", "pico.toml", "-o", "made", "--set", "merge=false")),
    "expert": ("experts/sums", factors, ()),
    "upcycled": ("sparse", logits, ()),
    "mixture": (
        "made", logits,
        ("mix", "experts/sums", "experts/colours", "--lessons", "sums=sums.jsonl", "--lessons", "colours=colours.jsonl", "-o", "made",
         "--steps", "1", *CPU),
    ),
}  # fmt: skip
"""A folder that is read, the function that reads it, and the command that makes it, if it is not there already."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MADE)
def test_damage_to_a_folder_that_is_read_is_noticed(
    name: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    folder, read, make = Path(MADE[name][0]), *MADE[name][1:]
    if make:
        must(list(make), here, tmp_path / "notes")
    expected = read(folder)
    faults = []
    for file, what, content in damages(files_of(folder), FLIPS, CUTS, name):
        before = file.read_bytes()
        file.write_bytes(content)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                same = read(folder) == expected
            if not same and not any("damaged" in str(one.message) for one in said):
                faults.append(f"{file}, {what}: another answer, and not a word")
        except UnmaskError:
            pass
        except BaseException as error:
            faults.append(f"{file}, {what}: {type(error).__name__}: {error}"[:300])
        file.write_bytes(before)
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:20])
    assert read(folder) == expected


RESUMED = [("compare",), ("index",), ("train",), ("specialise",), ("mix",), ("probe", "routing"), ("reproduce", "moee")]


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", RESUMED, ids=" ".join)
def test_a_command_goes_on_over_damage(path: tuple[str, ...], furnished: Path, tmp_path: Path) -> None:
    case = case_of(path, furnished, tmp_path)
    chance = random.Random(case.name)
    faults = [fault for number in range(AGAIN) if (fault := _goes_on(case, path, chance, finished=number % 2 == 0))]
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:20])


def _goes_on(case: Case, path: tuple[str, ...], chance: random.Random, finished: bool) -> str | None:
    case.begin()
    # one stop alone comes late, when the run has left something to damage
    case.run(None if finished else chance.randint(1 if ALL else case.operations // 2 + 1, case.operations), "killed")
    files = [file for file in files_of(case.here / str(EXAMPLES[path].output)) if file.stat().st_size]
    if not files:
        return None
    chance.shuffle(files)
    file, what, content = next(damages(files[:1], *((1, 0) if chance.random() < 0.5 else (0, 1)), str(chance.random())))
    before = file.read_bytes()
    file.write_bytes(content)
    after = case.run()
    where = f"{file.relative_to(case.here)} of a {'finished' if finished else 'stopped'} run, {what}"
    if after.code == 2 and any(word in after.err for word in ("damaged", "changed", "not written by unmask")):
        return None
    if after.code != 0:
        return f"{where}: exit code {after.code}: {after.sentence}"
    if finished and "stages" in file.parts:  # what a run went through, which nobody reads when its result is there
        file.write_bytes(before)
    difference = case.difference(where)
    return difference and f"{difference} (said: {after.err[-200:]})"


def test_a_damaged_model_in_the_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.io.paths import cache_folder
    from unmask.models.bundled import resolve

    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    expected = logits(Path(resolve("pico")))
    for file, what, content in damages(files_of(cache_folder() / "models"), 40 if ALL else 8, 40 if ALL else 8, "cache"):
        before = file.read_bytes()
        file.write_bytes(content)
        assert logits(Path(resolve("pico"))) == expected, f"{file}, {what}"
        if not file.exists():
            file.write_bytes(before)
