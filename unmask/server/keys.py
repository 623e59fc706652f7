"""Keys: who may use a server. A key is compared in constant time, and no message or log holds one."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from unmask.errors import UnmaskError

VARIABLE = "UNMASK_API_KEYS"
_SHORTEST = 16


class Keys:
    """The keys of a server. Without any, everybody who reaches it may use it."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Keep the digests of the keys. Raises UnmaskError for a key that is short enough to be guessed, or that no header can hold."""
        keys = list(keys)
        for number, key in enumerate(keys, 1):
            if len(key) < _SHORTEST or not (key.isascii() and key.isprintable()):
                raise UnmaskError(f"Key {number} does not do: a key has at least {_SHORTEST} printable ASCII characters.")
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._digests)

    def allow(self, header: bytes | None) -> bool:
        """Whether a request with this `Authorization` header may be answered. Takes equally long, whichever key it holds."""
        if not self._digests:
            return True
        scheme, _, key = (header or b"").partition(b" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(matches) and scheme.lower() == b"bearer"


def read_keys(file: Path | None, environment: Mapping[str, str]) -> Keys:
    """The keys of a file (one a line, `#` begins a comment), or of the variable UNMASK_API_KEYS (spaces or commas between).

    Raises UnmaskError for a file without keys.
    """
    if file is None:
        return Keys(environment.get(VARIABLE, "").replace(",", " ").split())
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        raise UnmaskError(f"'{file}' is not a text file in UTF-8.") from error
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise UnmaskError(f"'{file}' holds no key: write one on each line.")
    return Keys(found)


def require_keys(host: str, keys: Keys, no_keys: bool) -> None:
    """Raise UnmaskError if other machines could use the server without a key, unless the user has said so."""
    if keys and no_keys:
        raise UnmaskError(f"Give keys (--keys FILE or {VARIABLE}) or --no-keys, not both.")
    if keys or no_keys or is_loopback(host):
        return
    raise UnmaskError(
        f"On '{host}' other machines can reach the server. Give keys (--keys FILE or {VARIABLE}), or say --no-keys to serve everybody."
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host. Raises UnmaskError for a host that is not known."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnmaskError(f"'{host}' is no address that this machine can listen on.") from error
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
