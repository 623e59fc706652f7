"""Headless Chromium, for the tests that look at pages and for the screenshots in the docs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# the shell first: it draws no window, so a page takes half of the time
CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None
)

CONTRAST = """() => {
    const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
    const luminance = (colour) => {
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((c) => c / 255)
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (colour !== "rgba(0, 0, 0, 0)") return colour;
        }
        return "white";
    };
    const names = "h1, h1 span, h2, h3, p, a, button, th, td, li, bdi, label, time, code, small, figcaption, dt, dd, svg text";
    const texts = [...document.querySelectorAll(names)];
    return Math.min(...texts.filter((one) => one.textContent.trim() && one.getClientRects().length).map((one) => {
        const style = getComputedStyle(one);
        const [a, b] = [one.closest("svg") ? style.fill : style.color, behind(one)].map(luminance);
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }));
}"""
"""The lowest contrast of a text to what is behind it, as a script for the page."""


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser. Each test opens a context of its own in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # a container has no user namespace to put a sandbox in; the pages are our own
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()
