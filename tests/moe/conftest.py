"""`unmask probe` runs here too."""

from tests.probing.conftest import run as run
