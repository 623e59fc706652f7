"""Lessons of two domains that differ in what follows."""

from __future__ import annotations

from unmask.moe.experts.lessons.lessons import Lesson

SUMS = [Lesson("Add the numbers.", f"The sum is {a + b}.", f"{a} and {b}", f"sums:{a}{b}") for a in range(4) for b in range(3)]
COLOURS = [Lesson(f"Name the colour of {thing}.", "It is green, as all of them are.", where=thing) for thing in "abcdefghijkl"]
DOMAINS = {"sums": SUMS, "colours": COLOURS}
