"""The glossary has every name that designs, recipes and tasks allow, and each term once, in order."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import cases
from unmask.designs.design import ATTENTIONS, FEATURES, POOLINGS, ROUTINGS
from unmask.designs.presets import PRESETS
from unmask.designs.prompts import PROMPTS
from unmask.tasks.kinds import KINDS
from unmask.training.stages import STAGES

GLOSSARY = (Path(__file__).parents[1] / "docs/reference/glossary.md").read_text(encoding="utf-8")
NAMES = {name for family in (ATTENTIONS, FEATURES, POOLINGS, ROUTINGS, PRESETS, PROMPTS, KINDS, STAGES) for name in family}


@cases("name", sorted(NAMES))
def test_a_name_that_users_type_is_explained(name: str) -> None:
    cells = [row.split("|")[1] for row in GLOSSARY.splitlines() if row.startswith("|")]
    assert any(f"`{name}`" in cell for cell in cells)


def test_terms_are_in_order_and_come_once() -> None:
    terms, names = re.split("^## ", GLOSSARY, flags=re.MULTILINE)
    listed = [row.split("|")[1].strip().lower() for row in terms.splitlines() if row.startswith("|")][2:]
    assert listed == sorted(set(listed)) and len(listed) > 60
    quoted = re.findall("`([^`]+)`", " ".join(row.split("|")[1] for row in names.splitlines() if row.startswith("| `")))
    assert len(quoted) == len(set(quoted))
