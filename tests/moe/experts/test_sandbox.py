"""The sandbox: what passes does so by its answers; attacks pass no test, touch nothing and leave no process; none is run without it."""

from __future__ import annotations

import io
import os
import pickle
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cases import cases as in_one_test
from unmask.errors import UnmaskError
from unmask.moe.experts.abilities import sandbox
from unmask.moe.experts.abilities.inside_sandbox import PLAIN, _Answers, _Outbox
from unmask.moe.experts.abilities.sandbox import Isolation, Limits, Program, isolation, passes, require_sandbox
from unmask.moe.experts.abilities.seccomp import seccomp_filter

QUICK = Limits(seconds=2)
PATIENT = Limits(seconds=60)  # a right answer is right on a busy machine, too
WRONG = "def f(): return 3\n"
RIGHT = "def f(): return 4\n"


@pytest.fixture
def isolated() -> None:
    """Only where there is a sandbox."""
    if not isolation().whole:
        pytest.skip(f"no sandbox: {isolation().why}")


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine without bubblewrap."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    isolation.cache_clear()
    yield
    isolation.cache_clear()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what waits here waits for ever."""
    monkeypatch.setattr(sandbox, "_GRACE", 1)


def is_passed(source: str, tests: str = "assert f() == 4", before: str = "", limits: Limits = QUICK) -> bool:
    return passes(Program(source, tests, ("f", "g", "A"), before), limits)


def test_where_bubblewrap_works_so_does_the_sandbox() -> None:
    """Otherwise a sandbox that broke would only skip the tests below."""
    tool = shutil.which("bwrap")
    plain = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    if tool is None or subprocess.run([tool, *plain], check=False, capture_output=True).returncode:
        pytest.skip("bubblewrap does not work here")
    assert isolation().whole, isolation().why


CORRECT = {
    "an answer": (RIGHT, "assert f() == 4"),
    "lists": ("def f(x): return [x, (x, {'a': x})]", "assert f(1.5) == [1.5, (1.5, {'a': 1.5})]"),
    "dates and fractions": (
        "from fractions import *; from decimal import *; from datetime import *\n"
        "def f(): return [Fraction(1, 2), Decimal('1.5'), date(2024, 1, 2)]",
        "from datetime import date\nassert f() == [0.5, 1.5, date(2024, 1, 2)]",
    ),
    "subclasses": (
        "import collections, enum\nP = collections.namedtuple('P', 'x y')\n"
        "class E(enum.IntEnum):\n A = 2\n"
        "def f(): return [P(1, 2), E.A]",
        "assert f() == [(1, 2), 2]",
    ),
    "counters": ("import collections\ndef f(x): return collections.Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
    "default dictionaries": ("import collections\ndef f(): return collections.defaultdict(int, a=1)", "assert f() == {'a': 1}"),
    "generators": ("def f():\n yield from range(3)", "assert list(f()) == [0, 1, 2]"),
    "functions": ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
    "objects": (
        "class A:\n def __init__(self, x): self.x = x\n def __len__(self): return 7\ndef f(a): return a.x",
        "a = A(3)\nassert f(a) == a.x == 3 and len(a) == 7\na.x = A(5)\nassert f(a).x == 5 and f(a) is f(a)",
    ),
    "exceptions": (
        "def f(): raise ValueError('no')",
        "try:\n f()\n assert False\nexcept ValueError as error:\n assert str(error) == 'no'",
    ),
    "its own files": ("def f(): open('a', 'w').write('x'); return open('a').read()", "assert f() == 'x'"),
    "printing": ("print('x' * 10**6)\ndef f(): print('y'); return 4", "assert f() == 4"),
    "an empty input": ("import sys\ndef f(): return sys.stdin.read()", "assert f() == ''"),
    "an empty environment": ("import os\ndef f(): return 'HOME' in os.environ", "assert f() is False"),
    "threads": (
        "import threading\ndef f():\n t = threading.Thread(target=print); t.start(); t.join(); return 4",
        "assert f() == 4",
    ),
    "modules": ("import math, re, heapq, typing, itertools\ndef f(): return math.gcd(4, 6)", "assert f() == 2"),
    "a main block": ("def f(): return 4\nif __name__ == '__main__': x = f()", "assert f() == 4"),
    "names of the tests": ("def f(x): return x", "f2 = f\ndef check(c): assert c(1) == 1\ncheck(f2)"),
}


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("name", CORRECT)
def test_right_answers_pass(name: str) -> None:
    source, tests = CORRECT[name]
    assert is_passed(source, tests, limits=PATIENT)
    assert not is_passed(source, f"{tests}\nassert f == 4"), "the tests were run to their end"


_PRESET = b"cfractions\nFraction\n"
FORGED = {  # answers that give plain data other methods or parts; object 0 is the program's own
    "a class that compares as the program likes": _PRESET + b"N}\x8c\x06__eq__K\x00Qs\x86bK\x03K\x01\x86R",
    "a counter that compares as the program likes": b"ccollections\nCounter\nN}\x8c\x06__eq__K\x00Qs\x86b)R",
    "a number that is at least and at most any other": _PRESET
    + b"K\x03K\x01\x86RN}(\x8c\x0a_numeratorK\x00\x8c\x0c_denominatorK\x00u\x86b",
    "a counter with methods of the program": b"ccollections\nCounter\n)R}\x8c\x0bmost_commonK\x00Qsb",
}
_FORGING = """
import __main__
class Outbox:
    def __init__(self, file, kept): self.file, self.kept = file, kept
    def dump(self, answer):
        if callable(answer[1]): self.kept.append(answer[1])
        self.file.write(b'N' + (b'K\\x00Q' if callable(answer[1]) else b'\\x88' if answer[1] else FORGED) + b'\\x86.')
__main__._Outbox = Outbox
def f(*given): return bool(given)
"""
_EVERY_FD = "import os\ndef shout(text):\n for fd in range(64):\n  try: os.write(fd, text)\n  except OSError: pass\n"
FORGERIES = {
    "leaves by exit": "import sys; sys.exit(0)",
    "leaves by a status": "import sys; sys.exit(73)",
    "leaves at once": "import os; os._exit(0)",
    "leaves in a call": "import os\ndef f(): os._exit(0)",
    "raises beyond exceptions": "def f(): raise SystemExit(0)",
    "stops the iteration": "def f(): raise StopIteration",
    "goes at the end": "import atexit, os; atexit.register(os._exit, 0)",
    "prints": f"{WRONG}print('passed' * 100, 'True', 'secret')",
    "writes to every file": f"{WRONG}{_EVERY_FD}shout(b'0123456789abcdef' * 2)",
    "answers in advance": f"{WRONG}{_EVERY_FD}import pickle; shout(pickle.dumps((None, 4)) * 9)",
    "asks to be run": f"{WRONG}{_EVERY_FD}import pickle\n"
    "class E:\n def __reduce__(self): return exec, ('import os; os._exit(0)',)\nshout(pickle.dumps(E()))",
    "equals everything": "class X:\n def __eq__(self, other): return True\ndef f(): return X()",
    "equals everything as a number": "class X(int):\n def __eq__(self, other): return True\ndef f(): return X(3)",
    "compares as it likes": "class X(list):\n __eq__ = __ge__ = __contains__ = lambda *_: True\ndef f(): return X()",
    "answers with a class that it changed": _FORGING.replace("FORGED", repr(next(iter(FORGED.values())))),
    "replaces built-ins": f"{WRONG}import builtins; builtins.exec = builtins.compile = builtins.getattr = lambda *_, **__: None",
    "replaces the pickler": f"{WRONG}import _pickle; _pickle.Pickler = _pickle.Unpickler = None",
    "replaces the harness": f"{WRONG}import __main__\n"
    "for name in ('judge', 'serve', 'main'): setattr(__main__, name, lambda *_: None)",
    "reads frames": f"{WRONG}{_EVERY_FD}import sys\nframe = sys._getframe()\n"
    "while frame:\n shout(repr((frame.f_locals, frame.f_globals)).encode()); frame = frame.f_back",
    "reads all objects": f"{WRONG}{_EVERY_FD}import gc\n"
    "for thing in gc.get_objects():\n"
    " for text in list(thing.values()) if isinstance(thing, dict) else ():\n"
    "  if isinstance(text, str) and len(text) == 32: shout(text.encode())",
    "reads the memory of others": f"{WRONG}{_EVERY_FD}import glob\n"
    "for file in glob.glob('/proc/[0-9]*/mem') + glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n"
    " try: shout(open(file, 'rb').read(4096))\n except OSError: pass",
    "traces": f"{WRONG}import sys, threading\nsys.settrace(lambda *_: sys.exit(0)); threading.settrace(lambda *_: None)",
    "is no program": "def broken(:",
    "lacks the function": "x = 4",
    "imports what is not there": f"import numpy\n{RIGHT}",
    "is never ready": f"{RIGHT}while True: pass",
    "sleeps": f"{RIGHT}import time; time.sleep(60)",
    "never answers": "def f():\n while True: pass",
    "answers without an end": "import itertools\ndef f(): return itertools.repeat(4)\ndef g(): return 4",
    "answers too much": "def f(): return [0] * 10**9",
    "takes memory": f"{RIGHT}import mmap; mmap.mmap(-1, 3 * 10**9)",
    "takes shared memory": f"{RIGHT}from multiprocessing.shared_memory import SharedMemory\n"
    "SharedMemory(create=True, size=10**8).buf[:] = bytes(10**8)",
    "writes a large file": f"{RIGHT}open('a', 'w').write('x' * 10**7)",
    "writes many files": f"{RIGHT}for number in range(100): open(str(number), 'w').write('x' * 10**6)",
}  # fmt: skip


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("name", FORGERIES)
def test_nothing_else_passes(name: str) -> None:
    tests = "assert list(f()) == 4" if name == "answers without an end" else "assert f() == 4"
    assert not is_passed(FORGERIES[name], tests)


LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
ATTACKS = {  # each gives 'done' if it could do what it says to MINE, a file; PORT, a server; PID, a process; TOKEN, a name for itself
    "reads a file": "def f(): return 'done' * (open(MINE).read() == 'mine')",
    "reads a file elsewhere": f"def f(): return 'done' * bool(open({__file__!r}).read())",
    "reads a file by its number": "import os\ndef f(): return 'done' * (os.read(os.open(MINE, os.O_RDONLY), 4) == b'mine')",
    "lists a folder": "import os\ndef f(): return 'done' * bool(os.listdir(os.path.dirname(MINE)))",
    "lists the home folder": "import os\ndef f(): return 'done' * any('bash' in name for name in os.listdir('/root'))",
    "writes a file": "def f(): open(MINE, 'w').write('x'); return 'done'",
    "opens a file": "import os\ndef f(): os.open(MINE, os.O_WRONLY | os.O_TRUNC); return 'done'",
    "removes a file": "import os\ndef f(): os.remove(MINE); return 'done'",
    "cuts a file": "import os\ndef f(): os.truncate(MINE, 0); return 'done'",
    "opens a file in C": LIBC + "def f(): return 'done' * (libc.open(MINE.encode(), 1) >= 0)",
    "removes a file in C": LIBC + "def f(): return 'done' * (libc.unlink(MINE.encode()) == 0)",
    "writes a data base": "import sqlite3\ndef f(): sqlite3.connect(MINE + '.db').execute('create table a (b)'); return 'done'",
    "writes beside Python": "import os\ndef f(): open(os.path.dirname(os.__file__) + '/evil.py', 'w'); return 'done'",
    "writes to the root": "def f(): open('/evil', 'w'); return 'done'",
    "writes devices": "def f(): open('/dev/evil', 'w'); return 'done'",
    "mounts": LIBC + "def f(): return 'done' * (libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0)",
    "makes a namespace": LIBC + "def f(): return 'done' * (libc.unshare(0x10000000) == 0)",
    "becomes root": "import os\ndef f(): os.setuid(0); return 'done' * (os.getuid() == 0)",
    "runs a shell": "import os\ndef f(): return 'done' * (os.system('true') == 0)",
    "becomes a shell": "import os\ndef f(): os.execv('/bin/sh', ['sh', '-c', f'rm {MINE}'])",
    "starts a program": "import subprocess, sys\ndef f(): subprocess.run([sys.executable, '-c', '']); return 'done'",
    "forks": "import os\ndef f(): os.fork() or os._exit(0); return 'done'",
    "forks in C": LIBC + "def f(): return 'done' * (libc.fork() > 0)",
    "calls fork by its number": LIBC + "def f(): return 'done' * (libc.syscall(57) > 0 or libc.syscall(56, 17, 0, 0, 0, 0) > 0)",
    "spawns": "import os, sys\ndef f(): os.posix_spawn(sys.executable, ['python', '-c', ''], {}); return 'done'",
    "uses many processes": "import multiprocessing\ndef f(): multiprocessing.Process(target=print).start(); return 'done'",
    "calls a server": "import socket\ndef f(): socket.create_connection(('127.0.0.1', PORT), 1); return 'done'",
    "opens a server": "import socket\ndef f(): socket.socket().bind(('127.0.0.1', 0)); return 'done'",
    "speaks to the machine's host": "import socket\ndef f(): socket.socket(socket.AF_VSOCK); return 'done'",
    "asks for a name": "import socket\ndef f(): socket.getaddrinfo('example.org', 80); return 'done'",
    "opens a server in C": LIBC + "def f(): return 'done' * (libc.socket(2, 1, 0) >= 0)",
    "kills": "import os\ndef f(): os.kill(PID, 9); return 'done'",
    "kills all": "import os\ndef f(): os.kill(-1, 9); return 'done' * (not os.path.exists(f'/proc/{PID}'))",
    "sees processes": "import os\ndef f(): return 'done' * (len([name for name in os.listdir('/proc') if name.isdigit()]) > 2)",
    "raises its limits": "import resource\ndef f(): resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)); return 'done'",
    "outlives its call": "import os, time\nopen('/proc/self/comm', 'w').write(TOKEN)\n"
    "for _ in range(2):\n try:\n  if os.fork(): os._exit(0)\n  os.setsid()\n except OSError: pass\n"
    "def f(): time.sleep(60); return 'done'",
    "clears its death signal": LIBC + "import signal, time\nopen('/proc/self/comm', 'w').write(TOKEN)\nlibc.prctl(1, 0)\n"
    "for number in range(1, 65):\n try: signal.signal(number, signal.SIG_IGN)\n except (OSError, ValueError): pass\n"
    "def f(): time.sleep(60); return 'done'",
}  # fmt: skip


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_reach_nothing(name: str, tmp_path: Path) -> None:
    mine, token = tmp_path / "mine", secrets.token_hex(6)
    mine.write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        given = f"MINE, PORT, PID, TOKEN = {str(mine)!r}, {server.getsockname()[1]}, {os.getpid()}, {token!r}\n"
        assert not is_passed(given + ATTACKS[name], "assert f() == 'done'")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert mine.read_text() == "mine" and [file.name for file in tmp_path.iterdir()] == ["mine"]
    assert not Path(os.__file__).with_name("evil.py").exists() and not Path("/evil").exists()
    assert is_gone(token)


def is_gone(token: str) -> bool:
    """Whether no process calls itself so; the kernel may take a moment to end one that was killed."""
    for _ in range(100):
        names = (file for file in Path("/proc").glob("[0-9]*/comm"))
        if not any(token in said(file) for file in names):
            return True
        time.sleep(0.02)
    return False


def said(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


@pytest.mark.usefixtures("isolated")
def test_a_run_leaves_nothing_open() -> None:
    def state() -> tuple[int, int]:
        own = f"/proc/{os.getpid()}"
        return len(list(Path(own, "fd").iterdir())), len(Path(f"{own}/task/{os.getpid()}/children").read_text().split())

    is_passed(RIGHT)
    before = state()
    for source in (RIGHT, WRONG, FORGERIES["leaves at once"], FORGERIES["is no program"], FORGERIES["sleeps"]):
        is_passed(source)
    assert state() == before


@pytest.mark.usefixtures("isolated")
def test_tests_that_leave_early_or_need_what_is_not_there_are_not_passed() -> None:
    assert not is_passed(RIGHT, "import sys; sys.exit(0)")
    assert not is_passed(RIGHT, "raise SystemExit")
    assert not is_passed(RIGHT, "g()")
    assert not is_passed(RIGHT, "assert f(lambda: 1) == 4"), "functions of the tests do not cross"
    assert is_passed("def f(): return 4\ndef helper(): return 1", "assert helper() == 2", before="def helper(): return 2"), (
        "names that are not asked for are the tests' own"
    )


def test_only_plain_data_cross() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("touch /tmp/evil",)

    for content in (pickle.dumps((None, Evil())), pickle.dumps((None, os.system)), pickle.dumps((None, Path("a"))), b"x", b""):
        with pytest.raises((EOFError, pickle.UnpicklingError)):
            _Answers(io.BytesIO(content), None).load()  # type: ignore[arg-type]
    kept: list[Any] = []
    file = io.BytesIO()
    _Outbox(file, kept).dump([Evil(), 1, os.system])
    assert [type(one).__name__ for one in kept] == ["Evil", "builtin_function_or_method"]


@pytest.fixture
def restored() -> Iterator[None]:
    """The classes that can be changed are afterwards as they were."""
    before = {kind: dict(vars(kind)) for kind in (Fraction, Counter)}
    yield
    for kind, methods in before.items():
        for name in vars(kind).keys() - methods.keys():
            delattr(kind, name)
        for name in [name for name, method in methods.items() if vars(kind)[name] is not method]:
            setattr(kind, name, methods[name])


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", FORGED)
def test_a_copy_is_made_and_not_changed(name: str) -> None:
    link: Any = SimpleNamespace(far=lambda _: lambda *_: True)
    with pytest.raises(pickle.UnpicklingError):
        _Answers(io.BytesIO(b"N" + FORGED[name] + b"\x86."), link).load()
    honest = [Fraction(1, 3), Counter("aab"), defaultdict(Counter, a=Counter("b")), Fraction, Counter]
    file = io.BytesIO()
    _Outbox(file, []).dump((None, honest))
    assert _Answers(io.BytesIO(file.getvalue()), link).load() == (None, honest)


@pytest.mark.usefixtures("restored")
@in_one_test("module, name", sorted(PLAIN))
def test_nothing_that_an_answer_names_can_be_changed(module: str, name: str) -> None:
    change = f"c{module}\n{name}\n".encode() + b"N}\x8c\x05probeK\x01s\x86b."
    with pytest.raises((AttributeError, TypeError, pickle.UnpicklingError)):
        _Answers(io.BytesIO(change), None).load()  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_sandbox")
def test_nothing_is_run_without_a_sandbox_unless_the_user_accepts_it(tmp_path: Path) -> None:
    touch = f"open({str(tmp_path / 'touched')!r}, 'w')\n"
    with pytest.raises(
        UnmaskError, match=r"there is no bubblewrap \(bwrap\).*--allow-unsandboxed-code .*the code can then read"
    ):
        is_passed(touch + RIGHT)
    assert not list(tmp_path.iterdir())
    program = Program(touch + RIGHT, "assert f() == 4", ("f",))
    assert passes(program, QUICK, unsandboxed=True) and [file.name for file in tmp_path.iterdir()] == ["touched"]
    forgeries = ("leaves at once", "sleeps", "equals everything", "answers with a class that it changed")
    for source in (WRONG, *map(FORGERIES.__getitem__, forgeries)):
        assert not passes(Program(source, "assert f() == 4", ("f",)), QUICK, unsandboxed=True)
    assert str(require_sandbox(unsandboxed=True)) == "in no sandbox; only its time is limited"


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "does not start .*No permissions to create"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "does not limit network, files, processes"),
    ],
)
def test_a_sandbox_that_does_not_hold_is_none(script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(fake))
    isolation.cache_clear()
    try:
        with pytest.raises(UnmaskError, match=why):
            require_sandbox()
        assert not isolation().whole
    finally:
        isolation.cache_clear()


def test_what_was_obtained_is_said() -> None:
    whole = Isolation("/usr/bin/bwrap", network=True, files=True, processes=True, memory=True)
    assert str(whole) == "in a sandbox (bwrap) that limits its network, files, processes, memory and time" and whole.whole
    assert not Isolation("/usr/bin/bwrap", network=True, files=True, processes=True).whole


def test_every_known_processor_has_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine in ("x86_64", "aarch64"):
        steps = seccomp_filter(machine)
        assert steps and len(steps) % 8 == 0
    assert seccomp_filter("abacus") is None


def test_code_is_not_run_where_it_cannot_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UnmaskError, match="only where its memory and time can be limited"):
        passes(Program(RIGHT, "assert f() == 4", ("f",)), unsandboxed=True)
