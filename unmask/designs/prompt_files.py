"""Prompt files: prompts with names, and with solved examples before the text. Each prompt makes one design.

    [topic]
    template = 'The topic of "{text}" in one word is:"'
    examples = [{ text = "A man plays a guitar.", answer = "music" }]
    zscore = true

    [topic-and-meaning]
    average = ["topic", "eol"]    # the mean of the vectors under prompts of the file, or registered ones

    [topic-and-echo]
    average = ["topic", "echo"]
    pooling = ["last", "mean"]    # one for each of them

A new line is `\\n` in double quotes. In single quotes, TOML would keep a backslash and an n.

`-d FILE.toml` means every design of the file. The design holds the whole template, so a saved embedder does not need the file.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.designs.prompts import AND, PROMPTS, Prompt, Prompts, averaged, is_template, name_of
from unmask.errors import UnmaskError, first_problem, unknown
from unmask.io.paths import expanded
from unmask.io.terminal import counted

LIBRARY: Final = Path(__file__).with_name("prompt_library.toml")
"""Prompts that come with the package: the set `prompts`."""
_Reading = Literal["last", "first", "mean", "weighted-mean", "max"]
_LABEL = re.compile(r"[\w-]+")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SolvedExample(_Table):
    """A text and what the model should have said of it."""

    text: str = Field(min_length=1)
    answer: str = Field(min_length=1)


class _Entry(_Table):
    """What every entry of a file may have. zscore: standardise each dimension."""

    zscore: bool = False
    source: str = ""


class PromptEntry(_Entry):
    """A prompt of a file. examples: solved examples before the text."""

    template: str
    pooling: _Reading = "last"
    examples: tuple[SolvedExample, ...] = ()

    @property
    def whole(self) -> str:
        """The template preceded by its solved examples, one per line."""
        return "".join(f"{_solved(self.template, example)}\n" for example in self.examples) + self.template


class AverageEntry(_Entry):
    """A design of several prompts: names of prompts of the same file, or of registered ones. Only their templates count.

    pooling: one, or one for each prompt, in their order.
    """

    average: tuple[str, ...]
    pooling: _Reading | tuple[_Reading, ...] = "last"


def read_prompts(file: Path) -> dict[str, PromptEntry | AverageEntry]:
    """The prompts and averages of a file by name. Raises UnmaskError that names the file and the faulty prompt."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnmaskError(f"The prompt file '{file}' cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnmaskError(f"The prompt file '{file}' is not valid TOML: {error}.") from error
    if not tables:
        raise UnmaskError(f"The prompt file '{file}' has no prompt. A prompt is a table with a name and a template.")
    return {name: _checked(file, name, table) for name, table in tables.items()}


def members(name: str) -> list[str]:
    """The designs of a prompt file as `LABEL=DESIGN`; for any other name, the name alone. Raises UnmaskError."""
    if not name.endswith(".toml"):
        return [name]
    file, designs = expanded(name), []
    entries = read_prompts(file)
    for label, entry in entries.items():
        pooling = entry.pooling if isinstance(entry.pooling, str) else AND.join(entry.pooling)
        prompt = name_of(_prompt(file, label, entries))
        designs.append(f"{label}=causal/{prompt}/{pooling}{'/zscore' if entry.zscore else ''}")
    return designs


def library_templates(prompts: Prompts) -> Prompts:
    """Prompts with the templates of the library in place of its names. A registered prompt of the same name goes first."""
    if isinstance(prompts, str):
        return _library_template(prompts)
    return tuple(map(_library_template, prompts))


def _library_template(prompt: str) -> str:
    if prompt in PROMPTS or is_template(prompt):
        return prompt
    return _library().get(prompt, prompt)


@cache
def _library() -> dict[str, str]:
    return {name: entry.whole for name, entry in read_prompts(LIBRARY).items() if isinstance(entry, PromptEntry)}


def _prompt(file: Path, name: str, entries: dict[str, PromptEntry | AverageEntry]) -> Prompts:
    """The template of an entry, or the templates of an average. Raises UnmaskError for prompts that cannot be averaged."""
    entry = entries[name]
    if isinstance(entry, PromptEntry):
        return entry.whole
    templates = {name: prompt_entry.whole for name, prompt_entry in entries.items() if isinstance(prompt_entry, PromptEntry)}
    try:
        for member in entry.average:
            if member not in templates and member not in PROMPTS:
                raise unknown("prompt in an average", member, [*templates, *PROMPTS])
        prompts = tuple(templates.get(member, member) for member in entry.average)
        averaged(prompts)
        if not isinstance(entry.pooling, str) and len(entry.pooling) != len(prompts):
            raise UnmaskError(
                f"{counted(len(entry.pooling), 'pooling')} for {counted(len(prompts), 'prompt')}: give one, or one each."
            )
        return prompts
    except UnmaskError as error:
        raise UnmaskError(f"{file}, prompt '{name}': {error}") from error


def _checked(file: Path, name: str, table: object) -> PromptEntry | AverageEntry:
    if not _LABEL.fullmatch(name):
        raise UnmaskError(f"{file}: '{name}' is not a valid prompt name. Use letters, digits, '-' and '_'.")
    try:
        if isinstance(table, dict) and "average" in table:
            return AverageEntry.model_validate(table)
        entry = PromptEntry.model_validate(table)
        Prompt(name, entry.template)
        Prompt(name, entry.whole)
    except ValidationError as error:
        raise UnmaskError(f"{file}, prompt '{name}': {first_problem(error)}.") from error
    except UnmaskError as error:
        raise UnmaskError(f"{file}, prompt '{name}': {error}") from error
    if "\\n" in entry.whole:  # no error: it may be meant, as in a formula of LaTeX
        warnings.warn(
            f"{file}, prompt '{name}': the model reads a backslash and an n, not a newline, because TOML does not unescape '\\n' in single "
            "quotes. For a new line, write the text in double quotes.",
            stacklevel=2,
        )
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
