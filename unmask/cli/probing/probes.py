"""`unmask probe words | prefix | geometry | masked | head`: one question about one model, answered by a small table."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import AsJson, Design, Model, ModelOptions
from unmask.cli.probing.common import (
    AttentionChoice,
    Column,
    Layer,
    Limit,
    Seed,
    below,
    between,
    keep,
    percent,
    refuse_foreign_results,
    show,
    texts_of,
)


def words(
    model: Model,
    train: Annotated[Path, typer.Option(help="Tagged sentences to train the probe on: jsonl, conll or conllu.")],
    test: Annotated[Path, typer.Option(help="Tagged sentences to test the probe on.")],
    attention: AttentionChoice = None,
    tags: Annotated[
        str | None, typer.Option(help="Column of the tags. Default: tags (jsonl), upos (conllu), -1 (conll: the last).")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Column of the words. Default: tokens (jsonl), form (conllu), 1 (conll: the first).")
    ] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="Read each sub-token one position earlier, as MNTP trains it.")
    ] = False,
    layer: Layer = None,
    c: Annotated[
        float | None, typer.Option("--c", help="Inverse strength of regularisation. Default: chosen on a tenth of --train.")
    ] = None,
    limit_train: Annotated[
        int | None, typer.Option(min=1, help="Use at most this many training sentences, sampled with --seed.")
    ] = None,
    limit_test: Annotated[
        int | None, typer.Option(min=1, help="Use at most this many test sentences, sampled with --seed.")
    ] = None,
    seed: Seed = 0,
    *,
    options: Annotated[
        ModelOptions, "batch_tokens", "adapter", "revision", "dtype", "device", "attn_implementation", "trust_remote_code"
    ],
    as_json: AsJson = False,
) -> None:
    """Measure how well a linear probe reads tags from frozen states of words: parts of speech, chunks, entities."""
    from unmask.probing.word_probe import probe_words
    from unmask.saving.load_model import load_encoder
    from unmask.tasks.tagged import read_sentences, sample

    fitted = sample(read_sentences(train, tags, tokens), limit_train, seed)
    scored = sample(read_sentences(test, tags, tokens), limit_test, seed)
    loaded = load_encoder(options.source(model), attention, batch_tokens=options.batch_tokens)
    result = probe_words(loaded, fitted, scored, shift=shift, layer=layer, c=c, seed=seed)
    rows = [
        ("accuracy of the most frequent tag", percent(result.majority), ""),
        ("accuracy", percent(result.accuracy), between(result.accuracy_interval)),
    ]
    if result.metric == "entity_f1":
        rows.append(("F1 of entities, span and type", percent(result.value), between(result.interval)))
    notes = [
        f"{result.test_words} words of {result.test_sentences} sentences, {result.classes} tags; probe fitted on "
        f"{result.train_words} words of {result.train_sentences} sentences, C {result.c:g} "
        f"({'chosen' if result.c_chosen else 'given'}), layer {result.layer}"
        + (", states shifted by -1." if result.shift else "."),
        *([f"{result.unseen} words have a tag that training lacks; they count as errors."] if result.unseen else []),
        *([] if result.converged else ["The fit did not converge; a smaller --c helps."]),
    ]
    show("Linear probe on words", result, rows, notes, as_json)


def prefix(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            help="Hub id, folder or bundled name. Add :causal or :bidirectional, or give --attention. Repeat for several stages.",
        ),
    ],
    attention: AttentionChoice = None,
    triples: Annotated[
        Path | None,
        typer.Option(help="File with columns prefix, query, same, different. Default: 48 rows that come with unmask."),
    ] = None,
    layer: Layer = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the result (json) and a figure.")
    ] = None,
    *,
    options: Annotated[ModelOptions, "adapter", "revision", "dtype", "device", "attn_implementation", "trust_remote_code"],
    as_json: AsJson = False,
) -> None:
    """Measure whether the states of a prefix depend on the words after it, for one model or several stages of training."""
    from unmask.probing.prefix_stages import attention_in, compare_stages
    from unmask.probing.prefixes import TRIPLES, probe_prefixes, read_triples
    from unmask.reporting.probe_figures import draw_stages
    from unmask.saving.load_model import load_encoder

    if output:
        refuse_foreign_results(output, "prefix")
    given = read_triples(triples or TRIPLES)
    gaps = []
    for name, own in map(attention_in, model):
        gaps.append(probe_prefixes(load_encoder(options.source(name), own or attention), given, layer=layer))
    result = compare_stages(model, gaps)
    written = [keep(result, output, "prefix", partial(draw_stages, result, output))] if output else []
    rows = []
    for stage in result.stages:
        found = stage.found
        cosines = [
            below(value, bounds, 1, 4)
            for value, bounds in (
                (found.same, found.same_interval),
                (found.different, found.different_interval),
                (found.gap, found.interval),
            )
        ]
        rows.append((stage.name, *cosines, below(found.accuracy, found.accuracy_interval)))
    notes = [
        f"{len(given)} triples; cosines of the prefix's own tokens where what follows means the same and where it does not; "
        "their gap; share of triples with a positive gap. Below each number: its 95 % interval over triples.",
        *(
            f"{stage.name}: {stage.step.difference:+.4f} ({between(stage.step.interval, 1, 4)}) to the gap of the one before."
            for stage in result.stages
            if stage.step
        ),
        *(
            f"{stage.name}: the gap is exactly 0: the states of a prefix do not see what follows."
            for stage in result.stages
            if not any(stage.found.gaps)
        ),
        *(f"{stage.name}: layer {stage.found.layer}, {stage.found.provenance['proof']}." for stage in result.stages),
        *written,
    ]
    show("Shared prefixes", result, rows, notes, as_json, ("", "same", "different", "gap", "above 0"), prose=False)


def geometry(
    model: Model,
    pairs: Annotated[
        Path,
        typer.Option(help="File with columns sentence1, sentence2 and score. Without score, all pairs count as paraphrases."),
    ],
    design: Design = None,
    positive_from: Annotated[float, typer.Option(help="Pairs with this score or more count as paraphrases.")] = 4.0,
    *,
    options: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Measure how close paraphrases are (alignment) and how evenly texts spread (uniformity). Lower is better for both."""
    from unmask.embedder import Embedder
    from unmask.probing.geometry import probe_geometry, read_pairs

    given = read_pairs(pairs)
    embedder = Embedder.from_pretrained(model, design, **asdict(options))
    result = probe_geometry(embedder, given, positive_from)
    rows = [
        ("alignment", below(result.alignment, result.alignment_interval, 1, 4), "lower: paraphrases are closer"),
        (
            "uniformity",
            below(result.uniformity, result.uniformity_interval, 1, 4),
            "lower (more negative): texts are spread more evenly",
        ),
        ("mean cosine", below(result.mean_cosine, result.mean_cosine_interval, 1, 4), "0: evenly around the origin"),
        (
            "effective rank",
            f"{result.effective_rank:.1f}",
            f"of at most {min(result.dim, result.texts - 1)}; grows with the texts",
        ),
    ]
    paraphrases = "" if result.positive_from is None else f" (score {result.positive_from:g} or more)"
    notes = [
        f"{result.positives} paraphrases{paraphrases}, {result.texts} distinct texts; {embedder.design.name}.",
        f"Below each number: 95 % over {result.groups} groups of texts that pairs link.",
    ]
    show("Geometry", result, rows, notes, as_json)


def masked(
    model: Model,
    texts: Annotated[Path, typer.Option(help="File of texts: txt (one text per line), jsonl, csv, tsv or parquet.")],
    attention: AttentionChoice = None,
    column: Column = "text",
    rate: Annotated[float, typer.Option("--rate", "-p", help="Share of a text's tokens to mask.")] = 0.2,
    mask_token: Annotated[str, typer.Option(help="Token that replaces masked tokens.")] = "_",
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many texts, sampled with --seed.")] = None,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Longest input in tokens. Default: the saved embedder's value, or 512.")
    ] = None,
    seed: Seed = 0,
    *,
    options: Annotated[ModelOptions, "batch_tokens", "revision", "dtype", "device", "attn_implementation", "trust_remote_code"],
    as_json: AsJson = False,
) -> None:
    """Measure how well a model predicts masked tokens from the position before them, as in MNTP training."""
    from unmask.probing.masked import probe_masked
    from unmask.saving.load_model import load_encoder

    given = texts_of(texts, column, limit, seed)
    loaded = load_encoder(
        options.source(model), attention, max_length=max_length, batch_tokens=options.batch_tokens, predicts=True
    )
    result = probe_masked(loaded, given, rate=rate, mask_token=mask_token, seed=seed)
    rows = [
        ("accuracy @ 1", percent(result.accuracy_at_1), between(result.accuracy_at_1_interval)),
        ("accuracy @ 5", percent(result.accuracy_at_5), between(result.accuracy_at_5_interval)),
        ("cross-entropy (nats)", f"{result.cross_entropy:.3f}", between(result.cross_entropy_interval, 1, 3)),
    ]
    notes = [
        f"{result.tokens} tokens of {result.texts} texts masked by '{result.mask_token}' (share {result.rate:g}, seed {result.seed}).",
        *([f"{result.skipped} texts have no token that can be masked."] if result.skipped else []),
        *([f"{result.truncated} texts were cut to {result.max_length} tokens (--max-length)."] if result.truncated else []),
    ]
    show("Masked tokens, predicted from the position before", result, rows, notes, as_json)


def head(
    model: Model,
    texts: Annotated[
        Path | None,
        typer.Option(help="File of texts: txt, jsonl, csv, tsv or parquet. Default: sentences that come with unmask."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Figure of the shares: png, svg or pdf.")
    ] = None,
    column: Column = "text",
    limit: Limit = None,
    *,
    options: Annotated[ModelOptions, "dtype", "device", "attn_implementation"],
    as_json: AsJson = False,
) -> None:
    """Show which layers a trained layer-attention head reads."""
    from unmask.embedder import Embedder
    from unmask.probing.attribution import attribute_layers
    from unmask.reporting.plotting import require_figure_file
    from unmask.reporting.probe_figures import draw_attribution

    if output is not None:
        require_figure_file(output)
    given = texts_of(texts, column, limit)
    result = attribute_layers(Embedder.from_pretrained(model, **asdict(options)), given)
    if output is not None:
        draw_attribution(result, output)
    most = sorted(range(len(result.shares)), key=lambda place: -result.shares[place])[:8]
    rows = [
        (
            f"layer {place + 1}",
            below(result.shares[place], result.intervals[place]),
            f"80 % of texts: {percent(result.low[place])} to {percent(result.high[place])}",
        )
        for place in most
    ]
    notes = [
        f"Share of attention in percent, the most-read layers of {len(result.shares)}; {result.texts} texts. Below: 95 % of the mean."
    ]
    show("Layers that the head reads", result, rows, notes + ([f"Drawn to {output}."] if output else []), as_json)
