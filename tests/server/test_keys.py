"""Keys: where they come from, who passes, and which addresses need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.server.keys import Keys, is_loopback, read_keys, require_keys

ONE, TWO = "one-key-of-a-client", "two-key-of-a-client"


@pytest.mark.parametrize("begin", ["", "\ufeff", "\ufeff# clients\n", "# clients\n"])
def test_keys_of_a_file(begin: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{begin}{ONE}\n\n  {TWO}  \n", encoding="utf-8")
    keys = read_keys(file, {})
    assert keys and all(keys.allow(f"Bearer {key}".encode()) for key in (ONE, TWO))


def test_keys_of_the_environment() -> None:
    keys = read_keys(None, {"UNMASK_API_KEYS": f"{ONE}, {TWO}"})
    assert all(keys.allow(f"bearer {key}".encode()) for key in (ONE, TWO))
    assert not read_keys(None, {})


@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", ONE.encode(), f"Basic {ONE}".encode(), f"Bearer {ONE[:-1]}".encode(), f"Bearer {ONE}x".encode(),
     b"Bearer \xff", b"Bearer # clients"],
)  # fmt: skip
def test_who_has_no_key_does_not_pass(header: bytes | None) -> None:
    assert not Keys([ONE, TWO]).allow(header)
    assert Keys([]).allow(header)


@pytest.mark.parametrize("content", [b"", b"# none\n", b"short\n", "schlüssel-mit-umlaut-äöü\n".encode(), b"\xff\xfe"])
def test_a_file_without_a_usable_key_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(content)
    with pytest.raises(UnmaskError) as refused:
        read_keys(tmp_path / "keys", {})
    assert "schl" not in str(refused.value) and "short" not in str(refused.value), "a message shows a key"


def test_only_this_machine_is_served_without_keys() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        require_keys(host, Keys([]), False)
    with pytest.raises(UnmaskError, match="--no-keys"):
        require_keys("0.0.0.0", Keys([]), False)
    with pytest.raises(UnmaskError, match="--no-keys"):
        require_keys("::", Keys([]), False)
    require_keys("0.0.0.0", Keys([]), True)
    require_keys("0.0.0.0", Keys([ONE]), False)
    with pytest.raises(UnmaskError, match="not both"):
        require_keys("127.0.0.1", Keys([ONE]), True)
    with pytest.raises(UnmaskError, match="no address"):
        is_loopback("no such host.invalid")
