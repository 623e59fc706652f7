"""`unmask probe clusters | ...`: the analyses of the papers; each writes its result and its figure to a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import AsJson, Model, ModelOptions
from unmask.cli.probing.common import Column, Limit, below, between, keep, percent, refuse_foreign_results, show, texts_of

if TYPE_CHECKING:
    from unmask.designs.design import Design
    from unmask.encoding.encoder import Encoder

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the result (json) and its figure (png, svg, pdf).")
]
Pairs = Annotated[Path, typer.Argument(help="File with columns sentence1, sentence2 and, if there are gold scores, score.")]
ScoredPairs = Annotated[Path, typer.Argument(help="File with columns sentence1, sentence2 and score (gold).")]
PairLimit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Use at most this many pairs, sampled at random with a fixed seed."),
]
TextsOrOurs = Annotated[
    Path | None, typer.Option(help="File of texts: txt, jsonl, csv, tsv or parquet. Default: sentences that come with unmask.")
]
TwoDesigns = Annotated[
    str,
    typer.Option(
        "--designs", "-d", help="Two designs, separated by a comma. The default compares hidden states with routing weights."
    ),
]
Drawn = Annotated[int | None, typer.Option(min=4, help="Use at most this many texts, sampled at random with a fixed seed.")]
HIDDEN_AND_ROUTING = "prompteol,routing"


def clusters(
    texts: Annotated[Path, typer.Argument(help="File of texts: txt (one text per line), jsonl, csv, tsv or parquet.")],
    model: Model,
    output: Output = Path("clusters"),
    designs: TwoDesigns = HIDDEN_AND_ROUTING,
    number: Annotated[int, typer.Option("--clusters", min=2, help="Clusters for k-means.")] = 10,
    seeds: Annotated[int, typer.Option(min=2, help="Number of k-means runs.")] = 5,
    column: Column = "text",
    label: Annotated[str | None, typer.Option(help="Column of gold labels. Adds the AMI of each design with them.")] = None,
    limit: Drawn = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show whether two designs group texts in the same way, compared with chance."""
    from unmask.probing.clusters import probe_clusters, read_texts
    from unmask.reporting.probe_figures import draw_clusters

    refuse_foreign_results(output, "clusters")
    given, gold = read_texts(texts, column, label, limit)
    labels, asked = labelled(designs)
    loaded = loaded_model(asked[0], model, options)
    result = probe_clusters(
        loaded,
        asked,
        given,
        gold,
        clusters=number,
        seeds=seeds,
    )
    written = keep(result, output, "clusters", partial(draw_clusters, result, output, labels))
    rows = [
        (
            agreement.measure,
            below(agreement.value, agreement.interval),
            below(agreement.chance, agreement.chance_interval),
            f"{agreement.p:.3f}",
            *map(below, agreement.themselves, agreement.themselves_intervals),
        )
        for agreement in result.agreement
    ]
    first, second = (labels[name] for name in result.designs)
    known = zip((first, second), result.gold or (), result.gold_intervals or (), strict=False)
    golds = [f"AMI with '{label}': {name} {percent(sum(some) / len(some))} ({between(own)})." for name, some, own in known]
    notes = [
        f"{result.texts} distinct texts, {result.clusters} clusters, mean of {result.seeds} seeds. {first} against {second}.",
        "Below each number: 95 % over texts, with k-means as it is. By chance: the texts of one grouping dealt out anew (middle 95 %). "
        "A, B: the first and the second design with itself, the same vectors from another seed.",
        *golds,
        written,
    ]
    show(
        "Agreement of clusters x 100",
        result,
        rows,
        notes,
        as_json,
        ("", "agreement", "by chance", "p", "A with itself", "B with itself"),
        prose=False,
    )


def prompts(
    pairs: Pairs,
    model: Model,
    output: Output = Path("prompts"),
    limit: PairLimit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show how much similarities change with the prompt, in hidden states and in routing weights."""
    from unmask.probing.geometry import read_pairs
    from unmask.probing.prompt_sensitivity import NINE, designs_of, probe_prompts
    from unmask.reporting.probe_figures import draw_prompts
    from unmask.statistics.intervals import Estimate

    refuse_foreign_results(output, "prompts")
    given = read_pairs(pairs, limit)
    loaded = loaded_model(designs_of(NINE, False)[0], model, options)
    result = probe_prompts(loaded, given)
    written = keep(result, output, "prompts", partial(draw_prompts, result, output))

    def row(name: str, estimate: Estimate | None) -> list[tuple[str, str, str]]:
        return [] if estimate is None else [(name, f"{estimate.value:.3f}", between(estimate.interval, 1, 3))]

    rows = [
        line
        for features, estimate in result.within.items()
        for line in row(f"mean over pairs of prompts, {features}", estimate)
    ]
    rows += row("RW minus HS: above 0, RW is steadier", result.steadier)
    rows += row("mean between HS and RW, any two prompts", result.between)
    rows += row("mean between HS and RW, same prompt", result.same_prompt)
    for (features, prompt), estimate in zip(result.readings, result.gold or (), strict=False):
        rows += row(f"with gold: {features} {prompt}", estimate)
    notes = [f"{result.pairs} pairs, {len(result.prompts)} prompts. HS: hidden states, RW: routing weights.", written]
    show("Spearman of similarities", result, rows, notes, as_json)


def pairs(
    pairs: ScoredPairs,
    model: Model,
    output: Output = Path("pairs"),
    designs: TwoDesigns = HIDDEN_AND_ROUTING,
    most: Annotated[int, typer.Option(min=1, help="How many pairs to show for each design, from its clearest wins.")] = 5,
    limit: PairLimit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show pairs that one design ranks right and the other ranks wrong, and whether either design is better overall."""
    from unmask.probing.geometry import read_pairs
    from unmask.probing.won_pairs import probe_winners
    from unmask.reporting.probe_figures import draw_winners

    refuse_foreign_results(output, "pairs")
    given = read_pairs(pairs, limit)
    labels, asked = labelled(designs)
    loaded = loaded_model(asked[0], model, options)
    result = probe_winners(loaded, asked, given, most=most)
    written = keep(result, output, "pairs", partial(draw_winners, result, output, labels))
    rows = [
        (
            f"{pair.margin:+.2f}",
            f"{pair.score:g}",
            f"{pair.gold_rank:.2f}",
            f"{pair.ranks[0]:.2f}",
            f"{pair.ranks[1]:.2f}",
            f"{pair.one.strip()} | {pair.other.strip()}",
        )
        for pair in (*result.first, *reversed(result.second))
    ]
    first, second = (labels[name] for name in result.designs)
    lean = f"{result.margin.value:+.4f} ({between(result.margin.interval, 1, 4)}); symmetric around 0: p = {result.p:.3g} (Wilcoxon)"
    spearman = [f"{own.value:.3f} ({between(own.interval, 1, 3)})" for own in result.spearman]
    notes = [
        f"A: {first}, Spearman {spearman[0]}. B: {second}, {spearman[1]}. "
        f"A minus B {result.difference.value:+.3f} ({between(result.difference.interval, 1, 3)}).",
        f"A wins {result.wins[0]} of {result.pairs} pairs, B {result.wins[1]}; mean margin {lean}.",
        *(
            f"Spearman of A's margin with {name}: {correlation.value:+.3f} ({between(correlation.interval, 1, 3)})."
            for name, correlation in result.goes_with.items()
        ),
        written,
    ]
    head = ("A wins by", "gold", "rank", "by A", "by B", "pair")
    show("Pairs that one ranks right and the other wrong (ranks: 0 least alike, 1 most)", result, rows, notes, as_json, head)


def layers(
    model: Model,
    design: Annotated[str, typer.Option("--design", "-d", help="A design without @layer.")] = "prompteol",
    output: Output = Path("layers"),
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="Task to score each layer on, as for `unmask compare`. Repeat for several."),
    ] = None,
    texts: TextsOrOurs = None,
    column: Column = "text",
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show how a text's vector changes from layer to layer, and what each layer scores on tasks."""
    from unmask.designs.design import Design
    from unmask.probing.layers import probe_layers
    from unmask.reporting.probe_figures import draw_layers
    from unmask.tasks.find import resolve_tasks

    refuse_foreign_results(output, "layers")
    asked, given = Design.parse(design), texts_of(texts, column, limit)
    tasks = resolve_tasks(task) if task else []
    loaded = loaded_model(asked, model, options)
    result = probe_layers(loaded, asked, given, tasks)
    written = keep(result, output, "layers", partial(draw_layers, result, output, {asked.name: design}))
    rows = []
    for place in range(len(result.cosine)):
        near = [
            below(some[place].value, some[place].interval, 1, 3) if place < len(some) else ""
            for some in (result.next_cosine, result.next_centred)
        ]
        marks = ["*" if place + 1 == scored.best else "=" if place + 1 in scored.level else " " for scored in result.scores]
        scores = [
            below(scored.scores[place], scored.intervals[place] if scored.intervals else None, mark=mark)
            for scored, mark in zip(result.scores, marks, strict=True)
        ]
        rows.append((str(place + 1), *near, *scores))
    notes = [
        f"Cosine of each layer with the next, as is and less the layer's mean, over {result.texts} texts; {design}. "
        "Below each number: its 95 % interval.",
        *(["Scores x 100; * the best layer, = not told from it by a paired bootstrap."] if result.scores else []),
        written,
    ]
    head = ("layer", "cosine", "centred", *(scored.task for scored in result.scores))
    show("Layers", result, rows, notes, as_json, head, prose=False)


def states(
    model: Model,
    output: Output = Path("states"),
    texts: TextsOrOurs = None,
    column: Column = "text",
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show how much each token's state changes, by layer and position, when attention becomes bidirectional."""
    from unmask.probing.state_change import name_of, probe_states
    from unmask.reporting.probe_figures import draw_states
    from unmask.saving.load_model import load_encoder

    refuse_foreign_results(output, "states")
    given = texts_of(texts, column, limit)
    loaded = load_encoder(options.source(model), "causal", max_length=options.max_length, batch_tokens=options.batch_tokens)
    result = probe_states(loaded, given)
    written = keep(result, output, "states", partial(draw_states, result, output))
    rows = [
        (
            str(layer),
            below(mean.value, mean.interval, 1, 3),
            below(floor, bounds, 1, 3),
            *(f"{cosine:.2f}" for cosine in cosines),
        )
        for layer, (mean, floor, bounds, cosines) in enumerate(
            zip(result.mean, result.unrelated, result.unrelated_intervals, result.cosine, strict=True), start=1
        )
    ]
    notes = [
        "Mean over all tokens; any two: of a token's causal state with any token's bidirectional one; then by position from 0. "
        "Below: 95 % over texts; those of positions are in the JSON.",
        f"{sum(result.tokens)} tokens of {result.texts} texts.",
        *([f"{result.truncated} texts were cut to {result.max_length} tokens (--max-length)."] if result.truncated else []),
        written,
    ]
    head = ("layer", "mean", "any two", *map(name_of, result.bins))
    show("Cosine of causal and bidirectional states", result, rows, notes, as_json, head, prose=False)


def labelled(names: str) -> tuple[dict[str, str], tuple[Design, Design]]:
    """The two designs of a command line, and what the user calls each, by its readable name."""
    from unmask.designs.design import parse_designs, two_designs

    designs = parse_designs(names)
    return {design.name: label for label, design in designs.items()}, two_designs(list(designs.values()))


def loaded_model(design: Design, model: str, options: ModelOptions) -> Encoder:
    """The model that the options name, attending as a design says."""
    from unmask.saving.load_model import load_encoder

    return load_encoder(
        options.source(model), design.attention, max_length=options.max_length, batch_tokens=options.batch_tokens
    )
