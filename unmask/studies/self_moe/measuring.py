"""Measuring: the held-out responses' likelihood under every row of the tables, and where tokens go. Each is measured once and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.experts.abilities.harness import accuracy
from unmask.experts.likelihood import response_likelihood
from unmask.experts.speakers import load_speaker
from unmask.experts.usage import measure_usage
from unmask.files import write_json
from unmask.loading import Source, load_language_model
from unmask.mixture.choices import chosen
from unmask.mixture.experts import read_expert
from unmask.mixture.merging import Method, merge_experts
from unmask.studies.self_moe.drawing import Asked, Lessons

Values = dict[str, NDArray[np.float64]]


class Meter:
    """Measures models on the held-out lessons, each at most once.

    asked: tests of ability, for whole models. folder: where values are kept, one file a row, named by the row; they are those of the
    artefacts that lie beside it.
    """

    def __init__(
        self,
        source: Source,
        held_out: Lessons,
        max_length: int,
        folder: Path,
        say: Callable[[str], None],
        asked: Asked | None = None,
    ) -> None:
        self.source, self.held_out, self.max_length, self.folder, self.say = source, held_out, max_length, folder, say
        self.asked = asked or Asked({}, None, False)

    def model(self, row: str, folder: Path | None) -> Values:
        """A base model (no folder), an expert or a mixture as it was saved."""
        with self._measuring(row) as missing:
            if missing:
                speaker, tokenizer = load_speaker(replace(self.source, model=str(folder or self.source.model)))
                self._keep(row, speaker, tokenizer)
        return self._values(row)

    def merged(
        self, row: str, experts: Sequence[Path], method: Method, density: float, weights: Sequence[float] | None
    ) -> Values:
        """Experts merged into the base."""
        with self._measuring(row) as missing:
            if missing:
                model, tokenizer = load_language_model(self.source)
                found = [read_expert(folder) for folder in experts]
                merge_experts(model, found, method, density=density, weights=weights)
                self._keep(row, model.eval(), tokenizer)
        return self._values(row)

    def choices(self, row: str, folder: Path, choices: Sequence[str]) -> dict[str, Values]:
        """A mixture used in other ways than it was saved in; and where its tokens go."""
        names = {choice: f"{row}, {choice}" for choice in choices}
        if not self._file(f"{row}, usage").is_file() or any(not self._file(name).is_file() for name in names.values()):
            speaker, tokenizer = load_speaker(replace(self.source, model=str(folder)))
            mixture = speaker.base_model.mixture
            if not self._file(f"{row}, usage").is_file():
                self.say(f"measuring where the tokens of {row} go")
                usage = measure_usage(mixture, tokenizer, self.held_out, self.max_length)
                write_json(self._file(f"{row}, usage"), usage.as_json())
            for choice, name in names.items():
                with self._measuring(name) as missing:
                    if missing:
                        self._keep(name, speaker, tokenizer, partial(chosen, mixture, choice))
        return {choice: self._values(name) for choice, name in names.items()}

    def usage(self, row: str) -> dict[str, Any]:
        """What `choices` found of where tokens go."""
        return json.loads(self._file(f"{row}, usage").read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def abilities(self, row: str) -> Values:
        """What a row that was measured before got right, 100 for each item that it did; nothing for rows that are not asked."""
        file = self._file(f"{row}, abilities")
        return self._values(f"{row}, abilities") if file.is_file() else {}

    def oracle(self, experts: Mapping[str, Values]) -> Values:
        """Each domain under its own expert."""
        return {domain: experts[domain][domain] for domain in self.held_out}

    @contextmanager
    def _measuring(self, row: str) -> Iterator[bool]:
        missing = not self._file(row).is_file()
        if missing:
            self.say(f"measuring {row}")
        yield missing

    def _keep(self, row: str, speaker: Any, tokenizer: Any, using: Callable[[], Any] | None = None) -> None:
        if self.asked.items and using is None:
            right = {
                name: 100 * accuracy(speaker, tokenizer, name, items, run_code=self.asked.run_code, limit=self.asked.limit)
                for name, items in self.asked.items.items()
            }
            write_json(self._file(f"{row}, abilities"), {name: values.tolist() for name, values in right.items()})
        with (using or nullcontext)():
            found = {
                domain: response_likelihood(speaker, tokenizer, lessons, max_length=self.max_length).tolist()
                for domain, lessons in self.held_out.items()
            }
        write_json(self._file(row), found)

    def _values(self, row: str) -> Values:
        said = json.loads(self._file(row).read_text(encoding="utf-8"))
        return {domain: np.array(values) for domain, values in said.items()}

    def _file(self, row: str) -> Path:
        return self.folder / f"{row.replace(' ', '-').replace(',', '')}.json"
