"""Who may use a server: API keys, hosts and origins.

Any web page that is open in a browser can send requests to a server on this machine. The `Host` header is checked because a foreign name
may resolve to this machine (DNS rebinding). `Origin` and `Sec-Fetch-Site` are checked because no page can forge them; programs that are
not browsers send neither.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.server.protocol import ApiError

KEYS_VARIABLE = "UNMASK_API_KEYS"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_MIN_KEY_LENGTH = 16


class ApiKeys:
    """The keys of a server, as digests. Without keys, every request is allowed."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Raises UnmaskError for a key that is too short or cannot be sent in a header."""
        keys = list(keys)
        for number, key in enumerate(keys, 1):
            if len(key) < _MIN_KEY_LENGTH or not (key.isascii() and key.isprintable()):
                raise UnmaskError(f"Key {number} is invalid: keys need at least {_MIN_KEY_LENGTH} printable ASCII characters.")
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        """Whether requests need a key."""
        return bool(self._digests)

    def check(self, authorization: str) -> None:
        """Raise ApiError (401) unless the `Authorization` header holds one of the keys. Takes constant time."""
        scheme, _, key = authorization.encode("latin-1").partition(b" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, allowed) for allowed in self._digests]
        if not matches or (any(matches) and scheme.lower() == b"bearer"):
            return
        if not key.strip():
            raise ApiError(401, "This server requires an API key: send the header 'Authorization: Bearer KEY'.")
        message = "The API key is not valid: send 'Authorization: Bearer KEY' with one of the server's keys."
        raise ApiError(401, message, code="invalid_api_key")


def read_keys(file: Path | None, environment: Mapping[str, str]) -> ApiKeys:
    """Read keys from a file (one per line, `#` starts a comment) or from UNMASK_API_KEYS (separated by spaces or commas)."""
    if file is None:
        return ApiKeys(environment.get(KEYS_VARIABLE, "").replace(",", " ").split())
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()  # some editors write a byte-order mark
    except UnicodeDecodeError as error:
        raise UnmaskError(f"'{file}' is not a UTF-8 text file.") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise UnmaskError(f"'{file}' contains no key: write one per line.")
    return ApiKeys(keys)


def require_keys(host: str, keys: ApiKeys, no_keys: bool) -> None:
    """Raise UnmaskError if other machines could use the server without a key and the user has not allowed it."""
    if keys and no_keys:
        raise UnmaskError(f"Give either keys (--keys FILE or {KEYS_VARIABLE}) or --no-keys, not both.")
    if not keys and not no_keys and not is_loopback(host):
        raise UnmaskError(
            f"Other machines can reach a server on '{host}'. Give keys (--keys FILE or {KEYS_VARIABLE}), "
            "or --no-keys to serve everyone."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a host."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnmaskError(f"'{host}' is not an address of this machine.") from error
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in addresses)


def local_hosts(address: str) -> frozenset[str]:
    """The values of `Host`, without port, that a server on a loopback address accepts; empty for other addresses."""
    if not is_loopback(address):
        return frozenset()
    return frozenset({*LOOPBACK_HOSTS, f"[{address}]" if ":" in address else address})


def require_host(host: str, allowed: Collection[str]) -> None:
    """Raise ApiError (421) for a `Host` that is not allowed."""
    if host.lower() not in allowed:
        raise ApiError(421, f"Use this server as {' or '.join(sorted(allowed))}: it does not answer under other names.")


def is_cross_origin(headers: Mapping[str, str]) -> bool:
    """Whether a web page of another origin sent a request whose `Host` was checked."""
    site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
    return site not in ("same-origin", "none") or origin not in (None, f"http://{headers['host'].lower()}")


def parse_origin(origin: str) -> str:
    """Normalise an origin as browsers send it, or `*`."""
    normalized = origin.lower().removesuffix("/")
    if normalized != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", normalized):
        raise UnmaskError(f"--cors-origin '{origin}' is not an origin: give one such as https://app.example, or '*' for all.")
    return normalized


def decode_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """ASGI headers as text, by lower-case name."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
