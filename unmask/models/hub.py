"""The hub: files of a model on the model hub, without a long wait if the hub cannot be reached.

The client of the hub tries each file six times, with pauses of up to a minute in all. So one short request first checks whether the hub
answers. If it does not, only files that were downloaded before are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from threading import Lock
from time import monotonic

from unmask.errors import UnmaskError, cause_of
from unmask.models.bundled import BUNDLED

_PATIENCE = 5.0
"""Seconds to wait for an answer of the hub."""

_ADAPTER = "adapter_config.json"


_ASKED_AGAIN = 60.0
"""Seconds for which the outcome of a check is kept."""


class _Asked:
    """The number of blocks that rely on the last check now, and the client's own switch before them."""

    def __init__(self) -> None:
        self.lock, self.blocks, self.before = Lock(), 0, False


_asked = _Asked()


@contextmanager
def no_long_wait() -> Iterator[None]:
    """Inside a `with` block, use only downloaded files if the hub does not answer."""
    from huggingface_hub import constants

    with _asked.lock:  # threads share the client's switch: the first one sets it, the last one restores it
        if not _asked.blocks:
            _asked.before = constants.HF_HUB_OFFLINE
            constants.HF_HUB_OFFLINE = _asked.before or not _answers(monotonic() // _ASKED_AGAIN)
        _asked.blocks += 1
    try:
        yield
    finally:
        with _asked.lock:
            _asked.blocks -= 1
            if not _asked.blocks:
                constants.HF_HUB_OFFLINE = _asked.before


@cache
def _answers(_: float) -> bool:
    """Whether the hub answers, asked once in each period."""
    from huggingface_hub import close_session, constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)  # any status is an answer
        return True
    except Exception:  # which classes the client raises depends on its version
        close_session()
        return False


def hub_file(name: str, file: str, revision: str | None) -> Path | None:
    """A file of a model on the hub, downloaded or from the cache. None if the model is known to have no such file.

    Raises UnmaskError if the hub does not have the model, or does not answer and the cache does not know.
    """
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        with no_long_wait():
            return Path(hf_hub_download(name, file, revision=revision))
    except HFValidationError as error:
        raise UnmaskError(hub_failure(name, error)) from error
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        absent = isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)
        if absent or try_to_load_from_cache(name, file, revision=revision) is _CACHED_NO_EXIST:  # as the hub has said before
            return None
        raise UnmaskError(hub_failure(name, error)) from error


def hub_folder(name: str, file: str, revision: str | None, patterns: Sequence[str] | None = None) -> Path | None:
    """The downloaded files of a model on the hub that has this file. None if it lacks the file, or if the hub does not give it.

    patterns: download only files of these names. Raises UnmaskError if the hub gives this file and not the others.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        downloaded = hub_file(name, file, revision)
    except UnmaskError:
        return None  # loading then gives the reason
    if downloaded is None:
        return None
    try:
        with no_long_wait():
            return Path(
                snapshot_download(
                    name, revision=downloaded.parent.name, allow_patterns=None if patterns is None else list(patterns)
                )
            )
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise UnmaskError(hub_failure(name, error)) from error


def hub_commit(name: str, revision: str | None) -> str:
    """The commit of a model or adapter on the hub. Raises UnmaskError if the hub does not have it, or does not answer."""
    for config in ("config.json", _ADAPTER):
        if (file := hub_file(name, config, revision)) is not None:
            return file.parent.name
    raise UnmaskError(f"'{name}' is on the hub, but it is not a model: config.json is missing.")


def hub_failure(name: str, error: Exception) -> str:
    """The error message for a name that is neither a folder nor a bundled model nor on the hub, with the hub's answer."""
    nearest = get_close_matches(name, BUNDLED, n=1)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
    offline = " HF_HUB_OFFLINE is set, so only its cache was tried." if os.environ.get("HF_HUB_OFFLINE") == "1" else ""
    return (
        f"'{name}' is neither a folder nor a bundled model ({', '.join(BUNDLED)}), and it could not be downloaded.{hint}{offline} "
        f"The hub said: {cause_of(error)}"
    )
