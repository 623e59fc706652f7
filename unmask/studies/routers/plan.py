"""The plan of the study: base models, sets of domains with their lessons, seeds, tasks for embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, get_args

from pydantic import Field

from unmask.errors import UnmaskError, unknown
from unmask.io.files import inside
from unmask.studies.claims.claim import Claim, check_names
from unmask.studies.learning_plan import LearningPlan
from unmask.studies.plans import PlanTable, read_plan, scales_of
from unmask.studies.routers.configurations import CONFIGURATIONS, STANDARD, Yardstick, reference_of

PAPER: Final = "Router configurations"
_FILE = Path(__file__).with_name("routers.toml")


class LessonSource(PlanTable):
    """The lessons of a domain.

    file: below the data folder, or `starter:NAME`. where: values that columns must have. instruction: turns pairs (anchor, positive) into
    lessons; response: the column of a pair that the expert writes.
    """

    file: str
    where: dict[str, tuple[str, ...]] = Field(default={})
    instruction: str | None = None
    response: Literal["anchor", "positive"] = "positive"


class RoutersPlan(LearningPlan):
    """The settings of the study at one scale.

    domains: sets of domains by name. seeds: of the routers' first weights and of the order of lessons; experts are trained once.
    fresh_seeds: for the contest of our own structure with the configuration that was best on the seeds. tasks:
    folders below the data folder, or of the starter tasks, on which embeddings are scored. embedded_length: most tokens of a text there.
    attn_implementation: as in transformers; None is its own choice. configurations: those that are measured; the ones that they are
    compared with have to be among them. claims: of papers; their kind is a yardstick of the study.
    """

    domains: dict[str, dict[str, LessonSource]]
    seeds: tuple[int, ...] = Field(min_length=1)
    fresh_seeds: tuple[int, ...] = ()
    tasks: tuple[str, ...] = Field(min_length=1)
    embedded_length: int = Field(ge=16)
    attn_implementation: Literal["eager", "sdpa"] | None = None
    configurations: tuple[str, ...] = tuple(CONFIGURATIONS)
    claims: tuple[Claim, ...] = ()


def scales() -> list[str]:
    """The names of the scales, such as `smoke`."""
    return scales_of(_FILE)


def load_plan(scale: str, settings: Iterable[str] = ()) -> RoutersPlan:
    """The plan at a scale, changed by `key=value` settings. Raises UnmaskError with the name of a wrong key."""
    plan = read_plan(_FILE, RoutersPlan, scale, settings)
    _check(plan)
    return plan


def _check(plan: RoutersPlan) -> None:
    check_names(plan.claims)
    for claim in plan.claims:
        for name in (claim.better, *claim.than):
            if name not in CONFIGURATIONS:
                raise unknown(f"configuration of claim '{claim.id}'", name, CONFIGURATIONS)
        if len(claim.kinds) != 1 or claim.kinds[0] not in get_args(Yardstick):
            raise UnmaskError(
                f"routers: the kind of claim '{claim.id}' must be one yardstick: {', '.join(get_args(Yardstick))}."
            )
    for name in plan.configurations:
        if name not in CONFIGURATIONS:
            raise unknown("configuration", name, CONFIGURATIONS)
        configuration = CONFIGURATIONS[name]
        if (reference := reference_of(name)) not in plan.configurations:
            raise UnmaskError(f"routers: '{name}' is compared with '{reference}', so the configurations must have it too.")
        domains = plan.domains.get(configuration.domains)
        if domains is None:
            raise UnmaskError(f"routers: '{name}' needs the domains '{configuration.domains}', and the plan has no such set.")
        if configuration.experts and len(domains) % configuration.experts:
            raise UnmaskError(f"routers: {len(domains)} domains cannot be shared equally by {configuration.experts} experts.")
    for domains in plan.domains.values():
        for name in domains:
            inside(Path(), name)  # the name of a domain is used for folders
    if both := set(plan.seeds) & set(plan.fresh_seeds):
        raise UnmaskError(f"routers: seed {min(both)} is not fresh, because the study uses it too.")
    if STANDARD not in plan.configurations:
        raise UnmaskError(f"routers: the configurations must have '{STANDARD}'.")
