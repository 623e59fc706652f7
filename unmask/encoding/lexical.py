"""Lexical vectors: the model's predictions after a text, restricted to the words of the text (PromptReps, arXiv 2404.18424).

The value of a token is log(1 + relu(logit)), as in SPLADE. Only tokens of the text's words have a value, and the 128 largest are kept. Two
vectors are compared by their dot product. A word is a run of letters and digits, with their combining marks. It is lowercased and tokenized
alone, so that it has the same tokens at the start of a sentence, after a space and after a quote. Special tokens, punctuation and the
prompt have no value. Instead of stop words, which depend on the language, use `idf`.

Inside this package a vector is packed: a row of 256 numbers, first the 128 token ids in order, then their values; unused slots have id 0
and value 0. So it passes through the same code as dense vectors, and rows are never as long as the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from unmask.errors import require_package
from unmask.io.array_types import NDArray
from unmask.models.output_layer import OutputLayer

if TYPE_CHECKING:
    from scipy.sparse import csr_array

KEPT = 128
"""Most tokens of a vector, as in the paper."""
Packed = NDArray[np.float32]
"""Sparse vectors as rows of token ids and values, shape (text, 256). Float32 holds ids up to 2^24 exactly."""


def lexical_vectors(
    states: Float[Tensor, "text dim"], word_ids: Sequence[Sequence[int]], layer: OutputLayer
) -> Float[Tensor, "text packed"]:
    """The packed vectors of texts. states: of their last tokens; word_ids: the tokens that may have a value, sorted."""
    rows = torch.zeros(len(word_ids), 2 * KEPT, device=states.device)
    for row, (state, ids) in enumerate(
        zip(states, word_ids, strict=True)
    ):  # one at a time, so that a vector does not depend on the batch
        if not ids:
            continue
        values = torch.log1p(layer.logits(state, ids).relu())
        # ties go to the smallest id; NaN stays, so that it is noticed
        top = torch.sort(values, descending=True, stable=True).indices[:KEPT].sort().values
        top = top[values[top] != 0]
        rows[row, : len(top)] = torch.tensor(ids, device=rows.device, dtype=rows.dtype)[top]
        rows[row, KEPT : KEPT + len(top)] = values[top]
    return rows


def weighted(packed: Float[Tensor, "text packed"], idf: Float[Tensor, " weight"]) -> Float[Tensor, "text packed"]:
    """Values times sqrt(IDF), so that the dot product of two vectors has each word's IDF once, as in BM25."""
    ids, values = packed[:, :KEPT], packed[:, KEPT:]
    indices = ids.long().clamp(max=len(idf) - 1)
    return torch.cat([ids, values * idf.to(values)[indices].sqrt()], dim=1)


def inverse_frequencies(blocks: Iterable[Tensor]) -> Float[Tensor, " weight"]:
    """IDF of each token in a corpus of packed vectors: ln(1 + (n - f + 0.5) / (f + 0.5)) if f of n texts have it (Lucene's BM25).

    The last weight applies to every token with a larger id, which no text has.
    """
    texts, frequencies = 0, torch.zeros(1, dtype=torch.long)
    for packed in blocks:
        texts += len(packed)
        ids = packed[:, :KEPT][packed[:, KEPT:] > 0].long().cpu()
        longest = max(len(frequencies), int(ids.max()) + 2 if len(ids) else 0)
        frequencies = pad(frequencies, (0, longest - len(frequencies))) + torch.bincount(ids, minlength=longest)
    return torch.log1p((texts - frequencies + 0.5) / (frequencies + 0.5))


def unpacked(packed: Packed, vocabulary: int | None = None) -> csr_array:
    """The sparse matrix of packed vectors, (text, vocabulary), in float32. vocabulary: None takes as many columns as are used."""
    require_package("scipy")
    from scipy.sparse import csr_array

    values = packed[:, KEPT:]
    filled = values != 0
    ids = packed[:, :KEPT][filled].astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(filled.sum(axis=1))])
    width = vocabulary if vocabulary is not None else int(ids.max(initial=0)) + 1
    return csr_array((values[filled], ids, ends), shape=(len(packed), width))


def dot_products(first: Any, second: Any) -> Packed:
    """The dot product of each packed vector of `first` with each of `second`, shape (n, m)."""
    both = [np.asarray(packed, np.float32) for packed in (first, second)]
    width = 1 + max(int(packed[:, :KEPT].max(initial=0)) for packed in both)
    a, b = (unpacked(packed, width) for packed in both)
    return np.asarray((a @ b.T).toarray(), np.float32)


def entries(packed: Packed) -> Iterator[tuple[list[int], list[float]]]:
    """Token ids and values of each vector, without unused slots."""
    for row in packed:
        filled = row[KEPT:] != 0
        yield row[:KEPT][filled].astype(int).tolist(), [float(str(value)) for value in row[KEPT:][filled]]
