"""Router configurations: each differs from the one that it is compared with in a single respect, where that is possible.

Two differ in more. `top-2` acts with two experts in training and afterwards. `anchored`, our own structure, is a whole of four choices.

The standard configuration is the recipe of docs/experts.md: one router for all blocks, each block decides for each token, all experts act
while the router learns, the best one acts afterwards, no loss for balance, experts trained beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from unmask.moe.experts.router import Balance, RouterOptions
from unmask.moe.mixture.gating import Routing
from unmask.studies.plan import digest_of

Embedding = Literal["routing", "concat", "sum"]
"""Embeddings that routers take part in: routing weights, their concatenation with the hidden state, and the sum of both similarities."""
Yardstick = Literal["information", "gain", Embedding]
"""I(D;E); nats per token less than the base model; scores of embeddings."""
EMBEDDINGS: Final[tuple[Embedding, ...]] = get_args(Embedding)
UNITS: Final[Mapping[Yardstick, str]] = {
    "information": "I(D;E)", "gain": "nats per token", "routing": "points", "concat": "points", "sum": "points"
}  # fmt: skip
STANDARD: Final = "standard"
OWN: Final = "anchored"
"""Our own structure."""


@dataclass(frozen=True)
class Configuration:
    """One way to build and use a mixture.

    factor: the question that it belongs to. domains: the set of lessons. experts: number of experts that share the domains; None gives each
    domain its own expert. shared: an expert trained on every domain acts on every token too. choice: another use of the standard
    configuration's router, without training (see `unmask.moe.mixture.model`; "oracle" is the expert of the text's domain).
    anchored: experts start at the first layer that tells the domains apart well, and this layer decides for all above it.
    """

    factor: str
    about: str
    routing: Routing = field(default_factory=Routing)
    options: RouterOptions = field(default_factory=RouterOptions)
    domains: str = "far"
    experts: int | None = None
    shared: bool = False
    untrained: bool = False
    choice: str | None = None
    anchored: bool = False


_PROTOTYPES = RouterOptions(start="prototypes")

CONFIGURATIONS: Final[dict[str, Configuration]] = {
    STANDARD: Configuration("", "one router for all blocks; trained with all experts; the best expert of each token acts"),
    **{
        f"balance {over} {weight:g}": Configuration(
            "balance", f"load-balancing loss of weight {weight:g}, counted over {counted}",
            options=RouterOptions(balance=Balance(weight, over)),  # type: ignore[arg-type]
        )
        for over, counted in (("pass", "each forward pass"), ("step", "the passes of a training step so far"))
        for weight in (0.01, 0.1, 1.0)
    },
    "trained top-1": Configuration("experts per token", "the best expert alone acts in training too", options=RouterOptions(1)),
    "top-2": Configuration("experts per token", "the best two act, in training too", Routing(top_k=2), RouterOptions(2)),
    "soft": Configuration("experts per token", "all experts act, weighted by their gates", Routing(top_k=4)),
    "random": Configuration("choice", "a random expert acts, as strongly as the chosen one", choice="random"),
    "uniform": Configuration("choice", "every expert acts with a gate of 1/n", choice="uniform"),
    "oracle": Configuration("choice", "the expert of the text's domain acts alone", choice="oracle"),
    "renormalised": Configuration("choice", "the chosen expert acts at full strength", choice="renormalised"),
    "shared expert": Configuration("shared expert", "an expert of all domains acts on every token too", shared=True),
    "layer routers": Configuration("router", "each block has a router of its own", Routing("layer")),
    "final router": Configuration("router", "one decision from the last state of a pass without experts", Routing("final")),
    "by text so far": Configuration("unit", "decides by the text so far, not by the token", Routing(level="sequence")),
    "by ten layers": Configuration("unit", "ten layers share the decision of the first one", Routing(span=10)),
    "prototypes": Configuration("start", "an untrained router: the mean state of each domain", options=_PROTOTYPES, untrained=True),
    "from prototypes": Configuration("start", "starts as prototypes, then trained", options=_PROTOTYPES),
    "joint top-1": Configuration(
        "joint training", "new experts learn with the router, one for each token", options=RouterOptions(1, joint=True)
    ),
    "joint top-2": Configuration(
        "joint training", "new experts learn with the router, two for each token", Routing(top_k=2), RouterOptions(2, joint=True)
    ),
    "near domains": Configuration("domains", "the experts learned from four school subjects", domains="near"),
    **{
        f"{number} experts": Configuration(
            "number of experts", f"16 domains shared by {number} experts", domains="sixteen", experts=number
        )
        for number in (2, 4, 8, 16)
    },
    OWN: Configuration(
        "own structure",
        "one decision for all layers above the first that tells domains apart well, by the text so far, from prototypes",
        Routing(level="sequence"), _PROTOTYPES, anchored=True,
    ),
}  # fmt: skip
"""Every configuration by its name, in the order of the tables."""


_OTHER_BASELINES: Final = {
    "oracle": "renormalised", "soft": "renormalised", "joint top-1": "trained top-1", "joint top-2": "top-2",
}  # fmt: skip
SAME_ROUTER: Final = frozenset({"soft"})
"""Configurations that train the same router as the standard one, with the same result. They only use it in another way."""


def baseline_of(name: str) -> str:
    """The configuration that another one is compared with, or the name itself if it is not compared.

    Numbers of experts are compared with 4 experts for the same domains. What acts at full strength is compared with the router's choice at
    full strength, since strength alone changes much.
    """
    if CONFIGURATIONS[name].experts:
        return "4 experts"
    return _OTHER_BASELINES.get(name, STANDARD)


def digest(name: str) -> str:
    """The digest of a configuration: of how it is built and used, not of the words about it."""
    return digest_of({**vars(CONFIGURATIONS[name]), "factor": "", "about": ""})


def rests_on(names: Iterable[str]) -> dict[str, str]:
    """Digests of configurations, by name."""
    return {f"configuration {name}": digest(name) for name in names}
