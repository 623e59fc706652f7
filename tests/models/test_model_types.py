"""Every text model type of the installed transformers does what the page of the documentation says."""

from __future__ import annotations

from difflib import unified_diff

from tests.model_types import PAGE, page


def test_each_model_type_has_the_status_that_the_page_says() -> None:
    """Differs: a type is new, or its status changed. Look at it, then write the page: python -m tests.model_types."""
    recorded, actual = PAGE.read_text(encoding="utf-8"), page()
    changes = "\n".join(unified_diff(recorded.splitlines(), actual.splitlines(), "recorded", "actual", lineterm="", n=0))
    assert recorded == actual, f"Look at what changed, then run `python -m tests.model_types`:\n{changes}"
