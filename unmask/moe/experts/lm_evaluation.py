"""Evaluation of language models, experts and mixtures: likelihood of held-out text and accuracy on public tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io.terminal import say
from unmask.models.bundled import resolve
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.abilities.harness import accuracies, draw_tests, require_code_to_run
from unmask.moe.experts.lessons.lessons import Lesson, read_lessons
from unmask.moe.experts.likelihood import cut_lessons, likelihoods, require_same_tokens, text_likelihood
from unmask.moe.mixture.mixture_folder import SETTINGS, read_mixture_settings
from unmask.moe.mixture.model import check_override, override_routing
from unmask.statistics.domain_differences import ModelScores, as_json, compare_by_domain
from unmask.training.collate import chunk_tokens
from unmask.training.data import DataSource, read_sentences

LIKELIHOOD, TEXT_LIKELIHOOD, ACCURACY = "likelihood", "text_likelihood", "accuracy"
_UNITS = {
    LIKELIHOOD: "nats a response token",
    TEXT_LIKELIHOOD: "nats a token of text",
    ACCURACY: "percent of items",
}


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
    batch: int = 8
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
    _check_models(settings)
    lessons = {domain: read_lessons(file) for domain, file in settings.lessons.items()}
    sets = {domain: read_sentences(domain, DataSource(path=str(file)), Path(), 0) for domain, file in settings.texts.items()}
    texts = {domain: [example.texts[0] for example in data.examples] for domain, data in sets.items()}
    _check_tokens(settings.sources, lessons, texts)
    learned = [lesson for file in settings.learned for lesson in read_lessons(file)]
    tests = draw_tests(settings.abilities, settings.limit, settings.seed, learned)
    code = {
        "run_code": settings.run_code or settings.allow_unsandboxed_code,
        "unsandboxed": settings.allow_unsandboxed_code,
    }
    if tests and (notice := require_code_to_run(tests, **code)):
        say(notice)
    scores: dict[str, dict[str, Any]] = {LIKELIHOOD: {}, TEXT_LIKELIHOOD: {}, ACCURACY: {}}
    tokens: dict[str, list[list[int]]] = {}
    counts: dict[str, dict[str, Any]] = {}
    for source in settings.sources:
        model, tokenizer = load_language_model(source)
        if not counts:  # all models have the same tokens
            tokens = {domain: _tokenize(tokenizer, domain, rows, settings.max_length) for domain, rows in texts.items()}
            skipped = {domain: data.skipped for domain, data in sets.items()}
            counts = _count_truncated(tokenizer, lessons, texts, tokens, skipped, settings.max_length)
        mixture = getattr(model.base_model, "mixture", None)
        variants: list[tuple[str, Any]] = [(source.model, nullcontext)]
        if mixture:
            variants += [
                (f"{source.model}, {choice}", partial(override_routing, mixture, choice)) for choice in settings.choices
            ]
        for name, routing in variants:
            with routing():
                if lessons:
                    scores[LIKELIHOOD][name] = likelihoods(model, tokenizer, lessons, max_length=settings.max_length)
                if tokens:
                    scores[TEXT_LIKELIHOOD][name] = {
                        domain: text_likelihood(model, tokenizer, rows, max_length=settings.max_length)
                        for domain, rows in tokens.items()
                    }
                if tests:
                    shares = accuracies(model, tokenizer, tests, limit=settings.limit, batch=settings.batch, **code)
                    scores[ACCURACY][name] = {test: 100 * values for test, values in shares.items()}
            say(f"{name}: done")
    sections = []
    for section, values in scores.items():
        if values:
            first = next(iter(values))
            rows = compare_by_domain(values, first)
            items = {domain: len(of_items) for domain, of_items in values[first].items()}
            content = as_json(rows, first, items, _UNITS[section]) | counts.get(section, {})
            sections.append(LMSection(section, rows, items, content))
    return sections


def _check_models(settings: LMSettings) -> None:
    folders = [Path(resolve(source.model)) for source in settings.sources]
    mixtures = [folder for folder in folders if (folder / SETTINGS).is_file()]
    if settings.choices and not mixtures:
        raise UnmaskError("--choice is another way to use a mixture, but none of the models is a mixture.")
    for folder in mixtures:
        for choice in settings.choices:
            check_override(choice, read_mixture_settings(folder).experts)


def _check_tokens(
    sources: Sequence[Source], lessons: Mapping[str, Sequence[Lesson]], texts: Mapping[str, Sequence[str]]
) -> None:
    """Raise UnmaskError for models whose nats per token cannot be compared."""
    rows = [text for of_domain in texts.values() for text in of_domain]
    rows += [lesson.prompt + lesson.output for of_domain in lessons.values() for lesson in of_domain]
    if len(sources) > 1 and rows:
        require_same_tokens(sources, rows)


def _tokenize(tokenizer: Any, domain: str, texts: Sequence[str], max_length: int) -> list[list[int]]:
    try:  # one token beyond the limit shows that a text is longer
        return chunk_tokens(tokenizer, texts, max_length + 1, blocks=False)
    except UnmaskError as error:
        raise UnmaskError(f"{domain}: {error}") from error


def _count_truncated(
    tokenizer: Any,
    lessons: Mapping[str, Sequence[Lesson]],
    texts: Mapping[str, Sequence[str]],
    tokens: Mapping[str, Sequence[Sequence[int]]],
    skipped: Mapping[str, Mapping[str, int]],
    max_length: int,
) -> dict[str, dict[str, Any]]:
    """How many lessons and texts are truncated or skipped, by section of the result. Also prints it."""
    reasons = {
        domain: {**skipped[domain], "shorter than two tokens": len(rows) - len(tokens[domain])}
        for domain, rows in texts.items()
    }
    truncated = {
        LIKELIHOOD: {domain: cut_lessons(tokenizer, rows, max_length) for domain, rows in lessons.items()},
        TEXT_LIKELIHOOD: {domain: sum(len(ids) > max_length for ids in rows) for domain, rows in tokens.items()},
    }
    for domain, counts in reasons.items():
        if number := sum(counts.values()):
            why = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
            say(f"{domain}: {number} of {len(tokens[domain]) + number} texts are skipped ({why})")
    for kind, section, rows in (("lessons", LIKELIHOOD, lessons), ("texts", TEXT_LIKELIHOOD, tokens)):
        for domain, number in truncated[section].items():
            if number:
                say(f"{domain}: {number} of {len(rows[domain])} {kind} are truncated to {max_length} tokens (--max-length)")
    return {
        LIKELIHOOD: {"cut": truncated[LIKELIHOOD]},
        TEXT_LIKELIHOOD: {"cut": truncated[TEXT_LIKELIHOOD], "left_out": reasons},
    }
