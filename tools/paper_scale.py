"""Write docs/paper-scale.md from the differences of recipes and studies: `python -m tools.paper_scale`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.claims import PAPERS, plan_of
from unmask.training.difference import Difference
from unmask.training.recipe import load_recipe, scales, shipped

SCALE: Final = "paper"
PAGE: Final = Path(__file__).parents[1] / "docs" / "paper-scale.md"
_HEAD: Final = """# Where the scale `paper` is not the paper

No recipe and no study was run at this scale. Hyper-parameters come from the papers, and from their code where a paper does not say them.
These rows are what differs: of a recipe (`train`) from how the paper trains, of a study (`reproduce`) from how the paper evaluates.
The rows of a recipe also hold for a study that trains by it.

The rows are part of recipes and plans. `unmask recipes show llm2vec --scale paper` and
`unmask reproduce llm2vec --scale paper --plan` print their own under `differences`. `python -m tools.paper_scale` writes this page.

| command | what | the paper | here | why |
|---|---|---|---|---|
"""


def differences() -> dict[str, tuple[Difference, ...]]:
    """The differences of each recipe and study that has the scale `paper`, by its command."""
    recipes = {f"train {name}": load_recipe(name, SCALE).differences for name in shipped() if SCALE in scales(name)}
    return recipes | {f"reproduce {study}": plan_of(study, SCALE).differences for study in PAPERS}


def page() -> str:
    """The page, as Markdown."""
    rows = [
        f"| `{command}` | {row.what} | {row.paper} | {row.here} | {row.why} |\n"
        for command, of_command in differences().items()
        for row in of_command
    ]
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
