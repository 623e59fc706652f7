"""The prompt part of a design's name: one prompt, or several joined by `+`. Own templates stand in double quotes.

    eol                           a registered prompt
    chat:"Topic of: {text}"       an own template, in the chat template of the model
    eol+"Topic of: {text}"        two prompts: the mean of the vectors under each

The name of several prompts is sorted, since their order changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from unmask.designs.prompts import CHAT, find_prompt, is_template
from unmask.errors import UnmaskError

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

    Raises UnmaskError for fewer than two, for a name that is no prompt, and for the same prompt twice.
    """
    given = tuple(sorted(prompts, key=_quoted))
    if len(given) < 2:
        raise UnmaskError(f"An average needs two prompts or more, not {len(given)}.")
    seen: dict[tuple[bool, str], str] = {}
    for prompt in given:
        template = prompt.startswith(CHAT), find_prompt(prompt).template
        if template in seen:
            raise UnmaskError(
                f"An average needs different prompts: {_quoted(seen[template])} and {_quoted(prompt)} are the same."
            )
        seen[template] = prompt
    return given


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
