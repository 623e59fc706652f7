"""What experts, mixtures and lessons leave on disk: whole, sealed, held by one run, and made again where it was damaged."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.moe.experts.conftest import DOMAINS, SUMS
from tests.moe.experts.lessons.test_specialise import FREE, PLAN, Scripted
from tests.moe.experts.test_training import LORA, SHORT, expert
from tests.training.running import At, die, killed
from unmask.errors import UnmaskError
from unmask.io.files import only_writer_of
from unmask.io.seals import Damaged
from unmask.models.loading import Source
from unmask.moe.experts.expert import RECORD
from unmask.moe.experts.lesson_training import Learning
from unmask.moe.experts.lessons.specialise import specialise
from unmask.moe.experts.mixing import Ingredients, mix, mix_jointly
from unmask.moe.experts.router import RouterOptions
from unmask.moe.mixture.gating import Routing
from unmask.moe.mixture.mixture_folder import load_mixture


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def mixed(base: Path, folder: Path, learning: Learning = SHORT, names: Any = DOMAINS, **options: Any) -> Any:
    for name in names:
        expert(base, folder / name, DOMAINS[name])
    ingredients = Ingredients(tuple(folder / name for name in names))
    source = Source(str(base), dtype="float32")
    lessons = options.pop("lessons", DOMAINS)
    return mix(ingredients, lessons, folder / "mixture", Routing(), source, learning=learning, **options)


@pytest.mark.sample(1)
@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_expert_is_trained_again(damage: Any, base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "expert"
    expert(base, folder)
    weights = folder / "adapter_model.safetensors"
    before = weights.read_bytes()
    damage(weights)
    with pytest.warns(UserWarning, match=r"The result is made again: .*adapter_model"):
        expert(base, folder)
    assert weights.read_bytes() == before
    damage(folder / RECORD)
    with pytest.warns(UserWarning), pytest.raises(UnmaskError, match="is damaged, so the settings of"):
        expert(base, folder)
    assert weights.read_bytes() == before


def test_a_damaged_expert_is_not_trained_again_over_files_of_somebody_else(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "expert"
    expert(base, folder)
    (folder / "notes.md").write_text("seven years")
    assert expert(base, folder, SUMS, At("training", 1, pytest.fail)).losses
    cut(folder / "adapter_model.safetensors")
    with pytest.raises(UnmaskError, match=r"notes\.md' does not belong to it"):
        expert(base, folder, SUMS, At("training", 1, pytest.fail))
    (folder / "notes.md").rename(tmp_path / "notes.md")
    with pytest.warns(UserWarning, match="The result is made again"):
        expert(base, folder)


def test_a_file_that_appears_while_an_expert_is_trained_again_is_not_removed(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "expert"
    expert(base, folder)
    cut(folder / "adapter_model.safetensors")
    appear = At("training", 2, lambda: (folder / "notes.md").touch())
    with pytest.warns(UserWarning), pytest.raises(UnmaskError, match=r"notes\.md' does not belong to it"):
        expert(base, folder, SUMS, appear)
    assert (folder / "notes.md").is_file()


def test_a_damaged_mixture_is_not_mixed_again_over_files_of_somebody_else(base: Path, tmp_path: Path) -> None:
    mixed(base, tmp_path)
    (tmp_path / "mixture" / "experts" / "thesis.txt").write_text("seven years")
    cut(tmp_path / "mixture" / "router.safetensors")
    with pytest.raises(UnmaskError, match=r"experts/thesis\.txt' does not belong to it"):
        mixed(base, tmp_path)
    assert (tmp_path / "mixture" / "experts" / "thesis.txt").read_text() == "seven years"


def test_a_damaged_mixture_is_not_loaded(base: Path, tmp_path: Path) -> None:
    mixed(base, tmp_path)
    whole = tmp_path / "mixture"
    files = [file.relative_to(whole) for file in whole.rglob("*") if file.is_file()]
    assert {"mixture.json", "router.safetensors", "adapter_model.safetensors"} <= {file.name for file in files}
    for file, damage in product(files, (flip, cut)):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "copy")
        damage(tmp_path / "copy" / file)
        with pytest.raises(Damaged) as told:
            load_mixture(tmp_path / "copy", Source(""))
        assert file.name in str(told.value) and "\n" not in str(told.value)


def test_an_expert_is_looked_for_in_the_mixture_only(base: Path, tmp_path: Path) -> None:
    mixed(base, tmp_path)
    file = tmp_path / "mixture" / "mixture.json"
    settings = json.loads(file.read_text())
    (tmp_path / "mixture" / "checksums.json").unlink()
    names = ("../outside", "/etc", "a/b", "..", "nul\0")
    for changed in (change for name in names for change in ({"experts": [name, "sums"]}, {"shared": name})):
        file.write_text(json.dumps(settings | changed))
        with pytest.raises(UnmaskError, match="is not a plain file name"):
            load_mixture(tmp_path / "mixture", Source(""))


def test_two_runs_do_not_write_to_one_folder(base: Path, tmp_path: Path) -> None:
    with only_writer_of(tmp_path / "sums"), pytest.raises(UnmaskError, match="Another run is writing"):
        expert(base, tmp_path / "sums")
    for name in DOMAINS:
        expert(base, tmp_path / name, DOMAINS[name])
    with only_writer_of(tmp_path / "mixture"), pytest.raises(UnmaskError, match="Another run is writing"):
        mixed(base, tmp_path)
    assert not (tmp_path / "mixture").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_steps_of_an_unknown_run_are_made_again(damage: Any, base: Path, tmp_path: Path) -> None:
    expert(base, tmp_path / "whole")
    killed(lambda: expert(base, tmp_path / "cut", SUMS, At("training", 4, die)))
    damage(tmp_path / ".cut-run" / RECORD)
    with pytest.warns(UserWarning) if damage is flip else nullcontext():
        expert(base, tmp_path / "cut")
    one, other = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert one == other


def test_what_a_router_cannot_learn_is_refused_before_anything_is_loaded(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import unmask.moe.mixture.mixture_folder as folder

    for name in DOMAINS:
        expert(base, tmp_path / name, DOMAINS[name])
    monkeypatch.setattr(folder, "load_base_language_model", lambda *_: pytest.fail("loaded"))
    three = DOMAINS | {"more": SUMS}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"names": ["sums"]}, "one expert has nothing to route"),
        ({"lessons": {"sums": SUMS}}, r"'colours' has no lessons .*--lessons colours=FILE"),
        ({"lessons": {"other": SUMS}, "options": RouterOptions(start="prototypes")}, "'sums' has none"),
        ({"lessons": three}, "A batch of 4 cannot hold equally many examples of 3 domains. Choose a multiple of 3"),
        ({"options": RouterOptions(train_top_k=3)}, "train-top-k can be at most the number of experts, which is 2, not 3"),
    ]
    for given, why in cases:
        with pytest.raises(UnmaskError, match=why):
            mixed(base, tmp_path, **given)
    with pytest.raises(UnmaskError, match="one expert has nothing to route"):
        mix_jointly({"sums": SUMS}, tmp_path / "joint", Routing(), Source(str(base)), lora=LORA, learning=SHORT)
    assert not list(tmp_path.glob(".mixture*"))


def test_one_expert_may_be_mixed_without_training(base: Path, tmp_path: Path) -> None:
    assert mixed(base, tmp_path, replace(SHORT, steps=0), ["sums"]).losses == ()


@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize("file", ["instructions.jsonl", "responses.jsonl", "specialise.json", "lessons.jsonl", "report.json"])
def test_damaged_lessons_are_written_again(damage: Any, file: str, tmp_path: Path) -> None:
    specialise(Scripted(), "pico", FREE, SUMS, tmp_path / "whole", PLAN)
    before = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    damage(tmp_path / "whole" / file)
    # a line that was cut off is what a kill leaves: it was never said to be whole
    told = file == "specialise.json" or (damage is flip and file in ("instructions.jsonl", "responses.jsonl"))
    with pytest.warns(UserWarning) if told else nullcontext():
        specialise(Scripted(), "pico", FREE, SUMS, tmp_path / "whole", PLAN)
    assert {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()} == before


def test_batches_of_another_run_are_refused_even_if_its_record_is_lost(tmp_path: Path) -> None:
    specialise(Scripted(), "pico", FREE, SUMS, tmp_path, PLAN)
    (tmp_path / "specialise.json").unlink()
    with pytest.raises(UnmaskError, match="holds a run with other lessons or settings"):
        specialise(Scripted(), "pico", FREE, SUMS, tmp_path, replace(PLAN, seed=1))


def test_lessons_of_an_older_version_are_gone_on_with(tmp_path: Path) -> None:
    specialise(Scripted(), "pico", FREE, SUMS, tmp_path, PLAN)
    before = (tmp_path / "lessons.jsonl").read_bytes()
    for name in ("instructions.jsonl", "responses.jsonl"):
        lines = [json.dumps(json.loads(line)["texts"]) for line in (tmp_path / name).read_text().splitlines()]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    writer = Scripted()
    specialise(writer, "pico", FREE, SUMS, tmp_path, PLAN)
    assert writer.batches == 0 and (tmp_path / "lessons.jsonl").read_bytes() == before
