"""The Dockerfile: no rights, a check of health, nothing that the build lacks, and a command that the program has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.test_docs import parse

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
STEPS = [line.split(maxsplit=1) for line in re.sub(r"\\\n\s*", "", TEXT).splitlines() if line and not line.startswith("#")]


def values(instruction: str) -> list[str]:
    return [value for name, value in STEPS if name == instruction]


def test_a_linter_finds_nothing() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, "--no-color", ROOT / "docker" / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_runs_without_rights() -> None:
    names = [name for name, _ in STEPS]
    assert values("USER") == ["10001"] and "sudo" not in TEXT
    assert names.index("USER") > max(place for place, name in enumerate(names) if name in ("RUN", "COPY"))


def test_it_starts_a_server_that_needs_keys() -> None:
    (entry,) = values("ENTRYPOINT")
    command = json.loads(entry)
    parse([*command[1:], "/model"])
    assert command[:2] == ["unmask", "serve"] and "--no-keys" not in command and "0.0.0.0" in command


def test_it_asks_for_its_health_where_it_listens() -> None:
    (check,) = values("HEALTHCHECK")
    program = json.loads(check[check.index("CMD") + 4 :])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "HEALTHCHECK", "exec")
    port = json.loads(values("ENTRYPOINT")[0])[-1]
    assert f"127.0.0.1:{port}/health" in program[2] and values("EXPOSE") == [port]


def test_what_it_copies_exists_and_is_not_ignored() -> None:
    kept = {
        line[1:] for line in (ROOT / "docker" / "Dockerfile.dockerignore").read_text("utf-8").splitlines() if line[0] == "!"
    }
    copied = {name for value in values("COPY") for name in value.split()[:-1]}
    assert copied == kept and all((ROOT / name).exists() for name in copied)
