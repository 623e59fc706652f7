"""`unmask designs`, `unmask models`, `unmask tasks`: list what is available."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.options import AsJson
from unmask.io.terminal import tell_json, tell_wrapped

if TYPE_CHECKING:
    from unmask.designs.presets import Preset
    from unmask.designs.prompts import Prompt
    from unmask.tasks.task import Task


def designs(as_json: AsJson = False) -> None:
    """List named designs with meaning and source, and the parts that make up all other designs."""
    from unmask.designs.design import parse_designs
    from unmask.designs.presets import PRESETS, SETS
    from unmask.designs.prompts import PROMPTS

    rows = [
        {
            "preset": name,
            "design": preset.design,
            "meaning": preset.meaning,
            "source": preset.source,
            "training": preset.needs_training,
        }
        for name, preset in PRESETS.items()
    ]
    if as_json:
        prompts = [
            {"prompt": prompt.name, "template": prompt.template, "meaning": prompt.meaning} for prompt in PROMPTS.values()
        ]
        sets = [
            {"set": name, "designs": group.designs, "meaning": group.meaning, "source": group.source}
            for name, group in SETS.items()
        ]
        tell_json({"designs": rows, "sets": sets, "prompts": prompts})
        return
    _print_entries("Named designs", [(name, preset.design, _explanation(preset)) for name, preset in PRESETS.items()])
    _print_entries(
        "Sets of designs",
        [(name, ", ".join(parse_designs(group.designs)), f"{group.meaning} [{group.source}]") for name, group in SETS.items()],
    )
    _print_entries(
        "Prompts", [(prompt.name, prompt.template.replace("\n", "\\n"), _explanation(prompt)) for prompt in PROMPTS.values()]
    )
    _print_grammar()


def _print_grammar() -> None:
    from unmask.designs.design import ATTENTIONS, FEATURES, HEADS, POOLINGS, ROUTINGS

    print(
        'A template of your own: causal/"Topic of: {text}"/last. `chat:` before a prompt\n'
        "wraps it in the chat template.\n"
        "Several prompts, whose vectors are averaged: causal/eol+sentiment/last.\n"
        "One pooling for each of them: causal/echo+eol/mean+last.\n"
        "Two poolings of one prompt, added: causal/eol/last+0.7mean.\n"
        "Prompts of your own with names, and with solved examples: a file, -d FILE.toml\n"
        "(docs/how-to.md).\n\n"
        "A design is\n"
        "  attention[+rerouting]/prompt/pooling[@layer][/features[:alpha][~routing]]\n"
        "      [/zscore] [/whiten[:N]] [/filter[:N]] [/idf], in any order"
    )
    for part, values in {
        "attention": ", ".join(ATTENTIONS),
        "rerouting": "causal+kv@13-17, causal+prepend@2-7: early tokens see a summary of the whole text, in these layers",
        "pooling": ", ".join(pooling for pooling in POOLINGS if pooling not in HEADS),
        "head": f"{', '.join(HEADS)} (a pooling that `unmask train` makes)",
        "features": ", ".join(FEATURES),
        "routing": ", ".join(ROUTINGS),
        "layer": "1, 2, ...; 20+24 (their sum); all (each at unit length, side by side); mean (over layers); the last one if not given",
        "alpha": "a positive number, or auto: chosen without labels, so that both similarities have the same spread",
        "zscore": "every dimension standardised by reference texts",
        "whiten": "decorrelated as well; whiten:64 keeps the 64 directions of most variance",
        "filter": "without both edges of the output layer's spectrum, which write frequent tokens; filter:448 keeps 448 dimensions",
        "dense": "the linear layers of a trained sentence encoder",
        "idf": "for lexical: words weigh more the rarer they are in reference texts",
    }.items():
        tell_wrapped(values, f"  {part:10} ")


def models(as_json: AsJson = False) -> None:
    """List the models that pip can install, and which are ready."""
    from unmask.models.bundled import BUNDLED

    rows = [
        {
            "name": model.name,
            "what": model.meaning,
            "kind": model.kind,
            "licence": model.licence,
            "MB": model.megabytes,
            "ready": "ready" if model.ready else "converted on first use" if model.installed else "not installed",
            "path": str(model.path) if model.installed else None,
            "install": model.install_command,
        }
        for model in BUNDLED.values()
    ]
    if as_json:
        tell_json({"models": rows})
        return
    _print_entries(
        "Bundled models (any hub id or folder works too)",
        [
            (
                str(row["name"]),
                f"{row['ready']}, {row['MB']} MB, {row['licence']}",
                f"{row['what']}; {row['path'] or row['install']}",
            )
            for row in rows
        ],
    )


def tasks(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TASKS", help="A task set, a folder or a task of mteb, to show what it holds.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List task kinds with the layout of their folders, task sets and starter tasks. Or list the tasks of one set."""
    if name is not None:
        _print_tasks_of(name, as_json)
        return
    from unmask.tasks.benchmarks import stated_sets
    from unmask.tasks.find import resolve_tasks
    from unmask.tasks.kinds import KINDS

    starter = [_row(task) for task in resolve_tasks(["starter"])]
    kinds = [
        {"kind": kind.name, "files and columns": kind.layout, "main score": kind.metric, "example": kind.example}
        for kind in KINDS.values()
    ]
    sets = [
        {"set": name, "name in mteb": None if group.tasks else group.of, "tasks": group.kinds, "source": group.source}
        for name, group in stated_sets().items()
    ]
    if as_json:
        tell_json({"kinds": kinds, "sets": sets, "starter": starter})
        return
    _print_entries(
        "Task folders (the kind is inferred; FOLDER:kind or a task.toml states it)",
        [
            (kind.name, kind.metric, f"{kind.layout}\n{json.dumps(list(kind.example.values())[-1], ensure_ascii=False)}")
            for kind in KINDS.values()
        ],
    )
    _print_entries(
        "Task sets, e.g. -t mteb-eng-v2 (any other benchmark of mteb works too)",
        [(name, _kind_counts(group.kinds), group.source) for name, group in stated_sets().items()],
    )
    _print_entries(
        "Starter tasks, all by -t starter (a demonstration, not a benchmark)",
        [(str(row["task"]), f"{row['items']} items", f"{row['kind']}: {row['main score']}") for row in starter],
    )
    print("A name in mteb works too, e.g. -t STSBenchmark; the data come from the hub.")


def _print_tasks_of(name: str, as_json: bool) -> None:
    """The tasks of one set, folder or name, and those that cannot be compared."""
    from unmask.tasks.benchmarks import find_set
    from unmask.tasks.find import is_path, resolve_tasks, starter_specs

    task_set = None if starter_specs(name) or is_path(name) else find_set(name)
    rows = [_row(task) for task in (task_set.tasks if task_set else resolve_tasks([name]))]
    refused = task_set.refused if task_set else {}
    if as_json:
        content = {"name": task_set.name if task_set else name, "source": task_set.source if task_set else None, "tasks": rows}
        tell_json(content | {"refused": refused})
        return
    _print_task_table(f"{task_set.name}, {_kind_counts(task_set.kinds)}" if task_set else name, rows)
    if task_set:
        print(f"Source: {task_set.source}.")
    for reason in refused.values():
        print(f"Left out: {reason}.")


def _print_task_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """One task per line, not wrapped whatever the terminal's width. Revisions are cut to their first digits."""
    from rich.text import Text

    from unmask.io.terminal import console as open_console

    cells = [("task", "kind", "main score", "items", "scored on", "revision")]
    for row in rows:
        subsets = [subset for subset in row.get("subsets", ()) if subset != "default"]
        scored = " ".join([*row.get("splits", ()), *([f"({', '.join(subsets)})"] if subsets else [])])
        items = str(row.get("items", ""))
        cells.append((row["task"], row["kind"], row["main score"], items, scored, row["revision"][:8]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    console = open_console()
    console.print(Text(title, style="bold underline"), soft_wrap=True)
    for number, line in enumerate(cells):
        text = "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
        console.print(Text(text.rstrip(), style="" if number else "dim"), soft_wrap=True)
    console.print()


def _row(task: Task) -> dict[str, Any]:
    from unmask.tasks.kinds import KINDS
    from unmask.tasks.task import LocalTask

    row = {"task": task.name, "kind": task.kind, "revision": task.revision}
    if isinstance(task, LocalTask):
        return row | {"main score": KINDS[task.kind].metric, "items": task.size}
    return row | {"main score": task.metric, "splits": task.splits, "subsets": task.subsets}


def _kind_counts(kinds: Mapping[str, int]) -> str:
    return f"{sum(kinds.values())} tasks: {', '.join(f'{number} {kind}' for kind, number in kinds.items())}"


def _explanation(entry: Preset | Prompt) -> str:
    training = "; needs training" if getattr(entry, "needs_training", False) else ""
    return f"{entry.meaning}{training}" + (f" [{entry.source}]" if entry.source else "")


def _print_entries(title: str, entries: list[tuple[str, str, str]]) -> None:
    """Name and value on one line, the explanation below."""
    from rich.padding import Padding
    from rich.text import Text

    from unmask.io.terminal import console as open_console

    console = open_console()
    console.print(Text(title, style="bold underline"))
    width = max((len(name) for name, _, _ in entries), default=0)
    for name, value, explanation in entries:
        console.print(Text(f"{name:{width}}  ", style="bold").append(value, style="cyan"), soft_wrap=True)
        console.print(Padding(Text(explanation, style="dim"), (0, 0, 0, width + 2), expand=False))
    console.print()
