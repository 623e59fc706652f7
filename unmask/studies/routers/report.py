"""The report of the study on one base model: report.md with the conclusion first, then the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from unmask.io.files import atomic
from unmask.studies.routers.conclusion import conclusion
from unmask.studies.routers.configurations import CONFIGURATIONS, STANDARD
from unmask.studies.routers.plan import RoutersPlan
from unmask.studies.routers.run import Findings
from unmask.studies.routers.tables import correlations, embeddings, legend, papers, routing_and_prediction
from unmask.studies.sheet import Sheet


def sheets(findings: Findings) -> Iterator[Sheet]:
    """Every table that has findings."""
    rows = findings.rows()
    yield routing_and_prediction(rows)
    if any(row.scores for row in rows.values()):
        base = findings.bases[CONFIGURATIONS[STANDARD].domains].scores["hidden"]
        yield embeddings(rows, 100 * sum(base.values()) / len(base))
    if found := findings.correlations():
        yield correlations(found)
    if found_of_papers := findings.verdicts():
        yield papers(found_of_papers)


def write_report(findings: Findings, folder: Path, model: str, plan: RoutersPlan) -> None:
    """Write the report of what was measured so far."""
    rows = findings.rows()
    cells = sum(len(seeds) for seeds in findings.cells.values())
    domains = ", ".join(plan.domains[CONFIGURATIONS[STANDARD].domains])
    accuracy = findings.anchor.accuracies[findings.anchor.layer - 1]
    head = (
        f"# Router configurations on {model}\n\n"
        f"- {cells} of {len(plan.configurations) * len(plan.seeds)} cells are measured (configurations x {len(plan.seeds)} seeds).\n"
        f"- Domains of the standard configuration: {domains}. For each: {plan.number} lessons to learn, {plan.held_out} held out.\n"
        f"- Experts: LoRA of rank {plan.lora.r}, {plan.expert.steps} steps of {plan.batch} lessons. Routers: {plan.router.steps} steps.\n"
        f"- Embeddings: PromptEOL, standardised, on {len(plan.tasks)} tasks.\n"
        f"- Layer {findings.anchor.layer} tells the domains apart best ({100 * accuracy:.0f} % of lessons); anchored routers read it.\n"
    )
    found = ["## Conclusion", *(f"- {sentence}" for sentence in conclusion(rows, findings.correlations(), findings.contest))]
    with atomic(folder / "report.md") as scratch:
        tables = [sheet.markdown() for sheet in sheets(findings)]
        scratch.write_text("\n".join([head, *found, "", *tables, legend()]), encoding="utf-8")
