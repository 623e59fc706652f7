"""The plan of the study: models, lessons, amount of training, and every mixture that it compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import Field

from unmask.errors import UnmaskError, unknown
from unmask.moe.experts.lessons.domain import load_domain
from unmask.moe.experts.lessons.specialise import FEWEST_SEEDS
from unmask.moe.experts.router import Balance, RouterOptions
from unmask.moe.mixture.gating import Routing
from unmask.moe.names import LossAverage
from unmask.studies.claims.claim import Claim
from unmask.studies.mixtures import LearningPlan
from unmask.studies.plan import digest_of, read_plan

PAPER: Final = "Self-MoE (arXiv 2406.12034)"
HUMAN, SELF = "human lessons", "self-written"
WITH_HUMAN: Final = f"With {HUMAN}: "
COMPARED_LESSONS: Final = (f", {HUMAN}", f", {SELF}")
"""How rows end that compare lessons."""


@dataclass(frozen=True)
class Variant:
    """A mixture of the study: how it routes, and how its router learns."""

    about: str
    routing: Routing = field(default_factory=Routing)
    options: RouterOptions = field(default_factory=RouterOptions)
    average: LossAverage = "example"
    shared: bool = False
    """Whether the instance-merged expert is used for every token too."""
    untrained: bool = False


MIXSE: Final = "MiXSE"
VARIANTS: Final[dict[str, Variant]] = {
    MIXSE: Variant("one router for all blocks; trained with all experts, used with the best expert of each token"),
    "layer routers": Variant("a router for each block", Routing("layer")),
    "final router": Variant("one decision for all blocks, after a first forward pass (X-LoRA)", Routing("final")),
    "prototypes": Variant(
        "an untrained router: the mean state of each domain", options=RouterOptions(start="prototypes"), untrained=True
    ),
    "from prototypes": Variant("starts as prototypes, then trained", options=RouterOptions(start="prototypes")),
    "sequence level": Variant(
        "as from prototypes, but it routes the text so far, not the single token",
        Routing(level="sequence"),
        RouterOptions(start="prototypes"),
    ),
    "trained top-1": Variant("one expert for each token in training too", options=RouterOptions(train_top_k=1)),
    "token mean": Variant("the loss is a mean over tokens, not over examples", average="token"),
    "balanced": Variant("with a load-balancing loss over each training step", options=RouterOptions(balance=Balance(0.1))),
    "shared expert": Variant("the instance-merged expert is used for every token too", shared=True),
    "joint top-1": Variant("new experts, trained together with the router", options=RouterOptions(train_top_k=1, joint=True)),
    "joint top-2": Variant(
        "as joint top-1, with two experts for each token", Routing(top_k=2), RouterOptions(train_top_k=2, joint=True)
    ),
}
ABLATIONS: Final = tuple(name for name in VARIANTS if name != MIXSE)
"""The mixtures that a plan may leave out."""
INSTANCE: Final = "instance"
RENORMALISED: Final = "renormalised"
CHOICES: Final = (RENORMALISED, "top-2", f"top-2 {RENORMALISED}", "all", "random", "uniform")
"""Other routings with the trained router of MiXSE."""


class SelfMoEPlan(LearningPlan):
    """The settings of the study at one scale."""

    seeds: dict[str, str] = Field(min_length=2)
    """A file of lessons for each domain, below the data folder or `starter:NAME`."""
    lessons: Literal["seeds", "written"]
    """"seeds" uses these lessons; "written" lets the model write its own from 100 of them."""
    sizes: tuple[int, ...] = ()
    """More numbers of lessons, for the curve over the amount of data."""
    fewer_experts: bool = True
    """Whether there are mixtures of the first 2, 3, .. experts."""
    written: int = Field(default=0, ge=0)
    """Lessons of each domain that a model writes; their experts are compared with experts on as many seeds (0: none)."""
    writer: str = ""
    """The model that writes them; the base if empty."""
    abilities: dict[str, str | Literal[False]] = Field(default={})
    """Ability tests with their files below the data folder (empty: the harness's data; false: no such test), `limit` items of each."""
    limit: int | None = Field(default=None, ge=1)
    run_code: bool = False
    """Needed by tests of code."""
    unsandboxed_code: bool = False
    """Required for tests that execute code without a sandbox."""
    answers: dict[str, str | Literal[False]] = Field(default={})
    """Ability tests whose right answers are measured by likelihood, with their files (false: no such test), `limit` items of each."""
    multiple_choice: dict[str, str | Literal[False]] = Field(default={})
    """Ability tests asked as a choice between answers, with their files (`#64` after a file: 64 items; false: no such test)."""
    ablations: tuple[str, ...] = ABLATIONS
    """The other mixtures."""
    ties_density: float = 0.2
    dare_density: float = 0.5
    seed: int = 0
    claims: tuple[Claim, ...] = ()
    """What the paper says of rows of the tables. `kinds` are domains, or ability tests of a row of answers or choices."""

    @property
    def requested_abilities(self) -> dict[str, str]:
        """The ability tests with their files, without those that are left out."""
        return {name: file for name, file in self.abilities.items() if file is not False}

    @property
    def requested_answers(self) -> dict[str, str]:
        """The tests whose right answers are measured, with their files."""
        return {name: file for name, file in self.answers.items() if file is not False}

    @property
    def requested_choices(self) -> dict[str, str]:
        """The tests that are asked as a choice, with their files."""
        return {name: file for name, file in self.multiple_choice.items() if file is not False}


def allowed_values(_: SelfMoEPlan) -> dict[str, list[str]]:
    """What a setting may hold, by the key of the setting."""
    return {"ablations": list(ABLATIONS)}


def load_plan(study: str, scale: str, settings: Iterable[str] = (), _: str | None = None) -> SelfMoEPlan:
    """The plan at a scale, changed by `key=value` settings. Raises UnmaskError with the name of a wrong key."""
    plan = read_plan(study, SelfMoEPlan, scale, settings)
    if large := [size for size in plan.sizes if size >= plan.number]:
        raise UnmaskError(f"self-moe: sizes must be below number ({plan.number}), and {large[0]} is not.")
    if plan.written and plan.lessons == "written":
        raise UnmaskError(
            "self-moe: with lessons = 'written' all lessons are written, so there are none to compare with. Set written=0."
        )
    if plan.written and not FEWEST_SEEDS <= plan.number >= plan.written:
        raise UnmaskError(
            f"self-moe: {plan.written} written lessons are compared with as many seeds, and written from {FEWEST_SEEDS} or more. Here "
            f"number is {plan.number}."
        )
    for name in plan.seeds if plan.written else ():
        load_domain(name)
    for name in plan.ablations:
        if name not in ABLATIONS:
            raise unknown("ablation", name, ABLATIONS)
    return plan.model_copy(update={"claims": tuple(_claims_about(plan))})


def _claims_about(plan: SelfMoEPlan) -> Iterator[Claim]:
    """The claims as the lessons of the plan make them. The paper is about written lessons, so with human ones they are questions of ours.

    If all lessons are written, there are no rows that compare both.
    """
    for claim in plan.claims:
        compares_both = any(row.endswith(COMPARED_LESSONS) for row in (claim.better, *claim.than))
        if plan.lessons == "seeds" and not compares_both:
            where = claim.where if claim.is_own else f"our question, after {claim.where}"
            yield claim.model_copy(update={"says": f"{WITH_HUMAN}{claim.says}", "where": where})
        elif plan.lessons == "seeds" or not compares_both:
            yield claim


def rests_on(names: Iterable[str]) -> dict[str, str]:
    """Digests of mixtures, by name: of how they route and learn, not of the words about them."""
    return {f"mixture {name}": digest_of({**vars(VARIANTS[name]), "about": ""}) for name in names}
