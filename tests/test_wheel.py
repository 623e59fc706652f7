"""The wheel: it holds every file of the package, and what it installs works without the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run(*command: str | Path, where: Path) -> str:
    found = subprocess.run(
        list(map(str, command)), cwd=where, capture_output=True, text=True, check=False, env={"HF_HUB_OFFLINE": "1"}
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since building leaves files beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "unmask", source / "unmask", ignore=shutil.ignore_patterns("__pycache__"))
    build = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-w", "dist", ".")
    run(sys.executable, "-m", "pip", *build, where=source)
    return next((source / "dist").glob("*.whl"))


def test_every_file_is_inside(wheel: Path) -> None:
    kept = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("unmask/")}
    files = (file for file in (ROOT / "unmask").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    assert {file.relative_to(ROOT).as_posix() for file in files if file.suffix != ".pyc"} == kept


def test_installed_it_works(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has the dependencies of this one, and neither this repository nor its editable install."""
    run(sys.executable, "-m", "venv", "--without-pip", "env", where=tmp_path)
    python, home = tmp_path / "env" / "bin" / "python", sysconfig.get_paths()["purelib"]
    packages = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(home, "utf-8")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        wheel,
        where=tmp_path,
    )
    assert run(python, "-c", "import unmask; print(unmask.__file__)", where=tmp_path).startswith(str(packages))
    unmask = tmp_path / "env" / "bin" / "unmask"
    assert "llm2vec" in run(unmask, "recipes", "list", where=tmp_path)
    task = f"{packages}/unmask/starter/sts#20"
    run(unmask, "compare", "-m", "pico", "-d", "mean,last", "-t", task, "-o", "report", where=tmp_path)
    run(unmask, "report", "report", where=tmp_path)
    assert (tmp_path / "report" / "report" / "report.html").is_file()
