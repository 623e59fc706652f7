"""How much each way to install unmask brings: `python -m tools.install_sizes` prints packages and megabytes, as installed here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

INSTALLS = ("", "compare", "train", "experts", "export", "serve", "search", "ray", "all")


def closure(extra: str = "") -> dict[str, Distribution]:
    """Every distribution that `pip install 'unmask[extra]'` installs beside unmask, by name, as they are installed here."""
    return {name: package for name, package in _walk("unmask", frozenset({extra} - {""}), {}).items() if name != "unmask"}


def files(package: Distribution) -> Iterator[Path]:
    """The files of a distribution that exist."""
    for file in package.files or []:
        if (path := Path(str(file.locate()))).is_file():
            yield path


def _walk(
    name: str, extras: frozenset[str], known: dict[str, Distribution], seen: set[tuple[str, str]] | None = None
) -> dict[str, Distribution]:
    from packaging.requirements import Requirement

    seen = set() if seen is None else seen
    try:
        known[_plain(name)] = package = distribution(name)
    except PackageNotFoundError:
        return known
    for line in package.requires or []:
        requirement = Requirement(line)
        wanted = [
            extra for extra in ("", *sorted(extras)) if not requirement.marker or requirement.marker.evaluate({"extra": extra})
        ]
        step = (_plain(requirement.name), ",".join(sorted(requirement.extras)))
        if wanted and step not in seen:
            seen.add(step)
            _walk(requirement.name, frozenset(requirement.extras), known, seen)
    return known


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Print a row for each extra that exists."""
    extras = distribution("unmask").metadata.get_all("Provides-Extra") or []
    for extra in (install for install in INSTALLS if not install or install in extras):
        packages = closure(extra)
        size = sum(path.stat().st_size for package in packages.values() for path in files(package))
        without = size - sum(path.stat().st_size for path in files(packages["torch"]))
        name = f"unmask[{extra}]" if extra else "unmask"
        print(f"{name:18} {len(packages):4} packages {size / 1e6:6.0f} MB, {without / 1e6:5.0f} MB of them beside torch")


if __name__ == "__main__":
    main()
