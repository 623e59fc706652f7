"""The Chromium that the tests and the pictures of the docs are looked at with."""

import shutil
from typing import Final

CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None
)
"""The first that there is. The shell has no window to draw: a page takes half of the time."""
