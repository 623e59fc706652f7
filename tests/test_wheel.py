"""The wheel holds every file of the package, and works without the repository, with and without extras."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since building leaves files in the source folder."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "unmask", source / "unmask", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", "dist", ".", cwd=source)
    return next((source / "dist").glob("*.whl"))


def test_every_file_is_inside(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("unmask/")}
    files = (file for file in (ROOT / "unmask").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    assert {file.relative_to(ROOT).as_posix() for file in files} == packed


def requirements(name: str, extras: frozenset[str], packages: dict[str, Distribution]) -> dict[str, Distribution]:
    """The installed distributions that a distribution needs with these extras, itself included."""
    from packaging.requirements import Requirement

    try:
        packages[name] = distribution(name)
    except PackageNotFoundError:
        return packages
    for requirement in map(Requirement, packages[name].requires or []):
        marker, key = requirement.marker, requirement.name.lower().replace("_", "-")
        needed = not marker or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if needed and (key not in packages or requirement.extras):
            requirements(key, frozenset(requirement.extras), packages)
    return packages


def environment(folder: Path, wheel: Path, *extras: str) -> Path:
    """The programs of an environment with the wheel and links to what it requires, and nothing else."""
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    packages = next((folder / "env" / "lib").glob("python*/site-packages"))
    needed = requirements("unmask", frozenset(extras), {})
    for package in (package for name, package in needed.items() if name != "unmask"):
        for name in {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(package.locate_file(name))))
    pip = (sys.executable, "-m", "pip", "--python", folder / "env" / "bin" / "python")
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    return folder / "env" / "bin"


def test_installed_it_works(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path, wheel, "compare")
    package = run(programs / "python", "-c", "import unmask; print(unmask.__path__[0])", cwd=tmp_path).stdout.strip()
    assert package.startswith(str(tmp_path / "env"))
    task = f"{package}/starter/sts#20"
    run(programs / "unmask", "compare", "-m", "pico", "-d", "mean,last", "-t", task, "-o", "report", cwd=tmp_path)
    run(programs / "unmask", "report", "report", cwd=tmp_path)
    assert (tmp_path / "report" / "report" / "report.html").is_file()


@pytest.mark.sample(0)
def test_without_extras_it_embeds_and_names_the_extra_that_a_command_needs(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path, wheel)
    (tmp_path / "texts.txt").write_text("A man plays a guitar.\n", "utf-8")
    run(programs / "unmask", "embed", "texts.txt", "-m", "pico", "-d", "echo", "-o", "vectors.parquet", cwd=tmp_path)
    assert (tmp_path / "vectors.parquet").is_file()
    failed = run(programs / "unmask", "compare", "-m", "pico", "-t", "starter", "-o", "report", cwd=tmp_path, code=2)
    assert failed.stderr.endswith("This needs mteb, which is not installed: pip install 'unmask[compare]'.\n")
    assert not (tmp_path / "report").exists()
