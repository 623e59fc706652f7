"""Seccomp: a filter that the kernel runs. It forbids system calls to the programs in the sandbox.

Forbidden are new processes (threads are allowed), sockets that are not local, new namespaces and mounts, access to other processes,
memory that outlives its process, and parts of the kernel that no test needs. The numbers come from the kernel's tables.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass
from typing import Final

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # places in the kernel's seccomp_data
_ALLOW, _KILL, _DENY, _NOT_THERE = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38  # errno 1: EPERM; 38: ENOSYS
_THREAD, _LOCAL = 0x00010000, 1  # CLONE_THREAD; AF_UNIX
# io_uring, pidfd_getfd, the newer mount calls: they have the same numbers on all processors
_EVERYWHERE: Final = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442)
_CLONE3: Final = 435


@dataclass(frozen=True)
class _Machine:
    """The kernel's code for a processor, and the numbers of its system calls."""

    audit: int
    clone: int
    socket: int
    denied: tuple[int, ...]
    highest: int = 0x40000000


# fork, vfork; ptrace, process_vm_readv, process_vm_writev; unshare, setns, mount, umount2, pivot_root, chroot; bpf, perf_event_open,
# userfaultfd; keyctl, add_key, request_key; kexec_load, kexec_file_load; init_module, finit_module, delete_module; personality;
# shmget, semget, msgget
_MACHINES: Final = {
    "x86_64": _Machine(
        0xC000003E, 56, 41,
        (57, 58, 101, 310, 311, 272, 308, 165, 166, 155, 161, 321, 298, 323, 250, 248, 249, 246, 320, 175, 313, 176, 135, 29, 64, 68),
    ),
    "aarch64": _Machine(
        0xC00000B7, 220, 198,
        (117, 270, 271, 97, 268, 40, 39, 41, 51, 280, 241, 282, 219, 217, 218, 104, 294, 105, 273, 106, 92, 194, 190, 186),
    ),
}  # fmt: skip


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """The filter for a processor (default: this one). None if its system calls are not known."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    steps = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, known.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, known.highest),  # x32 has the same calls under other numbers
        (_RETURN, 0, 0, _KILL),
        (_EQUAL, 0, 1, _CLONE3),  # the filter cannot see its flags; without it, the C library calls clone
        (_RETURN, 0, 0, _NOT_THERE),
        (_EQUAL, 0, 4, known.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 1, 0, _THREAD),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, known.socket),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, _LOCAL),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for number in (*known.denied, *_EVERYWHERE):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)
