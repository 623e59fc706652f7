"""Results of an invented study: claims of every verdict and form, as a run would leave them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.reporting.synthetic import SCRIPT, SPECIAL
from unmask.statistics.paired import PairedTest, wilcoxon
from unmask.studies.claims.claim import Claim, Finding, findings

CLAIMS = (
    Claim(id="holds", where="table 1", says="a is better than b.", better="a", than=("b",), kinds=("gain",)),
    Claim(id="best", where="section 2", says=f"{SCRIPT} is the best.", better=SCRIPT, than=("b", SPECIAL, "c"), how="By mean."),
    Claim(id="alike", where="table 2", says="a and c are about as good.", better="a", than=("c",), within=0.5),
    Claim(id="cheap", where="table 3", says="a costs little.", better="a", than=("d",), costs=2.0),
    Claim(id="wide", where="figure 1", says="d is better than c.", better="d", than=("c",)),
    Claim(id="left out", where="figure 2", says="e is better than a and f.", better="e", than=("a", "f")),
    Claim(id="grows", where="figure 3", says="It grows.", untestable="No model is small enough."),
)
VERDICTS = {
    "best": "refuted",
    "wide": "undecided",
    "holds": "confirmed",
    "alike": "confirmed",
    "cheap": "confirmed",
    "left out": "not measured",
    "grows": "not wired",
}
"""What becomes of them, in the order of the page."""


def paired(difference: float, noise: float = 0.1) -> PairedTest:
    """A test over 16 tasks."""
    values = np.random.default_rng(0).normal(size=16)
    return wilcoxon(difference + noise * (values - values.mean()) / values.std(ddof=1), np.zeros(16))


def made_findings() -> list[Finding]:
    """The claims with their verdicts. The differences of `holds` are in another unit."""
    tests = {
        ("holds", "b"): paired(0.03, 0.001),
        ("best", "b"): paired(1.0),
        ("best", SPECIAL): paired(-0.5),
        ("best", "c"): paired(0.0),
        ("alike", "c"): paired(0.0),
        ("cheap", "d"): paired(-1.0),
        ("wide", "c"): paired(2.0, 60.0),
        ("left out", "a"): paired(1.0),
    }
    return findings(CLAIMS, tests, lambda claim: "nats per token" if claim.id == "holds" else "points")


def made(**changed: Any) -> dict[str, Any]:
    """The content of `results.json`."""
    content: dict[str, Any] = {
        "study": "moee",
        "paper": f"A paper {SCRIPT}",
        "model": "/somewhere/base & model",
        "command": "unmask reproduce moee --scale small -m 'base & model' -o moee",
        "scale": "small",
        "finished": True,
        "claims": [one.model_dump(mode="json") for one in made_findings()],
        "tables": [
            {
                "title": "Scores",
                "columns": ["", "seeds", "sts"],
                "rows": [["a", "3", "-0.5"], [SPECIAL, "1", "\u202e7"]],
                "note": "In %.",
            }
        ],
        "data": {"stsb": "2053f6dbb8996e90", SCRIPT: "1"},
        "versions": {"unmask": "0.1.0", "torch": "2.13.0"},
        "hardware": "cpu (x86_64, 2 cores)",
        "date": "2026-11-22",
    }
    return {**content, **changed}
