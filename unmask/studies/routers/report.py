"""The report of the study on one base model: report.md with the conclusion first, then the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unmask.io.files import atomic
from unmask.studies.claims.page import claims_sheet
from unmask.studies.results import REPORT
from unmask.studies.routers.configurations import CONFIGURATIONS, STANDARD
from unmask.studies.routers.findings import Findings
from unmask.studies.routers.plan import PAPER, RoutersPlan
from unmask.studies.routers.tables import correlations, embeddings, legend, measures, routing_and_prediction
from unmask.studies.sheet import Sheet


def sheets(findings: Findings) -> list[Sheet]:
    """Every table that has findings."""
    return [*_tables(findings), *([claims_sheet(findings.papers)] if findings.papers else [])]


def _tables(findings: Findings) -> Iterator[Sheet]:
    """The tables without the one of claims."""
    yield routing_and_prediction(findings.rows)
    if any(row.scores for row in findings.rows.values()):
        yield embeddings(findings.rows, findings.measured.base_score)
    if findings.correlations:
        yield correlations(findings.correlations)
    yield measures(findings.rows)


def write_report(findings: Findings, folder: Path, model: str, plan: RoutersPlan) -> list[Sheet]:
    """Write the report of what was measured so far; its tables, without the one of claims."""
    anchor = findings.measured.anchor
    cells = sum(len(seeds) for seeds in findings.measured.cells.values())
    domains = ", ".join(plan.domains[CONFIGURATIONS[STANDARD].domains])
    accuracy = anchor.accuracies[anchor.layer - 1]
    head = (
        f"# {PAPER} on {model}\n\n"
        f"- {cells} of {len(plan.configurations) * len(plan.seeds)} cells are measured (configurations x {len(plan.seeds)} seeds).\n"
        f"- Domains of the standard configuration: {domains}. For each: {plan.number} lessons to learn, {plan.held_out} held out.\n"
        f"- Experts: LoRA of rank {plan.lora.r}, {plan.expert.steps} steps of {plan.batch} lessons. Routers: {plan.router.steps} steps.\n"
        f"- Embeddings: PromptEOL, standardised, on {len(plan.tasks)} tasks.\n"
        f"- Anchored routers read layer {anchor.layer}, the first that tells the domains apart well ({100 * accuracy:.0f} % of "
        f"lessons; the best layer: {100 * max(anchor.accuracies):.0f} %).\n"
    )
    found = ["## Conclusion", *(f"- {sentence}" for sentence in findings.conclusion)]
    with atomic(folder / REPORT) as scratch:
        tables = [sheet.markdown() for sheet in sheets(findings)]
        scratch.write_text("\n".join([head, *found, "", *tables, legend()]), encoding="utf-8")
    return list(_tables(findings))
