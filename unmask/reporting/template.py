"""Fills the template of a page: one HTML file that opens from disk, runs no script but its own, and asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from unmask.io.terminal import visible

Part = tuple[str, str]
"""A package that has a folder `page`, and a file in it."""
_SHARED: Final = "unmask.reporting"
"""The package with the parts that pages share: styles, and `head.html`, which includes the `title` of a page."""
STYLE: Final[tuple[Part, ...]] = ((_SHARED, "colours.css"), (_SHARED, "report.css"))
"""The look that all pages share."""


def part(package: str, name: str) -> str:
    """The content of a file of a page."""
    return (files(package) / "page" / name).read_text(encoding="utf-8")


def fill(template: Part, styles: Sequence[Part], script: str, filters: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """The page. Every value is escaped; control characters of values are written out."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    package, name = template
    loader = ChoiceLoader([PackageLoader(package_name, "page") for package_name in (package, _SHARED)])
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, lstrip_blocks=True)
    page.filters |= filters
    html = page.get_template(name).render(
        style=Markup("".join(part(*style) for style in styles)),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **content,
    )
    return visible(html, keep="\n\r\t")
