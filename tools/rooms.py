"""Draw the rooms of the package by floors, from its imports: `python -m tools.rooms` writes docs/pictures/rooms.svg in a second."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from tests.test_layout import room_graph
from tools.pictures import PICTURES, write
from unmask.reporting.svg import ACCENT, INK, SOFT, as_svg, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Graph = Mapping[str, set[str]]


def rooms() -> Graph:
    """The rooms, and what each imports; the file that starts the program is none."""
    return {room: lowers for room, lowers in room_graph().items() if room != "__main__"}


def floors(graph: Graph) -> dict[str, int]:
    """The floor of each room: 0 if it imports no other, else one above the highest room that it imports."""

    @cache
    def floor(room: str) -> int:
        return 1 + max(map(floor, graph[room]), default=-1)

    return {room: floor(room) for room in graph}


def direct(graph: Graph) -> set[tuple[str, str]]:
    """The imports that do not follow from others: a room that is also reached through a third one has no arrow."""

    @cache
    def below(room: str) -> frozenset[str]:
        return frozenset(graph[room]).union(*(below(lower) for lower in graph[room]))

    return {
        (room, lower)
        for room, lowers in graph.items()
        for lower in lowers
        if not any(lower in below(other) for other in lowers - {lower})
    }


def drawn(graph: Graph) -> Figure:
    """Rooms as boxes, floor by floor; a line leads down to a room that is imported."""
    from matplotlib.figure import Figure

    levels = floors(graph)
    top = max(levels.values())
    figure = Figure(figsize=(5.6, 0.62 * (top + 1)), layout="constrained")
    axes = figure.subplots()
    place = {}
    for level in range(top + 1):
        rooms = sorted(room for room in graph if levels[room] == level)
        for number, room in enumerate(rooms):
            shift = 0.12 * (-1) ** level  # a line to the floor after next passes beside the box between
            place[room] = ((number + 0.5) / len(rooms) + shift * (len(rooms) < 3), level)
    for upper, lower in sorted(direct(graph)):
        (x, y), (to_x, to_y) = place[upper], place[lower]
        axes.plot([x, to_x], [y, to_y], color=SOFT if y - to_y > 1 else ACCENT, linewidth=1, zorder=1)
    for room, (x, y) in place.items():
        box = {"boxstyle": "round,pad=0.45", "facecolor": "#eaf2fa", "edgecolor": ACCENT}
        axes.text(x, y, room, ha="center", va="center", color=INK, fontsize=9.5, bbox=box, zorder=2)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.5, top + 0.5))
    axes.axis("off")
    return figure


if __name__ == "__main__":
    with drawing():
        write(PICTURES / "rooms.svg", as_svg(drawn(rooms())), "The rooms of the package, floor by floor")
