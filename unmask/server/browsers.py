"""Browsers: keeps the web pages that a user has open away from a server that listens for this machine only.

Any page can make its browser send requests to such a server. The `Host` header is checked, since a name of somebody else may lead to this
machine (DNS rebinding). `Origin` and `Sec-Fetch-Site` are checked, since no page can change them. Programs send neither of these two.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from unmask.errors import UnmaskError
from unmask.server.keys import is_loopback
from unmask.server.protocol import ApiError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Hosts, as URLs write them, that lead to this machine wherever they are looked up."""


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers of a request by name."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def local_names(address: str) -> frozenset[str]:
    """The hosts that a server on this IP address answers to, as URLs write them. None if other machines reach the address."""
    if not is_loopback(address):
        return frozenset()
    return frozenset({*LOOPBACK_NAMES, f"[{address}]" if ":" in address else address})


def without_port(host: str) -> str:
    """The name in a `Host` header."""
    return re.sub(r":\d*$", "", host)


def require_host(host: str, allowed: Collection[str]) -> None:
    """Raise ApiError for a request to a host that is not ours. Case does not matter."""
    if host.lower() not in allowed:
        raise ApiError(421, f"Ask for this server as {' or '.join(sorted(allowed))}: it answers under no other name.")


def require_no_other_page(headers: Mapping[str, str]) -> None:
    """Raise ApiError for a request of a web page that is not ours. The `Host` header is ours."""
    if is_other_page(headers):
        raise ApiError(403, "A web page of another site may not use this server.")


def is_other_page(headers: Mapping[str, str]) -> bool:
    """Whether a web page of another origin sent this request. The `Host` header is ours."""
    site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
    return site not in ("same-origin", "none") or origin not in (None, f"http://{headers['host'].lower()}")


def parse_origin(origin: str) -> str:
    """The origin of web pages as browsers send it, or `*` for all. Raises UnmaskError for anything else."""
    normalized = origin.lower().removesuffix("/")
    if normalized != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", normalized):
        raise UnmaskError(f"--cors-origin '{origin}' is not an origin: give one such as https://app.example, or '*' for all.")
    return normalized
