"""Tables of the study: what each configuration gives by the three yardsticks, what goes with distinct routing, verdicts on papers."""

from __future__ import annotations

from collections.abc import Mapping

from unmask.statistics.paired import PairedTest, better_side
from unmask.statistics.rank_correlation import RankCorrelation
from unmask.studies.routers.analysis import Row
from unmask.studies.routers.configurations import CONFIGURATIONS, EMBEDDINGS, reference_of
from unmask.studies.sheet import Sheet

_COMPARED = (
    "Each difference is the row minus the configuration that it is compared with (named below). Its interval is corrected for all tests of "
    "the column (Holm), and * marks a difference that the test shows. Tests need two seeds."
)

_MEASURES = {
    "confidence": "confidence", "balance": "balance", "distinctness": "distinctness", "max violation": "max violation",
    "repetition": "repetition", "vocabulary specialisation": "vocabulary", "layer agreement": "layers",
    "specialisation": "specialisation",
}  # fmt: skip


def routing_and_prediction(rows: Mapping[str, Row]) -> Sheet:
    """How distinct routing is, and how well held-out responses are predicted: one line for each configuration."""
    lines = tuple(
        (
            name,
            "" if row.information is None else f"{row.information:.3f}",
            _difference(row.tests.get("information"), 3),
            "" if row.best_information is None else f"{row.best_information:.3f}",
            "" if row.strength is None else f"{row.strength:.2f}",
            f"{row.gain:.3f}",
            _difference(row.tests.get("gain"), 3),
        )
        for name, row in rows.items()
    )
    note = (
        "I(D;E): how much the first expert of a response token tells about its domain, without chance. 0 is nothing, 1 is all that so many "
        "domains and experts allow. It is the mean over routing points and seeds. Best point: the same at the routing point where it is "
        "highest. Strength: mean sum of the gates of a token. Gain: "
        f"nats per token of held-out responses below the base model; other domains have other gains. {_COMPARED}"
    )
    return Sheet(
        "Distinct routing, and prediction",
        ("", "I(D;E)", "difference", "best point", "strength", "gain", "difference"),
        lines,
        note,
    )


def measures(rows: Mapping[str, Row]) -> Sheet:
    """What routing is like by all measures: one line for each configuration that has a router of its own."""
    lines = tuple(
        (name, *(f"{row.measures[measure]:.2f}" if measure in row.measures else "" for measure in _MEASURES))
        for name, row in rows.items()
        if row.measures
    )
    note = (
        "Means over routing points and seeds, of whole texts, with what chance gives taken off. Confidence: the largest probability of a "
        "token. Balance: 1 if all experts are used alike. Distinctness: balance minus uncertainty; 0 if all tokens are routed alike. Max "
        "violation: the largest load / the mean load - 1. Repetition: neighbouring tokens with one first choice. Vocabulary: how much the "
        "token id decides the expert. Layers: how much the expert of one routing point tells about that of the next, if there is one. "
        "Specialisation: how far the experts of one domain differ from those of all."
    )
    return Sheet("All measures of routing", ("", *_MEASURES.values()), lines, note)


def embeddings(rows: Mapping[str, Row], base: float) -> Sheet:
    """How good the embeddings are: one line for each configuration that was embedded with. base: the score of the base model."""
    lines = tuple(
        (
            name,
            f"{row.scores['hidden']:.1f}",
            *(part for one in EMBEDDINGS for part in (f"{row.scores[one]:.1f}", _difference(row.tests.get(one), 1))),
        )
        for name, row in rows.items()
        if row.scores
    )
    note = (
        "Mean score over the tasks in percent: PromptEOL's hidden state (HS), routing weights (RW), both side by side, sum of both "
        f"similarities, all standardised alike. HS of the base model: {base:.1f}. {_COMPARED}"
    )
    columns = ("", "HS", "RW", "difference", "concat", "difference", "sum", "difference")
    return Sheet("Embeddings", columns, lines, note)


def correlations(found: Mapping[str, RankCorrelation]) -> Sheet:
    """Does distinct routing go with something else?"""
    lines = tuple(
        (
            name, f"{value.rho:+.2f}", f"{value.interval[0]:+.2f} .. {value.interval[1]:+.2f}", f"{value.p:.3f}", f"{value.n}",
            f"{value.detectable:.2f}",
        )
        for name, value in found.items()
    )  # fmt: skip
    note = (
        "Spearman's correlation with I(D;E) over configurations, each the mean of its seeds. The interval is Fisher's; p is by "
        "permutation, corrected for all rows (Holm). The configurations are a chosen list, no random sample. Detectable: a true "
        "correlation of this size is found in 80 % of studies with so many configurations."
    )
    return Sheet("What goes with distinct routing", ("", "rho", "95 %", "p", "n", "detectable"), lines, note)


def legend() -> str:
    """What the configurations are, as Markdown."""
    lines = [
        f"- **{name}**: {how.about}." + f" Compared with {reference_of(name)}." * (reference_of(name) != name)
        for name, how in CONFIGURATIONS.items()
    ]
    return "\n".join(["## What the configurations are", *lines]) + "\n"


def _difference(test: PairedTest | None, decimals: int) -> str:
    if test is None:
        return ""
    low, high = test.interval
    return f"{test.difference:+.{decimals}f} [{low:+.{decimals}f}, {high:+.{decimals}f}]{'*' if better_side(test) else ''}"
