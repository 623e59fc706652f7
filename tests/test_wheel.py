"""The wheel: it holds every file of the package, and what it installs works without the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.install_sizes import closure

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


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """The programs of an environment with the wheel and what the extra brings, as they are installed here, and nothing else."""
    run(sys.executable, "-m", "venv", "--without-pip", "env", where=folder)
    packages = next((folder / "env" / "lib").glob("python*/site-packages"))
    for package in closure(extra).values():
        for name in {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(package.locate_file(name))))
    pip = (sys.executable, "-m", "pip", "--python", folder / "env" / "bin" / "python")
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", wheel, where=folder)
    return folder / "env" / "bin"


def test_installed_it_works(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path, wheel, "compare")
    unmask = programs / "unmask"
    home = run(programs / "python", "-c", "import unmask; print(unmask.__file__)", where=tmp_path)
    assert home.startswith(str(tmp_path / "env"))
    task = f"{Path(home.strip()).parent}/starter/sts#20"
    run(unmask, "compare", "-m", "pico", "-d", "mean,last", "-t", task, "-o", "report", where=tmp_path)
    run(unmask, "report", "report", where=tmp_path)
    assert (tmp_path / "report" / "report" / "report.html").is_file()


@pytest.mark.sample(0)
def test_without_extras_it_embeds_and_says_what_else_is_needed(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path, wheel, "")
    assert not list((programs.parent / "lib").glob("python*/site-packages/sklearn"))
    (tmp_path / "texts.jsonl").write_text('{"text": "A man plays a guitar."}\n', "utf-8")
    script = (
        "import sys; from unmask import Embedder; from unmask.cli import main; "
        "print(Embedder.from_pretrained('pico', 'echo').encode(['a', 'b']).shape); "
        "sys.argv = 'unmask embed texts.jsonl -m pico -o vectors.parquet'.split(); main()"
    )
    assert run(programs / "python", "-c", script, where=tmp_path).startswith("(2, 32)\n")
    assert (tmp_path / "vectors.parquet").is_file()
    failed = subprocess.run(
        [programs / "unmask", "compare", "-m", "pico", "-t", "starter", "-o", "report"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1] == "unmask: This needs mteb, which is not installed: pip install 'unmask[compare]'."
    assert not (tmp_path / "report").exists()
