"""Collation: rows of a schedule become tensors, with little padding and without the global random generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class PairCollator:
    """The texts of a batch as chunks of similar length.

    All columns are tokenized as in inference, each under its instruction, sorted by length together, and cut into chunks of at most
    `budget` tokens. `order[c, b]` is the row, in the concatenated outputs of the chunks, of column c of example b. Where an anchor may
    have several positives, `_known_positives` says which candidates they are.

    teachers: name -> vectors of texts by another model, shape (text, dim); the batch then holds under this name the vector of the text in
    row k of the chunks' outputs, as row k. are_views: the columns are views of one sentence, which an instruction must not tell apart.
    """

    tokenizer: PromptTokenizer
    budget: int
    teachers: Mapping[str, Callable[[list[str]], Tensor]] = field(default_factory=dict)
    are_views: bool = False

    def __call__(self, rows: Sequence[ScheduledExample]) -> dict[str, Any]:
        """Chunks, order and the ids of the rows of a batch from one data set."""
        source = rows[0].data.source
        columns = list(zip(*(row.example.texts for row in rows), strict=True))
        tokens = []
        for column, texts in enumerate(columns):
            instruction = source.instruction if self.are_views or not column else source.document_instruction
            tokens += list(self.tokenizer.tokenize(texts, instruction))
        batches = plan([len(text.ids) for text in tokens], self.budget)
        order = torch.empty(len(tokens), dtype=torch.long)
        order[torch.tensor([index for batch in batches for index in batch])] = torch.arange(len(tokens))
        chunks = [collate([tokens[index] for index in batch], self.tokenizer.pad_id) for batch in batches]
        inputs: dict[str, Any] = {
            "chunks": [
                {"input_ids": chunk.ids, "attention_mask": chunk.attention_mask.long(), "pooling_mask": chunk.pooling_mask}
                for chunk in chunks
            ],
            "order": order.reshape(-1, len(rows)),
            "rows": [row.id for row in rows],
        }
        everything = [text for texts in columns for text in texts]
        vectors = {teacher: teacher(everything)[order.argsort()] for teacher in set(self.teachers.values())}
        inputs |= {name: vectors[teacher] for name, teacher in self.teachers.items()}
        if rows[0].example.score is not None:
            inputs["scores"] = torch.tensor([row.example.score for row in rows])
        return inputs | _known_positives(rows)


def _known_positives(rows: Sequence[ScheduledExample]) -> dict[str, Tensor]:
    """Which candidates of a batch are positives of an anchor; nothing if every anchor has one positive.

    `candidate_ids[c, b]` is an id of column c + 1 of example b, and `positive_ids[b]` are the ids that are positives of anchor b: its
    class, in a data set with labels, else the texts that the data set names as its positives. The data set alone decides whether a
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
    limit = max(map(len, positives))
    return {
        "candidate_ids": torch.tensor([[_hash_id(key) for key in texts[1:]] for texts in keys]).T,
        "positive_ids": torch.tensor(
            [[_hash_id(key) for key in texts + texts[:1] * (limit - len(texts))] for texts in positives]
        ),
    }


def _hash_id(key: str) -> int:
    """64 bits for a text, the same in every process."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)


def chunk_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, blocks: bool) -> list[list[int]]:
    """Token ids of texts: concatenated and cut every max_length tokens (the rest is dropped), or each cut to max_length.

    Special tokens are those that the tokenizer adds itself, so that in blocks too every text begins with its BOS; there an
    end-of-sequence token follows each text. A sentence of fewer than two tokens has nothing to predict and is left out.
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


Chunk = tuple[int, list[int]]
"""Token ids with their position in the schedule."""


@dataclass(frozen=True)
class NextTokenCollator:
    """Unmasked chunks: every token is a label of the model's own shifted loss."""

    pad_id: int

    def __call__(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Inputs, labels and ids of chunks."""
        return pad([self.inputs_and_labels(*chunk) for chunk in chunks], self.pad_id) | {
            "rows": [f"chunk:{position}" for position, _ in chunks]
        }

    def inputs_and_labels(self, position: int, ids: list[int]) -> tuple[list[int], list[int]]:
        """Of the chunk at a position of the schedule."""
        return ids, ids


@dataclass(frozen=True)
class MaskingCollator(NextTokenCollator):
    """Inputs and labels for masked next-token prediction.

    share: of tokens that are masked. as_bert: 80 % of these become the mask, 10 % a random token, and 10 % stay; otherwise all become
    the mask. The selection depends only on the seed and the position in the schedule, so a resumed run masks as an unbroken one. The
    first token is never masked, because nothing before it could predict it. At least one token of every chunk is masked.
    """

    share: float
    as_bert: bool
    mask_id: int
    vocabulary: int
    special: set[int]
    seed: int

    def inputs_and_labels(self, position: int, ids: list[int]) -> tuple[list[int], list[int]]:
        """Of the chunk at a position of the schedule."""
        generator = torch.Generator().manual_seed(random.Random(f"{self.seed}:{position}").getrandbits(63))
        maskable = torch.tensor([k > 0 and token not in self.special for k, token in enumerate(ids)])
        if not maskable.any():
            maskable[1:] = True
        is_target = (torch.rand(len(ids), generator=generator) < self.share) & maskable
        if not is_target.any():
            candidates = maskable.nonzero().flatten()
            is_target[candidates[torch.randint(len(candidates), (1,), generator=generator)]] = True
        tokens = torch.tensor(ids)
        inputs = tokens.clone()
        draw = torch.rand(len(ids), generator=generator)
        random_tokens = torch.randint(self.vocabulary, (len(ids),), generator=generator)
        masked, randomised = (0.8, 0.9) if self.as_bert else (1.0, 1.0)
        inputs[is_target & (draw < masked)] = self.mask_id
        is_random = is_target & (draw >= masked) & (draw < randomised)
        inputs[is_random] = random_tokens[is_random]
        return inputs.tolist(), tokens.masked_fill(~is_target, IGNORED).tolist()


def pad(rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad_id: int) -> dict[str, Tensor]:
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
