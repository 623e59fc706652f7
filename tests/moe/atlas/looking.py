"""An atlas in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Locator, Page


class Look:
    """An atlas under observation."""

    def __init__(self, page: Page, atlas: Path) -> None:
        self.page = page
        self.problems: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(atlas.as_uri())

    def _dismiss(self, dialog: Dialog) -> None:
        self.problems.append(dialog.message)
        dialog.dismiss()

    def view(self, name: str, pane: int = 0) -> Locator:
        return self.page.locator(f"#{name} .pane").nth(pane)

    def told(self, name: str, pane: int = 0) -> str:
        return self.view(name, pane).locator(".told").inner_text()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
