"""Measurements of the study of Self-MoE, for every row of its tables."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import UnmaskError
from unmask.io.seals import read_record, write_record
from unmask.io.terminal import say
from unmask.models.identity import identity_of
from unmask.models.loading import Source, load_base_language_model, load_language_model
from unmask.moe.experts.abilities.answer_likelihood import Choice, answer_likelihood, answer_nats, negative_margin
from unmask.moe.experts.abilities.harness import HarnessItems, TestItems, accuracies
from unmask.moe.experts.expert_usage import measure_usage
from unmask.moe.experts.likelihood import likelihoods
from unmask.moe.mixture.expert_folder import read_expert
from unmask.moe.mixture.merging import merge_experts
from unmask.moe.mixture.model import load_mixture
from unmask.moe.mixture.override import override_routing
from unmask.moe.names import MergeMethod
from unmask.studies.self_moe.data import AbilityTests, Lessons

Values = dict[str, NDArray[np.float64]]
OpenModel = AbstractContextManager[tuple[Any, Any]]
"""Loads a language model and its tokenizer, for the time of a `with`."""


@dataclass(frozen=True)
class Choices:
    """A row of multiple choice, by test, in nats per token."""

    behind: Values
    """How much less likely each right choice is than the likeliest wrong one."""
    nats: Values
    """n(x) of each human answer."""

    @property
    def right(self) -> Values:
        """100 for each item whose right choice is the likeliest, 0 for the others."""
        return {name: np.where(of_test < 0, 100.0, 0.0) for name, of_test in self.behind.items()}


class Measurements:
    """Measures models on the held-out lessons, each model at most once. Results are kept, so that a stopped study continues.

    folder: holds the values, one file for each row, with the name of the row. ability_tests: tests for whole models.
    """

    def __init__(
        self,
        source: Source,
        held_out: Lessons,
        max_length: int,
        folder: Path,
        ability_tests: AbilityTests | None = None,
    ) -> None:
        self.source, self.held_out, self.max_length, self.folder = source, held_out, max_length, folder
        self.ability_tests = ability_tests or AbilityTests({}, None, False)
        self.tests = {name: _items_digest(items, self.ability_tests.limit) for name, items in self.ability_tests.items.items()}
        self.rows: list[str] = []  # requested so far, in order

    def measure_model(self, row: str, folder: Path | None) -> Values:
        """The values of a saved expert or mixture, or of the base model (no folder)."""
        self._check_model(row, folder)
        if self._is_missing(row):
            self._measure(row, *self._load(folder))
        return self._values(row)

    def measure_merge(self, row: str, experts: Sequence[Path], method: MergeMethod, density: float | None = None) -> Values:
        """The values of the base model with these experts merged into it."""
        self._check_model(row, *experts)
        if self._is_missing(row):
            with self.open_merge(experts, method, density) as (model, tokenizer):
                self._measure(row, model, tokenizer)
        return self._values(row)

    def measure_choices(self, row: str, folder: Path, choices: Sequence[str], *, abilities: bool = False) -> dict[str, Values]:
        """The values of a mixture with other routings, and on request its abilities. It measures the usage of experts too."""
        names = {choice: f"{row}, {choice}" for choice in choices}
        lacking = {choice for choice, name in names.items() if self._is_missing(name, abilities)}
        usage = f"{row}, usage"
        if lacking or self._read(usage) is None:
            mixture, tokenizer = load_mixture(folder, self.source)
            mixture.model.eval()
            if self._read(usage) is None:
                say(f"{self.source.model}: measuring where the tokens of {row} go")
                write_record(self._file(usage), measure_usage(mixture, tokenizer, self.held_out, self.max_length).as_json())
            for choice in choices:
                if choice in lacking:
                    self._measure(
                        names[choice], mixture.model, tokenizer, partial(override_routing, mixture, choice), abilities
                    )
        return {choice: self._values(name) for choice, name in names.items()}

    def usage(self, row: str) -> dict[str, Any]:
        """The usage of experts, as `measure_choices` measured it for this mixture."""
        return self._require_values(f"{row}, usage")

    def abilities(self) -> dict[str, Values]:
        """For each row so far: 100 for each correct item, 0 for the others. Only tests that all rows have, with the same items."""
        by_row = {row: right for row in self.rows if (right := self._correct_items(row))}
        shared = [
            name
            for name, test in next(iter(by_row.values()), {}).items()
            if all(right.get(name, {}).get("items") == test["items"] for right in by_row.values())
        ]
        return (
            {row: {name: np.array(right[name]["right"]) for name in shared} for row, right in by_row.items()} if shared else {}
        )

    def measure_answers(self, row: str, folder: Path | None) -> Values:
        """The `answer_likelihood` of a saved expert or mixture, or of the base model (no folder), by ability test."""
        tests = self.ability_tests.answers
        digests = {
            name: _digest((item.prompt, item.choices, item.target, item.reference) for item in items)
            for name, items in tests.items()
        }

        def measure(model: Any, tokenizer: Any, name: str) -> dict[str, list[float]]:
            return {"nats": answer_likelihood(model, tokenizer, tests[name], max_length=self.max_length).tolist()}

        values = self._measure_by_test(row, "answers", digests, self.open_model(folder), measure)
        return {name: np.array(values[name]["nats"]) for name in tests}

    def measure_multiple_choice(self, row: str, open_model: OpenModel) -> Choices:
        """The multiple choice of a model, which is loaded only if something of the row is not measured yet."""
        tests = self.ability_tests.choices
        digests = {
            name: _digest((choice.item.prompt, choice.item.choices, choice.item.target) for choice in choices)
            for name, choices in tests.items()
        }

        def measure(model: Any, tokenizer: Any, name: str) -> dict[str, list[float]]:
            return _choice_nats(model, tokenizer, tests[name], self.max_length)

        values = self._measure_by_test(row, "multiple choice", digests, open_model, measure)
        return Choices(*({name: np.array(values[name][part]) for name in tests} for part in ("behind", "nats")))

    def _measure_by_test(
        self,
        row: str,
        quantity: str,
        digests: Mapping[str, str],
        open_model: OpenModel,
        measure: Callable[[Any, Any, str], dict[str, list[float]]],
    ) -> dict[str, Any]:
        """The values of a row, by test. `measure` is called for a missing test, or one with other items (by their digests)."""
        values: dict[str, Any] = self._read(f"{row}, {quantity}") or {}
        lacking = [name for name, digest in digests.items() if values.get(name, {}).get("items") != digest]
        if lacking:
            say(f"{self.source.model}: measuring the {quantity} of {row}: {', '.join(lacking)}")
            with open_model as (model, tokenizer):
                for name in lacking:
                    values[name] = {"items": digests[name], **measure(model, tokenizer, name)}
                    write_record(self._file(f"{row}, {quantity}"), values)
        return values

    @contextmanager
    def open_model(self, folder: Path | None, routing: str = "") -> Iterator[tuple[Any, Any]]:
        """A saved expert or mixture, or the base model (no folder). routing: another routing of a mixture."""
        if not routing:
            yield self._load(folder)
            return
        mixture, tokenizer = load_mixture(Path(str(folder)), self.source)
        with override_routing(mixture, routing):
            yield mixture.model.eval(), tokenizer

    @contextmanager
    def open_merge(
        self, experts: Sequence[Path], method: MergeMethod, density: float | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """The base model with these experts merged into it."""
        model, tokenizer = load_base_language_model(self.source)
        merge_experts(model, [read_expert(folder) for folder in experts], method, density=density)
        yield model.eval(), tokenizer

    def oracle(self, experts: Mapping[str, Values]) -> Values:
        """The values of each domain, measured with its own expert."""
        return {domain: experts[domain][domain] for domain in self.held_out}

    def _check_model(self, row: str, *folders: Path | None) -> None:
        """Raise UnmaskError if anything of a row was measured with other weights."""
        weights = [identity_of(self._source(folder)).revision for folder in folders]
        before = self._read(f"{row}, weights")
        names = [row, *(file.stem for file in self.folder.glob(f"{escape(row)}, *.json"))]
        measured = any(self._read(name) is not None for name in names if name != f"{row}, weights")
        if before is None or not measured:
            write_record(self._file(f"{row}, weights"), {"weights": weights})
        elif before["weights"] != weights:
            raise UnmaskError(
                f"'{row}' was measured with other weights than it has now. Give another folder, or remove '{self.folder}', so that "
                "every row is measured again."
            )

    def _source(self, folder: Path | None) -> Source:
        return replace(self.source, model=str(folder or self.source.model))

    def _load(self, folder: Path | None) -> Any:
        return load_language_model(self._source(folder))

    def _is_missing(self, row: str, abilities: bool = True) -> bool:
        """Whether something of a row is not measured yet. If so, it prints that."""
        if abilities:
            self.rows.append(row)
        tests = self._missing_tests(row) if abilities else []
        if self._read(row) is None:
            say(f"{self.source.model}: measuring {row}")
            return True
        if tests:
            say(f"{self.source.model}: measuring {row}: {', '.join(tests)}")
        return bool(tests)

    def _measure(
        self, row: str, model: Any, tokenizer: Any, using: Callable[[], Any] = nullcontext, abilities: bool = True
    ) -> None:
        """Measure the missing values of a row. The result of each test is kept at once."""
        for name in self._missing_tests(row) if abilities else ():
            with using():
                scores = accuracies(
                    model, tokenizer, {name: self.ability_tests.items[name]}, limit=self.ability_tests.limit,
                    run_code=self.ability_tests.run_code, unsandboxed=self.ability_tests.unsandboxed,
                )  # fmt: skip
            right = {"items": self.tests[name], "right": (100 * scores[name]).tolist()}
            write_record(self._file(f"{row}, abilities"), {**self._correct_items(row), name: right})
        if self._read(row) is None:
            with using():
                values = likelihoods(model, tokenizer, self.held_out, max_length=self.max_length)
            write_record(self._file(row), {name: of_domain.tolist() for name, of_domain in values.items()})

    def _missing_tests(self, row: str) -> list[str]:
        """The ability tests that a row lacks, or has with other items."""
        right = self._correct_items(row) if self.tests else {}
        return [name for name, items in self.tests.items() if right.get(name, {}).get("items") != items]

    def _correct_items(self, row: str) -> dict[str, dict[str, Any]]:
        """The kept abilities of a row, except those without the name of their items."""
        abilities = self._read(f"{row}, abilities") or {}
        return {name: test for name, test in abilities.items() if isinstance(test, dict)}

    def _values(self, row: str) -> Values:
        return {domain: np.array(values) for domain, values in self._require_values(row).items()}

    def _read(self, row: str) -> dict[str, Any] | None:
        return read_record(self._file(row))

    def _require_values(self, row: str) -> dict[str, Any]:
        values = self._read(row)
        if values is None:
            raise UnmaskError(f"'{self._file(row)}' was removed or damaged while the study ran. Run the study again.")
        return values

    def _file(self, row: str) -> Path:
        return self.folder / f"{row}.json"


def _choice_nats(model: Any, tokenizer: Any, choices: Sequence[Choice], max_length: int) -> dict[str, list[float]]:
    """How far each right choice is behind, and n(x) of each human answer."""
    by_choice = answer_nats(model, tokenizer, [choice.item for choice in choices], max_length=max_length)
    solutions = [choice.solution for choice in choices if choice.solution]
    of_solutions = iter(answer_nats(model, tokenizer, solutions, max_length=max_length) if solutions else [])
    nats = [
        next(of_solutions)[0] if choice.solution else of_choice[int(str(choice.item.target))]
        for choice, of_choice in zip(choices, by_choice, strict=True)
    ]
    return {
        "behind": [negative_margin(choice.item, of_choice) for choice, of_choice in zip(choices, by_choice, strict=True)],
        "nats": [float(value) for value in nats],
    }


def _items_digest(items: TestItems, limit: int | None) -> str:
    """A name for the items of a test: a hash of their content, or the number of items that the harness fetches."""
    if isinstance(items, HarnessItems):
        return f"by name, {'all' if limit is None else limit}"
    programs = (item.program("") if item.program else None for item in items)
    return _digest((item.prompt, item.choices, item.target, program) for item, program in zip(items, programs, strict=True))


def _digest(items: Iterable[tuple[Any, ...]]) -> str:
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr(item).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


_TOKENS, _TEXTS, _ROUNDS = 128, 4, 4


def measure_overhead(folder: Path, source: Source) -> dict[str, Any]:
    """The cost of a saved mixture compared with its base (the same model without experts), measured in turns.

    parameters: of the base. added: in experts and router. flops, forward: FLOPs and time (the best of four) of a forward pass,
    divided by the base's.
    """
    from torch.utils.flop_counter import FlopCounterMode

    mixture, _ = load_mixture(folder, source)
    model = mixture.model.eval()
    ids = torch.randint(3, model.config.vocab_size, (_TEXTS, _TOKENS), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )

    def forward() -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=False, logits_to_keep=1)

    models: dict[str, Callable[[], Any]] = {"base": mixture.without_experts, "mixture": nullcontext}
    flops: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for name, context in models.items():
        with context(), FlopCounterMode(display=False) as counter:
            forward()
        flops[name] = counter.get_total_flops()
    for _ in range(_ROUNDS):
        for name, context in models.items():
            with context():
                start = time.perf_counter()
                forward()
                if ids.is_cuda:
                    torch.cuda.synchronize()
            seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - start)
    experts = sum(weight.numel() for weight in mixture.expert_weights)
    router = sum(weight.numel() for weight in mixture.router_weights)
    total = sum(weight.numel() for weight in model.parameters())
    return {
        "experts": len(mixture.experts),
        "parameters": total - experts - router,
        "added": experts + router,
        "router": router,
        "flops": flops["mixture"] / flops["base"],
        "forward": seconds["mixture"] / seconds["base"],
    }
