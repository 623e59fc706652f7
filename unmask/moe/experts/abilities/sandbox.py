"""Sandbox: runs Python code that a model wrote, tests it, and says whether it passed. The sandbox is bubblewrap (bwrap).

There are two processes, each in its own sandbox. One runs the model's code. The other runs the tests: it calls the first through a
socket, compares the answers itself, and writes a secret after the last test. A program can pass only by its answers: to exit early, to
print, or to change its own interpreter has no effect on the tests. Both processes run inside_sandbox.py.

| protected | how |
|---|---|
| network | an empty network namespace; only local sockets |
| files | only Python and the system's libraries can be read; only an empty folder in memory can be written, 16 MiB in all |
| processes | no child processes; other processes are invisible; everything is killed with the sandbox |
| memory, time | limits for each process; a clock outside |

Before the first program, a probe checks each protection. If one is missing, nothing runs, unless the user accepts the risk.
"""

from __future__ import annotations

import functools
import hmac
import marshal
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from unmask.errors import UnmaskError
from unmask.moe.experts.abilities.seccomp import seccomp_filter

_INSIDE: Final = Path(__file__).with_name("inside_sandbox.py")
_SYSTEM: Final = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store")
_SCRATCH: Final = 16 << 20
_GRACE: Final = 6  # seconds to start two interpreters on a busy machine


@dataclass(frozen=True)
class Limits:
    """The limits of each of the two processes: seconds, bytes of memory, bytes of a file."""

    seconds: int = 5
    memory: int = 1 << 30
    file: int = 1 << 20


@dataclass(frozen=True)
class Program:
    """Code that a model wrote, and the tests that judge it.

    source: the model's code; it runs alone in a sandbox. before, tests: run in another sandbox, in this order. asked: the names that the
    tests take from the source; all other names are the tests' own.
    """

    source: str
    tests: str
    asked: tuple[str, ...]
    before: str = ""


@dataclass(frozen=True)
class Isolation:
    """The protections of the sandbox. tool: the program that provides them, empty if there is none. why: what is missing, in words."""

    tool: str = ""
    network: bool = False
    files: bool = False
    processes: bool = False
    memory: bool = False
    why: str = ""

    @property
    def whole(self) -> bool:
        """Whether all protections work."""
        return self.network and self.files and self.processes and self.memory

    def __str__(self) -> str:
        """How code runs, in words."""
        kept = [name for name in ("network", "files", "processes", "memory") if getattr(self, name)]
        if not kept:
            return "in no sandbox; only its time is limited"
        return f"in a sandbox ({Path(self.tool).name}) that limits its {', '.join(kept)} and time"


def passes(program: Program, limits: Limits | None = None, *, unsandboxed: bool = False) -> bool:
    """Whether a program passes its tests in time. Raises UnmaskError if there is no sandbox, unless `unsandboxed` accepts that."""
    limits = limits or Limits()
    isolated = require_sandbox(unsandboxed)
    ours, theirs = socket.socketpair()
    secret = secrets.token_hex(16)
    tests = {"before": program.before, "tests": program.tests, "asked": list(program.asked), "secret": secret}
    with (
        ours,
        theirs,
        _process("candidate", {"source": program.source}, limits, isolated, theirs.fileno()),
        _process("judge", tests, limits, isolated, ours.fileno()) as judge,
    ):
        ours.close()
        theirs.close()
        said = _read(judge.stdout, len(secret) + 1)
    return hmac.compare_digest(said, secret.encode())


def require_sandbox(unsandboxed: bool = False) -> Isolation:
    """The isolation of code that a model writes. Raises UnmaskError if a protection is missing, unless `unsandboxed` accepts that."""
    if sys.platform == "win32":
        raise UnmaskError("Code that a model wrote is run only where its memory and time can be limited (Linux, macOS).")
    sandbox = isolation()
    if not sandbox.whole and not unsandboxed:
        raise UnmaskError(
            f"Code that a model writes is run in a sandbox, and there is none here: {sandbox.why} Install bubblewrap (Debian and Ubuntu: "
            "apt-get install bubblewrap), which needs user namespaces. Or accept the risk with --allow-unsandboxed-code (in a study: "
            "--set unsandboxed_code=true): the code can then read, change and send away whatever you can."
        )
    return sandbox


@functools.cache
def isolation() -> Isolation:
    """The protections that work on this machine. They are tried once."""
    tool = shutil.which("bwrap")
    if sys.platform != "linux" or tool is None:
        return Isolation(why="there is no bubblewrap (bwrap).")
    if seccomp_filter() is None:
        return Isolation(why="the system calls of this processor are not known.")
    limits, trial = Limits(), Isolation(tool)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        marker = Path(folder, "marker")
        marker.touch()
        task = {"marker": str(marker), "port": server.getsockname()[1], "outside": os.getpid()}
        with _process("probe", task, limits, trial, errors=subprocess.PIPE) as process:
            said, complaint = (_read(file, 4000) for file in (process.stdout, process.stderr))
    if not said:
        why = complaint.decode(errors="replace").strip().splitlines() or ["no message"]
        return Isolation(why=f"bubblewrap does not start ({why[-1]}).")
    kept: dict[str, Any] = marshal.loads(said)  # safe: only our own program has run
    tried = Isolation(tool, **kept)
    missing = [name for name, there in kept.items() if not there]
    return tried if tried.whole else Isolation(tool, **kept, why=f"bubblewrap does not limit {', '.join(missing)}.")


@contextmanager
def _process(
    role: str,
    task: Mapping[str, Any],
    limits: Limits,
    isolated: Isolation,
    link: int | None = None,
    errors: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[bytes]]:
    """One of the two processes. It gets its task through its standard input. At the end it is killed, with everything that it started."""
    allowed = {**asdict(limits), "may_lack_limits": int(not isolated.whole and not isolated.tool)}
    code = f"{_source()}\nmain({role!r}, {-1 if link is None else link}, {allowed})\n"
    # -I: no environment, no user packages, no current folder on the path; -S: no site packages
    command = [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", code]
    with tempfile.TemporaryDirectory(prefix="unmask-sandbox-") as folder, _filter(bool(isolated.tool)) as seccomp:
        given = [fd for fd in (link, seccomp) if fd is not None]
        process = subprocess.Popen(
            [*_wrapper(isolated.tool, seccomp), *command] if seccomp is not None else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if role == "candidate" else subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env={},
            pass_fds=given,
            start_new_session=True,
        )
        clock = threading.Timer(limits.seconds + _GRACE, process.kill)
        clock.daemon = True
        clock.start()
        try:
            with suppress(BrokenPipeError), process.stdin as inlet:  # type: ignore[union-attr]
                inlet.write(marshal.dumps(dict(task)))  # it reads this first, so the pipe cannot block
            yield process
        finally:
            clock.cancel()
            _kill(process)
            for outlet in (process.stdout, process.stderr):
                if outlet:
                    outlet.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group. The first process of the sandbox dies with it, and then the kernel kills all others there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
    process.kill()
    process.wait()


def _read(file: IO[bytes] | None, most: int) -> bytes:
    return file.read(most) if file else b""


@contextmanager
def _filter(wanted: bool) -> Iterator[int | None]:
    """The filter of system calls, as an open file that can be read once."""
    content = seccomp_filter() if wanted else None
    if content is None:
        yield None
        return
    outlet, inlet = os.pipe()
    try:
        os.write(inlet, content)
        os.close(inlet)
        yield outlet
    finally:
        os.close(outlet)


def _wrapper(tool: str, seccomp: int) -> list[str]:
    """The start of a command: it runs the rest of the command inside the sandbox."""
    python = Path(os.path.realpath(sys.executable))
    read = [*_SYSTEM, *(str(Path(sys.base_prefix, name)) for name in ("lib", "lib64")), str(python)]
    read += [sysconfig.get_path(name, vars={"base": sys.base_prefix}) for name in ("stdlib", "platstdlib")]
    packages = Path(os.__file__).with_name("site-packages")
    return [
        tool, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--seccomp", str(seccomp),
        *(part for path in dict.fromkeys(read) for part in ("--ro-bind-try", path, path)),
        *(("--tmpfs", str(packages), "--remount-ro", str(packages)) if packages.is_dir() else ()),
        "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev",
        "--size", str(_SCRATCH), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/", "--",
    ]  # fmt: skip


@functools.cache
def _source() -> str:
    return _INSIDE.read_text(encoding="utf-8")
