"""`unmask recommend`: the best design for some tasks, without computing the whole grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import AsJson, Model, ModelOptions, complete_design
from unmask.io.terminal import tell, tell_json, tell_wrapped

if TYPE_CHECKING:
    from unmask.evaluation.recommend import Recommendation, Round

DESIGNS = (
    "last,mean,weighted-mean,max,causal/plain/mean/zscore,prompteol,prompteol-z,echo,causal/echo/weighted-mean,"
    "bidirectional-mean,bidirectional/plain/mean/zscore"
)


def recommend(
    model: Model,
    task: Annotated[
        list[str],
        typer.Option(
            "--task",
            "-t",
            help="FOLDER, FOLDER:kind, FOLDER#200 (a sample of 200 items), a task or task set of mteb, or `starter`. Repeat for several.",
        ),
    ],
    designs: Annotated[
        list[str] | None,
        typer.Option(
            "--designs",
            "-d",
            help="Designs to choose from (see `unmask designs`), separated by commas. Default: eleven common designs.",
            autocompletion=complete_design,
        ),
    ] = None,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers/--no-layers", help="Also try three earlier layers of the best designs. This needs no extra forward pass."
        ),
    ] = True,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the results. Run the same command again to continue."
        ),
    ] = Path("recommendation"),
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Recommend a design for your tasks. All designs start on a few items; worse designs drop out, the others get more items."""
    from unmask.designs.design import parse_designs
    from unmask.evaluation.compare import ComparisonPlan
    from unmask.evaluation.recommend import recommend as run
    from unmask.evaluation.results import ResultStore
    from unmask.io.files import check_output, only_run_in, refuse_foreign, write_json
    from unmask.starter import reference_texts
    from unmask.tasks.find import resolve_tasks

    check_output(output, folder=True)
    refuse_foreign(output / "recommendation.json", ('"design"', '"rounds"', '"tokens"'))
    plan = ComparisonPlan(
        options.source(model),
        parse_designs(",".join(designs) if designs else DESIGNS),
        resolve_tasks(task),
        options.max_length,
        reference_texts(),
        options.batch_tokens,
    )
    with only_run_in(output):
        choice = run(plan, ResultStore(output), layers=layers)
        write_json(output / "recommendation.json", choice.as_json())
    if as_json:
        tell_json(choice.as_json())
    else:
        _print(choice)


def _print(choice: Recommendation) -> None:
    for number, race_round in enumerate(choice.rounds, start=1):
        _print_round(number, race_round)
    for label, why in choice.failed.items():
        tell(f"Left out: {label}, {why}")
    name = choice.label if choice.label == choice.design.name else f"{choice.label} ({choice.design.name})"
    from unmask.evaluation.leader import points

    tell_wrapped(f"Use {name}.", "")

    bounds = f" [{points(choice.interval[0])}, {points(choice.interval[1])}]" if choice.interval else ""
    which = "held-out items" if choice.held_out else "items"
    tell_wrapped(
        f"Its score is {100 * choice.score:.1f}{bounds} on {choice.items} {which}, with {choice.tokens_a_text:.0f} tokens a text.",
        "  - ",
    )
    for reason in choice.reasons:
        tell_wrapped(reason, "  - ")
    tell_wrapped(_where_from(choice), "  - ")
    tell_wrapped(
        f"It took {choice.tokens:,} tokens. All designs on all items would take about {choice.grid_tokens:,} "
        f"({choice.grid_tokens / max(1, choice.tokens):.1f} times as many).",
        "  - ",
    )


def _where_from(choice: Recommendation) -> str:
    """What the score is worth: which items chose the design."""
    which = f"all {choice.chosen_on}" if choice.all_items else f"{choice.chosen_on}"
    if choice.held_out:
        return f"It was chosen from {choice.candidates} candidates on {which} other items, so its score is not too high by the choice."
    return (
        f"{which.capitalize()} items chose it from {choice.candidates} candidates. So the interval is wider (Bonferroni), but the score is "
        "not corrected: it may be too high. With 80 items or more in each task, half of them are held out for the score."
    )


def _print_round(number: int, done: Round) -> None:
    from unmask.evaluation.leader import points

    tell(f"Round {number}: {done.items} items, {done.tokens:,} tokens; how far behind, with intervals corrected over all pairs")
    width = max(len(standing.label) for standing in done.standings)
    for standing in done.standings:
        behind = f"{100 * standing.behind:5.1f} behind" if standing is not done.standings[0] else ""
        if standing.interval:
            low, high = standing.interval
            behind += f" [{points(low)}, {points(high)}]" + ", worse" * standing.worse
        mark = "+" if standing.label in done.kept and not standing.worse else " "
        tell(f"  {mark} {100 * standing.score:5.1f}  {standing.label:{min(width, 40)}} {behind}".rstrip())
    print()
