"""The report of the study on one base model: report.md with tables and figures."""

from __future__ import annotations

from pathlib import Path

from unmask.io.files import atomic
from unmask.studies.self_moe.figures import draw_figures
from unmask.studies.self_moe.plan import StudyPlan
from unmask.studies.self_moe.run import Findings, about
from unmask.studies.self_moe.tables import sheets


def write_report(findings: Findings, folder: Path, model: str, plan: StudyPlan) -> None:
    """Write all tables that have findings. The figures follow when the study is complete, because drawing them takes time."""
    complete = plan.number in findings.sizes  # the last table
    drawn = draw_figures(findings, folder / "figures") if complete else []
    figures = [f"![{file.stem}]({file.relative_to(folder)})\n" for file in drawn] or [
        "Figures follow when the study is complete.\n"
    ]
    kind = "lessons of public sets" if plan.lessons == "seeds" else "lessons that the model wrote itself"
    head = (
        f"# Self-MoE on {model}\n\n- Domains: {', '.join(plan.seeds)}.\n- For each domain: {plan.number} {kind}, and {plan.held_out} "
        f"held-out lessons.\n- Experts: LoRA of rank {plan.lora.r}, {plan.expert.steps} steps with batches of {plan.batch} lessons.\n"
        f"- Routers: {plan.router.steps} steps.\n- Seed: {plan.seed}. There is only one seed, so the intervals cover other lessons of the "
        "same kind, but not other trainings.\n"
    )
    descriptions = [f"- {row}: {about(row)}" for row in findings.ablations if about(row)]
    legend = "\n".join(["## What the ablations are", *descriptions]) + "\n" if descriptions else ""
    with atomic(folder / "report.md") as scratch:
        scratch.write_text(
            "\n".join([head, *(sheet.markdown() for sheet in sheets(findings)), legend, *figures]), encoding="utf-8"
        )
