"""The report of the study on one base model: report.md with tables and figures."""

from __future__ import annotations

from pathlib import Path

from unmask.io.files import atomic
from unmask.studies.results import REPORT
from unmask.studies.self_moe.figures import draw_figures
from unmask.studies.self_moe.plan import PAPER, StudyPlan
from unmask.studies.self_moe.run import Findings, about, is_complete
from unmask.studies.self_moe.tables import sheets
from unmask.studies.sheet import Sheet


def write_report(findings: Findings, folder: Path, model: str, plan: StudyPlan) -> list[Sheet]:
    """Write all tables that have findings, and give them. Drawing takes time, so the figures follow when the study is complete."""
    tables = list(sheets(findings))
    drawn = draw_figures(findings, folder / "figures") if is_complete(findings, plan) else []
    figures = [f"![{file.stem}]({file.relative_to(folder)})\n" for file in drawn] or [
        "Figures follow when the study is complete.\n"
    ]
    kind = "lessons of public sets" if plan.lessons == "seeds" else "instructions that the model wrote itself"
    head = (
        f"# {PAPER} on {model}\n\n- Domains: {', '.join(plan.seeds)}.\n- For each domain: {plan.number} {kind}, and {plan.held_out} "
        f"held-out lessons.\n- Experts: LoRA of rank {plan.lora.r}, {plan.expert.steps} steps with batches of {plan.batch} lessons. "
        "Experts of fewer lessons learn for fewer steps.\n"
        f"- Routers: {plan.router.steps} steps.\n- Seed: {plan.seed}. There is only one seed, so the intervals cover other lessons of the "
        "same kind, but not other trainings.\n"
    )
    descriptions = [f"- {row}: {about(row)}" for row in findings.ablations if about(row)]
    legend = "\n".join(["## What the ablations are", *descriptions]) + "\n" if descriptions else ""
    with atomic(folder / REPORT) as scratch:
        scratch.write_text("\n".join([head, *(sheet.markdown() for sheet in tables), legend, *figures]), encoding="utf-8")
    return tables
