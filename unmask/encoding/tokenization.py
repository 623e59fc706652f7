"""Tokenization: texts inside their prompt. The embedded span is exact, also after truncation.

The rendered prompt is tokenized once, and character offsets say which tokens belong to the text. A token across the border of prompt and
text counts as text. A text that is too long loses tokens of its own and never of the prompt; each copy of an echo loses the same number.
A fast tokenizer stores the options of its last call, so threads that share one take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from unmask.designs.prompts import CHAT, Prompt, find_prompt
from unmask.encoding.offsets import inside, token_range, trims_spaces, untrimmed
from unmask.encoding.words import encodable, without_surrogates, words
from unmask.errors import UnmaskError
from unmask.io.threads import lock_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_LENGTH = 512
"""Most tokens of one text with its prompt, unless the user says otherwise."""

_TOKENIZE_AT_ONCE = 1024
_SAID = "".join(f"|replace('%{code}','{date(2024, 7, 26):%{code}}')" for code in "aAbBcdHIjmMpSUwWxXyY")
_DATE = "{% macro strftime_now(format) %}{{ format|replace('%-','%')" + _SAID + " }}{% endmacro %}\n"
"""Put before a chat template, it makes every day the default of Llama 3: a vector must not change from one day to the next."""

Offsets = list[tuple[int, int]]
"""Ranges of characters: of each token, or of each copy of a text."""


@dataclass(frozen=True)
class TokenizedText:
    """Token ids of one text in its prompt. The embedded span runs from `start` to the end.

    spans: if given, each of these ranges of tokens is pooled to a vector of its own, in place of the embedded span. parts: the text in
    each of several prompts, whose features are averaged; `ids` then holds the tokens of all of them, and `start` says nothing.
    kept: the text itself, without what was cut; empty if the tokens do not come from `PromptTokenizer.tokenize`.
    """

    ids: tuple[int, ...]
    start: int
    truncated: bool = False
    spans: tuple[tuple[int, int], ...] = ()
    parts: tuple[TokenizedText, ...] = ()
    kept: str = field(default="", compare=False)

    def part(self, place: int) -> TokenizedText:
        """The text in the prompt of this place. A text in one prompt is its own part."""
        return self.parts[place] if self.parts else self

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
    offsets: tuple[tuple[int, int], ...]
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


def decode_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[Sequence[int]]) -> list[str]:
    """The texts of token ids, without the special tokens that the tokenizer itself puts around a text.

    Raises UnmaskError for an id that the tokenizer does not have.
    """
    size = len(tokenizer)
    wrong = next((one for ids in texts for one in ids if not 0 <= one < size), None)
    if wrong is not None:
        raise UnmaskError(f"There is no token {wrong}: this model has tokens 0 to {size - 1}.")
    with lock_of(tokenizer):
        encoded = tokenizer("a", return_special_tokens_mask=True)
        around, special = encoded["input_ids"], encoded["special_tokens_mask"]
        start, stop = special.index(0), len(special) - special[::-1].index(0)
        bare = [_without(list(ids), around[:start], around[stop:]) for ids in texts]
        return [str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)) for ids in bare]


def _without(ids: list[int], before: list[int], after: list[int]) -> list[int]:
    if before and ids[: len(before)] == before:
        ids = ids[len(before) :]
    return ids[: len(ids) - len(after)] if after and ids[-len(after) :] == after else ids


def mask_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """The id of the mask token: its entry in the vocabulary, else the token that the tokenizer makes of it.

    The entry goes first, as in LLM2Vec: SentencePiece turns a lone `_` into "▁_", which is a space and an underscore. Raises
    UnmaskError if it is not a single token.
    """
    known = tokenizer.get_vocab()
    with lock_of(tokenizer):
        ids = [known[token]] if token in known else tokenizer(token, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise UnmaskError(f"'{token}' is {len(ids)} tokens for this tokenizer. A mask is a single token: give another one.")
    return int(ids[0])


def starts_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer itself puts a beginning-of-sequence token before a text."""
    return bool(tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id)


class PromptTokenizer:
    """Turns texts into the tokens of one prompt.

    name: of the prompt, as a design has it. max_length: most tokens of one text with its prompt. vocabulary: the number of tokens that the
    model has an embedding of; None if that does not matter. Raises UnmaskError if the prompt needs a chat template or an end-of-sequence
    token, and the tokenizer has none, and if ordinary texts have tokens that the model has no embedding of.
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
        self._appended = 0 if self.chat else _appended(tokenizer)
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
        """What the tokens depend on beside the tokenizer, as JSON: for exported models, which read texts without this package.

        The prompt is a list of (literal, field that follows it), with and without an instruction. appended: tokens that the tokenizer
        puts after a text and that are dropped. end: ids that follow the text. empty: the id that stands for an empty text, if one can.
        split_special_tokens: whether the name of a special token in a text is read as letters. tokenizer.json does not say that.
        """
        return {
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
        for place, (ids, offsets, copies, rendered) in enumerate(self._rendered(texts, instruction)):
            text = self._span(ids, offsets, copies, rendered)
            self._require_embeddings(text.ids, f"Text {place}")
            yield text

    def own_tokens(self, texts: Sequence[TokenizedText]) -> list[list[int]]:
        """The tokens of each text's own words, each once, by id: every word in lower case and NFC, tokenized alone."""
        own = [dict.fromkeys(words(text.kept.lower())) for text in texts]
        distinct = list(dict.fromkeys(word for of_text in own for word in of_text))
        if not distinct:
            return [[] for _ in texts]
        with lock_of(self.tokenizer):
            ids = self.tokenizer(distinct, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        tokens = dict(zip(distinct, ids, strict=True))
        return [sorted({token for word in of_text for token in tokens[word]}) for of_text in own]

    def room(self, instruction: str | None = None) -> int:
        """How many tokens of a text fit into the limit beside the prompt. Below 1 if the prompt alone is too long."""
        [(ids, _, copies, _)] = self._rendered([""], instruction)
        return (self.max_length - len(ids) - self.prompt.appends_eos) // len(copies)

    @property
    def opening(self) -> str | None:
        """What stands before the first text; None if an instruction could stand there."""
        return None if self.prompt.takes_instruction else self._with.pieces[0][0]

    def ends_with_text(self, instruction: str | None = None) -> bool:
        """Whether the prompt has the text once, and nothing after it."""
        pieces = (self._with if instruction else self._without).pieces
        return [field for _, field in pieces].count("text") == 1 and pieces[-1][1] == "text"

    def whole(self, text: str, instruction: str | None = None) -> tuple[TokenizedText, Offsets]:
        """The tokens of a text that is not cut, in a prompt that ends with it, and the characters of the text that each token holds.

        Tokens of the prompt hold characters before 0.
        """
        [(ids, offsets, [(begin, _)], _)] = self._rendered([text], instruction)
        start = token_range(offsets, begin, begin + len(text))[0]
        places = [(first - begin, last - begin) for first, last in offsets]
        if start == len(ids):
            ids, places = [*ids, self._empty_text_token()], [*places, (0, len(text))]
        self._require_embeddings(ids, "A text")
        return TokenizedText(tuple(ids), start), places

    def _rendered(self, texts: Sequence[str], instruction: str | None) -> Iterator[tuple[list[int], Offsets, Offsets, str]]:
        """For each text: the ids of its whole prompt, their characters, the characters of each copy of the text, and the prompt."""
        if instruction is not None:
            instruction = _clean(instruction, "The instruction")
            if not self.prompt.takes_instruction:
                raise UnmaskError(
                    f"The prompt '{self.prompt.name}' has no {{instruction}}, so an instruction would change nothing."
                )
        prompt = self._with if instruction else self._without
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
            for (whole, copies), ids, offsets in zip(rendered, encoded["input_ids"], encoded["offset_mapping"], strict=True):
                # special tokens that the tokenizer put before the prompt (BOS) stay; those after it go, since {eos} is explicit
                size = len(ids) - self._appended
                yield ids[:size], offsets[:size], copies, whole

    def _span(self, ids: list[int], offsets: Offsets, copies: Offsets, rendered: str) -> TokenizedText:
        spans = [token_range(offsets, *copy) for copy in copies]
        start, (begin, end) = spans[-1][0], copies[-1]
        if self.prompt.appends_eos:
            ids = [*ids, int(self.tokenizer.eos_token_id)]
        elif start == len(ids):
            ids = [*ids, self._empty_text_token()]
        if len(ids) <= self.max_length:
            return TokenizedText(tuple(ids), start, kept=rendered[begin:end])
        own = [inside(offsets, span, end) for span, (_, end) in zip(spans, copies, strict=True)]
        kept = (self.max_length - len(ids) + sum(stop - start for start, stop in own)) // len(own)
        cut = self._truncate(ids, own, kept)
        return replace(cut, kept=rendered[begin : min(end, offsets[min(own[-1][1], start + kept) - 1][1])])

    def _require_embeddings(self, ids: Sequence[int], what: str) -> None:
        if self._without_embedding and not self._without_embedding.keys().isdisjoint(ids):
            token = next(self._without_embedding[one] for one in ids if one in self._without_embedding)
            raise UnmaskError(
                f"{what} holds the special token '{token}', which this model has no embedding of: its tokenizer has more tokens than the "
                "model. Remove the token from the text."
            )

    def _truncate(self, ids: list[int], spans: list[tuple[int, int]], kept: int) -> TokenizedText:
        if kept < 1:
            raise UnmaskError(
                f"max_length {self.max_length} leaves no room for a text in the prompt '{self.prompt.name}'. Raise it."
            )
        result: list[int] = []
        at = first = 0
        for start, stop in spans:
            first = len(result) + start - at
            result += ids[at : min(stop, start + kept)]
            at = stop
        return TokenizedText((*result, *ids[at:]), first, True)

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
        taken = prompt.template + str(self.tokenizer.chat_template)
        free = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in taken)
        marks = {"text": next(free), "instruction": next(free)}
        content = "".join(literal + marks.get(field or "", "") for literal, field in prompt.pieces)
        rendered = _render_chat(self.tokenizer, content, [mark for mark in marks.values() if mark in content])
        escaped = rendered.replace("{", "{{").replace("}", "}}")
        wrapped = _swap(escaped, {mark: f"{{{field}}}" for field, mark in marks.items()})
        return replace(prompt, template=wrapped + ("{eos}" if prompt.appends_eos else ""))


def _render_chat(tokenizer: PreTrainedTokenizerBase, content: str, marks: Sequence[str]) -> str:
    """The chat template around a user's message that contains these marks.

    Templates of multimodal models iterate over a list of parts; given a string, they drop it or raise. So a list is tried second.
    """
    if isinstance(tokenizer.chat_template, dict) and "default" not in tokenizer.chat_template:
        names = ", ".join(sorted(tokenizer.chat_template))
        raise UnmaskError(
            f"This tokenizer has several chat templates ({names}) and none of them is the default. Set tokenizer.chat_template to one, "
            "or use a prompt without 'chat:'."
        )
    template, cause = _DATE + tokenizer.get_chat_template(), None
    for message in (content, [{"type": "text", "text": content}]):
        try:
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


def _swap(text: str, table: dict[str, str]) -> str:
    for old, new in table.items():
        text = text.replace(old, new)
    return text


def _without_embedding(tokenizer: PreTrainedTokenizerBase, vocabulary: int | None) -> dict[int, str]:
    """The special tokens, by id, that the model has no embedding of.

    Raises UnmaskError if there are others: a tokenizer that has grown without its model makes them of ordinary texts.
    """
    if vocabulary is None or max([len(tokenizer) - 1, *tokenizer.added_tokens_decoder]) < vocabulary:
        return {}
    beyond = {place: token for token, place in tokenizer.get_vocab().items() if place >= vocabulary}
    special = {place for place, token in tokenizer.added_tokens_decoder.items() if token.special}
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


def _clean(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise UnmaskError(f"{what} is {type(text).__name__}, not str.")
    return encodable(text)
