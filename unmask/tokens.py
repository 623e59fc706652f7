"""Tokens: texts inside their prompt, from ONE tokenization, with the embedded span exact under truncation.

The rendered prompt is tokenized once, and character offsets say which tokens are the text's: so a token that spans the
border of prompt and text counts as text, and nothing is tokenized twice to be counted. A text that is too long loses
tokens of its own, never of the prompt, and each copy of an echo loses the same number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unmask.errors import UnmaskError
from unmask.prompts import CHAT, Prompt, find_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZE_AT_ONCE = 1024


@dataclass(frozen=True)
class TokenizedText:
    """Token ids of one text in its prompt; the embedded span runs from `start` to the end."""

    ids: tuple[int, ...]
    start: int
    truncated: bool = False


class PromptTokenizer:
    """Turns texts into the tokens of one prompt.

    max_length: most tokens of one text with its prompt. Raises UnmaskError where the tokenizer lacks a chat template that is
    asked for, or an end-of-sequence token that the prompt needs.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: str, max_length: int) -> None:
        """Look the prompt up and, for `chat:`, wrap it in the tokenizer's chat template."""
        self.tokenizer = tokenizer
        self.chat = prompt.startswith(CHAT)
        self.max_length = max_length
        self.prompt = find_prompt(prompt)
        if self.prompt.appends_eos and tokenizer.eos_token_id is None:
            raise UnmaskError(f"The prompt '{prompt}' ends with {{eos}}, but this tokenizer has no end-of-sequence token.")
        self._with, self._without = self._wrapped(self.prompt), self._wrapped(self.prompt.without_instruction())

    def tokenize(self, texts: Sequence[str], instruction: str | None = None) -> Iterator[TokenizedText]:
        """Yield the tokens of each text, in order.

        An empty text (no token left to embed) is embedded as the end-of-sequence token: the model's own sign for nothing
        more to say. Lone surrogates, which no encoding can hold, become U+FFFD. Raises UnmaskError for what is no string, for an
        instruction that the prompt does not take, and for a limit that leaves no room for the text.
        """
        if instruction is not None and not self.prompt.takes_instruction:
            raise UnmaskError(
                f"The prompt '{self.prompt.name}' has no {{instruction}}, so an instruction would change nothing."
            )
        prompt = self._with if instruction else self._without
        for begin in range(0, len(texts), _TOKENIZE_AT_ONCE):
            chunk = texts[begin : begin + _TOKENIZE_AT_ONCE]
            rendered = [prompt.render(_clean(text, begin + k), instruction) for k, text in enumerate(chunk)]
            encoded = self.tokenizer(
                [text for text, _ in rendered],
                add_special_tokens=not self.chat,  # a chat template writes its own
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                return_attention_mask=False,
                truncation=False,
                verbose=False,
            )
            columns = (encoded["input_ids"], encoded["offset_mapping"], encoded["special_tokens_mask"])
            for (text, copies), ids, offsets, special in zip(rendered, *columns, strict=True):
                yield self._span(ids, offsets, special, copies, len(text))

    def _span(
        self, ids: list[int], offsets: list[tuple[int, int]], special: list[int], copies: list[tuple[int, int]], end: int
    ) -> TokenizedText:
        # what the tokenizer itself put before the prompt (BOS) is kept; what it put after it goes, since {eos} asks for that
        while ids and special[-1] and offsets[-1][1] in (0, end) and offsets[-1][0] == offsets[-1][1]:
            ids, offsets, special = ids[:-1], offsets[:-1], special[:-1]
        spans = [_token_range(offsets, *copy) for copy in copies]
        eos = [self.tokenizer.eos_token_id] if self.prompt.appends_eos else []
        excess = max(0, len(ids) + len(eos) - self.max_length)
        if excess:
            spans, ids = self._truncate(spans, ids, excess)
        start = spans[-1][0]
        if start == len(ids) and not eos:
            eos = [self._empty_text_token()]
        return TokenizedText((*ids, *eos), start, bool(excess))

    def _truncate(self, spans: list[tuple[int, int]], ids: list[int], excess: int) -> tuple[list[tuple[int, int]], list[int]]:
        each = -(-excess // len(spans))
        kept = min(stop - start for start, stop in spans) - each
        if kept < 1:
            raise UnmaskError(f"max_length {self.max_length} leaves no room for a text in the prompt '{self.prompt.name}'.")
        shortened, result, at = [], [], 0
        for start, stop in spans:
            result += ids[at:start]
            shortened.append((len(result), len(result) + kept))
            result += ids[start : start + kept]
            at = stop
        return shortened, result + ids[at:]

    def _empty_text_token(self) -> int:
        for token in (self.tokenizer.eos_token_id, self.tokenizer.bos_token_id):
            if token is not None:
                return int(token)
        raise UnmaskError("A text is empty, and this tokenizer has no end-of-sequence token to stand for it.")

    def _wrapped(self, prompt: Prompt) -> Prompt:
        if not self.chat:
            return prompt
        if not self.tokenizer.chat_template:
            raise UnmaskError("A 'chat:' prompt was asked for, but this tokenizer has no chat template.")
        # private-use characters stand for the fields: a template may not touch them, and braces of its own are escaped
        marks = {f"{{{field}}}": chr(0xE000 + k) for k, field in enumerate(("text", "instruction", "eos"))}
        template = prompt.template.removesuffix("{eos}")
        content = _swap(template, marks).replace("{{", "{").replace("}}", "}")
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        escaped = str(rendered).replace("{", "{{").replace("}", "}}")
        wrapped = _swap(escaped, {mark: field for field, mark in marks.items()})
        return replace(prompt, template=wrapped + ("{eos}" if prompt.appends_eos else ""))


def _swap(text: str, table: dict[str, str]) -> str:
    for old, new in table.items():
        text = text.replace(old, new)
    return text


def _token_range(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """The tokens [first, stop) that hold the characters [start, end). Tokens without characters (BOS) lie before them."""
    first = next((k for k, (_, stop) in enumerate(offsets) if stop > start), len(offsets))
    stop = next((k for k in range(first, len(offsets)) if offsets[k][0] >= end and offsets[k][1] > start), len(offsets))
    return first, max(first, stop)


def _clean(text: str, row: int) -> str:
    if not isinstance(text, str):
        raise UnmaskError(f"Text {row} is {type(text).__name__}, not str.")
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
