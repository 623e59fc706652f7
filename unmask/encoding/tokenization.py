"""Tokenization: texts inside their prompt. The embedded span is exact, also after truncation.

The rendered prompt is tokenized once, and character offsets say which tokens belong to the text. A token across the border of prompt and
text counts as text. Truncation removes tokens of the text only, never of the prompt; each copy of an echo loses the same number. A fast
tokenizer stores the options of its last call, so threads that share one take turns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from unmask.designs.prompts import CHAT, Prompt, Prompts, find_prompt, name_of
from unmask.encoding.words import words
from unmask.errors import UnmaskError
from unmask.io.threads import lock_of
from unmask.io.unicode import encodable, without_surrogates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_LENGTH = 512
"""Most tokens of one text with its prompt, unless the user says otherwise."""

_TOKENIZE_AT_ONCE = 1024
_SAID = "".join(f"|replace('%{code}','{date(2024, 7, 26):%{code}}')" for code in "aAbBcdHIjmMpSUwWxXyY")
_DATE = "{% macro strftime_now(format) %}{{ format|replace('%-','%')" + _SAID + " }}{% endmacro %}\n"
"""Put before a chat template, it makes every day the default of Llama 3: a vector must not change from one day to the next."""

Span = tuple[int, int]
Offsets = list[Span]
"""Ranges of characters: of each token, or of each copy of a text."""
_PROBES: Final = ("x", "ü", " a", "a ", "a \n\n b", "日本")


@dataclass(frozen=True)
class TokenizedText:
    """Token ids of one text in its prompt. The embedded span runs from `start` to the end."""

    ids: tuple[int, ...]
    start: int
    truncated: bool = False
    spans: tuple[Span, ...] = ()
    """If given, each of these ranges of tokens is pooled to a vector, in place of the embedded span."""
    parts: tuple[TokenizedText, ...] = ()
    """The text in each of several prompts, whose features are averaged. `ids` then holds the tokens of all prompts; `start` is unused."""
    text: str = field(default="", compare=False)
    """The text, truncated; empty if the tokens do not come from `PromptTokenizer.tokenize`."""

    def part(self, index: int) -> TokenizedText:
        """The text in one of its prompts. A text in a single prompt is its own part."""
        return self.parts[index] if self.parts else self

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens in each forward pass of this text."""
        return tuple(len(part.ids) for part in self.parts or (self,))

    @property
    def longest(self) -> int:
        """Number of tokens in the longest forward pass of this text."""
        return max(self.lengths)


@dataclass(frozen=True)
class Tokens:
    """Token ids of a text without a prompt; where each begins and ends, in characters; and which of them are special."""

    ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    special: tuple[bool, ...]


def tokenize_bare(tokenizer: PreTrainedTokenizerBase, text: str) -> Tokens:
    """Tokenize a text without a prompt, and without the EOS that some tokenizers append. Lone surrogates become U+FFFD."""
    with lock_of(tokenizer):
        encoded = tokenizer(
            without_surrogates(text),
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            verbose=False,
        )
    special = [bool(mark) for mark in encoded["special_tokens_mask"]]
    size = next((size for size in range(len(special), 0, -1) if not special[size - 1]), 0)
    offsets = untrimmed(encoded["offset_mapping"], encoded["special_tokens_mask"])
    return Tokens(tuple(encoded["input_ids"][:size]), tuple(offsets[:size]), tuple(special[:size]))


def mask_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """The id of the mask token: its entry in the vocabulary, else the token that the tokenizer makes of it.

    The entry goes first, as in LLM2Vec: SentencePiece turns a lone `_` into "▁_", which is a space and an underscore. Raises
    UnmaskError if it is not a single token.
    """
    vocabulary = tokenizer.get_vocab()
    with lock_of(tokenizer):
        ids = [vocabulary[token]] if token in vocabulary else tokenizer(token, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise UnmaskError(f"'{token}' is {len(ids)} tokens for this tokenizer. A mask is a single token: give another one.")
    return int(ids[0])


def starts_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer itself puts a beginning-of-sequence token before a text."""
    return bool(tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id)


def trims_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a token of spaces alone holds no characters, as with byte-level tokenizers whose post-processor trims offsets."""
    with lock_of(tokenizer):
        encoded = tokenizer(list(_PROBES), return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    rows = zip(encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True)
    return any(
        start == stop and not mark for offsets, special in rows for (start, stop), mark in zip(offsets, special, strict=True)
    )


def untrimmed(offsets: Sequence[Span], special: Sequence[int]) -> list[Span]:
    """Offsets in which every non-special token holds characters: a trimmed one holds the characters since the token before it.

    A space that the tokenizer put before a text holds the first character.
    """
    untrimmed_offsets, before = [], 0
    for (start, stop), mark in zip(offsets, special, strict=True):
        if start == stop and not mark:
            start, stop = (before, stop) if before < stop else (0, 1) if stop == 0 else (start, stop)
        before = before if mark else max(before, stop)
        untrimmed_offsets.append((start, stop))
    return untrimmed_offsets


def token_range(offsets: Sequence[Span], start: int, end: int) -> Span:
    """The tokens [first, stop) of the characters [start, end). Tokens without characters (BOS) come before them."""
    first = next((k for k, (_, stop) in enumerate(offsets) if stop > start), len(offsets))
    stop = next((k for k in range(first, len(offsets)) if offsets[k][0] >= end and offsets[k][1] > start), len(offsets))
    return first, max(first, stop)


def inside(offsets: Sequence[Span], span: Span, end: int) -> Span:
    """The span without a last token that also holds characters after the text, such as `."`, which truncation must not remove."""
    start, stop = span
    return start, stop - (stop > start and offsets[stop - 1][1] > end)


class PromptTokenizer:
    """Turns texts into the tokens of one prompt.

    Args:
        prompt: the name of the prompt, as a design has it.
        max_length: most tokens of one text with its prompt.
        vocabulary: the number of tokens that the model has an embedding of; None if that does not matter.

    Raises UnmaskError if the prompt needs a chat template or an end-of-sequence token that the tokenizer lacks, and if ordinary texts have
    tokens that the model has no embedding of.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: str, max_length: int, vocabulary: int | None = None) -> None:
        """Find the prompt and, for `chat:`, wrap it in the tokenizer's chat template."""
        _without_dropout(tokenizer)
        self._without_embedding = _without_embedding(tokenizer, vocabulary)
        self.tokenizer, self.name = tokenizer, prompt
        self.chat = prompt.startswith(CHAT)
        self.max_length = max_length
        self.prompt = find_prompt(prompt)
        if self.prompt.appends_eos and tokenizer.eos_token_id is None:
            raise UnmaskError(f"The prompt '{prompt}' ends with {{eos}}, but this tokenizer has no end-of-sequence token.")
        after = 0 if self.chat else _appended(tokenizer)
        self._appended, self._special_after = (0, after) if self.prompt.pools_all else (after, 0)
        self.trims = trims_spaces(tokenizer)
        self._with, self._without = self._wrapped(self.prompt), self._wrapped(self.prompt.without_instruction())

    @property
    def parts(self) -> tuple[PromptTokenizer, ...]:
        """The tokenizer of each prompt: this one."""
        return (self,)

    @property
    def template(self) -> str:
        """The template of the prompt."""
        return self.prompt.template

    @property
    def takes_instruction(self) -> bool:
        """Whether an instruction changes the tokens."""
        return self.prompt.takes_instruction

    @property
    def pad_id(self) -> int:
        """The id that pads a batch: the tokenizer's own, since some encoders count positions without it. Padding is masked in any case."""
        pad = self.tokenizer.pad_token_id
        return 0 if pad is None else int(pad)

    @property
    def layout(self) -> dict[str, Any]:
        """What the tokens depend on besides the tokenizer, as JSON: for exported models, which read texts without this package.

        The prompt is a list of (literal, field that follows it), with and without an instruction. appended: tokens that the tokenizer
        puts after a text and that are dropped. end: ids that follow the text. empty: the id that replaces an empty text, if there is one.
        split_special_tokens: whether the name of a special token in a text is read as letters. tokenizer.json does not say that. pools_all:
        whether every token is pooled, without an instruction and with one; absent if never. special_after: the number of special tokens
        that stay after the text then.
        """
        pools_all = [prompt.pools_all for prompt in (self._without, self._with)]
        full = {"pools_all": pools_all, "special_after": self._special_after} if any(pools_all) else {}
        return full | {
            "prompt": [list(piece) for piece in self._without.pieces],
            "prompt_with_instruction": [list(piece) for piece in self._with.pieces] if self.prompt.takes_instruction else None,
            "add_special_tokens": not self.chat,
            "appended": self._appended,
            "end": [int(self.tokenizer.eos_token_id)] if self.prompt.appends_eos else [],
            "empty": self._empty_token(),
            "pad": self.pad_id,
            "max_length": self.max_length,
            "split_special_tokens": bool(self.tokenizer.split_special_tokens),
        }

    def tokenize(self, texts: Sequence[str], instruction: str | None = None) -> Iterator[TokenizedText]:
        """Yield the tokens of each text, in order.

        An empty text (no token left to embed) is embedded as the end-of-sequence token. Lone surrogates, which no encoding can hold,
        become U+FFFD. Raises UnmaskError for anything but a string, for an instruction that the prompt does not take, and for a limit
        that leaves no room for the text.
        """
        pools_all = self._prompt(instruction).pools_all
        for index, (ids, offsets, copies, rendered) in enumerate(self._rendered(texts, instruction)):
            text = self._span(ids, offsets, copies, rendered, pools_all)
            self._require_embeddings(text.ids, f"Text {index}")
            yield text

    def word_ids(self, texts: Sequence[TokenizedText]) -> list[list[int]]:
        """The tokens of each text's words, sorted and without repetition: every word in lower case and NFC, tokenized alone."""
        text_words = [dict.fromkeys(words(text.text.lower())) for text in texts]
        distinct = list(dict.fromkeys(word for of_text in text_words for word in of_text))
        if not distinct:
            return [[] for _ in texts]
        with lock_of(self.tokenizer):
            ids = self.tokenizer(distinct, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        tokens = dict(zip(distinct, ids, strict=True))
        return [sorted({token for word in of_text for token in tokens[word]}) for of_text in text_words]

    def room(self, instruction: str | None = None) -> int:
        """How many tokens of a text fit into the limit with the prompt. Below 1 if the prompt alone is too long."""
        [(ids, _, copies, _)] = self._rendered([""], instruction)
        return (self.max_length - len(ids) - self.prompt.appends_eos) // len(copies)

    @property
    def opening(self) -> str | None:
        """The part of the prompt before the first text; None if it could contain an instruction."""
        return None if self.prompt.takes_instruction else self._with.pieces[0][0]

    def ends_with_text(self, instruction: str | None = None) -> bool:
        """Whether the prompt has the text once, and nothing after it."""
        prompt = self._prompt(instruction)
        pieces = prompt.pieces
        return not prompt.pools_all and [field for _, field in pieces].count("text") == 1 and pieces[-1][1] == "text"

    def _prompt(self, instruction: str | None) -> Prompt:
        return self._with if instruction else self._without

    def untruncated(self, text: str, instruction: str | None = None) -> tuple[TokenizedText, Offsets]:
        """All tokens of a text in a prompt that ends with it, and the characters of the text that each token holds.

        Tokens of the prompt hold characters before 0.
        """
        [(ids, offsets, [(begin, _)], _)] = self._rendered([text], instruction)
        start = token_range(offsets, begin, begin + len(text))[0]
        in_text = [(first - begin, last - begin) for first, last in offsets]
        if start == len(ids):
            ids, in_text = [*ids, self._empty_text_token()], [*in_text, (0, len(text))]
        self._require_embeddings(ids, "A text")
        return TokenizedText(tuple(ids), start), in_text

    def _rendered(self, texts: Sequence[str], instruction: str | None) -> Iterator[tuple[list[int], Offsets, Offsets, str]]:
        """For each text: the ids of its full prompt, their characters, the characters of each copy of the text, and the prompt."""
        if instruction is not None:
            instruction = _clean(instruction, "The instruction")
            if not self.prompt.takes_instruction:
                raise UnmaskError(
                    f"The prompt '{self.prompt.name}' has no {{instruction}}, so an instruction would change nothing."
                )
        prompt = self._prompt(instruction)
        for begin in range(0, len(texts), _TOKENIZE_AT_ONCE):
            chunk = texts[begin : begin + _TOKENIZE_AT_ONCE]
            rendered = [prompt.render(_clean(text, f"Text {begin + k}"), instruction) for k, text in enumerate(chunk)]
            with lock_of(self.tokenizer):
                encoded = self.tokenizer(
                    [text for text, _ in rendered],
                    add_special_tokens=not self.chat,  # a chat template writes its own
                    return_offsets_mapping=True,
                    return_special_tokens_mask=self.trims,
                    return_attention_mask=False,
                    truncation=False,
                    verbose=False,
                )
            if self.trims:
                encoded["offset_mapping"] = list(map(untrimmed, encoded["offset_mapping"], encoded["special_tokens_mask"]))
            for (full_prompt, copies), ids, offsets in zip(
                rendered, encoded["input_ids"], encoded["offset_mapping"], strict=True
            ):
                # special tokens that the tokenizer put before the prompt (BOS) stay; those after it go, since {eos} is explicit
                size = len(ids) - self._appended
                yield ids[:size], offsets[:size], copies, full_prompt

    def _span(self, ids: list[int], offsets: Offsets, copies: Offsets, rendered: str, pools_all: bool) -> TokenizedText:
        before_special = offsets[: len(offsets) - self._special_after]
        spans = [token_range(before_special, *copy) for copy in copies]
        start, (begin, end) = 0 if pools_all else spans[-1][0], copies[-1]
        if self.prompt.appends_eos:
            ids = [*ids, int(self.tokenizer.eos_token_id)]
        elif start == len(ids):
            ids = [*ids, self._empty_text_token()]
        if len(ids) <= self.max_length:
            return TokenizedText(tuple(ids), start, text=rendered[begin:end])
        spans = [inside(offsets, span, end) for span, (_, end) in zip(spans, copies, strict=True)]
        tokens_per_copy = (self.max_length - len(ids) + sum(stop - start for start, stop in spans)) // len(spans)
        truncated = self._truncate(ids, spans, tokens_per_copy)
        if pools_all:
            truncated = replace(truncated, start=0)
        last = min(spans[-1][1], spans[-1][0] + tokens_per_copy) - 1
        return replace(truncated, text=rendered[begin : min(end, offsets[last][1])])

    def _require_embeddings(self, ids: Sequence[int], label: str) -> None:
        if self._without_embedding and not self._without_embedding.keys().isdisjoint(ids):
            token = next(self._without_embedding[token] for token in ids if token in self._without_embedding)
            raise UnmaskError(
                f"{label} holds the special token '{token}', which this model has no embedding of: its tokenizer has more tokens than the "
                "model. Remove the token from the text."
            )

    def _truncate(self, ids: list[int], spans: list[Span], tokens_per_copy: int) -> TokenizedText:
        if tokens_per_copy < 1:
            raise UnmaskError(
                f"max_length {self.max_length} leaves no room for a text in the prompt '{self.prompt.name}'. Raise it."
            )
        result: list[int] = []
        position = first = 0
        for start, stop in spans:
            first = len(result) + start - position
            result += ids[position : min(stop, start + tokens_per_copy)]
            position = stop
        return TokenizedText((*result, *ids[position:]), first, True)

    def _empty_token(self) -> int | None:
        tokens = (self.tokenizer.eos_token_id, self.tokenizer.bos_token_id)
        return next((int(token) for token in tokens if token is not None), None)

    def _empty_text_token(self) -> int:
        token = self._empty_token()
        if token is None:
            raise UnmaskError(
                "A text is empty, and this tokenizer has no end-of-sequence token to embed instead. Leave out empty texts."
            )
        return token

    def _wrapped(self, prompt: Prompt) -> Prompt:
        if not self.chat:
            return prompt
        if not self.tokenizer.chat_template:
            raise UnmaskError(
                "A 'chat:' prompt needs a chat template, and this tokenizer has none. Use a prompt without 'chat:'."
            )
        # private-use characters that occur nowhere else mark the fields; a chat template does not change them
        used = prompt.template + str(self.tokenizer.chat_template)
        free = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in used)
        marks = {"text": next(free), "instruction": next(free)}
        content = "".join(literal + marks.get(field or "", "") for literal, field in prompt.pieces)
        rendered = _render_chat(self.tokenizer, content, [mark for mark in marks.values() if mark in content])
        escaped = rendered.replace("{", "{{").replace("}", "}}")
        for name, mark in marks.items():
            escaped = escaped.replace(mark, f"{{{name}}}")
        return replace(prompt, template=escaped + ("{eos}" if prompt.appends_eos else ""))


class SeveralPrompts:
    """Turns texts into the tokens of several prompts.

    An instruction goes to the prompts that take one. Raises UnmaskError as `PromptTokenizer` does.
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
        """The part of every prompt before the first text; None if it differs, or could contain an instruction."""
        openings = {part.opening for part in self.parts}
        return openings.pop() if len(openings) == 1 else None

    @property
    def template(self) -> str:
        """The templates of the prompts, as JSON."""
        return json.dumps([part.template for part in self.parts], ensure_ascii=False)

    def tokenize(self, texts: Sequence[str], instruction: str | None = None) -> Iterator[TokenizedText]:
        """Yield the tokens of each text in all prompts, in order. Raises UnmaskError as `PromptTokenizer.tokenize` does."""
        if instruction is not None and not self.takes_instruction:
            raise UnmaskError(f"The prompts '{self.name}' have no {{instruction}}, so an instruction would change nothing.")
        streams = [part.tokenize(texts, instruction if part.takes_instruction else None) for part in self.parts]
        for parts in zip(*streams, strict=True):
            yield together(parts)

    def room(self, instruction: str | None = None) -> int:
        """How many tokens of a text fit into the limit with the longest prompt."""
        return min(part.room(instruction if part.takes_instruction else None) for part in self.parts)


DesignTokenizer = PromptTokenizer | SeveralPrompts
"""Turns texts into the tokens that a design reads."""


def tokenizer_of(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompts, max_length: int, vocabulary: int | None = None
) -> DesignTokenizer:
    """The tokenizer of one prompt, or of several. vocabulary: as PromptTokenizer has it."""
    if isinstance(prompt, str):
        return PromptTokenizer(tokenizer, prompt, max_length, vocabulary)
    return SeveralPrompts(tokenizer, prompt, max_length, vocabulary)


def digest_of_tokens(prompts: DesignTokenizer) -> str:
    """A short hash of everything that turns a text into tokens: the tokenizer in memory, and each prompt."""
    content = json.loads(prompts.tokenizer.backend_tokenizer.to_str())
    # the tokenizer also stores the options of its last call
    lasting = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
    marks = ["spaces are text"] if prompts.parts[0].trims else []
    plain = json.dumps([lasting, *(part.layout for part in prompts.parts), *marks], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def together(parts: Sequence[TokenizedText]) -> TokenizedText:
    """One text in each of several prompts. It counts as cut if one prompt cuts it."""
    ids = tuple(token for part in parts for token in part.ids)
    return TokenizedText(ids, 0, any(part.truncated for part in parts), parts=tuple(parts))


def _render_chat(tokenizer: PreTrainedTokenizerBase, content: str, marks: Sequence[str]) -> str:
    """The chat template around a user's message that contains these marks.

    Templates of multimodal models iterate over a list of parts; given a string, they drop it or raise. So a list is tried second.
    """
    cause = None
    for message in (content, [{"type": "text", "text": content}]):
        try:
            template = _DATE + tokenizer.get_chat_template()  # raises if there are several and none is the default
            rendered = str(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": message}], chat_template=template, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # a template is a program of its author
            cause = cause or error
            continue
        if all(mark in rendered for mark in marks):
            return rendered
    reason = f"fails ({str(cause) or type(cause).__name__})" if cause else "leaves out the text of the user's message"
    raise UnmaskError(
        f"The chat template of this tokenizer {reason}. Use a prompt without 'chat:', or correct the template (chat_template.jinja)."
    ) from cause


def _without_embedding(tokenizer: PreTrainedTokenizerBase, vocabulary: int | None) -> dict[int, str]:
    """The special tokens, by id, that the model has no embedding of.

    Raises UnmaskError if ordinary tokens lack an embedding: a tokenizer that has grown without its model produces them.
    """
    if vocabulary is None or max([len(tokenizer) - 1, *tokenizer.added_tokens_decoder]) < vocabulary:
        return {}
    beyond = {index: token for token, index in tokenizer.get_vocab().items() if index >= vocabulary}
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    if ordinary := sorted(beyond.keys() - special):
        raise UnmaskError(
            f"The tokenizer has {len(tokenizer)} tokens, and the model has embeddings of {vocabulary}: a text with "
            f"'{beyond[ordinary[0]]}' could not be read ({len(ordinary)} such tokens). Use the tokenizer that the model was trained with, "
            "or the adapter that was trained with this tokenizer. To keep tokens without training, call model.resize_token_embeddings of "
            "transformers and save the model."
        )
    return beyond


def _without_dropout(tokenizer: PreTrainedTokenizerBase) -> None:
    """Switch off BPE dropout, which splits words at random. It is meant for training, and a text must have the same tokens every time."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if getattr(model, "dropout", None) is not None:
        with lock_of(tokenizer):
            model.dropout = None  # type: ignore[union-attr]


def _appended(tokenizer: PreTrainedTokenizerBase) -> int:
    """The number of special tokens (EOS) that the tokenizer itself puts after a text."""
    with lock_of(tokenizer):
        special = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    return next(count for count, mark in enumerate([*reversed(special), 0]) if not mark)


def _clean(text: str, label: str) -> str:
    if not isinstance(text, str):
        raise UnmaskError(f"{label} is {type(text).__name__}, not str.")
    return encodable(text)
