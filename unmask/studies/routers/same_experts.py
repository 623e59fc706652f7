"""Which experts a cell was measured with. A study compares ways to route between the same experts, so its cells must not differ in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unmask.errors import UnmaskError
from unmask.moe.experts.mixing import RECORD, MixingSettings
from unmask.runs import runs
from unmask.studies.routers.configurations import CONFIGURATIONS

TOGETHER = "together"
"""The expert of all domains, which "shared expert" puts beside the others."""


def experts_of(configuration: str, mixture: Path) -> dict[str, str]:
    """The experts of a mixture, by set of domains and name: a hash of each one's weights.

    Empty if the experts learned with the router: every such mixture has its own. Raises UnmaskError for a mixture without its record.
    """
    record = runs.read(mixture, RECORD)
    if record is None:
        raise UnmaskError(f"'{mixture / RECORD}' is missing or damaged, so the experts of this mixture are unknown.")
    settings = MixingSettings.model_validate(record.settings)
    shared = {} if settings.shared is None else {TOGETHER: settings.shared}
    domains = CONFIGURATIONS[configuration].domains
    return {f"{domains}/{name}": content for name, content in (settings.experts | shared).items()}


@dataclass
class SameExperts:
    """Refuses cells of different experts. seen: each expert's hash, and the cell that it was first seen in."""

    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def require(self, cell: str, experts: Mapping[str, str]) -> None:
        """Note the experts of a cell. Raises UnmaskError if an earlier cell had another expert of the same name.

        experts: empty for a cell of an earlier version, which did not record them. Such a cell is accepted.
        """
        for name, content in experts.items():
            before, first = self.seen.setdefault(name, (content, cell))
            if before != content:
                raise UnmaskError(
                    f"The cells {first} and {cell} were measured with different experts: the weights of '{name}' were {before} and "
                    f"{content}. Their difference would not be one of routing. Restore the old expert, or remove the cells of one of "
                    "the two below `cells` to measure them again."
                )
