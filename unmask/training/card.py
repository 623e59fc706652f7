"""Model cards: what a trained embedder is, how to load it, what it was trained on, how that went, what it scores."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

from unmask.evaluation.training_gain import TrainingGain
from unmask.io.files import atomic
from unmask.io.terminal import say
from unmask.runs import runs
from unmask.training.recipe import Recipe
from unmask.training.records import StageData, TrainingJob, TrainingResult

_ROWS = 12  # of a curve


def write_card(recipe: Recipe, job: TrainingJob) -> None:
    """Write README.md into a trained embedder's folder, from the record of the run. A card that was edited since is kept."""
    record = runs.read_result(job.folder, TrainingResult)
    if record is None:
        return
    plain = "UnmaskModule" not in (job.result / "modules.json").read_text(encoding="utf-8")
    text, file = card(recipe, record, _read_logs(job.folder), plain).encode(), job.result / "README.md"
    digest = hashlib.sha256(text).hexdigest()
    if file.is_file() and record.card:
        if record.card == digest:
            return
        if record.card != hashlib.sha256(file.read_bytes()).hexdigest():
            say(f"'{file}' was edited, so it is kept without the changes.")
            return
    runs.amend_result(job.folder, record.model_copy(update={"card": digest}))
    with atomic(file) as scratch:
        scratch.write_bytes(text)


def has_chosen_checkpoint(recipe: Recipe, folder: Path) -> bool:
    """Whether scores chose a checkpoint of a run whose stages are still there: a stage without average was scored at several steps."""
    return any(
        len({entry["step"] for entry in log if "eval_score" in entry}) > 1
        for stage, log in _read_logs(folder).items()
        if recipe.stage(stage.partition("-")[2]).average == 1
    )


def _read_logs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The logs of a run's finished stages; none if they were removed, since a finished run does not need them."""
    curves = {}
    for file in sorted((folder / "stages").glob("*/log.json")):
        try:
            curves[file.parent.name] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            warnings.warn(f"'{file}' is damaged, so the card has no curve of this stage.", stacklevel=2)
    return curves


def card(recipe: Recipe, record: TrainingResult, curves: dict[str, list[dict[str, Any]]], plain: bool) -> str:
    """The text of a model card, in markdown with the header that model hubs read. plain: sentence-transformers needs no code of ours."""
    settings = recipe.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name", "about", "source", "data"})
    load = "" if plain else ", trust_remote_code=True"
    parts = [
        f"---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\nbase_model: {recipe.model}\n"
        "tags:\n- sentence-transformers\n- unmask\n---\n",
        f"# {recipe.name}: {recipe.model} as a text embedder\n",
        f"{recipe.about}\n\nDesign `{record.design}`, seed {record.seed}. {recipe.source}\n",
        '```python\nfrom unmask import Embedder\n\nembedder = Embedder.from_pretrained("FOLDER")\n'
        f'# or: from sentence_transformers import SentenceTransformer; SentenceTransformer("FOLDER"{load})\n'
        'vectors = embedder.encode(["A man plays a guitar."])\n```\n',
        "## Scores\n" if record.scores else "",
        "".join(f"- {name}: {100 * value:.2f}\n" for name, value in record.scores.items() if name != "score"),
        "These tasks chose the best checkpoint, so they flatter it.\n" if record.chosen else "",
        _gain_section(record.gain) if record.gain else "",
        *(
            f"{role}: `{teacher.model}`, weights {teacher.weights}{f', read by `{teacher.design}`' if teacher.design else ''}.\n"
            for role, teacher in (("Teacher", record.base.teacher), ("Guide", record.base.guide))
            if teacher
        ),
        "## Data\n",
        "\n".join(_data_lines(stage, sets) for stage, sets in record.data.items()),
        "\nTexts of the recipe's tasks stayed in the training data.\n" if record.kept_leaks else "",
        "\n## Training\n",
        *(_curve_section(name, log) for name, log in curves.items()),
        "## Trainable parameters\n",
        "\n".join(f"- {stage}: {sum(kinds.values()):,}" for stage, kinds in record.trains.items()),
        f"\n\n## Recipe\n```json\n{json.dumps(settings, indent=2)}\n```\n",
        f"Trained on {record.hardware}, with "
        + ", ".join(f"{name} {version}" for name, version in record.versions.items())
        + ".\n",
    ]
    return "\n".join(part for part in parts if part)


def _gain_section(gain: TrainingGain) -> str:
    header, *rows = (f"| {' | '.join(row)} |" for row in gain.table)
    rule = "|---" + "|--:" * (len(gain.table[0]) - 1) + "|"
    return "\n".join(
        [
            "## Was training worth it?",
            f"{gain.sentence}\n",
            "Main scores x 100, means over the tasks of a kind and over all tasks:\n",
            *(header, rule, *rows),
            f"\nTasks: {', '.join(gain.kinds)}. They chose no checkpoint.\n",
            *(f"{note}\n" for note in gain.notes),
        ]
    )


def _data_lines(stage: str, sets: StageData) -> str:
    lines = []
    for name, data in sets.items():
        reasons = ", ".join(f"{count} {why}" for why, count in data.left_out.items()) or "none"
        leaks = "; ".join(f"{task}: {leak.exact} exact, {leak.near} near" for task, leak in data.leaks.items())
        lines.append(
            f"- {stage}: `{name}` ({data.path}), {data.examples} examples, revision {data.revision}; left out: {reasons}"
            + (f"; texts shared with held-out tasks, all left out: {leaks}" if leaks else "")
        )
    return "\n".join(lines)


def _curve_section(name: str, log: list[dict[str, Any]]) -> str:
    losses = [entry for entry in log if "loss" in entry]
    sampled = [*losses[: -1 : max(1, len(losses) // _ROWS)], *losses[-1:]]
    rows = "\n".join(f"| {entry['step']} | {entry['loss']:.4f} |" for entry in sampled)
    scores = "\n".join(f"| {entry['step']} | {100 * entry['eval_score']:.2f} |" for entry in log if "eval_score" in entry)
    table = f"### {name}\n\n| step | loss |\n|--:|--:|\n{rows}\n"
    return table + (f"\n| step | mean score |\n|--:|--:|\n{scores}\n" if scores else "")
