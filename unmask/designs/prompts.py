"""Prompts: a template around the text, and the rule that says which of its tokens are embedded.

One rule holds for nearly every prompt: **the embedded span starts at the last `{text}` and ends at the end of the prompt.** `plain` embeds
the text. `instruction` embeds the text, but not the instruction before it. `echo` embeds the second copy. A one-word prompt ends with the
token that predicts the word. The model attends to the tokens before the span (BOS, instruction, first copy), but pooling leaves them out.
Some trained models are read another way: `full` and `full-instruction` embed everything, with all special tokens that the tokenizer adds,
and `nv-embed` embeds BOS and text if there is no instruction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from string import Formatter
from typing import Final

from unmask.errors import UnmaskError, unknown
from unmask.io.unicode import without_surrogates

FIELDS = ("text", "instruction", "eos")
CHAT = "chat:"
_NAME = re.compile(r"[\w-]+")  # the form of a registered name; anything else must be a template


@dataclass(frozen=True)
class Prompt:
    """A template with the fields `{text}` (once or twice), `{instruction}` (at most once) and `{eos}` (only at the end).

    `{{` and `}}` are literal braces. Raises UnmaskError for a template that breaks these rules.
    """

    name: str
    template: str
    meaning: str = "a template of the user's own"
    source: str = ""
    pools_all: bool = False
    """Whether every token is embedded, and the special tokens after the text stay."""
    bare: Prompt | None = None
    """The prompt for a text without an instruction. None: the text alone."""

    def __post_init__(self) -> None:
        """Check the template once. Every Prompt can then be rendered."""
        fields = [field for _, field in self.pieces if field]
        problem = None
        if fields.count("text") not in (1, 2):
            problem = "it must contain {text} once (or twice, to embed the second copy)"
        elif fields.count("instruction") > 1 or "instruction" in " ".join(fields).rpartition("text")[2]:
            problem = "{instruction} is allowed once, before the last {text}"
        elif "eos" in fields and not (fields.count("eos") == 1 and self.template.endswith("{eos}")):
            problem = "{eos} is allowed only at the end"
        if without_surrogates(self.template) != self.template:
            problem = "it is not valid Unicode"
        if problem:
            raise UnmaskError(f"The prompt template {json.dumps(self.template)} does not work: {problem}.")

    @cached_property
    def pieces(self) -> tuple[tuple[str, str | None], ...]:
        """The template as pairs: literal text, and the field after it (or None)."""
        try:
            parsed = list(Formatter().parse(self.template))
        except ValueError as error:
            raise UnmaskError(f"The prompt template {json.dumps(self.template)} has a mistake: {error}.") from error
        for _, field, format_spec, conversion in parsed:
            if field is not None and field not in FIELDS:
                raise unknown("field in a prompt template", field, FIELDS)
            if format_spec or conversion:
                raise UnmaskError(
                    f"The prompt template {json.dumps(self.template)} has ':' or '!' in a field. Write {{{field}}} without them."
                )
        return tuple((literal, field) for literal, field, _, _ in parsed)

    @property
    def takes_instruction(self) -> bool:
        """Whether an instruction changes what this prompt renders."""
        return any(field == "instruction" for _, field in self.pieces)

    @property
    def appends_eos(self) -> bool:
        """Whether the prompt ends with the end-of-sequence token. If so, that token is part of the embedded span."""
        return self.pieces[-1][1] == "eos"

    def without_instruction(self) -> Prompt:
        """The prompt for a text without an instruction: `bare`, else the text alone. E5 encodes documents this way."""
        if not self.takes_instruction:
            return self
        return self.bare or replace(self, template="{text}{eos}" if self.appends_eos else "{text}")

    def render(self, text: str, instruction: str | None) -> tuple[str, list[tuple[int, int]]]:
        """The prompt with the text in it, and where each copy of the text starts and ends, in characters."""
        rendered, copies = "", []
        for literal, field in self.pieces:
            rendered += literal
            if field == "text":
                copies.append((len(rendered), len(rendered) + len(text)))
                rendered += text
            elif field == "instruction":
                rendered += instruction or ""
        return rendered, copies


def _one_word(name: str, question: str) -> Prompt:
    template = f'This sentence : "{{text}}" {question} in one word:"'
    return Prompt(name, template, f"asks for one word: {name}", "after MoEE (arXiv 2410.10814), table 2, in our words")


PROMPTS: dict[str, Prompt] = {
    prompt.name: prompt
    for prompt in (
        Prompt("plain", "{text}", "the text and nothing else", ""),
        Prompt("eos", "{text}{eos}", "the text and an end-of-sequence token", "Pooling and Attention (arXiv 2409.02727)"),
        Prompt(
            "eol",
            'This sentence : "{text}" means in one word:"',
            "asks for the meaning in one word; the last token predicts it",
            "PromptEOL (arXiv 2307.16645)",
        ),
        _one_word("style", "has, as its style of writing,"),
        _one_word("sentiment", "is, in its sentiment (positive, neutral or negative),"),
        _one_word("tone", "is, in its tone (formal, informal, humorous or serious),"),
        _one_word("intent", "has the intent (request, suggestion or command),"),
        _one_word("complexity", "is, in its complexity (simple, moderate or complex),"),
        _one_word("subjectivity", "is subjective or objective,"),
        _one_word("language-style", "is, in its language style (academic, conversational or literary),"),
        _one_word("grammar", "is, in its grammatical structure (simple, compound or complex),"),
        Prompt(
            "echo",
            "Rewrite the sentence: {text}\nRewritten sentence: {text}",
            "the text twice; the second copy has seen the whole text, and only it is embedded",
            "Echo embeddings (arXiv 2402.15449)",
        ),
        Prompt(
            "instruction",
            "Instruct: {instruction}\nQuery: {text}",
            "the instruction is seen but not pooled; without an instruction, the text alone",
            "E5-Mistral (arXiv 2401.00368)",
        ),
        Prompt(
            "instruction-eos",
            "Instruct: {instruction}\nQuery: {text}{eos}",
            "as `instruction`, with an end-of-sequence token at the end",
            "E5-Mistral (arXiv 2401.00368)",
        ),
        Prompt(
            "gritlm",
            "<|user|>\n{instruction}\n<|embed|>\n{text}",
            "the instruction is seen but not pooled, and a mark before the text stays without it",
            "GritLM (arXiv 2402.09906), its code",
            bare=Prompt("gritlm", "<|embed|>\n{text}"),
        ),
        Prompt(
            "nv-embed",
            "Instruct: {instruction}\nQuery: {text}{eos}",
            "as `instruction-eos`; without an instruction, every token is embedded, BOS too",
            "NV-Embed (arXiv 2405.17428), its code",
            bare=Prompt("nv-embed", "{text}{eos}", pools_all=True),
        ),
        Prompt(
            "full",
            "{text}",
            "the text with all special tokens of the tokenizer; every token is embedded",
            "sentence-transformers",
            pools_all=True,
        ),
        Prompt(
            "full-instruction",
            "{instruction}{text}",
            "as `full`, with an instruction right before the text, which is embedded too",
            "sentence-transformers, E5 (arXiv 2212.03533)",
            pools_all=True,
        ),
    )
}


def is_template(name: str) -> bool:
    """Whether a prompt's name is the user's own template, not a registered name."""
    return "{" in name


def find_prompt(name: str) -> Prompt:
    """The prompt with this name, or of this template. `PromptTokenizer` handles a leading `chat:`. Raises UnmaskError for others."""
    name = name.removeprefix(CHAT)
    if name in PROMPTS:
        return PROMPTS[name]
    if is_template(name) or not _NAME.fullmatch(name):
        return Prompt(name, name)
    raise UnmaskError(
        f'{unknown("prompt", name, PROMPTS)} Your own prompt needs {{text}} in it, for example "Topic of: {{text}}".'
    )


def takes_instruction(names: Iterable[str]) -> bool:
    """Whether one of these prompts has a place for an instruction."""
    return any(find_prompt(name).takes_instruction for name in names)


Prompts = str | tuple[str, ...]
"""A prompt, or several whose vectors are averaged."""

AND: Final = "+"
_QUOTED = r'"(?:\\.|[^"\\])*"'
_ONE = rf"(?:{CHAT})?(?:[\w-]+|{_QUOTED})"
_SEVERAL = re.compile(rf"{_ONE}(?:\{AND}{_ONE})+")  # so a `+` in a template without quotes is a character


def name_of(prompts: Prompts) -> str:
    """The prompts as a part of a design's name. `prompts_of` reads it back."""
    return _quoted(prompts) if isinstance(prompts, str) else AND.join(map(_quoted, prompts))


def prompts_of(name: str) -> Prompts:
    """The prompts that a part of a design's name says, in its order. Raises UnmaskError for wrong quotes."""
    return tuple(map(_unquoted, split(name, AND))) if _SEVERAL.fullmatch(name) else _unquoted(name)


def averaged(prompts: Iterable[str]) -> tuple[str, ...]:
    """Several prompts, in the order of their names.

    Raises UnmaskError for fewer than two prompts, for an unknown prompt, and for a prompt given twice.
    """
    names = tuple(sorted(prompts, key=_quoted))
    if len(names) < 2:
        raise UnmaskError(f"An average needs two prompts or more, not {len(names)}.")
    names_by_template: dict[tuple[bool, str], str] = {}
    for prompt in names:
        template = prompt.startswith(CHAT), find_prompt(prompt).template
        if template in names_by_template:
            raise UnmaskError(
                f"An average needs different prompts: {_quoted(names_by_template[template])} and {_quoted(prompt)} are the same."
            )
        names_by_template[template] = prompt
    return names


def split(name: str, separator: str) -> list[str]:
    """Split at a separator, but not inside double quotes: a quoted template may contain it. A quote that is never closed is a character."""
    return re.findall(rf"((?:{_QUOTED}|[^{separator}])+)", name)


def _quoted(prompt: str) -> str:
    chat, bare = (CHAT, prompt.removeprefix(CHAT)) if prompt.startswith(CHAT) else ("", prompt)
    return chat + (json.dumps(bare, ensure_ascii=False) if is_template(bare) else bare)


def _unquoted(prompt: str) -> str:
    chat, bare = (CHAT, prompt.removeprefix(CHAT)) if prompt.startswith(CHAT) else ("", prompt)
    if not bare.startswith('"'):
        return prompt
    try:
        return chat + str(json.loads(bare))
    except json.JSONDecodeError as error:
        raise UnmaskError(
            f'The prompt {bare} has wrong quotes ({error.msg}). Write it in double quotes, with \\" for a quote inside.'
        ) from error
