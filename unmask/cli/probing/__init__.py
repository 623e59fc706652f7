"""`unmask probe`: what a way of reading, or a stage of training, did to a model, and the analyses of the papers."""

from __future__ import annotations

import typer

from unmask.cli.options import with_model_options
from unmask.cli.outputs import Command, Group
from unmask.cli.probing.analyses import clusters, layers, pairs, prompts, states
from unmask.cli.probing.experts import experts
from unmask.cli.probing.probes import geometry, head, masked, prefix, words
from unmask.cli.probing.routing import routing

probe = typer.Typer(
    cls=Group,
    help="Look inside a model: layers, words, prompts, clusters, routers, stages of training.",
    epilog="Example: unmask probe prefix -m smollm2 -a bidirectional",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
for command, example in (
    (words, "words -m smollm2 -a bidirectional --train train.jsonl --test test.jsonl --limit-train 200"),
    (prefix, "prefix -m smollm2:causal -m smollm2:bidirectional -m my-embedder/model -o prefix"),
    (geometry, "geometry -m smollm2 -d bidirectional-mean --pairs dev.jsonl"),
    (masked, "masked -m smollm2 -a bidirectional --texts texts.txt --limit 200"),
    (head, "head -m my-embedder --texts texts.txt -o layers.png"),
    (clusters, "clusters texts.jsonl -m MODEL --clusters 10 -o clusters"),
    (prompts, "prompts test.jsonl -m MODEL -o prompts"),
    (pairs, "pairs test.jsonl -m MODEL -o pairs"),
    (layers, "layers -m smollm2 -d mean -t starter -o layers"),
    (routing, "routing -m MODEL -t news.jsonl -t code.jsonl --label topic -o routing"),
    (experts, "experts -m MODEL -t texts.jsonl#100 --label topic -o routing"),
    (states, "states -m smollm2 --texts texts.txt --limit 200 -o states"),
):
    probe.command(cls=Command, epilog=f"Example: unmask probe {example}")(with_model_options(command))
