"""Prompt files: prompts with names, and with solved examples before the text. Each of them is a design of its own.

    [topic]
    template = 'The topic of "{text}" in one word is:"'
    examples = [{ text = "A man plays a guitar.", answer = "music" }]
    zscore = true

`-d FILE.toml` stands for all designs of a file. The design holds the whole template, so a saved embedder does not need the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.designs.prompts import Prompt
from unmask.errors import UnmaskError, first_problem

ENDING: Final = ".toml"
LIBRARY: Final = Path(__file__).with_name("prompt_library.toml")
"""Prompts that come with the package: the set `prompts`."""
_LABEL = re.compile(r"[\w-]+")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SolvedExample(_Table):
    """A text and what the model should have said of it."""

    text: str = Field(min_length=1)
    answer: str = Field(min_length=1)


class PromptEntry(_Table):
    """A prompt of a file. examples: solved examples before the text. zscore: standardise each dimension."""

    template: str
    examples: tuple[SolvedExample, ...] = ()
    pooling: Literal["last", "mean", "weighted-mean", "max"] = "last"
    zscore: bool = False
    source: str = ""

    @property
    def whole(self) -> str:
        """The template with its solved examples before it, each on a line of its own."""
        return "".join(f"{_solved(self.template, example)}\n" for example in self.examples) + self.template

    @property
    def design(self) -> str:
        """The readable name of the design."""
        return f"causal/{json.dumps(self.whole, ensure_ascii=False)}/{self.pooling}{'/zscore' if self.zscore else ''}"


def read_prompts(file: Path) -> dict[str, PromptEntry]:
    """The prompts of a file by name. Raises UnmaskError with file and prompt for what is missing or wrong."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnmaskError(f"The prompt file '{file}' cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnmaskError(f"The prompt file '{file}' is no TOML: {error}.") from error
    if not tables:
        raise UnmaskError(f"The prompt file '{file}' has no prompt. A prompt is a table with a name and a template.")
    return {name: _checked(file, name, table) for name, table in tables.items()}


def members(name: str) -> list[str]:
    """The designs that a name stands for: those of a prompt file, or itself. Raises UnmaskError."""
    return labelled_designs(Path(name).expanduser()) if name.endswith(ENDING) else [name]


def labelled_designs(file: Path) -> list[str]:
    """The designs of a prompt file as `LABEL=DESIGN`. Raises UnmaskError."""
    return [f"{name}={entry.design}" for name, entry in read_prompts(file).items()]


def _checked(file: Path, name: str, table: object) -> PromptEntry:
    if not _LABEL.fullmatch(name):
        raise UnmaskError(f"{file}: '{name}' is no name of a prompt. Use letters, digits, '-' and '_'.")
    try:
        entry = PromptEntry.model_validate(table)
        Prompt(name, entry.template)
        Prompt(name, entry.whole)
    except ValidationError as error:
        raise UnmaskError(f"{file}, prompt '{name}': {first_problem(error)}.") from error
    except UnmaskError as error:
        raise UnmaskError(f"{file}, prompt '{name}': {error}") from error
    return entry


def _solved(template: str, example: SolvedExample) -> str:
    """The template with an example's text and answer. A quote that the template leaves open is closed."""
    if template.count("{text}") != 1 or "{instruction}" in template or "{eos}" in template:
        raise UnmaskError("A prompt with solved examples must have {text} once and no other field.")
    closing = '"' if template.endswith('"') else ""
    return template.replace("{text}", _literal(example.text)) + _literal(example.answer) + closing


def _literal(text: str) -> str:
    """A text as a part of a template: braces are characters."""
    return text.replace("{", "{{").replace("}", "}}")
