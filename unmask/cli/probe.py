"""`unmask probe`: analyses of a model, each a result with a small table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.command import Command, Group
from unmask.cli.options import (
    ADVANCED,
    LOADING,
    AsJson,
    AttentionOption,
    Column,
    Design,
    Label,
    Layer,
    Limit,
    Model,
    ModelOptions,
    Models,
    OptionalFolder,
    OutputFolder,
    Reads,
    Seed,
    Tasks,
    Texts,
    TextsOption,
    Writes,
    refuse_options,
    with_settings,
)
from unmask.io.terminal import tell_json

if TYPE_CHECKING:
    from unmask.reporting.probe_tables import ProbeTable

ResultFolder = Annotated[
    Path,
    Writes(),
    typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the result (json) and its figure (png, svg, pdf)."),
]
Pairs = Annotated[
    Path, typer.Argument(help="File with columns sentence1, sentence2 and score (gold; `prompts` also works without it).")
]
PairDesigns = Annotated[str, typer.Option("--designs", "-d", help="Two designs, separated by a comma.")]
LabelledTexts = Annotated[
    list[str] | None,
    Reads(),
    typer.Option(
        "--texts",
        "-t",
        help="File of rows or task folder; PATH#100 samples 100 rows. Repeat for several; the label is `source`.",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", help="Column of labels: one per text, or a list with one per word. Repeat for several."),
]
Columns = Annotated[
    list[str] | None, typer.Option("--column", help="Column that holds the text. Default: text. Repeat if files differ.")
]
HIDDEN_AND_ROUTING = "prompteol,routing"


def words(
    model: Model,
    train: Annotated[Path, typer.Option(help="Tagged sentences to train the probe on: jsonl or conllu.")],
    test: Annotated[Path, typer.Option(help="Tagged sentences to test the probe on.")],
    attention: AttentionOption = None,
    tags: Annotated[str | None, typer.Option(help="Column of the tags. Default: tags (jsonl), upos (conllu).")] = None,
    tokens: Annotated[str | None, typer.Option(help="Column of the words. Default: tokens (jsonl), form (conllu).")] = None,
    shift: Annotated[bool, typer.Option("--shift", help="Read each token one position earlier, as MNTP trains it.")] = False,
    layer: Layer = None,
    limit: Limit = None,
    seed: Seed = 0,
    *,
    options: Annotated[ModelOptions, "batch_tokens", "adapter", *LOADING],
    as_json: AsJson = False,
) -> None:
    """Measure how well a linear probe reads tags from frozen states of words: parts of speech, chunks, entities."""
    from unmask.probing.word_probe import probe_words
    from unmask.reporting.probe_tables import words_table
    from unmask.tasks.tagged import read_sentences, sample

    train_sentences, test_sentences = (sample(read_sentences(file, tags, tokens), limit, seed) for file in (train, test))
    result = probe_words(
        options.encoder(model, attention), train_sentences, test_sentences, shift=shift, layer=layer, seed=seed
    )
    _show(result, words_table(result), as_json)


def prefix(
    model: Models,
    attention: AttentionOption = None,
    triples: Annotated[
        Path | None,
        typer.Option(help="File with columns prefix, query, same, different. Default: 48 rows that come with unmask."),
    ] = None,
    layer: Layer = None,
    output: OptionalFolder = None,
    *,
    options: Annotated[ModelOptions, "adapter", *LOADING],
    as_json: AsJson = False,
) -> None:
    """Measure whether the states of a prefix depend on the words after it, for one model or several stages of training.

    MODEL:causal and MODEL:bidirectional choose the attention of each.
    """
    from unmask.probing.prefixes import TRIPLES, attention_in, compare_stages, probe_prefixes, read_triples
    from unmask.reporting.probe_tables import check_probe_folder, prefix_table

    if output:
        check_probe_folder(output, "prefix")
    rows = read_triples(triples or TRIPLES)
    gaps = [
        probe_prefixes(options.encoder(name, stage_attention or attention), rows, layer=layer)
        for name, stage_attention in map(attention_in, model)
    ]
    result = compare_stages(model, gaps)
    _show(result, prefix_table(result, len(rows)), as_json, output, "prefix")


def geometry(
    model: Model,
    pairs: Annotated[
        Path,
        typer.Option(help="File with columns sentence1, sentence2 and score. Without score, all pairs count as paraphrases."),
    ],
    design: Design = None,
    positive_from: Annotated[float, typer.Option(help="Minimum score of a paraphrase.")] = 4.0,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Measure how close paraphrases are (alignment) and how evenly texts spread (uniformity). Lower is better for both."""
    from unmask.embedder import Embedder
    from unmask.probing.geometry import probe_geometry
    from unmask.probing.inputs import read_pairs
    from unmask.reporting.probe_tables import geometry_table

    rows = read_pairs(pairs)
    embedder = Embedder.from_pretrained(model, design, **asdict(options))
    result = probe_geometry(embedder, rows, positive_from)
    _show(result, geometry_table(result, embedder.design.name), as_json)


def masked(
    model: Model,
    texts: TextsOption = None,
    attention: AttentionOption = None,
    column: Column = "text",
    rate: Annotated[float, typer.Option("--rate", "-p", help="Share of a text's tokens to mask.")] = 0.2,
    mask_token: Annotated[str, typer.Option(help="Token that replaces masked tokens.")] = "_",
    limit: Limit = None,
    seed: Seed = 0,
    *,
    options: Annotated[ModelOptions, "max_length", "batch_tokens", *LOADING],
    as_json: AsJson = False,
) -> None:
    """Measure how well a model predicts masked tokens from the position before them, as in MNTP training."""
    from unmask.probing.inputs import read_texts
    from unmask.probing.masked import probe_masked
    from unmask.reporting.probe_tables import masked_table

    rows = read_texts(texts, column, limit, seed)
    result = probe_masked(options.encoder(model, attention, predicts=True), rows, rate=rate, mask_token=mask_token, seed=seed)
    _show(result, masked_table(result), as_json)


def head(
    model: Model,
    texts: TextsOption = None,
    output: Annotated[
        Path | None,
        Writes(folder=False),
        typer.Option("--output", "-o", metavar="FILE", help="Figure of the shares: png, svg or pdf."),
    ] = None,
    column: Column = "text",
    limit: Limit = None,
    *,
    options: Annotated[ModelOptions, "dtype", "device", "device_map", "quantize", "attn_implementation"],
    as_json: AsJson = False,
) -> None:
    """Show which layers a trained layer-attention head reads."""
    from unmask.embedder import Embedder
    from unmask.probing.attribution import attribute_layers
    from unmask.probing.inputs import read_texts
    from unmask.reporting.plotting import require_figure_file
    from unmask.reporting.probe_figures import draw_attribution
    from unmask.reporting.probe_tables import attribution_table

    if output is not None:
        require_figure_file(output)
    rows = read_texts(texts, column, limit)
    result = attribute_layers(Embedder.from_pretrained(model, **asdict(options)), rows)
    if output is not None:
        draw_attribution(result, output)
    _show(result, attribution_table(result), as_json)


def clusters(
    texts: Texts,
    model: Model,
    output: ResultFolder = Path("clusters"),
    designs: PairDesigns = HIDDEN_AND_ROUTING,
    number: Annotated[int, typer.Option("--clusters", min=2, help="Number of clusters for k-means.")] = 10,
    seeds: Annotated[int, typer.Option(min=2, help="Number of k-means runs.", rich_help_panel=ADVANCED)] = 5,
    column: Column = "text",
    label: Label = None,
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show whether two designs group texts in the same way, compared with chance."""
    from unmask.designs.design import labelled_pair
    from unmask.probing.clusters import probe_clusters, read_labelled_texts
    from unmask.reporting.probe_tables import check_probe_folder, clusters_table

    check_probe_folder(output, "clusters")
    rows, gold = read_labelled_texts(texts, column, label, limit)
    labels, pair = labelled_pair(designs)
    result = probe_clusters(options.encoder(model, pair[0].attention), pair, rows, gold, clusters=number, seeds=seeds)
    _show(result, clusters_table(result, labels, label), as_json, output, "clusters", labels)


def prompts(
    pairs: Pairs,
    model: Model,
    output: ResultFolder = Path("prompts"),
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show how much similarities change with the prompt, in hidden states and in routing weights."""
    from unmask.probing.inputs import read_pairs
    from unmask.probing.prompt_sensitivity import NINE, designs_of, probe_prompts
    from unmask.reporting.probe_tables import check_probe_folder, prompts_table

    check_probe_folder(output, "prompts")
    rows = read_pairs(pairs, limit)
    result = probe_prompts(options.encoder(model, designs_of(NINE, False)[0].attention), rows)
    _show(result, prompts_table(result), as_json, output, "prompts")


def pairs(
    pairs: Pairs,
    model: Model,
    output: ResultFolder = Path("pairs"),
    designs: PairDesigns = HIDDEN_AND_ROUTING,
    most: Annotated[int, typer.Option(min=1, help="How many pairs to show for each design, from its clearest wins.")] = 5,
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show pairs that one design ranks right and the other ranks wrong, and whether either design is better overall."""
    from unmask.designs.design import labelled_pair
    from unmask.probing.inputs import read_pairs
    from unmask.probing.won_pairs import probe_winners
    from unmask.reporting.probe_tables import check_probe_folder, pairs_table

    check_probe_folder(output, "pairs")
    rows = read_pairs(pairs, limit)
    labels, pair = labelled_pair(designs)
    result = probe_winners(options.encoder(model, pair[0].attention), pair, rows, limit=most)
    _show(result, pairs_table(result, labels), as_json, output, "pairs", labels)


def layers(
    model: Model,
    design: Annotated[
        str, typer.Option("--design", "-d", help="A design without @layer (see `unmask designs`).")
    ] = "prompteol",
    output: ResultFolder = Path("layers"),
    task: Tasks = [],  # noqa: B006 (typer copies it)
    texts: TextsOption = None,
    column: Column = "text",
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show how a text's vector changes from layer to layer, and what each layer scores on tasks, for a design without @layer."""
    from unmask.designs.design import Design as ParsedDesign
    from unmask.probing.inputs import read_texts
    from unmask.probing.layers import probe_layers
    from unmask.reporting.probe_tables import check_probe_folder, layers_table
    from unmask.tasks.find import resolve_tasks

    check_probe_folder(output, "layers")
    parsed, rows = ParsedDesign.parse(design), read_texts(texts, column, limit)
    tasks = resolve_tasks(task) if task else []
    result = probe_layers(options.encoder(model, parsed.attention), parsed, rows, tasks)
    _show(result, layers_table(result, design), as_json, output, "layers", {parsed.name: design})


def states(
    model: Model,
    output: ResultFolder = Path("states"),
    texts: TextsOption = None,
    column: Column = "text",
    limit: Limit = None,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Show how much each token's state changes, by layer and position, when attention becomes bidirectional."""
    from unmask.probing.inputs import read_texts
    from unmask.probing.state_change import probe_states
    from unmask.reporting.probe_tables import check_probe_folder, states_table

    check_probe_folder(output, "states")
    rows = read_texts(texts, column, limit)
    result = probe_states(options.encoder(model, "causal"), rows)
    _show(result, states_table(result), as_json, output, "states")


def routing(
    context: typer.Context,
    model: Annotated[
        str | None,
        Reads(is_model=True),
        typer.Option("--model", "-m", help="Mixture of experts: hub id or folder. Without it, a finished record is read."),
    ] = None,
    texts: LabelledTexts = None,
    label: Labels = None,
    output: OutputFolder = Path("routing"),
    column: Columns = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Record at most this many tokens, sampled at random.")] = None,
    attention: AttentionOption = "causal",
    against: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Another record of the same tokens. Shows how much both records agree."),
    ] = None,
    seed: Seed = 0,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Record which experts each token goes to, and measure how sure, balanced and specialised the routers are."""
    from unmask.errors import UnmaskError, require_package
    from unmask.moe.routing.agreement import compare_records
    from unmask.moe.routing.labelled_texts import read_labelled
    from unmask.moe.routing.measures import load_or_measure_routing
    from unmask.moe.routing.record import read_record
    from unmask.moe.routing.recording import check_folder, record_routing
    from unmask.moe.routing.tables import agreement_table, routing_table
    from unmask.moe.routing.text_bootstrap import Draws

    require_package("sklearn")
    if (model is None) != (not texts):
        raise UnmaskError("A record needs a model and texts: give -m and -t, or neither to read the finished record in -o.")
    if model is None:
        unused = ("label", "column", "sample", "attention", *asdict(options))
        refuse_options(context, unused, "does not apply to a finished record: give -m and -t to make a new one.")
    baseline = read_record(against) if against else None
    if model is None:
        record = read_record(output)
    else:
        rows = read_labelled(texts or [], label or [], column or ["text"], seed)
        check_folder(output)
        record = record_routing(options.encoder(model, attention or "causal"), rows, output, sample=sample, seed=seed)
    if baseline is not None:
        agreement = compare_records(record, baseline, Draws(seed=seed))
        _show(agreement, agreement_table(agreement), as_json)
        return
    measures = load_or_measure_routing(record, Draws(seed=seed))
    if as_json:
        tell_json(measures)
    else:
        routing_table(record, measures).print()


def experts(
    model: Model,
    texts: LabelledTexts,
    label: Labels = None,
    output: OutputFolder = Path("routing"),
    column: Columns = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Remove expert 1 of all layers together, then expert 2, and so on. Use it if each expert came from one branch.",
        ),
    ] = False,
    seed: Seed = 0,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Remove each expert in turn: how much worse the model predicts texts without it."""
    from unmask.moe.routing.expert_losses import measure_experts
    from unmask.moe.routing.labelled_texts import read_labelled
    from unmask.moe.routing.recording import check_folder
    from unmask.moe.routing.tables import experts_table

    rows = read_labelled(texts or [], label or [], column or ["text"], seed)
    check_folder(output)
    loaded = options.encoder(model, "causal", predicts=True)
    result = measure_experts(loaded, rows, output, all_points=together, seed=seed, batch_tokens=options.batch_tokens)
    _show(result, experts_table(result, output), as_json)


def _show(
    result: Any, table: ProbeTable, as_json: bool, output: Path | None = None, name: str = "", *names: dict[str, str]
) -> None:
    """Save a result with its figure if there is an output folder, and print it."""
    from unmask.reporting.probe_tables import save_probe

    notes = [save_probe(result, output, name, *names)] if output else []
    if as_json:
        tell_json(result.as_json())
    else:
        table.print(notes)


probe = typer.Typer(
    cls=Group,
    help="Look inside a model: layers, words, prompts, clusters, routers, stages of training.",
    epilog="Example: unmask probe prefix -m smollm2 -a bidirectional",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_COMMANDS: dict[Callable[..., None], str] = {
    words: "words -m smollm2 -a bidirectional --train train.jsonl --test test.jsonl --limit 200",
    prefix: "prefix -m smollm2:causal -m smollm2:bidirectional -m my-embedder/model -o prefix",
    geometry: "geometry -m smollm2 -d bidirectional-mean --pairs dev.jsonl",
    masked: "masked -m smollm2 -a bidirectional --texts texts.txt --limit 200",
    head: "head -m my-embedder --texts texts.txt -o layers.png",
    clusters: "clusters texts.jsonl -m MODEL --clusters 10 -o clusters",
    prompts: "prompts test.jsonl -m MODEL -o prompts",
    pairs: "pairs test.jsonl -m MODEL -o pairs",
    layers: "layers -m smollm2 -d mean -t starter -o layers",
    routing: "routing -m MODEL -t news.jsonl -t code.jsonl --label topic -o routing",
    experts: "experts -m MODEL -t texts.jsonl#100 --label topic -o routing",
    states: "states -m smollm2 --texts texts.txt --limit 200 -o states",
}
for _command, _example in _COMMANDS.items():
    probe.command(cls=Command, epilog=f"Example: unmask probe {_example}")(with_settings(_command))
