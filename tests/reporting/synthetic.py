"""Results folders of invented scores, seeded: as `unmask compare` leaves them, without a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.evaluation.results import Conditions, Failure, Result, ResultStore
from unmask.evaluation.seed_means import training_note
from unmask.statistics.bootstrap import Items
from unmask.statistics.intervals import score_interval
from unmask.statistics.ranks import Ranks

SCRIPT, SPECIAL = "<script>alert(1)</script>", 'a&b_%$#{}~^\\"'
GRID_KINDS = {
    "sts": 6,
    "classification": 6,
    "clustering": 1,
    "retrieval": 1,
    "reranking": 1,
}
METRICS = {"sts": "cosine_spearman", "clustering": "v_measure", "retrieval": "ndcg_at_10"}
LAYERS = range(4, 24, 4)


@dataclass(frozen=True)
class Folder:
    """What to invent: designs by label, each with a strength from 0 to 1; tasks by name, each with its kind."""

    designs: Mapping[str, tuple[str, float]]
    tasks: Mapping[str, str]
    n: int = 20
    model: str = "smollm2"
    without: Sequence[tuple[str, str]] = ()

    def write(self, folder: Path, **changed: Any) -> ResultStore:
        """Write the results, with `changed` conditions."""
        store = ResultStore(folder)
        for place, (task, kind) in enumerate(self.tasks.items()):
            shared = np.random.default_rng([1, place]).normal(0, 0.12, self.n)
            for at, (label, (design, strength)) in enumerate(self.designs.items()):
                if (label, task) not in self.without:
                    noise = np.random.default_rng([2, place, at]).normal(0, 0.05, self.n)
                    value = np.clip(0.25 + 0.5 * strength + 0.02 * (place % 7) + shared + noise, 0, 1)
                    store.add(*self.result(label, design, task, kind, value, **changed))
        return store

    def result(
        self, label: str, design: str, task: str, kind: str, value: np.ndarray[Any, Any], **changed: Any
    ) -> tuple[Result, Items]:
        """A result whose items have these values."""
        items = Items("mean", {"value": value})
        score = float(value.mean())
        conditions: dict[str, Any] = {
            "model": self.model,
            "model_revision": "49df063d3ce63c6b",
            "design": design,
            "task": task,
            "task_revision": "b33d91930bd3ad5a",
            "max_length": 512,
            "dtype": "bfloat16",
        }
        result = Result(
            model=self.model,
            design=design,
            label=label,
            task=task,
            kind=kind,
            metric=METRICS.get(kind, "accuracy"),
            main_score=score,
            interval=score_interval(items),
            n=self.n,
            scores={"ami": 0.8 * score} if kind == "clustering" else {},
            dim=1152 if "@all" in design else 576,
            texts=100,
            tokens=1900 if "/plain/" in design else 5100 if "/echo/" in design else 3000,
            truncated=3 if task == "sts-0" else 0,
            conditions=Conditions(**(conditions | changed)),
            provenance={
                "attention": f"{design.split('/')[0]}, proven in 30 layers with and without padding",
                "hardware": "cpu (x86_64, 2 cores)",
                "versions": {"unmask": "0.1.0", "torch": "2.13.0"},
                **training_note(self.model),
            },
        )
        return result, items


def write_exact(folder: Path, designs: Mapping[str, str], scores: Mapping[str, Mapping[str, float]], n: int = 60) -> None:
    """Results with exactly these scores by task and label; a task's name begins with its kind. Differences have an error of 0.009."""
    of, store = Folder({}, {}, n=n), ResultStore(folder)
    for place, (task, by_label) in enumerate(scores.items()):
        shared = np.random.default_rng([1, place]).normal(0, 0.1, n)
        for at, (label, score) in enumerate(by_label.items()):
            value = shared + np.random.default_rng([2, place, at]).normal(0, 0.05, n)
            store.add(*of.result(label, designs[label], task, task.split("-")[0], score + value - value.mean()))


def made_ranks(mean_ranks: dict[str, float], cliques: tuple[tuple[str, ...], ...]) -> Ranks:
    """Ranks as a critical-difference diagram needs them."""
    return Ranks(mean_ranks, friedman_p=0.01, tests={}, cliques=cliques, n=14, fewest=6)


def ranked_by(scores: Mapping[str, Sequence[float]]) -> Ranks:
    """Ranks by mean score, and the first three in one group."""
    order = sorted(scores, key=lambda name: -float(np.mean(scores[name])))
    return made_ranks({name: place + 1.2 for place, name in enumerate(order)}, (tuple(order[:3]),))


def small() -> Folder:
    """Four designs on three tasks of three kinds; two designs have names that no page should trust."""
    return Folder(
        {
            "echo": ("causal/echo/mean", 0.9),
            "mean": ("causal/plain/mean", 0.55),
            SCRIPT: (SCRIPT, 0.5),
            SPECIAL: (SPECIAL, 0.2),
        },
        {"sts-0": "sts", f"{SCRIPT}-{SPECIAL}": "classification", "topics": "clustering"},
    )


def large() -> Folder:
    """Thirty designs on fifteen tasks: poolings, prompts, attentions, layers, and one whose name is a script."""
    rows: list[tuple[str, float]] = []
    for prompt, bonus in (("plain", 0.0), ("eol", 0.3), ("echo", 0.35)):
        rows += [
            (f"causal/{prompt}/{pooling}", base + bonus)
            for pooling, base in (("last", 0.3), ("mean", 0.4), ("weighted-mean", 0.45), ("max", 0.1))
        ]
        rows += [(f"causal/{prompt}/mean@{layer}", 0.25 + bonus + 0.3 * np.sin(layer / 9)) for layer in LAYERS]
    rows += [
        ("bidirectional/plain/mean", 0.05),
        ('causal/"Topic of this text, in a single word: {text}"/last@all', 0.5),
        (SCRIPT, 0.35),
    ]
    designs = {design: (design, float(strength)) for design, strength in rows}
    tasks = {f"{kind}-{place}": kind for kind, count in GRID_KINDS.items() for place in range(count)}
    return Folder(designs, tasks)


def add_costs(folder: Path, of: Folder) -> None:
    """Timed passes: echo takes twice as long as the others."""
    passes = dict.fromkeys(tuple(design.split("/")[:2]) for design, _ in of.designs.values() if design.count("/") >= 2)
    lines = [
        {
            "model": of.model,
            "model_revision": "49df063d3ce63c6b",
            "attention": attention,
            "prompt": prompt,
            "task": task,
            "texts": 100,
            "tokens": 4000,
            "seconds": 8.0 if prompt == "echo" else 4.0 if prompt == "eol" else 2.5,
            "peak_memory": (3 if prompt == "echo" else 2) * 2**29,
            "hardware": "cpu (x86_64, 2 cores)",
            "task_revision": "b33d91930bd3ad5a",
            "max_length": 512,
            "dtype": "bfloat16",
            **dict.fromkeys(("adapter", "attn_implementation", "trust_remote_code")),
        }
        for attention, prompt in passes
        for task in of.tasks
    ]
    (folder / "costs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def add_failure(folder: Path, of: Folder, label: str, task: str, dtype: str = "bfloat16") -> None:
    """A cell that failed, with weights and data of another revision."""
    design = of.designs[label][0]
    conditions = Conditions(
        model=of.model, model_revision="r", design=design, task=task, task_revision="t", max_length=512, dtype=dtype
    )
    error = f"AttentionError: layer 3 does not look ahead {SCRIPT}"
    given: dict[str, Any] = {"label": label, "task": task, "kind": of.tasks[task], "error": error, "conditions": conditions}
    ResultStore(folder).add_failure(Failure(model=of.model, design=design, **given))
