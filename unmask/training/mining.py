"""Mining: hard negatives for pairs, read off an embedder's own ranking of the texts at hand.

sentence-transformers mines too, but asks for its own model class, leaves an anchor among its own negatives where it is another pair's
positive, looks no further than a fixed rank, and counts the ranks that it skips after the margin has cut the top off;
tests/training/test_mining.py holds ours to its result where the two must agree.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32
from pydantic import ValidationError

from unmask.embedder import Embedder
from unmask.encoding.quantization import normalized
from unmask.errors import UnmaskError, first_problem
from unmask.io.array_types import NDArray
from unmask.io.files import atomic, only_writer_of
from unmask.io.paths import expanded
from unmask.io.rows import field
from unmask.io.unicode import without_surrogates
from unmask.saving.folder import read_saved
from unmask.training.data import DataSet, DataSource, Example, content_hash, read_pairs, read_table, sentences_of
from unmask.training.recipe import parse_setting
from unmask.training.sources import titled
from unmask.training.text_keys import other_forms, positives_of, text_key

DEFAULT_DESIGN: Final = "prompteol-z"  # a ratio of cosines means little if all vectors point in one direction
_BLOCK_BYTES: Final = 2**26  # of similarities held at a time


@dataclass(frozen=True)
class Mining:
    """How negatives are chosen: this number for each pair, the highest ranked first.

    skip: ranks left out at the top. ratio: a negative's similarity stays below this share of the positive's, since what is nearer is
    likely an unlabelled positive (NV-Retriever's TopK-PercPos, arXiv 2407.15831; 0.95 is theirs). margin: and this far below it.
    """

    negatives: int = 1
    skip: int = 0
    ratio: float | None = 0.95
    margin: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers that choose nothing, or that choose what is right."""
        if self.negatives < 1 or self.skip < 0:
            raise UnmaskError(f"Mining takes at least 1 negative and skips at least 0, not {self.negatives} and {self.skip}.")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise UnmaskError(
                f"The ratio of a negative's similarity to the positive's is above 0 and at most 1, not {self.ratio}."
            )
        if not 0 <= self.margin < 2:
            raise UnmaskError(
                f"The margin between a positive's and a negative's similarity is from 0 to below 2, not {self.margin}."
            )


@dataclass(frozen=True)
class Mined:
    """Pairs with their negatives, and the mean cosine of an anchor with its positive, its negatives and any text of the pool."""

    dataset: DataSet
    positive: float
    negative: float
    anything: float


@dataclass(frozen=True)
class Corpus:
    """Texts to find negatives in. plain: of documents with a title, the key of title and text -> the key of the text."""

    texts: list[str]
    plain: Mapping[str, str]


def read_corpus(path: str, pairs: DataSource) -> Corpus:
    """The texts of a corpus, read as the positives of these pairs are: in a folder they have their title before the text.

    Raises UnmaskError with file and line for a row without text.
    """
    source = DataSource(path=path)
    file, table = read_table(source, Path())
    joined = {text_key(titled(row)): text_key(row["text"]) for _, row in table if titled(row) != row.get("text")}
    if expanded(pairs.path).is_dir() and "text" in table[0][1]:
        return Corpus([titled(row) for line, row in table if field(file, line, row, "text").strip()], joined)
    return Corpus([example.texts[0] for example in sentences_of("corpus", source, file, table, seed=0).examples], joined)


def mine_file(
    pairs: str,
    model: str,
    output: Path,
    settings: Mining,
    *,
    corpus: str | None = None,
    where: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    instruction: str | None = None,
    design: str | None = None,
    **options: Any,
) -> tuple[DataSet, Mined]:
    """Mine negatives for a file of pairs and write triples as jsonl. Returns the pairs and the result.

    where: conditions COLUMN=VALUE. design: default a saved embedder's design, else DEFAULT_DESIGN. options: of
    `Embedder.from_pretrained`.
    """
    if output.suffix != ".jsonl":
        raise UnmaskError(f"Triples are written as jsonl: '{output}' needs the suffix .jsonl.")
    try:
        conditions = {column: value for condition in where for column, value in parse_setting(condition).items()}
        source = DataSource(path=pairs, instruction=instruction, limit=limit, where=conditions, negatives=0)
    except ValidationError as error:
        raise UnmaskError(f"--where: {first_problem(error)}.") from error
    data = read_pairs(Path(pairs).stem, source, Path(), seed)
    extra = read_corpus(corpus, source) if corpus else Corpus([], {})
    if not design and not read_saved(model, options.get("revision"), options.get("adapter"), names_design=False):
        design = DEFAULT_DESIGN
    embedder = Embedder.from_pretrained(model, design, **options)
    mined = mine(embedder, data, settings, extra.texts, extra.plain)
    with only_writer_of(output), atomic(output) as scratch, scratch.open("w", encoding="utf-8") as lines:
        for example in mined.dataset.examples:
            row = dict(zip(mined.dataset.columns, example.texts, strict=True))
            lines.write(without_surrogates(json.dumps(row, ensure_ascii=False)) + "\n")
    return data, mined


def mine(
    embedder: Embedder, pairs: DataSet, options: Mining, corpus: Sequence[str] = (), plain: Mapping[str, str] | None = None
) -> Mined:
    """Give every pair the texts that the embedder ranks highest among all positives and a corpus, and that are not right.

    Right are the anchor itself and all positives of that anchor in the data, whatever their case and punctuation, with or without a
    title. plain: as in `Corpus`; the titles of a folder of pairs are known too. A pair with too few such texts is left out and counted in
    `skipped`. Negatives that the pairs have already are dropped. Warns where all texts are so similar to the embedder that the ratio
    leaves out what is hard. Raises UnmaskError if no pair is left.
    """
    anchors = [example.texts[0] for example in pairs.examples]
    positives = [example.texts[1] for example in pairs.examples]
    index_of: dict[str, int] = {}
    pool = [text for text in (*positives, *corpus) if _new(index_of, text_key(text))]
    # of a data set with a limit, the rows that were not drawn name positives too
    known_positives = {**positives_of(zip(anchors, positives, strict=True)), **pairs.positives}
    forms = other_forms(frozenset().union(*known_positives.values()), index_of, {**pairs.plain, **(plain or {})})
    right = {anchor: _places((anchor, *keys), forms, index_of) for anchor, keys in known_positives.items()}
    documents = _vectors(embedder.encode_document, pool, pairs.source.document_instruction)
    unique_anchors = list(dict.fromkeys(anchors))
    row = {anchor: number for number, anchor in enumerate(unique_anchors)}
    queries = _vectors(embedder.encode_query, unique_anchors, pairs.source.instruction)[[row[anchor] for anchor in anchors]]
    answers = documents[[index_of[text_key(positive)] for positive in positives]]
    negatives = hardest(queries, answers, documents, [right[text_key(anchor)] for anchor in anchors], options)
    mined_rows = [
        (index, negative_ids) for index, negative_ids in enumerate(negatives) if len(negative_ids) == options.negatives
    ]
    if not mined_rows:
        raise UnmaskError(
            f"data set '{pairs.name}': no pair has {options.negatives} texts that are less like its anchor than its positive is; "
            "give a corpus, a higher ratio or fewer negatives."
        )
    mined = _mined(pairs, pool, mined_rows, queries, answers, documents)
    if options.ratio is not None and (1 - options.ratio) * mined.positive > (mined.positive - mined.anything) / 2:
        # raw vectors of decoders lie in a narrow cone: of 113 passages, 0.95 of a positive's cosine was the cosine of the tenth
        warnings.warn(
            f"Any text has a cosine of {mined.anything:.2f} with an anchor, and its positive {mined.positive:.2f}, so a ratio of "
            f"{options.ratio} leaves out the hardest negatives: use a standardised design (prompteol-z) or a ratio nearer to 1.",
            stacklevel=2,
        )
    return mined


def hardest(
    anchors: Float32[NDArray[np.float32], "pair dim"],
    positives: Float32[NDArray[np.float32], "pair dim"],
    pool: Float32[NDArray[np.float32], "text dim"],
    right: Sequence[set[int]],
    options: Mining,
    block_bytes: int = _BLOCK_BYTES,
) -> list[list[int]]:
    """For each pair the places in the pool of its negatives, the most similar first, fewer where there are no more; unit vectors.

    right: for each pair the indices that cannot be negatives. Ties go to the earlier place, so a run repeats.
    """
    negatives: list[list[int]] = []
    size = max(1, block_bytes // max(1, 4 * len(pool)))
    for start in range(0, len(anchors), size):
        block = slice(start, start + size)
        likes = anchors[block] @ pool.T
        highest = _highest((anchors[block] * positives[block]).sum(axis=1), options)
        for scores, ceiling, right_indices in zip(likes, highest, right[block], strict=True):
            scores[list(right_indices)] = -np.inf
            negatives.append(_chosen(scores, ceiling, options))
    return negatives


def _highest(positive: NDArray[np.float32], options: Mining) -> NDArray[np.float32]:
    """What a negative's similarity stays below; a share of a negative number would lie above it, so its distance counts."""
    ratio = 1.0 if options.ratio is None else options.ratio
    limit = positive - np.maximum((1 - ratio) * np.abs(positive), options.margin)
    return np.asarray(limit if options.ratio is not None or options.margin else np.full_like(positive, np.inf), np.float32)


def _chosen(scores: NDArray[np.float32], ceiling: np.float32, options: Mining) -> list[int]:
    is_excluded = scores >= ceiling
    scores[is_excluded] = -np.inf
    skip = max(0, options.skip - int(is_excluded.sum()))  # candidates above the ceiling already rank at the top
    take = min(skip + options.negatives, len(scores))
    if take < len(scores):
        last = np.partition(scores, len(scores) - take)[len(scores) - take]
        candidates = np.flatnonzero(scores >= last)
    else:
        candidates = np.arange(len(scores))
    ranked = candidates[np.argsort(-scores[candidates], kind="stable")][skip : skip + options.negatives]
    return [int(index) for index in ranked if scores[index] > -np.inf]


def _mined(
    pairs: DataSet,
    pool: list[str],
    mined: list[tuple[int, list[int]]],
    queries: NDArray[np.float32],
    answers: NDArray[np.float32],
    documents: NDArray[np.float32],
) -> Mined:
    """The pairs that are kept, with their negatives."""
    count = len(mined[0][1])
    columns = ("anchor", "positive", *(f"negative_{number}" for number in range(1, count + 1)))
    examples = [
        Example(pairs.examples[query].row, (*pairs.examples[query].texts[:2], *(pool[index] for index in negative_ids)))
        for query, negative_ids in mined
    ]
    lost = len(pairs.examples) - len(mined)
    skipped = (
        {**pairs.skipped, "too few negatives": pairs.skipped.get("too few negatives", 0) + lost} if lost else pairs.skipped
    )
    revision = content_hash(columns, examples)
    dataset = replace(pairs, kind="pairs", columns=columns, examples=examples, revision=revision, skipped=skipped)
    positive = np.mean([queries[query] @ answers[query] for query, _ in mined])
    negative = np.mean([documents[negative_ids] @ queries[query] for query, negative_ids in mined])
    anything = queries.mean(axis=0) @ documents.mean(axis=0)
    return Mined(dataset, float(positive), float(negative), float(anything))


def _places(keys: Sequence[str], forms: Mapping[str, set[str]], index_of: Mapping[str, int]) -> set[int]:
    """The places of keys that are in the pool, and of their other forms."""
    return {index_of[form] for key in keys for form in (key, *forms.get(key, ())) if form in index_of}


def _new(index_of: dict[str, int], key: str) -> bool:
    if key in index_of:
        return False
    index_of[key] = len(index_of)
    return True


def _vectors(encode: Any, texts: list[str], instruction: str | None) -> NDArray[np.float32]:
    options = {} if instruction is None else {"instruction": instruction}
    return normalized(encode(texts, **options))
