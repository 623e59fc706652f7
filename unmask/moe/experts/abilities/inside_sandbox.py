"""The program inside the sandbox. One process runs the code that a model wrote; another process runs the tests that judge it.

The two processes share one socket and nothing else: no memory, no files, no process list. The tests call the model's code through the
socket and compare the answers in their own process. Plain data (numbers, texts, lists, ...) are copied, as exact built-in types. Every
other object stays in the code's process and is sent as a number; in the tests' process, a `_Far` stands for it. Only the tests' process
knows the secret. It writes the secret after the last test.

This file runs alone, without the rest of the package, twice for every program. So it imports only modules that load quickly.
"""

from __future__ import annotations

import _pickle  # pickle would import many modules that are not needed here
import builtins
import io
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType
    from typing import Any, BinaryIO

_BASIC = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, slice)
_MADE = {
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque"),
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
}
PLAIN = frozenset(
    [("builtins", kind.__name__) for kind in (*_BASIC, type(None), type(...))]
    + [("builtins", "Ellipsis"), *((module, name) for module, names in _MADE.items() for name in names)]
)
"""The types that are copied, as (module, name)."""
_IMMUTABLE = 1 << 8  # Python's flag of the types whose attributes cannot be set (Py_TPFLAGS_IMMUTABLETYPE)
_LIMITS = {"RLIMIT_CPU": "seconds", "RLIMIT_AS": "memory", "RLIMIT_DATA": "memory", "RLIMIT_FSIZE": "file"}


def _is_plain(kind: type) -> bool:
    return (kind.__module__, kind.__qualname__) in PLAIN


def narrow(limits: Mapping[str, int]) -> None:
    """Set the limits of this process. The parent cannot do it: code between fork and exec is not safe if there are threads."""
    for name, key in _LIMITS.items():
        if hasattr(resource, name):
            try:
                resource.setrlimit(getattr(resource, name), (limits[key], limits[key]))
            except (OSError, ValueError):
                if not limits["may_lack_limits"]:
                    raise
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))


# The process of the model's code -------------------------------------------------------------------------------------------


class _Outbox(_pickle.Pickler):
    """Writes answers: plain data as copies, subclasses of plain types as those types, and all other objects as numbers."""

    def __init__(self, file: BinaryIO, kept: list[Any]) -> None:
        super().__init__(file, protocol=5)
        self.kept = kept

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, _BASIC) or _is_plain(type(value)) or (isinstance(value, type) and _is_plain(value)):
            return None
        for number, kept in enumerate(self.kept):
            if kept is value:
                return number
        self.kept.append(value)
        return len(self.kept) - 1

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _BASIC) and not _is_plain(type(value)):
            kind: Any = next(kind for kind in _BASIC if isinstance(value, kind))
            return kind, (kind(value),)
        return NotImplemented


class _Inbox(_pickle.Unpickler):
    """Reads the requests of the tests."""

    def __init__(self, file: BinaryIO, kept: list[Any]) -> None:
        super().__init__(file)
        self.kept = kept

    def persistent_load(self, number: Any) -> Any:
        return self.kept[number]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, given, named: function(*given, **named),
    "get": getattr,
    "set": setattr,
    "item": lambda value, key: value[key],
    "iter": iter,
    "next": next,
    "len": len,
    "str": str,
    "bool": bool,
}
"""The operations that the tests can do with an object of the program."""


def serve(program: str, fd: int) -> None:
    """Run a program. Then do the operations that the tests request on its objects, until the tests close the socket."""
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    exec(compile(program, "<written>", "exec"), space)
    kept: list[Any] = []
    reader, writer = open(fd, "rb", closefd=False), open(fd, "wb", closefd=False)  # noqa: SIM115 (until the end)
    operations = {**OPERATIONS, "name": lambda name: space[name]}
    while True:
        asked, given = _Inbox(reader, kept).load()
        answer: tuple[str | None, Any]
        try:
            answer = (None, operations[asked](*given))
        except Exception as error:  # the tests raise it in their process
            answer = (type(error).__name__, str(error))
        scratch = io.BytesIO()  # an answer is sent complete or not at all
        _Outbox(scratch, kept).dump(answer)
        writer.write(scratch.getvalue())
        writer.flush()


# The process of the tests --------------------------------------------------------------------------------------------------------


class _Far:
    """An object in the program's process that is not plain data. It is equal only to itself."""

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._link.ask("call", self, given, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._link.ask("item", self, key)

    def __iter__(self) -> Iterator[Any]:
        return self._link.ask("iter", self)  # type: ignore[no-any-return]

    def __next__(self) -> Any:
        return self._link.ask("next", self)

    def __len__(self) -> int:
        return self._link.ask("len", self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return self._link.ask("str", self)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return self._link.ask("bool", self)  # type: ignore[no-any-return]


def _refuse_state(*_: Any) -> None:
    raise _pickle.UnpicklingError("an answer would change a plain type, or the parts of a copy")


class _Answers(_pickle.Unpickler):
    """Reads the program's answers. It accepts only the plain types, and no change of them: nothing from the program can run here."""

    def __init__(self, file: BinaryIO, link: Link) -> None:
        super().__init__(file)
        self.link = link

    def find_class(self, module: str, name: str) -> Any:
        """The plain type with this name. Any other name is an error."""
        if (module, name) not in PLAIN:
            raise _pickle.UnpicklingError(f"{module}.{name} is not plain")
        kind = getattr(__import__(module), name)
        if isinstance(kind, type) and not kind.__flags__ & _IMMUTABLE:
            # Fraction and Counter are written in Python. A forged answer could give the class another __eq__, or a Fraction the value 0/0,
            # which is <= and >= every number. Pickle sets attributes only by __setstate__ where there is one; honest copies need none.
            kind.__setstate__ = _refuse_state  # type: ignore[attr-defined]
        return kind

    def persistent_load(self, number: Any) -> Any:
        """The object with this number."""
        return self.link.far(int(number))


class _Questions(_pickle.Pickler):
    """Writes the requests of the tests."""

    def persistent_id(self, value: Any) -> int | None:
        return value._number if type(value) is _Far else None  # type: ignore[no-any-return]


class Link:
    """The tests' end of the socket."""

    def __init__(self, fd: int) -> None:
        self._reader, self._writer = open(fd, "rb", closefd=False), open(fd, "wb", closefd=False)  # noqa: SIM115 (until the end)
        self._far: dict[int, _Far] = {}

    def far(self, number: int) -> _Far:
        """The program's object with this number. The same number always gives the same object."""
        return self._far.setdefault(number, _Far(self, number))

    def ask(self, operation: str, *given: Any) -> Any:
        """Request an operation on the program's objects. If it raises there, an exception with that name is raised here."""
        scratch = io.BytesIO()
        _Questions(scratch, protocol=5).dump((operation, given))
        self._writer.write(scratch.getvalue())
        self._writer.flush()
        failure, answer = _Answers(self._reader, self).load()
        if failure is None:
            return answer
        kind = getattr(builtins, failure, RuntimeError)
        raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError)(answer)


def names_in(code: CodeType) -> set[str]:
    """Every name that a piece of code may look up."""
    return set(code.co_names).union(*(names_in(part) for part in code.co_consts if isinstance(part, type(code))))


def judge(before: str, tests: str, asked: list[str], fd: int) -> None:
    """Run the tests. They take the names in `asked` from the program; all other names are their own. Raises if a test fails."""
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    exec(compile(before, "<given>", "exec"), space)
    link, code = Link(fd), compile(tests, "<tests>", "exec")
    for name in names_in(code).intersection(asked):
        try:
            space[name] = link.ask("name", name)
        except KeyError:
            space.pop(name, None)  # the program lacks it, so the tests get a NameError
    exec(code, space)


# Both -------------------------------------------------------------------------------------------------------------------------


def probe(marker: str, port: int, outside: int, memory: int) -> dict[str, bool]:
    """Try what the sandbox must prevent, and say what it prevents.

    It tries to use a file, a socket and a process outside the sandbox, to start a child process, and to use too much memory.
    """
    import socket
    from pathlib import Path

    readable = (Path(marker).parent, Path("/"), Path("/usr/lib"), Path(os.__file__).parent)
    return {
        "network": _refused(lambda: socket.create_connection(("127.0.0.1", port), timeout=1)),
        "files": _refused(Path(marker).stat) and all(_refused(folder.joinpath("unmask-probe").touch) for folder in readable),
        "processes": _refused(lambda: os.kill(outside, 0)) and _refused(lambda: os.fork() or os._exit(0)),
        "memory": _refused(lambda: bytearray(2 * memory)),
    }


def _refused(act: Callable[[], Any]) -> bool:
    try:
        act()
    except (OSError, MemoryError):
        return True
    return False


def main(role: str, fd: int, limits: Mapping[str, int]) -> None:
    """Run one role (candidate, judge or probe) with the task from the standard input. The judge writes the secret at the very end."""
    task = marshal.loads(sys.stdin.buffer.read())
    narrow(limits)
    if role == "candidate":
        serve(task["source"], fd)
    elif role == "probe":
        sys.stdout.buffer.write(marshal.dumps(probe(**task, memory=limits["memory"])))
    else:
        verdict = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        judge(task["before"], task["tests"], task["asked"], fd)
        os.write(verdict, task["secret"].encode())
