"""Ray clusters: to join one, and to say in one sentence what failed on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unmask.errors import UnmaskError, require_package


def join(address: str) -> Any:
    """The module `ray`, connected. address: of a cluster; "local" starts one on this machine. A connection that is there is kept.

    Without an address, Ray would join the cluster that anyone started last on this machine, and end with it.

    Raises UnmaskError without Ray, and ConnectionError or an error of Ray if there is no cluster at the address.
    """
    require_package("ray")
    import ray

    if not ray.is_initialized():
        ray.init(address=address, include_dashboard=False, log_to_driver=False, configure_logging=False)
    return ray


@contextmanager
def failures_told(what: str) -> Iterator[None]:
    """Turn a failure in another process into one sentence. Ray reports it by the traceback of that process."""
    from ray.exceptions import RayError

    try:
        yield
    except (RayError, ConnectionError) as error:
        raise UnmaskError(f"{what} failed: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    cause = getattr(error, "cause", None)  # of a task; that of an actor which could not be made stands in the last line
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).removeprefix("unmask.errors.UnmaskError: ")
