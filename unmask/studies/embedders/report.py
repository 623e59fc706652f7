"""The report of a study of embedders on one base model: report.md with the claims first, then the scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from unmask.io.files import atomic
from unmask.studies.claims.page import claims_sheet, short_sheet, summary
from unmask.studies.embedders.run import Findings
from unmask.studies.results import REPORT
from unmask.studies.sheet import Sheet


def sheets(findings: Findings) -> Iterator[Sheet]:
    """For a terminal: scores by kind of task, then the claims in short."""
    yield _scores(findings)
    yield short_sheet(findings.claims)


def write_report(findings: Findings, folder: Path) -> list[Sheet]:
    """Write the report; its tables, without the one of claims."""
    named = "\n".join(
        f"- **{name}**: `{reading.design}` of {reading.model}" for name, reading in findings.plan.measured.items()
    )
    if findings.plan.reference in findings.scored:
        named += f"\n- **{findings.plan.reference}**: a sentence-transformers model, as a yardstick"
    head = f"# {findings.plan.paper} on {findings.model}\n\n{summary(findings.claims)}\n"
    tables = [_scores(findings), *_agreements(findings)]
    shown = [sheet.markdown() for sheet in (claims_sheet(findings.claims), *tables)]
    with atomic(folder / REPORT) as scratch:
        scratch.write_text("\n".join([head, *shown, "## What the embedders are", named, ""]), encoding="utf-8")
    return tables


def _agreements(findings: Findings) -> Iterator[Sheet]:
    """For each claim about agreement: how far both sides agree, task by task."""
    for claim in findings.plan.claims:
        if found := findings.agreements.get(claim.id):
            lines = []
            for task, runs in found.items():
                one, other = 100 * np.mean([run.whole for run in runs], axis=0)
                lines.append((task, f"{one:.1f}", f"{other:.1f}", f"{one - other:+.1f}"))
            [than] = claim.than
            second = {
                "prompts": f"{than}, two prompts",
                "clusters": f"{claim.better} and {than}, two prompts",
                "clusters under one prompt": f"{claim.better} and {than}, one prompt",
            }[claim.agreement or "prompts"]
            columns = ("task", f"{claim.better}, two prompts", second, "difference")
            yield Sheet(f"Agreement: {claim.id}", columns, tuple(lines), f"In percent. {claim.how}")


def _scores(findings: Findings) -> Sheet:
    kinds = findings.kinds
    lines = []
    for name in findings.scored:
        means = [findings.mean(name, kind) for kind in kinds]
        seeds = len(findings.scored[name].runs)
        lines.append((name, f"{seeds}", *("" if mean is None else f"{mean:.1f}" for mean in means)))
    note = (
        "Main scores in percent: the mean over the tasks of a kind, and over seeds where a model was trained with several. "
        f"Tasks: {', '.join(findings.plan.tasks)}."
    )
    return Sheet("Scores", ("", "seeds", *kinds), tuple(lines), note)
