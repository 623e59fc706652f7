"""Evaluation of language models, experts and mixtures: likelihood of held-out text and accuracy on public tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io import terminal
from unmask.io.terminal import say
from unmask.models.bundled import resolve
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.abilities.harness import accuracies, draw_tests, require_code_to_run
from unmask.moe.experts.lessons.lessons import Lesson, read_lessons, tokenize_lessons
from unmask.moe.experts.likelihood import likelihoods, require_same_tokens, text_likelihood
from unmask.moe.mixture.mixture_folder import SETTINGS, read_mixture_settings
from unmask.moe.mixture.override import check_override, override_routing
from unmask.statistics.domain_differences import ModelScores, as_json, compare_by_domain
from unmask.training.collate import chunk_tokens
from unmask.training.data import DataSource, read_sentences

LIKELIHOOD, TEXT_LIKELIHOOD, ACCURACY = "likelihood", "text_likelihood", "accuracy"
_SECTIONS = {
    LIKELIHOOD: ("nats a response token", "Nats per response token, lower is better", 3),
    TEXT_LIKELIHOOD: ("nats a token of text", "Nats per token of text, lower is better", 3),
    ACCURACY: ("percent of items", "Correct answers in percent, higher is better", 1),
}
"""The unit, title and digits of each kind of score."""


@dataclass(frozen=True)
class LMSettings:
    """What to evaluate, and how. Files by domain or by name of a public test."""

    sources: tuple[Source, ...]
    lessons: Mapping[str, Path] = field(default_factory=dict)
    texts: Mapping[str, Path] = field(default_factory=dict)
    abilities: Mapping[str, Path | None] = field(default_factory=dict)
    """Public tests; None takes the items from the hub."""
    choices: tuple[str, ...] = ()
    """Further routings of mixtures."""
    limit: int | None = None
    learned: tuple[Path, ...] = ()
    """Lessons that a model was trained on."""
    run_code: bool = False
    allow_unsandboxed_code: bool = False
    max_length: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UnmaskError for nothing to evaluate, or a model given twice."""
        if len({source.model for source in self.sources}) < len(self.sources):
            raise UnmaskError("A model was given twice.")
        if not self.lessons and not self.texts and not self.abilities:
            raise UnmaskError("Nothing to evaluate: give --lessons NAME=FILE, --texts NAME=FILE, or --ability NAME.")


@dataclass(frozen=True)
class LMSection:
    """One kind of score for every model."""

    name: str
    rows: list[ModelScores]
    items: dict[str, int]
    json: dict[str, Any]


def evaluate_language_models(settings: LMSettings) -> list[LMSection]:
    """Evaluate models on the same items, compared with the first model."""
    folders = [Path(resolve(source.model)) for source in settings.sources]
    mixtures = [folder for folder in folders if (folder / SETTINGS).is_file()]
    if settings.choices and not mixtures:
        raise UnmaskError("--choice is another way to use a mixture, but none of the models is a mixture.")
    for folder in mixtures:
        for choice in settings.choices:
            check_override(choice, read_mixture_settings(folder).experts)
    lessons = {domain: read_lessons(file) for domain, file in settings.lessons.items()}
    sets = {domain: read_sentences(domain, DataSource(path=str(file)), Path(), 0) for domain, file in settings.texts.items()}
    texts = {domain: [example.texts[0] for example in data.examples] for domain, data in sets.items()}
    plain = [text for of_domain in texts.values() for text in of_domain]
    plain += [lesson.prompt + lesson.output for of_domain in lessons.values() for lesson in of_domain]
    if len(settings.sources) > 1 and plain:
        require_same_tokens(settings.sources, plain)
    learned = [lesson for file in settings.learned for lesson in read_lessons(file)]
    tests = draw_tests(settings.abilities, settings.limit, settings.seed, learned)
    run_code, unsandboxed = settings.run_code or settings.allow_unsandboxed_code, settings.allow_unsandboxed_code
    if tests and (notice := require_code_to_run(tests, run_code, unsandboxed)):
        say(notice)
    length = settings.max_length
    scores: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    tokens: dict[str, list[list[int]]] = {}
    counts: dict[str, dict[str, Any]] = {}
    for source in settings.sources:
        model, tokenizer = load_language_model(source)
        if not counts:  # all models have the same tokens
            for domain, domain_texts in texts.items():
                try:  # one token beyond the limit shows that a text is longer
                    tokens[domain] = chunk_tokens(tokenizer, domain_texts, length + 1, blocks=False)
                except UnmaskError as error:
                    raise UnmaskError(f"{domain}: {error}") from error
            counts = _count_truncated(tokenizer, lessons, tokens, length)
            counts[TEXT_LIKELIHOOD]["left_out"] = {
                domain: data.skipped | {"shorter than two tokens": len(texts[domain]) - len(tokens[domain])}
                for domain, data in sets.items()
            }
            for domain, reasons in counts[TEXT_LIKELIHOOD]["left_out"].items():
                if number := sum(reasons.values()):
                    why = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
                    say(f"{domain}: {number} of {len(tokens[domain]) + number} texts are skipped ({why})")
        mixture: Any = getattr(model.base_model, "mixture", None)
        variants: dict[str, Any] = {source.model: nullcontext}
        for choice in settings.choices if mixture else ():
            variants[f"{source.model}, {choice}"] = partial(override_routing, mixture, choice)
        for name, routing in variants.items():
            with routing():
                if lessons:
                    scores[LIKELIHOOD][name] = likelihoods(model, tokenizer, lessons, max_length=length)
                if tokens:
                    scores[TEXT_LIKELIHOOD][name] = {
                        domain: text_likelihood(model, tokenizer, rows, max_length=length) for domain, rows in tokens.items()
                    }
                if tests:
                    shares = accuracies(
                        model, tokenizer, tests, limit=settings.limit, run_code=run_code, unsandboxed=unsandboxed
                    )
                    scores[ACCURACY][name] = {test: 100 * values for test, values in shares.items()}
            say(f"{name}: done")
    sections = []
    for section, values in scores.items():
        if values:
            first = next(iter(values))
            rows = compare_by_domain(values, first)
            items = {domain: len(of_items) for domain, of_items in values[first].items()}
            content = as_json(rows, first, items, _SECTIONS[section][0]) | counts.get(section, {})
            sections.append(LMSection(section, rows, items, content))
    return sections


def _count_truncated(
    tokenizer: Any, lessons: Mapping[str, Sequence[Lesson]], texts: Mapping[str, Sequence[Sequence[int]]], max_length: int
) -> dict[str, dict[str, Any]]:
    """How many lessons and texts (as tokens) are truncated, by section of the result. Also prints it."""
    is_cut = {domain: [row.cut for row in tokenize_lessons(tokenizer, rows, max_length)] for domain, rows in lessons.items()}
    is_long = {domain: [len(ids) > max_length for ids in rows] for domain, rows in texts.items()}
    for kind, truncated in (("lessons", is_cut), ("texts", is_long)):
        for domain, rows in truncated.items():
            if number := sum(rows):
                say(f"{domain}: {number} of {len(rows)} {kind} are truncated to {max_length} tokens (--max-length)")
    return {
        section: {"cut": {domain: sum(rows) for domain, rows in truncated.items()}}
        for section, truncated in ((LIKELIHOOD, is_cut), (TEXT_LIKELIHOOD, is_long))
    }


def print_language_models(sections: Sequence[LMSection]) -> None:
    """A table for each kind of score: a column for each model."""
    for section in sections:
        _, title, digits = _SECTIONS[section.name]
        names = short_names(row.model for row in section.rows)
        console, table = terminal.console(), terminal.table("")
        table.add_column("")
        for name in names.values():
            table.add_column(name, justify="right", overflow="fold")
        for domain, number in section.items.items():
            table.add_row(
                f"{terminal.visible(domain)} ({number})", *(f"{row.domains[domain]:.{digits}f}" for row in section.rows)
            )
        table.add_row("average", *(f"{row.average:.{digits}f}" for row in section.rows))
        differences = [[f"{number:+.{digits}f}" for number in row.difference] for row in section.rows[1:]]
        if differences:
            first = names[section.rows[0].model]
            table.add_row(f"minus {first}", "", *(f"{value} [{low}, {high}]" for value, low, high in differences))
        console.print(title)
        console.print(table)
        console.print("Differences of averages with 95 % intervals, by a paired bootstrap over items.", style="dim")


def short_names(names: Iterable[str]) -> Mapping[str, str]:
    """The shortest distinct ends of model names. `unmask train` writes its result to FOLDER/model."""
    parts = {name: Path(re.sub(r"(/model)?/?(?=, |$)", "", name)).parts or (name,) for name in names}
    for number in range(1, max(map(len, parts.values())) + 1):
        short = {name: "/".join(path[-number:]) for name, path in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {name: name for name in parts}
