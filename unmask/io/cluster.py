"""Ray clusters: to join one, and to say in one sentence what failed on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from socket import create_connection
from typing import Any, Final

from unmask.errors import UnmaskError, require_package

_PATIENCE: Final = 10.0
"""Seconds to wait for a machine to answer."""


def join(address: str) -> Any:
    """The module `ray`, connected. address: of a cluster; "local" starts one on this machine. A connection that is there is kept.

    Without an address, Ray would join the cluster that anyone started last on this machine, and end with it.

    Raises UnmaskError without Ray, and ConnectionError or an error of Ray if the address does not answer as a cluster.
    """
    require_package("ray")
    import ray

    if not ray.is_initialized():
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if port.isdigit():  # else "local" or "auto"; Ray would try an address where nothing answers for minutes
            try:
                create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
            except (OSError, OverflowError) as error:
                raise ConnectionError(f"nothing answers at {address} ({error}).") from error
        ray.init(address=address, include_dashboard=False, log_to_driver=False, configure_logging=False)
    return ray


@contextmanager
def report_failures(action: str) -> Iterator[None]:
    """Turn a failure in another process into one sentence. Ray reports it by the traceback of that process."""
    from ray.exceptions import RayError

    try:
        yield
    except (RayError, ConnectionError) as error:
        cause = getattr(error, "cause", None)  # of a task; that of an actor which could not be made stands in the last line
        lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
        reason = (lines[-1] if lines else type(error).__name__).removeprefix("unmask.errors.UnmaskError: ")
        raise UnmaskError(f"{action} failed: {reason}") from error
