"""Mining: hard negatives for pairs, taken from an embedder's ranking of the available texts.

sentence-transformers mines too, but needs its own model class, leaves an anchor among its own negatives where it is another pair's
positive, and looks no further than a fixed rank; tests/training/test_mining.py compares ours with its result where the two must agree.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32
from pydantic import ValidationError

from unmask.designs.presets import DEFAULT_DESIGN
from unmask.embedder import Embedder
from unmask.encoding.quantization import normalized
from unmask.errors import UnmaskError, first_problem
from unmask.io.array_types import NDArray
from unmask.io.files import atomic, only_writer_of
from unmask.io.paths import expanded
from unmask.io.unicode import without_surrogates
from unmask.saving.folder import read_saved
from unmask.training.data import DataSet, DataSource, Example, read_pairs, read_sentences, read_table
from unmask.training.recipe import parse_setting
from unmask.training.sources import title_and_text
from unmask.training.text_keys import positives_of, text_key

_BLOCK_BYTES: Final = 2**26  # of similarities held at a time


@dataclass(frozen=True)
class MinedPairs:
    """Pairs with their negatives, and the mean cosine of an anchor with its positive, its negatives and any text of the pool."""

    dataset: DataSet
    positive_cosine: float
    negative_cosine: float
    any_cosine: float


def read_corpus(path: str, pairs: DataSource) -> list[str]:
    """The texts of a corpus, read as the positives of these pairs are: with the title in front if the pairs are a folder."""
    source = DataSource(path=path)
    table = read_table("corpus", source, Path(), 0)
    if expanded(pairs.path).is_dir() and "text" in table.rows[0][1]:
        return [title_and_text(row) for line, row in table.rows if table.texts(line, row, "text", empty=True)[0].strip()]
    return [example.texts[0] for example in read_sentences("corpus", source, Path(), 0).examples]


def mine_file(
    pairs: str,
    model: str,
    output: Path,
    *,
    negatives: int = 1,
    ratio: float | None = 0.95,
    corpus: str | None = None,
    where: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    instruction: str | None = None,
    design: str | None = None,
    **options: Any,
) -> tuple[DataSet, MinedPairs]:
    """Mine negatives for a file of pairs and write triples as jsonl. Returns the pairs and the result.

    where: conditions COLUMN=VALUE. design: default a saved embedder's design, else DEFAULT_DESIGN. options: of
    `Embedder.from_pretrained`. For the others see `mine`.
    """
    if output.suffix != ".jsonl":
        raise UnmaskError(f"Triples are written as jsonl: '{output}' needs the suffix .jsonl.")
    try:
        conditions = {column: value for condition in where for column, value in parse_setting(condition).items()}
        source = DataSource(path=pairs, instruction=instruction, limit=limit, where=conditions, negatives=0)
    except ValidationError as error:
        raise UnmaskError(f"--where: {first_problem(error)}.") from error
    data = read_pairs(Path(pairs).stem, source, Path(), seed)
    texts = read_corpus(corpus, source) if corpus else []
    if not design and not read_saved(model, options.get("revision"), options.get("adapter"), names_design=False):
        design = DEFAULT_DESIGN
    mined = mine(Embedder.from_pretrained(model, design, **options), data, negatives=negatives, ratio=ratio, corpus=texts)
    with only_writer_of(output), atomic(output) as scratch, scratch.open("w", encoding="utf-8") as lines:
        for example in mined.dataset.examples:
            row = dict(zip(mined.dataset.columns, example.texts, strict=True))
            lines.write(without_surrogates(json.dumps(row, ensure_ascii=False)) + "\n")
    return data, mined


def mine(
    embedder: Embedder, pairs: DataSet, *, negatives: int = 1, ratio: float | None = 0.95, corpus: Sequence[str] = ()
) -> MinedPairs:
    """Give every pair the texts that the embedder ranks highest among all positives and a corpus, and that do not match its anchor.

    The anchor itself and all its positives in the data match, whatever their case and punctuation. Negatives that the pairs have already
    are replaced. Pairs with too few candidates are left out and counted. Warns where all texts are so similar to the embedder that
    the ratio excludes what is hard.

    Args:
        ratio: A negative's similarity stays below this share of the positive's, since what is nearer is likely an unlabelled positive
            (NV-Retriever's TopK-PercPos, arXiv 2407.15831; 0.95 is theirs). None: no limit.

    Raises:
        UnmaskError: If no pair is left.
    """
    anchors = [example.texts[0] for example in pairs.examples]
    positives = [example.texts[1] for example in pairs.examples]
    pool_by_key: dict[str, str] = {}
    for text in (*positives, *corpus):
        pool_by_key.setdefault(text_key(text), text)
    pool, index_of = list(pool_by_key.values()), {key: index for index, key in enumerate(pool_by_key)}
    # with a limit, the rows that were not sampled name positives too
    known_positives = {**positives_of(zip(anchors, positives, strict=True)), **pairs.positives}
    matches = {
        anchor: {index_of[key] for key in (anchor, *keys) if key in index_of} for anchor, keys in known_positives.items()
    }
    documents = _normalized_vectors(embedder.encode_document, pool, pairs.source.document_instruction)
    unique_anchors = list(dict.fromkeys(anchors))
    row = {anchor: number for number, anchor in enumerate(unique_anchors)}
    queries = _normalized_vectors(embedder.encode_query, unique_anchors, pairs.source.instruction)[
        [row[anchor] for anchor in anchors]
    ]
    answers = documents[[index_of[text_key(positive)] for positive in positives]]
    candidates = hardest_negatives(
        queries, answers, documents, [matches[text_key(anchor)] for anchor in anchors], negatives, ratio
    )
    complete = [index for index, selected in enumerate(candidates) if len(selected) == negatives]
    if not complete:
        raise UnmaskError(
            f"data set '{pairs.name}': no pair has {negatives} texts that are less like its anchor than its positive is; "
            "give a corpus, a higher ratio or fewer negatives."
        )
    examples = [
        Example(pairs.examples[index].row, (anchors[index], positives[index], *(pool[number] for number in candidates[index])))
        for index in complete
    ]
    skipped = dict(pairs.skipped)
    if lost := len(anchors) - len(complete):
        skipped["too few negatives"] = skipped.get("too few negatives", 0) + lost
    columns = ("anchor", "positive", *(f"negative_{number}" for number in range(1, negatives + 1)))
    mined = MinedPairs(
        replace(pairs, columns=columns, examples=examples, skipped=skipped),
        positive_cosine=float(np.mean([queries[index] @ answers[index] for index in complete])),
        negative_cosine=float(np.mean([documents[candidates[index]] @ queries[index] for index in complete])),
        any_cosine=float(queries.mean(axis=0) @ documents.mean(axis=0)),
    )
    if ratio is not None and (1 - ratio) * mined.positive_cosine > (mined.positive_cosine - mined.any_cosine) / 2:
        # raw vectors of decoders lie in a narrow cone: of 113 passages, 0.95 of a positive's cosine was the cosine of the tenth
        warnings.warn(
            f"Any text has a cosine of {mined.any_cosine:.2f} with an anchor, and its positive {mined.positive_cosine:.2f}, so a ratio of "
            f"{ratio} leaves out the hardest negatives: use a standardised design ({DEFAULT_DESIGN}) or a ratio nearer to 1.",
            stacklevel=2,
        )
    return mined


def hardest_negatives(
    anchors: Float32[NDArray[np.float32], "pair dim"],
    positives: Float32[NDArray[np.float32], "pair dim"],
    pool: Float32[NDArray[np.float32], "text dim"],
    matches: Sequence[set[int]],
    count: int,
    ratio: float | None,
    *,
    block_bytes: int = _BLOCK_BYTES,
) -> list[list[int]]:
    """For each pair the indices of its negatives in the pool, the most similar first; fewer than `count` where there are no more.

    All vectors have unit length. matches: for each pair the indices that cannot be negatives. Ties go to the lower index, so that a run
    repeats.
    """
    negatives: list[list[int]] = []
    size = max(1, block_bytes // max(1, 4 * len(pool)))
    for start in range(0, len(anchors), size):
        block = slice(start, start + size)
        similarities = anchors[block] @ pool.T
        limits = (anchors[block] * positives[block]).sum(axis=1)
        if ratio is not None:  # a share of a negative number would lie above it, so its size is subtracted
            limits = limits - np.maximum((1 - ratio) * np.abs(limits), 0.0)
        for scores, limit, excluded in zip(similarities, limits, matches[block], strict=True):
            scores[list(excluded)] = -np.inf
            if ratio is not None:
                scores[scores >= np.float32(limit)] = -np.inf
            take = min(count, len(scores))
            lowest = np.partition(scores, len(scores) - take)[len(scores) - take]
            ranked = np.flatnonzero(scores >= lowest)
            ranked = ranked[np.argsort(-scores[ranked], kind="stable")][:count]
            negatives.append([int(index) for index in ranked if scores[index] > -np.inf])
    return negatives


def _normalized_vectors(encode: Any, texts: list[str], instruction: str | None) -> NDArray[np.float32]:
    options = {} if instruction is None else {"instruction": instruction}
    return normalized(encode(texts, **options))
