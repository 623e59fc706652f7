"""SVG: a matplotlib figure as a file, and as a part of a page that takes the page's colours and clashes with no other part."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unmask.io.terminal import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, LINE, PAPER, ACCENT, SOFT = "#1c2733", "#5b6875", "#d5dbe1", "#fefefe", "#1f5fa8", "#8fb3d9"
"""Colours of every figure; in a page each becomes the variable of that name, so that figures follow its dark mode."""

SERIES = "#2467b0", "#b35a00", "#0b7a5b", "#7a4ea0", "#a8324a", "#4d5a66"
"""Line colours, distinguishable with colour blindness when combined with their markers; `--series-0` and on in a page."""

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    PAPER: "var(--paper)",
    ACCENT: "var(--accent)",
    SOFT: "var(--soft)",
    **{colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)},
}
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib settings: text stays text, names are not parsed as formulas, identifiers do not change from run to run."""
    from matplotlib import rc_context

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "unmask",
        "text.parse_math": False,
        "text.color": INK,
        "axes.edgecolor": LINE,
        "axes.labelcolor": MUTED,
        "axes.titlecolor": INK,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.labelsize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": PAPER,
        "figure.facecolor": PAPER,
        "grid.color": LINE,
        "grid.linewidth": 0.6,
        "xtick.color": MUTED,
        "ytick.color": INK,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 9,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "font.size": 9,
    }
    with rc_context(settings):
        yield


def as_svg(figure: Figure) -> str:
    """A figure as the text of an SVG file."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return visible(stream.getvalue(), keep="\n\r\t")  # XML does not allow control characters in a name


def inline(svg: str, name: str, title: str) -> str:
    """An SVG file as an element for a page: titled, in the page's colours and fonts, its identifiers starting with `name`.

    Left out: the prologue, metadata, style sheet (its rules would hold for the whole page), and every identifier that nothing refers to.
    """
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    root = ET.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    values = [value for element in root.iter() for value in element.attrib.values()]
    referred = {value[1:] for value in values if value.startswith("#")}
    referred |= {identifier for value in values for identifier in _REFERENCE.findall(value)}
    for element in root.iter():
        for attribute, value in list(element.attrib.items()):
            if attribute == "id":
                if value not in referred:
                    del element.attrib["id"]
                    continue
                value = f"{name}-{value}"
            elif attribute == f"{{{_XLINK}}}href":
                value = f"#{name}-{value[1:]}"
            value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
            for colour, variable in _VARIABLES.items():
                value = value.replace(colour, variable)
            element.attrib[attribute] = value
    for attribute in ("width", "height"):
        root.attrib[attribute] = root.attrib[attribute].replace("pt", "")
    width = float(root.attrib["width"])
    size = " wide" if width > 450 else " narrow" if width < 350 else ""
    root.attrib |= {"role": "img", "aria-labelledby": f"{name}-title", "class": f"chart{size}"}
    heading = ET.Element(f"{{{_SVG}}}title", {"id": f"{name}-title"})
    heading.text = title
    root.insert(0, heading)
    return ET.tostring(root, encoding="unicode")
