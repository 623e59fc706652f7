"""Work in a copy of this process: no import is paid twice, and whatever kills the copy spares the tests."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from tests.abuse.power import Disk
from tests.resampling import resample_less
from tests.sketches import sketch_figures

PATIENCE = 120.0
"""Seconds after which a command counts as hanging."""


@dataclass(frozen=True)
class Ran:
    """What a command left behind. A signal that ended it is a negative code. seconds: that it computed."""

    code: int
    out: str
    err: str
    seconds: float = 0.0

    @property
    def sentence(self) -> str:
        """The last line on standard error, which tells a mistake."""
        return (self.err.strip().splitlines() or [""])[-1]


@cache
def import_everything() -> None:
    """Import what commands import when they need it, so that no copy has to."""
    import unmask

    for module in pkgutil.walk_packages(unmask.__path__, "unmask."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in (
        "mteb",
        "peft",
        "sklearn.linear_model",
        "sklearn.cluster",
        "matplotlib.pyplot",
        "torch.utils.tensorboard",
        "transformers.models.llama.modeling_llama",
    ):
        importlib.import_module(name)
    _warm_up()
    gc.collect()
    gc.freeze()  # a copy would visit, and so copy, the memory of all that was imported


def _warm_up() -> None:
    """Do once what libraries do once in a process, so that no copy has to."""
    import typer.main
    from matplotlib import pyplot
    from peft import LoraConfig, get_peft_model

    from unmask.cli import app
    from unmask.embedder import Embedder
    from unmask.models.provenance import versions
    from unmask.tasks.mteb.catalogue import benchmark_names, task_names

    typer.main.get_command(app)  # kept by tests/conftest.py
    for once in (versions, task_names, benchmark_names):
        once()
    get_peft_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), LoraConfig(target_modules=["0"]))  # type: ignore[arg-type]
    Embedder.from_pretrained("pico", device="cpu").encode(["x"])
    figure, axes = pyplot.subplots()
    axes.set_title("x")
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("png", "svg", "pdf"):
            figure.savefig(Path(folder) / f"x.{ending}")
    pyplot.close(figure)


def command(*words: object, drawn: bool = True) -> Callable[[], None]:
    """The work of a command line. drawn: its figures are drawn, which for a probe is most of the work; else they are sketched."""

    def work() -> None:
        from unmask.cli import main

        resample_less()  # these tests are about files and messages
        if not drawn:
            sketch_figures()
        sys.argv = ["unmask", *map(str, words)]
        main()

    return work


def program(*words: object) -> Callable[[], None]:
    """The work of `python -m unmask`, with its end: an interpreter waits for threads before it goes."""

    def work() -> None:
        from unmask.cli import main

        sys.argv = ["unmask", *map(str, words)]
        try:
            main()
        finally:
            threading._shutdown()  # type: ignore[attr-defined]

    return work


def start(work: Callable[[], object], here: Path, notes: Path, disk: Disk | None = None, cut: int | None = None) -> int:
    """Begin work in a copy of this process, in a folder; the number of the copy. Its output goes to files in `notes`.

    With a disk, what it does to files is counted, and the copy dies at the operation `cut`.
    """
    notes.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number == 0:
        code = 70
        try:
            code = _in_the_copy(work, here, notes, disk, cut)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return number


def wait(number: int, notes: Path) -> Ran:
    """Wait for a copy to end; kill it when it hangs."""
    until = time.monotonic() + PATIENCE
    while True:
        done, status, used = os.wait4(number, os.WNOHANG)
        if done:
            break
        if time.monotonic() > until:
            os.kill(number, signal.SIGKILL)
        time.sleep(0.005)
    out, err = ((notes / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    return Ran(os.waitstatus_to_exitcode(status), out, err, used.ru_utime + used.ru_stime)


def run(work: Callable[[], object], here: Path, notes: Path, disk: Disk | None = None, cut: int | None = None) -> Ran:
    """Do work in a copy of this process and wait for it."""
    return wait(start(work, here, notes, disk, cut), notes)


def _in_the_copy(work: Callable[[], object], here: Path, notes: Path, disk: Disk | None, cut: int | None) -> int:
    for place, name in ((1, "out"), (2, "err")):
        handle = os.open(notes / name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o666)
        os.dup2(handle, place)
        os.close(handle)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    os.chdir(here)
    if disk:
        disk.attach(cut)
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if disk:
        disk.detach()
    return code
