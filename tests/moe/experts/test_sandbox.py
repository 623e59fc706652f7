"""The sandbox: right programs pass, others do not; attacks touch nothing and leave no process; nothing runs without a sandbox."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import cases
from unmask.errors import UnmaskError
from unmask.moe.experts.abilities import sandbox
from unmask.moe.experts.abilities.sandbox import Limits, Program, missing_protection, passes, require_sandbox

QUICK = Limits(seconds=2)
RIGHT, WRONG, TESTS = "def f(): return 4\n", "def f(): return 3\n", "assert f() == 4"


@pytest.fixture
def isolated() -> None:
    if missing_protection():
        pytest.skip(f"no sandbox: {missing_protection()}")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    missing_protection()  # with the patience of a user
    monkeypatch.setattr(sandbox, "_GRACE", 1)
    yield
    missing_protection.cache_clear()


def test_where_bubblewrap_works_so_does_the_sandbox() -> None:
    """Otherwise a broken sandbox would only skip the tests below."""
    tool = shutil.which("bwrap")
    plain = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    if tool is None or subprocess.run([tool, *plain], check=False, capture_output=True).returncode:
        pytest.skip("bubblewrap does not work here")
    assert missing_protection() == ""


@pytest.mark.usefixtures("isolated")
@cases(
    "source, tests",
    [
        ("class A:\n x = 3\ndef f(a): return a.x", "assert f(A()) == 3"),
        (
            "def f(): raise ValueError('no')",
            "try:\n f()\n assert False\nexcept ValueError as error:\n assert str(error) == 'no'",
        ),
        ("def f(): open('a', 'w').write('x'); return open('a').read()", "assert f() == 'x'"),
        (
            "print('x' * 10**6)\nimport sys, os\ndef f(): return sys.stdin.read(), 'HOME' in os.environ",
            "assert f() == ('', False)",
        ),
        ("import math, re, heapq, typing\ndef f(): return 4\nif __name__ == '__main__': x = f()", "assert x == 4"),
    ],
)
def test_right_programs_pass_and_their_tests_run_to_the_end(source: str, tests: str) -> None:
    assert passes(Program(source, tests), Limits(seconds=60))
    assert not passes(Program(source, f"{tests}\nassert False"))


FAILING = {
    "is wrong": WRONG,
    "leaves at once": "import os; os._exit(0)",
    "writes to every file": f"{WRONG}import os\nfor fd in range(64):\n try: os.write(fd, b'0123456789abcdef' * 2)\n except OSError: pass",
    "sleeps": "import time; time.sleep(60)",
    "computes without end": "while True: pass",
    "takes all memory": "x = bytearray(2**32)\n" + RIGHT,
    "fills the disk": "open('a', 'wb').write(bytes(2**25))\n" + RIGHT,
}


@pytest.mark.usefixtures("isolated")
@cases("name", FAILING)
def test_other_programs_do_not_pass(name: str) -> None:
    assert not passes(Program(FAILING[name], TESTS), QUICK)


ATTACKS = {
    "reads a file": "open(MINE).read()",
    "opens a file in C": "import ctypes; assert ctypes.CDLL(None).open(MINE.encode(), 1) >= 0",
    "writes beside Python": "import os; open(os.path.dirname(os.__file__) + '/evil.py', 'w')",
    "mounts": "import ctypes; assert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "removes a file from a shell": "import os; assert os.system(f'/bin/rm {MINE}') == 0",
    "calls a server": "import socket; socket.create_connection(('127.0.0.1', PORT), 1)",
    "kills": "import os; os.kill(PID, 9)",
    "sees processes": "import os; assert len([name for name in os.listdir('/proc') if name.isdigit()]) > 2",
    "raises its limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
    "outlives its run": "import os, time\nopen('/proc/self/comm', 'w').write(TOKEN)\n"
    "for _ in range(2):\n if os.fork(): raise SystemExit\n os.setsid()\ntime.sleep(60)",
}


@pytest.mark.usefixtures("isolated")
@cases("name", ATTACKS)
def test_attacks_reach_nothing(name: str, tmp_path: Path) -> None:
    mine, token = tmp_path / "mine", secrets.token_hex(6)
    mine.write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        names = f"MINE, PORT, PID, TOKEN = {str(mine)!r}, {server.getsockname()[1]}, {os.getpid()}, {token!r}\n"
        assert not passes(Program(names + ATTACKS[name], ""), QUICK)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert mine.read_text() == "mine" and [file.name for file in tmp_path.iterdir()] == ["mine"]
    assert not Path(os.__file__).with_name("evil.py").exists() and not Path("/evil").exists()
    assert is_gone(token)


def is_gone(token: str) -> bool:
    """Whether no process has this name; the kernel may take a moment to end one that was killed."""
    for _ in range(100):
        names = []
        for file in Path("/proc").glob("[0-9]*/comm"):
            try:
                names.append(file.read_text().strip())
            except OSError:
                continue
        if token not in names:
            return True
        time.sleep(0.02)
    return False


def test_nothing_runs_without_a_sandbox_unless_the_user_accepts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    missing_protection.cache_clear()
    program = Program(f"open({str(tmp_path / 'touched')!r}, 'w')\n{RIGHT}", TESTS)
    with pytest.raises(UnmaskError, match="there is no bubblewrap"):
        passes(program)
    assert not list(tmp_path.iterdir())
    assert passes(program, QUICK, unsandboxed=True) and (tmp_path / "touched").is_file()
    assert not any(
        passes(Program(FAILING[name], TESTS), QUICK, unsandboxed=True) for name in ("is wrong", "leaves at once", "sleeps")
    )


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'No permissions to create new namespace' >&2; exit 1", "does not start .*No permissions to create"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "does not limit network, files, processes"),
    ],
)
def test_a_sandbox_that_does_not_hold_is_refused(
    script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(fake))
    missing_protection.cache_clear()
    with pytest.raises(UnmaskError, match=why):
        require_sandbox()
