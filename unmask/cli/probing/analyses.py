"""`unmask probe clusters | ...`: the analyses of the papers; each writes its result and its figure to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import AsJson, Model, ModelOptions
from unmask.cli.probing.common import Column, Limit, between, keep, percent, show, texts_of

if TYPE_CHECKING:
    from unmask.designs.design import Design
    from unmask.encoding.loaded_model import LoadedModel

Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the result (json) and its figure (png, svg).")
]
Pairs = Annotated[Path, typer.Argument(help="Rows of sentence1, sentence2 and, for gold scores, score.")]
TextsOrOurs = Annotated[
    Path | None, typer.Option(help="txt, jsonl, csv, tsv or parquet; sentences of this package if not given.")
]
TwoDesigns = Annotated[
    str,
    typer.Option("--designs", "-d", help="Two designs with a comma between; hidden states and routing weights if not given."),
]
Drawn = Annotated[int | None, typer.Option(min=4, help="Most texts, drawn at random (always the same ones).")]
HIDDEN_AND_ROUTING = "prompteol,routing"


def clusters(
    texts: Annotated[Path, typer.Argument(help="Texts: jsonl, csv, tsv, parquet or txt (a text a line).")],
    model: Model,
    output: Output = Path("clusters"),
    designs: TwoDesigns = HIDDEN_AND_ROUTING,
    number: Annotated[int, typer.Option("--clusters", min=2, help="Clusters of k-means.")] = 10,
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of k-means, from 0.")] = 5,
    column: Column = "text",
    label: Annotated[str | None, typer.Option(help="Column of gold labels, for the AMI of each design with them.")] = None,
    limit: Drawn = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show whether two ways of reading a model group the same texts alike, beside what chance gives."""
    from unmask.probing.clusters import probe_clusters, read_texts
    from unmask.reporting.probe_figures import draw_clusters

    given, gold = read_texts(texts, column, label, limit)
    labels, asked = labelled(designs)
    loaded = loaded_model(asked[0], model, options)
    found = probe_clusters(
        loaded,
        asked,
        given,
        gold,
        clusters=number,
        seeds=seeds,
        max_length=options.max_length,
        batch_tokens=options.batch_tokens,
    )
    written = keep(found, output, "clusters", draw_clusters(found, output, labels))
    rows = [
        (
            one.measure,
            percent(one.value),
            f"{percent(one.chance)} ({between(one.chance_interval)})",
            f"{one.p:.3f}",
            " / ".join(map(percent, one.themselves)),
        )
        for one in found.agreement
    ]
    first, second = (labels[name] for name in found.designs)
    known = zip((first, second), found.gold or (), strict=False)
    golds = [f"AMI with '{label}': {name} {percent(sum(some) / len(some))}." for name, some in known]
    notes = [
        f"{found.texts} distinct texts, {found.clusters} clusters, mean of {found.seeds} seeds. {first} against {second}.",
        "By chance: the texts of one grouping dealt out anew. With itself: the same vectors from another seed, first / second design.",
        *golds,
        written,
    ]
    show(
        "Agreement of clusters x 100",
        found,
        rows,
        notes,
        as_json,
        ("", "agreement", "by chance", "p", "with itself"),
        prose=False,
    )


def prompts(
    pairs: Pairs,
    model: Model,
    output: Output = Path("prompts"),
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show how much similarities change with the prompt, in hidden states and in routing weights."""
    from unmask.probing.geometry import read_pairs
    from unmask.probing.prompt_sensitivity import NINE, designs_of, probe_prompts
    from unmask.reporting.probe_figures import draw_prompts
    from unmask.statistics.intervals import Estimate

    given = read_pairs(pairs)[:limit]
    loaded = loaded_model(designs_of(NINE, False)[0], model, options)
    found = probe_prompts(loaded, given, max_length=options.max_length, batch_tokens=options.batch_tokens)
    written = keep(found, output, "prompts", draw_prompts(found, output))

    def row(name: str, one: Estimate | None) -> list[tuple[str, str, str]]:
        return [] if one is None else [(name, f"{one.value:.3f}", between(one.interval, 1, 3))]

    rows = [line for features, one in found.within.items() for line in row(f"mean over pairs of prompts, {features}", one)]
    rows += row("RW minus HS: above 0, RW is steadier", found.steadier)
    rows += row("mean between HS and RW, any two prompts", found.between)
    rows += row("mean between HS and RW, same prompt", found.same_prompt)
    for (features, prompt), one in zip(found.readings, found.gold or (), strict=False):
        rows += row(f"with gold: {features} {prompt}", one)
    notes = [f"{found.pairs} pairs, {len(found.prompts)} prompts. HS: hidden states, RW: routing weights.", written]
    show("Spearman of similarities", found, rows, notes, as_json)


def pairs(
    pairs: Pairs,
    model: Model,
    output: Output = Path("pairs"),
    designs: TwoDesigns = HIDDEN_AND_ROUTING,
    most: Annotated[int, typer.Option(min=1, help="Pairs to show for each design, those that it wins by most.")] = 5,
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show the pairs that one way of reading a model ranks right and another wrong, and whether either wins on the whole."""
    from unmask.probing.geometry import read_pairs
    from unmask.probing.won_pairs import probe_winners
    from unmask.reporting.probe_figures import draw_winners

    given = read_pairs(pairs)[:limit]
    labels, asked = labelled(designs)
    loaded = loaded_model(asked[0], model, options)
    found = probe_winners(loaded, asked, given, most=most, max_length=options.max_length, batch_tokens=options.batch_tokens)
    written = keep(found, output, "pairs", draw_winners(found, output, labels))
    rows = [
        (
            f"{one.margin:+.2f}",
            f"{one.score:g}",
            f"{one.gold_rank:.2f}",
            f"{one.ranks[0]:.2f}",
            f"{one.ranks[1]:.2f}",
            f"{one.one.strip()} | {one.other.strip()}",
        )
        for one in (*found.first, *reversed(found.second))
    ]
    first, second = (labels[name] for name in found.designs)
    lean = (
        f"{found.margin.value:+.4f} ({between(found.margin.interval, 1, 4)}); symmetric around 0: p = {found.p:.3g} (Wilcoxon)"
    )
    notes = [
        f"A: {first}, Spearman {found.spearman[0].value:.3f}. B: {second}, {found.spearman[1].value:.3f}. "
        f"A minus B {found.difference.value:+.3f} ({between(found.difference.interval, 1, 3)}).",
        f"A wins {found.wins[0]} of {found.pairs} pairs, B {found.wins[1]}; mean margin {lean}.",
        *(
            f"Spearman of A's margin with {name}: {one.value:+.3f} ({between(one.interval, 1, 3)})."
            for name, one in found.goes_with.items()
        ),
        written,
    ]
    head = ("A wins by", "gold", "rank", "by A", "by B", "pair")
    show("Pairs that one ranks right and the other wrong (ranks: 0 least alike, 1 most)", found, rows, notes, as_json, head)


def layers(
    model: Model,
    design: Annotated[str, typer.Option("--design", "-d", help="A design without a layer.")] = "prompteol",
    output: Output = Path("layers"),
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="Task to score each layer on, as for `unmask compare`; repeat.")
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

    asked, given = Design.parse(design), texts_of(texts, column, limit)
    tasks = resolve_tasks(task) if task else []
    loaded = loaded_model(asked, model, options)
    found = probe_layers(loaded, asked, given, tasks, max_length=options.max_length, batch_tokens=options.batch_tokens)
    written = keep(found, output, "layers", draw_layers(found, output, {asked.name: design}))
    rows = []
    for place in range(len(found.cosine)):
        near = [f"{some[place].value:.3f}" if place < len(some) else "" for some in (found.next_cosine, found.next_centred)]
        marks = ["*" if place + 1 == one.best else "=" if place + 1 in one.level else " " for one in found.scores]
        scores = [f"{percent(one.scores[place])}{mark}" for one, mark in zip(found.scores, marks, strict=True)]
        rows.append((str(place + 1), *near, *scores))
    notes = [
        f"Cosine of each layer with the next, as is and less the layer's mean, over {found.texts} texts; {design}.",
        *(["Scores x 100; * the best layer, = not told from it by a paired bootstrap."] if found.scores else []),
        written,
    ]
    head = ("layer", "cosine", "centred", *(one.task for one in found.scores))
    show("Layers", found, rows, notes, as_json, head, prose=False)


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
    from unmask.saving.load_model import load_model

    given = texts_of(texts, column, limit)
    loaded = load_model(options.source(model), "causal")
    found = probe_states(loaded, given, max_length=options.max_length, batch_tokens=options.batch_tokens)
    written = keep(found, output, "states", draw_states(found, output))
    rows = [
        (str(layer), f"{mean.value:.3f}", f"{floor:.3f}", *(f"{cosine:.2f}" for cosine in cosines))
        for layer, (mean, floor, cosines) in enumerate(zip(found.mean, found.unrelated, found.cosine, strict=True), start=1)
    ]
    notes = [
        "Mean over all tokens; any two: of a token's causal state with any token's bidirectional one; then by position from 0.",
        f"{sum(found.tokens)} tokens of {found.texts} texts.",
        *([f"{found.truncated} texts were cut to {found.max_length} tokens (--max-length)."] if found.truncated else []),
        written,
    ]
    head = ("layer", "mean", "any two", *map(name_of, found.bins))
    show("Cosine of causal and bidirectional states", found, rows, notes, as_json, head, prose=False)


def labelled(names: str) -> tuple[dict[str, str], tuple[Design, Design]]:
    """The two designs of a command line, and what the user calls each, by its readable name."""
    from unmask.designs.design import parse_designs, two_designs

    designs = parse_designs(names)
    return {design.name: label for label, design in designs.items()}, two_designs(list(designs.values()))


def loaded_model(design: Design, model: str, options: ModelOptions) -> LoadedModel:
    """The model that the options name, attending as a design says."""
    from unmask.saving.load_model import load_model

    return load_model(options.source(model), design.attention)
