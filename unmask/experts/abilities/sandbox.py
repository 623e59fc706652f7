"""Sandbox: runs Python that a model wrote, in a process of its own that has little and is killed in time.

Limits: seconds of processor and of wall clock, memory, size of files, no child processes, an empty folder that vanishes, an empty
environment, no site packages, and where the kernel grants it no network. This keeps accidents in; it is no prison for code that
means harm, for which a container or a machine of its own is right.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass

from unmask.errors import UnmaskError

# Limits are set by the child itself before it runs anything: a function run between fork and exec is not safe beside threads.
_BEGIN = """
import resource, sys
seconds, memory, size = map(int, sys.argv[1:4])
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
try:
    import ctypes
    ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)  # a user and a network of its own: only loopback, and that is down
except Exception:
    pass
def guard(event, given):
    if event in {"os.system", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.kill", "subprocess.Popen", "ctypes.dlopen"}:
        raise PermissionError(event)
    if event.startswith("socket."):
        raise PermissionError(event)
    if event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+"):
        import os
        if not os.path.realpath(str(given[0])).startswith(os.getcwd() + os.sep):
            raise PermissionError(f"open {given[0]}")
    if event in {"os.remove", "os.rename", "os.rmdir", "os.chmod", "os.link", "os.symlink", "shutil.rmtree", "os.truncate"}:
        raise PermissionError(event)
program = sys.stdin.read()
sys.addaudithook(guard)
exec(compile(program, "<written>", "exec"), {"__name__": "__main__"})
import os
os._exit(int(sys.argv[4]))
"""
_TO_THE_END = 73  # a program that leaves before its tests are through ends with another status


@dataclass(frozen=True)
class Limits:
    """What a program may use: seconds, bytes of memory, bytes of each file."""

    seconds: int = 5
    memory: int = 1 << 30
    file: int = 1 << 20


def runs_well(program: str, limits: Limits | None = None) -> bool:
    """Whether a program runs to its last line, in time, without an exception. Raises UnmaskError where limits cannot be set."""
    limits = limits or Limits()
    if sys.platform == "win32":
        raise UnmaskError("Code that a model wrote is run only where its memory and time can be limited (Linux, macOS).")
    given = [str(limits.seconds), str(limits.memory), str(limits.file), str(_TO_THE_END)]
    # -I: no environment, no user packages, no current folder on the path; -S: no site packages
    command = [sys.executable, "-I", "-S", "-c", _BEGIN, *given]
    with tempfile.TemporaryDirectory(prefix="unmask-sandbox-") as folder:
        try:
            done = subprocess.run(
                command,
                input=program.encode(),
                cwd=folder,
                env={},
                timeout=limits.seconds + 2,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == _TO_THE_END
