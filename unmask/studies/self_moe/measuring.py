"""Measuring: the held-out responses' likelihood under every row of the tables, and where tokens go. Each is measured once and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.experts.abilities.harness import accuracies
from unmask.experts.likelihood import likelihoods
from unmask.experts.speakers import load_speaker
from unmask.experts.usage import measure_usage
from unmask.files import write_json
from unmask.loading import Source, load_language_model
from unmask.mixture.choices import chosen
from unmask.mixture.experts import read_expert
from unmask.mixture.folder import load_mixture
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
        if self._lacks(row):
            self._keep(row, *load_speaker(replace(self.source, model=str(folder or self.source.model))))
        return self._values(row)

    def merged(self, row: str, experts: Sequence[Path], method: Method, density: float = 1.0) -> Values:
        """Experts merged into the base."""
        if self._lacks(row):
            model, tokenizer = load_language_model(self.source)
            merge_experts(model, [read_expert(folder) for folder in experts], method, density=density)
            self._keep(row, model.eval(), tokenizer)
        return self._values(row)

    def choices(self, row: str, folder: Path, choices: Sequence[str]) -> dict[str, Values]:
        """A mixture used in other ways than it was saved in; and where its tokens go."""
        names = {choice: f"{row}, {choice}" for choice in choices}
        usage = f"{row}, usage"
        if any(not self._file(name).is_file() for name in (usage, *names.values())):
            mixture, tokenizer = load_mixture(folder, self.source)
            mixture.model.eval()
            if self._lacks(usage, f"where the tokens of {row} go"):
                found = measure_usage(mixture, tokenizer, self.held_out, self.max_length)
                write_json(self._file(usage), found.as_json())
            for choice, name in names.items():
                if self._lacks(name):
                    self._keep(name, mixture.model, tokenizer, partial(chosen, mixture, choice))
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

    def _lacks(self, row: str, what: str | None = None) -> bool:
        """Whether a row is still to be measured, which is then said."""
        missing = not self._file(row).is_file()
        if missing:
            self.say(f"measuring {what or row}")
        return missing

    def _keep(self, row: str, speaker: Any, tokenizer: Any, using: Callable[[], Any] | None = None) -> None:
        if self.asked.items and using is None:
            right = accuracies(speaker, tokenizer, self.asked.items, run_code=self.asked.run_code, limit=self.asked.limit)
            self._write(f"{row}, abilities", {name: 100 * values for name, values in right.items()})
        with (using or nullcontext)():
            self._write(row, likelihoods(speaker, tokenizer, self.held_out, max_length=self.max_length))

    def _write(self, row: str, values: Values) -> None:
        write_json(self._file(row), {name: some.tolist() for name, some in values.items()})

    def _values(self, row: str) -> Values:
        said = json.loads(self._file(row).read_text(encoding="utf-8"))
        return {domain: np.array(values) for domain, values in said.items()}

    def _file(self, row: str) -> Path:
        return self.folder / f"{row.replace(' ', '-').replace(',', '')}.json"
