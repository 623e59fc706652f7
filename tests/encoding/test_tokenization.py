"""Tokens: under every prompt and tokenizer the embedded span is exact, also where a text is cut or a token spans the border.

The oracle needs no offsets: a byte-level token spells its bytes, so their running sum says where each token lies.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import cases as in_one_test
from tests.conftest import TEXTS, make_tokenizer
from tests.proofs import ALL
from unmask.designs.prompts import PROMPTS, find_prompt
from unmask.encoding.tokenization import PromptTokenizer, TokenizedText, mask_id
from unmask.errors import UnmaskError
from unmask.starter import reference_texts

OWN = ["Topic of: {text}", "{text}{text}", "{{text}} {instruction}:{text} \ue000\ue001{{", 'Say "{text}"{eos}', "🙂{text}🙂"]
PROMPT_NAMES = [
    *(name for name in PROMPTS if not name.startswith("full")),
    *OWN,
    *(f"chat:{prompt}" for prompt in ("plain", "eos", "eol", "echo", "instruction", *OWN)),
]
HARD = [
    "",
    " ",
    " \n\t  ",
    "x",
    "🙂",
    "👩‍👩‍👧 🇺🇦",
    "今日はいい天気です。",
    "السلام عليكم",
    "e\u0301 é",
    "nul\x00nul",
    "</s>",
    "<s>a<pad>b</s>",
    "{text} {eos} {{",
    'Instruct: This sentence : "{text}" means in one word:"',
    "Rewrite the sentence: a\nRewritten sentence: a",
    'He said "yes."',
    "\ue000\ue001",
    " leading and trailing ",
]
ANY = st.text(max_size=30) | st.text(alphabet=' .":\nSa🙂', max_size=30)
UNLIMITED = 10**6

_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the bytes that a byte-level tokenizer writes as themselves
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
BYTE_OF = {chr(byte): byte for byte in _SHOWN} | {chr(256 + k): byte for k, byte in enumerate(_HIDDEN)}


def greedy_tokenizer() -> Any:
    """A tokenizer that merges across words, so that its tokens span the borders of text and prompt."""
    from tokenizers import pre_tokenizers, trainers

    tokenizer = make_tokenizer()
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([f'"{text}" : {text}\n' for text in reference_texts()], trainer)
    return tokenizer


def appending_tokenizer() -> Any:
    """A tokenizer that puts BOS before and EOS after whatever it is given."""
    from tokenizers import processors

    tokenizer = make_tokenizer()
    around = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    tokenizer.backend_tokenizer.post_processor = around
    return tokenizer


BUILDERS: dict[str, Callable[[], Any]] = {
    "bare": make_tokenizer,
    "bos": lambda: make_tokenizer(add_bos=True),
    "bos-eos": appending_tokenizer,
    "greedy": greedy_tokenizer,
}
BOS = {"bare": "", "bos": "<s>", "bos-eos": "<s>", "greedy": ""}


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {name: build() for name, build in BUILDERS.items()}


LIKE_EOL = {name for name, prompt in PROMPTS.items() if prompt.template.endswith('in one word:"')} - {"eol"}
"""Prompts that stand around a text as `eol` does, with other words before the last quotation mark."""
CASES = [(kind, prompt) for kind in BUILDERS for prompt in PROMPT_NAMES if ALL or kind == "bare" or prompt not in LIKE_EOL]
"""Every prompt under every tokenizer; in `make test`, those like `eol` under one: what borders on the text is the same under `eol`."""
cases = in_one_test("kind, prompt", CASES)
kinds = pytest.mark.parametrize("kind", BUILDERS)
prompts = st.sampled_from(PROMPT_NAMES)


def one(tokenizer: Any, prompt: str, text: str, max_length: int = UNLIMITED, instruction: str | None = None) -> TokenizedText:
    return next(PromptTokenizer(tokenizer, prompt, max_length).tokenize([text], instruction))


def asked(prompt: str) -> str | None:
    return "Find it" if find_prompt(prompt).takes_instruction else None


def cleaned(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def expected(kind: str, prompt: str, text: str, instruction: str | None) -> tuple[bytes, list[tuple[int, int]]]:
    """What the tokens must spell, and the bytes of each copy of the text in it, from the template alone."""
    template = find_prompt(prompt)
    before, between = BOS[kind], ""
    if template.takes_instruction and not instruction:
        template = template.without_instruction()
    if prompt.startswith("chat:"):
        before, between = "<s>user: ", "</s>assistant: "
    rendered, copies = template.render(cleaned(text), instruction)
    whole = before + rendered + between + ("</s>" if template.appends_eos else "")
    spans = [tuple(len(whole[: len(before) + at].encode()) for at in copy) for copy in copies]
    return whole.encode(), [(start, end) for start, end in spans]


def spelled(tokenizer: Any, ids: tuple[int, ...]) -> Iterator[bytes]:
    for token in tokenizer.convert_ids_to_tokens(ids):
        yield token.encode() if token in ("<pad>", "<s>", "</s>") else bytes(BYTE_OF[character] for character in token)


def edges(tokenizer: Any, ids: tuple[int, ...]) -> list[int]:
    return [0, *accumulate(len(token) for token in spelled(tokenizer, ids))]


def bodies(tokenizer: Any, ids: tuple[int, ...], copies: list[tuple[int, int]]) -> list[list[int]]:
    """The tokens of each copy that hold no character after it: those that may be cut."""
    at = edges(tokenizer, ids)
    return [[k for k in range(len(ids)) if at[k + 1] > start and at[k + 1] <= end] for start, end in copies]


def hold(tokenizer: Any, kind: str, prompt: str, text: str, instruction: str | None) -> None:
    found = one(tokenizer, prompt, text, instruction=instruction)
    whole, copies = expected(kind, prompt, text, instruction)
    at = edges(tokenizer, found.ids)
    if b"".join(spelled(tokenizer, found.ids)) == whole + b"</s>":  # nothing was left to embed
        assert not text and found.start == len(found.ids) - 1
        assert at[found.start] == copies[-1][0] == len(whole)
        return
    assert b"".join(spelled(tokenizer, found.ids)) == whole
    if prompt.endswith("nv-embed") and not instruction:
        assert found.start == 0
    else:
        assert at[found.start] <= copies[-1][0] < at[found.start + 1]
    assert not found.truncated


@cases
def test_the_span_is_the_text_and_what_follows(tokenizers: dict[str, Any], kind: str, prompt: str) -> None:
    for text in HARD:
        hold(tokenizers[kind], kind, prompt, text, None)
        hold(tokenizers[kind], kind, prompt, text, asked(prompt))


@kinds
@given(prompt=prompts, text=ANY)
def test_the_span_is_exact_for_any_text(tokenizers: dict[str, Any], kind: str, prompt: str, text: str) -> None:
    hold(tokenizers[kind], kind, prompt, text, asked(prompt))


@kinds
@given(text=ANY, instruction=st.sampled_from(["", "Find it: "]), limit=st.integers(8, 24))
def test_full_is_what_the_tokenizer_makes_of_a_text(
    tokenizers: dict[str, Any], kind: str, text: str, instruction: str, limit: int
) -> None:
    tokenizer, given_text = tokenizers[kind], instruction + cleaned(text)
    expected_ids = tokenizer(given_text)["input_ids"]
    prompt = "full-instruction" if instruction else "full"
    found = one(tokenizer, prompt, text, instruction=instruction or None)
    assert found.ids == tuple(expected_ids or [tokenizer.eos_token_id]) and found.start == 0
    short = one(tokenizer, prompt, text, limit, instruction or None)
    assert short.start == 0 and len(short.ids) <= limit and short.truncated == (len(found.ids) > limit)
    if not instruction:  # the tokenizer itself would cut what is in excess, which may be an instruction
        assert short.ids == tuple(tokenizer(given_text, truncation=True, max_length=limit)["input_ids"] or found.ids)


def cut(found: TokenizedText, spans: list[list[int]], kept: int) -> tuple[int, ...]:
    gone = {k for span in spans for k in span[kept:]}
    return tuple(token for k, token in enumerate(found.ids) if k not in gone)


@cases
def test_only_the_text_is_cut_and_each_copy_alike(tokenizers: dict[str, Any], kind: str, prompt: str) -> None:
    for text in ("The fish 🙂 swam.", "a"):
        hold_when_cut(tokenizers[kind], kind, prompt, text, asked(prompt))


def hold_when_cut(tokenizer: Any, kind: str, prompt: str, text: str, instruction: str | None) -> None:
    whole = one(tokenizer, prompt, text, instruction=instruction)
    spans = bodies(tokenizer, whole.ids, expected(kind, prompt, text, instruction)[1])
    fixed = len(whole.ids) - sum(map(len, spans))
    for max_length in range(fixed + len(spans), len(whole.ids)):
        found, kept = one(tokenizer, prompt, text, max_length, instruction), (max_length - fixed) // len(spans)
        assert found.truncated and len(found.ids) <= max_length
        assert found.ids == cut(whole, spans, kept)
        assert found.ids[: found.start] == cut(TokenizedText(whole.ids[: whole.start], 0), spans[:-1], kept)
    for max_length in (len(whole.ids), len(whole.ids) + 1):
        assert one(tokenizer, prompt, text, max_length, instruction) == whole
    for max_length in range(-1, min(fixed + len(spans), len(whole.ids))):
        with pytest.raises(UnmaskError, match="leaves no room"):
            one(tokenizer, prompt, text, max_length, instruction)


@kinds
def test_a_lone_surrogate_is_a_replacement_character(tokenizers: dict[str, Any], kind: str) -> None:
    """In texts, `hold` checks it; here, in an instruction."""
    for broken, repaired in (("\ud83d", "\ufffd"), ("a\udc00b", "a\ufffdb"), ("\ud83d\ude42", "🙂")):
        broken_ids, repaired_ids = (one(tokenizers[kind], "instruction", "x", UNLIMITED, i) for i in (broken, repaired))
        assert broken_ids == repaired_ids and one(tokenizers[kind], "eol", broken) == one(tokenizers[kind], "eol", repaired)


@cases
def test_a_text_has_the_tokens_that_it_has_alone_within_the_limit(tokenizers: dict[str, Any], kind: str, prompt: str) -> None:
    texts = [*HARD, *TEXTS, "long " * 100]
    together = list(PromptTokenizer(tokenizers[kind], prompt, 64).tokenize(texts, asked(prompt)))
    assert together == [one(tokenizers[kind], prompt, text, 64, asked(prompt)) for text in texts]
    assert all(0 <= text.start < len(text.ids) <= 64 for text in together) and together[-1].truncated


def test_a_tokenizer_with_dropout_gives_a_text_the_same_tokens_every_time() -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.model.dropout = 0.5
    tokens = {one(tokenizer, "eol", TEXTS[0]).ids for _ in range(5)}
    assert tokens == {one(make_tokenizer(), "eol", TEXTS[0]).ids}


@kinds
def test_a_chat_template_that_writes_the_date_gives_the_same_tokens_every_day(tokenizers: dict[str, Any], kind: str) -> None:
    tokenizer = deepcopy(tokenizers[kind])
    tokenizer.chat_template = "Today is {{ strftime_now('%d %b %Y') }}. {{ messages[0].content }}"
    assert tokenizer.decode(one(tokenizer, "chat:plain", "TEXT").ids) == "Today is 26 Jul 2024. TEXT"


def test_an_instruction_is_seen_and_not_embedded(tokenizers: dict[str, Any]) -> None:
    found = one(tokenizers["bare"], "instruction-eos", "x", instruction="Find it")
    assert tokenizers["bare"].decode(found.ids) == "Instruct: Find it\nQuery: x</s>"
    assert tokenizers["bare"].decode(found.ids[found.start :]) in ("x</s>", " x</s>")
    assert one(tokenizers["bare"], "instruction-eos", "x") == one(tokenizers["bare"], "eos", "x")
    assert one(tokenizers["bare"], "instruction", "x", instruction="") == one(tokenizers["bare"], "plain", "x")
    with pytest.raises(UnmaskError, match=r"has no \{instruction\}"):
        one(tokenizers["bare"], "eol", "x", instruction="Find it")


def test_a_tokenizer_that_cannot_serve_the_prompt_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = tokenizer.eos_token = None
    with pytest.raises(UnmaskError, match="needs a chat template"):
        PromptTokenizer(tokenizer, "chat:plain", 8)
    with pytest.raises(UnmaskError, match="no end-of-sequence token"):
        PromptTokenizer(tokenizer, "eos", 8)
    assert one(tokenizer, "plain", "").ids == (tokenizer.bos_token_id,)
    tokenizer.bos_token = None
    with pytest.raises(UnmaskError, match="A text is empty"):
        one(tokenizer, "plain", "")


def test_training_and_probe_mask_with_the_entry_of_the_vocabulary() -> None:
    """SentencePiece puts a space before a text, so that its lone `_` is another token, a space and an underscore."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from unmask.training.stages.language import MntpOptions, mask_token

    backend = Tokenizer(models.BPE({"<unk>": 0, "\u2581": 1, "_": 2, "\u2581_": 3}, [("\u2581", "_")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert tokenizer("_")["input_ids"] == [3]
    assert mask_token(MntpOptions(data=("text",), steps=1, lr=1.0), tokenizer) == mask_id(tokenizer, "_") == 2
