"""The report of the study on one base model: report.md with its tables and figures, results.json beside it."""

from __future__ import annotations

from pathlib import Path

from unmask.io.files import atomic
from unmask.studies.self_moe.figures import draw_figures
from unmask.studies.self_moe.plan import StudyPlan
from unmask.studies.self_moe.run import Findings, about
from unmask.studies.self_moe.tables import sheets


def write_report(findings: Findings, folder: Path, model: str, plan: StudyPlan) -> None:
    """Write the tables that are there so far, and the figures once the study is complete: they take longer than a short study."""
    complete = plan.number in findings.sizes  # the last table
    drawn = draw_figures(findings, folder / "figures") if complete else []
    figures = [f"![{file.stem}]({file.relative_to(folder)})\n" for file in drawn] or [
        "Figures follow when the study is complete.\n"
    ]
    kind = "lessons of public sets" if plan.lessons == "seeds" else "lessons that the model wrote itself"
    head = (
        f"# Self-MoE on {model}\n\n{plan.number} {kind} for each of {', '.join(plan.seeds)}; {plan.held_out} of each held out; "
        f"LoRA of rank {plan.lora.r}, {plan.expert.steps} steps of {plan.batch} an expert; routers {plan.router.steps} steps; "
        f"seed {plan.seed}. One seed: intervals hold for other lessons of the same kind, not for other trainings.\n"
    )
    descriptions = [f"- {row}: {about(row)}" for row in findings.ablations if about(row)]
    legend = "\n".join(["## What the ablations are", *descriptions]) + "\n" if descriptions else ""
    with atomic(folder / "report.md") as scratch:
        scratch.write_text(
            "\n".join([head, *(sheet.markdown() for sheet in sheets(findings)), legend, *figures]), encoding="utf-8"
        )
