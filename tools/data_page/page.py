"""The words and tables of docs/data.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.data_page.facts import FACTS, WORDS, Facts, find_facts, kept_facts
from tools.data_page.needs import PAGE, folder_of, needed_by, needs
from tools.results.cells import markdown

GROUPS: Final = {
    "tasks": "Tasks",
    "pairs": "Training pairs, triples and labels",
    "text": "Training text",
    "abilities": "Abilities and lessons",
}
HEAD: Final = """# Data

`DATA` on these pages is a folder of public data sets, one folder for each set. **unmask does not ship it**: the licences differ, some
allow research only, and some are not stated. Only commands that name `DATA` need it, and the scale `small` of recipes and studies.

- **To make such a folder**, get the files from their sources below, and write JSON lines with the columns that the tables name. You need
  only the sets of your command: [what a command needs](#what-a-command-needs). Read the licence of a set before you use it.
- **Write the name of your folder** in place of `DATA`. If the environment variable `UNMASK_DATA` holds it, `--data` can be left out.
- **A task can be any folder** in [the layouts of `unmask tasks`](tasks.md#folders): `-t my-task` in place of `-t DATA/stsb`.
- **A recipe reads the files that it names.** You can [name your own](#your-own-data-in-a-recipe), or a data set of the hub.
- **Is a copy right?** The encoder `minilm` has known scores on four of the tasks: see [the harness](results.md#the-harness).
  Random parts were drawn with the random seed 0 of Python's `random`. If your part differs, scores differ a little.

**This page is generated.** `python -m tools.data_page DATA` counts rows and columns of the sets that `DATA` has. Other sets keep their row.
A test fails if a recipe, a study or another page names a folder that is not here.

## Your own data in a recipe
Replace the path of a set, name another set for a stage, or copy the recipe. `pairs.jsonl` lies in the folder of `--data`:
```
unmask recipes check repllama --scale small --data DATA --set data.questions.path=pairs.jsonl --set 'evaluation={}'
unmask recipes check prompteol --scale small --data DATA --set 'contrastive.data=["mine"]' --set data.mine.path=pairs.jsonl
unmask recipes copy prompteol mine.toml                        # change it there
```
`check` reads every row, refuses fewer rows than one batch, and trains nothing. `unmask train` takes the same options. A replaced path
keeps the other settings of its set, such as `columns` and `limit`. `--set data.NAME.columns={}` clears them. `evaluation={}` removes
the recipe's tasks, since training would need their files. Name your own tasks with [`evaluation.held_out`](training.md#data), to leave
their texts out of the training, and with [`evaluation.compared`](training.md#was-it-worth-it). A path may also be `hub:REPO` or
`hub:REPO:CONFIG`, a data set of the hub.

## Relatives
We removed from the training sets every row with a text of a task. If you get a set from its source, it may have such rows. `unmask train`
leaves them out for the tasks that the recipe names, and `unmask leaks` finds them. But sets of one origin are still relatives. Do not
train on a set and then report the score on its relative:

| trained on | relatives | why |
|---|---|---|
| `stsb` (train, dev) | `sts12`, `sts13` | holds pairs of STS 2012 to 2016 |
| `snli` | `stsb`, `sickr` | photos of Flickr |
| `coco_captions` | `sts12`, `stsb`, `sickr` | captions |
| `hwu64` | `banking77` | intents of users |
| `faq` | `banking77` | questions to a bank |
| `healthver` | `scifact` | claims and medical abstracts |
| `qnli`, `squad_sentences` | `squad_xquad_en` | all are SQuAD |
| `trecqa` (train) | `trecqa` (test) | similar questions |
"""
NEEDS: Final = """## What a command needs
These are the folders that recipes and studies read at the scale `small`. With `--set 'evaluation={}'` a recipe needs only the second
column. `branch` and `grown` read texts of your own. [`benchmarks.grow`](training.md#grow-a-mixture-of-experts) makes them from `mbpp`,
`nl2bash`, `gsm8k`, `medquad` and `wikitext2`, and compares what it grew on `stsb`, `sickr`, `mrpc`, `trec`, `subj` and
`searchsnippets`. At the scale `paper`, recipes read the hub, and so do studies of embedders (`llm2vec` also reads `ud_ewt_pos`).
`self-moe` also reads `math`, `triviaqa` and `nq`, which are not described here. Most benchmarks (`python -m benchmarks.NAME`) read `stsb`
or `scifact` in the folder that `UNMASK_DATA` names, and say so if a file is missing. With `--smoke` they need nothing.
"""
LEGEND: Final = """In the tables below, a number after a file is its number of rows, and `[]` marks a column of lists. Licences are
as the sources state them. All sets were written anew as JSON lines; "changes" says what else was done.
"""


def page(facts: Mapping[str, Facts]) -> str:
    """The page."""
    return "\n".join([HEAD, NEEDS, *needs_table(), LEGEND, *_sets(facts)]).rstrip() + "\n"


def needs_table() -> Iterator[str]:
    """What recipes and studies need. Those that need the same stand together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for command, both in needs().items():
        alike.setdefault(tuple(_folders(paths) or "-" for paths in both), []).append(f"`{command}`")
    yield markdown(["command", "trains on", "is tested on"], [[", ".join(alike[cells]), *cells] for cells in alike])


def _folders(paths: Sequence[str]) -> str:
    folders = [f"`{folder}`" for folder in dict.fromkeys(map(folder_of, paths)) if folder]
    own = [f"`{path}`" for path in paths if not folder_of(path)]
    return ", ".join(folders + own) + (" of your own" if own else "")


def _sets(facts: Mapping[str, Facts]) -> Iterator[str]:
    for group, title in GROUPS.items():
        columns = ["folder", "files and columns", "source", "licence", "changes", "needed by"]
        rows = [_row(name, words, facts[name]) for name, words in WORDS[group].items()]
        yield f"## {title}\n\n{markdown(columns, rows)}"


def _row(name: str, words: Mapping[str, str], facts: Facts) -> list[str]:
    kind = f" ({facts['kind']})" if facts["kind"] else ""
    changes = [words["changes"]] if "changes" in words else []
    if left_out := facts["left_out"]:
        changes.append(f"{left_out:,} {'row' if left_out == 1 else 'rows'} with a text of a task left out")
    return [
        f"`{name}`{kind}: {words['what']}",
        "<br>".join(facts["files"]),
        "<br>".join(facts["sources"]),
        facts["licence"],
        "; ".join(changes) or "none",
        needed_by(name),
    ]


def main(given: Sequence[str]) -> None:
    """Find the facts again if a data folder is given, and write the page."""
    for data in given:
        FACTS.write_text(json.dumps(find_facts(Path(data)), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(kept_facts()), encoding="utf-8")
