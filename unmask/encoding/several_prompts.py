"""Several prompts of one design: the tokens of a text in each of them. The features of the text are the mean over the prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unmask.designs.prompts import Prompts, name_of
from unmask.encoding.tokenization import PromptTokenizer, TokenizedText
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SeveralPrompts:
    """Turns texts into the tokens of several prompts.

    An instruction goes to the prompts that take one. max_length: most tokens of one text with one of its prompts. Raises UnmaskError as
    `PromptTokenizer` does.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], max_length: int, vocabulary: int | None = None
    ) -> None:
        """Make a tokenizer for each prompt."""
        self.tokenizer, self.max_length = tokenizer, max_length
        self.parts = tuple(PromptTokenizer(tokenizer, prompt, max_length, vocabulary) for prompt in prompts)
        self.name = name_of(tuple(prompts))

    @property
    def pad_id(self) -> int:
        """The id that pads a batch."""
        return self.parts[0].pad_id

    @property
    def takes_instruction(self) -> bool:
        """Whether an instruction changes the tokens of at least one prompt."""
        return any(part.takes_instruction for part in self.parts)

    @property
    def opening(self) -> str | None:
        """What stands before the first text in every prompt; None if that differs, or if an instruction could stand there."""
        openings = {part.opening for part in self.parts}
        return openings.pop() if len(openings) == 1 else None

    @property
    def template(self) -> str:
        """The templates of all prompts, as JSON."""
        return json.dumps([part.template for part in self.parts], ensure_ascii=False)

    def tokenize(self, texts: Sequence[str], instruction: str | None = None) -> Iterator[TokenizedText]:
        """Yield the tokens of each text in all prompts, in order. Raises UnmaskError as `PromptTokenizer.tokenize` does."""
        if instruction is not None and not self.takes_instruction:
            raise UnmaskError(f"The prompts '{self.name}' have no {{instruction}}, so an instruction would change nothing.")
        streams = [part.tokenize(texts, instruction if part.takes_instruction else None) for part in self.parts]
        for parts in zip(*streams, strict=True):
            yield together(parts)

    def room(self, instruction: str | None = None) -> int:
        """How many tokens of a text fit into the limit beside the longest prompt."""
        return min(part.room(instruction if part.takes_instruction else None) for part in self.parts)


DesignTokenizer = PromptTokenizer | SeveralPrompts
"""What turns texts into the tokens that a design reads."""


def tokenizer_of(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompts, max_length: int, vocabulary: int | None = None
) -> DesignTokenizer:
    """The tokenizer of one prompt, or of several. vocabulary: as PromptTokenizer has it."""
    if isinstance(prompt, str):
        return PromptTokenizer(tokenizer, prompt, max_length, vocabulary)
    return SeveralPrompts(tokenizer, prompt, max_length, vocabulary)


def digest_of_tokens(prompts: DesignTokenizer) -> str:
    """A short hash of what turns a text into tokens: the tokenizer as it is in memory, and each prompt.

    The tokenizer also keeps options of its last call. They are left out. Where tokens of spaces were not counted as text in earlier
    versions, the hash is another one than it was.
    """
    content = json.loads(prompts.tokenizer.backend_tokenizer.to_str())
    lasting = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
    marks = ["spaces are text"] if prompts.parts[0].trims else []
    plain = json.dumps([lasting, *(part.layout for part in prompts.parts), *marks], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def together(parts: Sequence[TokenizedText]) -> TokenizedText:
    """One text in each of several prompts. It counts as cut if one prompt cuts it."""
    ids = tuple(token for part in parts for token in part.ids)
    return TokenizedText(ids, 0, any(part.truncated for part in parts), parts=tuple(parts))
