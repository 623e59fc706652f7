"""Runs Python code that a model wrote, and the tests that judge it, in bubblewrap (bwrap). lm-eval runs such code without protection.

Code and tests run in one process, as in HumanEval's reference implementation. A random token is printed after the last test, so a
program that exits early or prints does not pass. (Code that searches its interpreter for the token could cheat.)

| protected | how |
|---|---|
| network | an empty network namespace |
| files | only Python and the system's libraries can be read; only an empty folder in memory can be written, 16 MiB in all |
| processes | other processes are invisible; everything that the code starts is killed with the sandbox |
| memory, time | limits for each process; a clock outside |

Before the first program, each protection is tried. If one is missing, nothing runs unless the user accepts the risk.
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from unmask.errors import UnmaskError

_SYSTEM: Final = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store")
_SCRATCH: Final = 16 << 20
_GRACE: Final = 6  # seconds to start an interpreter on a busy machine
_RUNNER: Final = """
import marshal, os, resource, sys
task = marshal.loads(sys.stdin.buffer.read())
for name, limit in task["limits"].items():
    try:
        resource.setrlimit(getattr(resource, name), (limit, limit))
    except (AttributeError, OSError, ValueError):
        if task["sandboxed"]:
            raise
verdict = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
space = {"__name__": "__main__"}
for part in task["parts"]:
    exec(compile(part, "<written>", "exec"), space)
os.write(verdict, task["token"].encode())
"""


@dataclass(frozen=True)
class Limits:
    """Seconds, bytes of memory and bytes of a file that a program may use."""

    seconds: int = 5
    memory: int = 1 << 30
    file: int = 1 << 20


@dataclass(frozen=True)
class Program:
    """Code that a model wrote, and the tests that run after it in the same namespace."""

    source: str
    tests: str


def passes(program: Program, limits: Limits | None = None, *, unsandboxed: bool = False) -> bool:
    """Whether a program passes its tests within the time limit. Raises UnmaskError without a sandbox, unless `unsandboxed` accepts that."""
    require_sandbox(unsandboxed)
    return _run(program, limits or Limits(), "" if missing_protection() else str(shutil.which("bwrap")))[0]


def require_sandbox(unsandboxed: bool = False) -> str:
    """How code that a model wrote is run. Raises UnmaskError if a protection is missing, unless `unsandboxed` accepts that."""
    if sys.platform == "win32":
        raise UnmaskError("Code that a model wrote is run only where its memory and time can be limited (Linux, macOS).")
    if not (missing := missing_protection()):
        return "in a sandbox (bwrap) that limits its network, files, processes, memory and time"
    if not unsandboxed:
        raise UnmaskError(
            f"Code that a model writes is run in a sandbox, and there is none here: {missing} Install bubblewrap (Debian and Ubuntu: "
            "apt-get install bubblewrap), which needs user namespaces. Or accept the risk with --allow-unsandboxed-code (in a study: "
            "--set unsandboxed_code=true): the code can then read, change and send away whatever you can."
        )
    return "in no sandbox; only its time is limited"


@functools.cache
def missing_protection() -> str:
    """What prevents sandboxing on this machine; empty if every protection works. Each is tried once."""
    bwrap = shutil.which("bwrap")
    if sys.platform != "linux" or bwrap is None:
        return "there is no bubblewrap (bwrap)."
    limits = Limits()
    started, message = _run(Program("", ""), limits, bwrap)
    if not started:
        return f"bubblewrap does not start ({(message.strip().splitlines() or ['no message'])[-1]})."
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        marker = Path(folder, "marker")
        marker.touch()
        folders = [folder, "/", "/usr/lib", str(Path(os.__file__).parent)]
        attempts = {
            "network": f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=1)",
            "files": _any_succeeds(
                f"open({str(marker)!r})", *(f"open({str(Path(path, 'unmask-probe'))!r}, 'w')" for path in folders)
            ),
            "processes": f"import os; os.kill({os.getpid()}, 0)",
            "memory": f"bytearray({2 * limits.memory})",
        }
        missing = [name for name, attempt in attempts.items() if _run(Program(attempt, ""), limits, bwrap)[0]]
    return f"bubblewrap does not limit {', '.join(missing)}." if missing else ""


def _any_succeeds(*calls: str) -> str:
    tries = "".join(f"try:\n    {call}\n    done = True\nexcept OSError:\n    pass\n" for call in calls)
    return f"done = False\n{tries}assert done"


def _run(program: Program, limits: Limits, bwrap: str) -> tuple[bool, str]:
    """Whether a program passes, and what it wrote to stderr. bwrap: empty to run it without a sandbox."""
    token = secrets.token_hex(16)
    rlimits = {"RLIMIT_CPU": limits.seconds, "RLIMIT_AS": limits.memory, "RLIMIT_DATA": limits.memory}
    rlimits |= {"RLIMIT_FSIZE": limits.file, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 32}
    if bwrap:
        rlimits["RLIMIT_NPROC"] = 64
    task: dict[str, Any] = {
        "parts": [program.source, program.tests],
        "token": token,
        "limits": rlimits,
        "sandboxed": bool(bwrap),
    }
    # -I: no environment, no user packages, no current folder on the path; -S: no site packages
    command = [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", _RUNNER]
    scratch = tempfile.TemporaryDirectory(prefix="unmask-sandbox-")
    with scratch as folder, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*_bubblewrap(bwrap), *command] if bwrap else command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            with suppress(BrokenPipeError), process.stdin as inlet:  # type: ignore[union-attr]
                inlet.write(marshal.dumps(task))
            process.wait(limits.seconds + _GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # the sandbox's first process dies with bwrap, and the kernel then kills all others in it
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, 9)
            process.wait()
        output.seek(0)
        errors.seek(0)
        passed = hmac.compare_digest(output.read(len(token) + 1), token.encode())
        return passed, errors.read(4000).decode(errors="replace")


def _bubblewrap(bwrap: str) -> list[str]:
    python = Path(os.path.realpath(sys.executable))
    readable = [*_SYSTEM, *(str(Path(sys.base_prefix, name)) for name in ("lib", "lib64")), str(python)]
    readable += [sysconfig.get_path(name, vars={"base": sys.base_prefix}) for name in ("stdlib", "platstdlib")]
    packages = Path(os.__file__).with_name("site-packages")
    return [
        bwrap, "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--die-with-parent",
        "--new-session",
        *(part for path in dict.fromkeys(readable) for part in ("--ro-bind-try", path, path)),
        *(("--tmpfs", str(packages), "--remount-ro", str(packages)) if packages.is_dir() else ()),
        "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev",
        "--size", str(_SCRATCH), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/", "--",
    ]  # fmt: skip
