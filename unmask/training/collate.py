"""Collation: rows of a schedule become tensors, with little padding and without the global random generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.encoding.batching import collate, plan
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.io.unicode import without_surrogates
from unmask.training.schedule import ScheduledExample
from unmask.training.targets import IGNORED
from unmask.training.text_keys import text_key

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_COUNTED = 10_000  # examples in which texts that are too long are counted: a few seconds


class PairCollator:
    """Texts of a contrastive batch as chunks of similar length.

    All columns are tokenized as in inference, each under its instruction, sorted by length together, and cut into chunks of at most
    `budget` tokens. `order[c, b]` is the row, in the chunks' outputs one after the other, of column c of example b. Where an anchor may
    have several positives, `_known_positives` tells which candidates they are.
    """

    def __init__(self, tokenizer: PromptTokenizer, budget: int) -> None:
        self.tokenizer, self.budget = tokenizer, budget

    def __call__(self, rows: Sequence[ScheduledExample]) -> dict[str, Any]:
        """Chunks, order and the rows' names of a batch from one data set."""
        texts = []
        for column, values in enumerate(zip(*(row.example.texts for row in rows), strict=True)):
            texts += list(self.tokenizer.tokenize(values, self.instruction(rows[0], column)))
        batches = plan([len(text.ids) for text in texts], self.budget)
        starts = torch.empty(len(texts), dtype=torch.long)
        starts[torch.tensor([index for batch in batches for index in batch])] = torch.arange(len(texts))
        chunks = [collate([texts[index] for index in batch], self.tokenizer.pad_id) for batch in batches]
        return {
            "chunks": [
                {"input_ids": chunk.ids, "attention_mask": chunk.real.long(), "embed_mask": chunk.embed} for chunk in chunks
            ],
            "order": starts.reshape(-1, len(rows)),
            **_known_positives(rows),
            "rows": [row.id for row in rows],
        }

    def instruction(self, row: ScheduledExample, column: int) -> str | None:
        """The instruction of a column: of the data set for anchors, of documents for all others."""
        return row.data.source.document_instruction if column else row.data.source.instruction

    def cut(self, rows: Sequence[ScheduledExample]) -> tuple[int, int]:
        """How many texts of a schedule are longer than the limit, and of how many. Each counts once, in the first 10 000 examples."""
        texts: dict[str | None, set[str]] = {}
        for row in rows[:_COUNTED]:
            for column, text in enumerate(row.example.texts):
                texts.setdefault(self.instruction(row, column), set()).add(text)
        cut = [
            text.truncated
            for instruction, own_texts in texts.items()
            for text in self.tokenizer.tokenize(list(own_texts), instruction)
        ]
        return sum(cut), len(cut)


def _known_positives(rows: Sequence[ScheduledExample]) -> dict[str, Tensor]:
    """What tells the loss which candidates of a batch are positives of an anchor; nothing if every anchor has one positive.

    `candidate_ids[c, b]` is a number of column c + 1 of example b, and `positive_ids[b]` are the numbers that are positives of anchor b:
    its class, in a data set with labels, else the texts that the data set names as its positives. The data set alone decides whether a
    batch has them, because processes that share a batch have to exchange them together.
    """
    if rows[0].example.classes:
        classes = torch.tensor([row.example.classes for row in rows])
        return {"candidate_ids": classes.T[1:], "positive_ids": classes[:, :1]}
    positives_by_anchor = rows[0].data.positives
    if not positives_by_anchor:
        return {}
    keys = [[text_key(text) for text in row.example.texts] for row in rows]
    positives = [
        [positive, *sorted(positives_by_anchor.get(anchor, frozenset()) - {positive})] for anchor, positive, *_ in keys
    ]
    count = max(map(len, positives))
    filled = [texts + texts[:1] * (count - len(texts)) for texts in positives]
    return {
        "candidate_ids": torch.tensor([[_number(key) for key in texts[1:]] for texts in keys]).T,
        "positive_ids": torch.tensor([[_number(key) for key in texts] for texts in filled]),
    }


def _number(key: str) -> int:
    """A number of 64 bits for a text, the same in every process."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)


class ViewCollator(PairCollator):
    """Pairs of views of one sentence, for SimCSE."""

    def instruction(self, row: ScheduledExample, column: int) -> str | None:
        """The instruction of the data set for both views, which an instruction must not tell apart."""
        return row.data.source.instruction


class TeacherCollator:
    """Batches of a PairCollator with the vectors that a teacher gives their texts.

    `teacher[k]` is of the text in row k of the chunks' outputs.
    """

    def __init__(self, pairs: Callable[[Sequence[Any]], dict[str, Any]], teacher: Callable[[list[str]], Tensor]) -> None:
        self.pairs, self.teacher = pairs, teacher

    def __call__(self, rows: Sequence[ScheduledExample]) -> dict[str, Any]:
        """Chunks, the teacher's vectors and the rows' names of a batch from one data set."""
        batch = self.pairs(rows)
        texts = [text for column in zip(*(row.example.texts for row in rows), strict=True) for text in column]
        return {**batch, "teacher": self.teacher(texts)[batch["order"].flatten().argsort()]}


def chunk_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, blocks: bool) -> list[list[int]]:
    """Token ids of texts: one after the other, cut every max_length tokens (the rest is dropped), or each cut to max_length.

    Special tokens are those that the tokenizer adds itself, so that in blocks too every text begins with its BOS; there an
    end-of-sequence token stands behind each text. A sentence of fewer than two tokens has nothing to predict and is left out.
    Raises UnmaskError if that leaves nothing.
    """
    encoded: list[list[int]] = tokenizer([without_surrogates(text) for text in texts], truncation=False, verbose=False)[
        "input_ids"
    ]
    if not blocks:
        chunks = [ids[:max_length] for ids in encoded if len(ids) > 1]
        if not chunks:
            raise UnmaskError("No text has two tokens or more, so there is nothing to predict.")
        return chunks
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    stream = [token for ids in encoded for token in (*ids, *(end if ids[-1:] != end else []))]
    if len(stream) < max_length:
        raise UnmaskError(
            f"All texts together have {len(stream)} tokens, too few for one block of {max_length}: "
            'lower max_length, or set chunks = "sentences".'
        )
    return [stream[start : start + max_length] for start in range(0, len(stream) - max_length + 1, max_length)]


class NextTokenCollator:
    """Unmasked chunks: every token is a label of the model's own shifted loss."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, chunks: Sequence[tuple[int, list[int]]]) -> dict[str, Any]:
        """Inputs, labels and names of the chunks at these places of the schedule."""
        rows = [(ids, ids) for _, ids in chunks]
        return padded(rows, self.pad_id) | {"rows": [f"chunk:{number}" for number, _ in chunks]}


class MaskingCollator:
    """Inputs and labels for masked next-token prediction.

    share: of tokens that are masked. as_bert: 80 % of these become the mask, 10 % a random token, and 10 % stay; otherwise all become
    the mask. The choice depends on the seed and the place in the schedule only, so a resumed run masks as an unbroken one. The first
    token is never masked, because nothing before it could predict it. At least one token of every chunk is masked.
    """

    def __init__(
        self, share: float, as_bert: bool, mask_id: int, pad_id: int, vocabulary: int, special: set[int], seed: int
    ) -> None:
        self.share, self.as_bert, self.mask_id, self.pad_id = share, as_bert, mask_id, pad_id
        self.vocabulary, self.special, self.seed = vocabulary, special, seed

    def __call__(self, chunks: Sequence[tuple[int, list[int]]]) -> dict[str, Any]:
        """Masked inputs, labels and names of the chunks at these places of the schedule."""
        rows = [self.mask(ids, number) for number, ids in chunks]
        return padded(rows, self.pad_id) | {"rows": [f"chunk:{number}" for number, _ in chunks]}

    def mask(self, ids: list[int], number: int) -> tuple[list[int], list[int]]:
        """Inputs and labels of the chunk at one place of the schedule."""
        generator = torch.Generator().manual_seed(random.Random(f"{self.seed}:{number}").getrandbits(63))
        maskable = torch.tensor([k > 0 and token not in self.special for k, token in enumerate(ids)])
        if not maskable.any():
            maskable[1:] = True
        is_target = (torch.rand(len(ids), generator=generator) < self.share) & maskable
        if not is_target.any():
            candidates = maskable.nonzero().flatten()
            is_target[candidates[torch.randint(len(candidates), (1,), generator=generator)]] = True
        tokens = torch.tensor(ids)
        inputs = tokens.clone()
        fate = torch.rand(len(ids), generator=generator)
        random_tokens = torch.randint(self.vocabulary, (len(ids),), generator=generator)
        replaced, scrambled = (0.8, 0.9) if self.as_bert else (1.0, 1.0)
        inputs[is_target & (fate < replaced)] = self.mask_id
        scramble = is_target & (fate >= replaced) & (fate < scrambled)
        inputs[scramble] = random_tokens[scramble]
        return inputs.tolist(), tokens.masked_fill(~is_target, IGNORED).tolist()


def padded(rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad_id: int) -> dict[str, Tensor]:
    """Inputs and labels of texts as right-padded tensors, with the mask of real tokens."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), longest), pad_id)
    labels = torch.full((len(rows), longest), IGNORED)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for row, (inputs, targets) in enumerate(rows):
        ids[row, : len(inputs)] = torch.tensor(inputs)
        labels[row, : len(inputs)] = torch.tensor(targets)
        mask[row, : len(inputs)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
