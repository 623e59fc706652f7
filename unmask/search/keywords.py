"""Keywords: BM25 over the words of documents (bm25s), for documents that share rare words with a query.

Words are runs of letters and digits with their marks, in lower case, reduced to their stem by Snowball for one language. In scripts
without spaces between words, every two neighbouring characters stand for a word.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.encoding.words import composed, keyword_spans
from unmask.errors import require_package, unknown

_LONGEST = 100
"""Letters of a word; what is longer is no word that anybody types."""
K1, B = 0.9, 0.4
"""The parameters of Anserini, with which the scores of BM25 on BEIR are published."""
NO_STEMS = "none"
WORDS = 2
"""The number of the rules that cut texts into words. An index of other rules gets its words anew at its next update."""


def stemmer(language: str) -> Callable[[str], str]:
    """The form under which a word is indexed. language: one of Snowball's, or "none" for words as they are, in lower case.

    Raises UnmaskError for a language that Snowball does not have.
    """
    if language == NO_STEMS:
        return str.casefold
    require_package("Stemmer")
    import Stemmer

    if language not in (known := Stemmer.algorithms()):
        raise unknown("language", language, [*known, NO_STEMS])
    stem: Callable[[str], str] = Stemmer.Stemmer(language).stemWord
    return lambda word: stem(word.casefold())


def _words(text: str) -> Iterator[str]:
    text = composed(text)
    return (text[start:end] for start, end in keyword_spans(text) if end - start <= _LONGEST)


class _Vocabulary(dict[str, int]):
    """The number of each word's stem. Words that are new get the next number."""

    def __init__(self, stem: Callable[[str], str]) -> None:
        super().__init__()
        self.stem = stem
        self.stems: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        self[word] = number = self.stems.setdefault(self.stem(word), len(self.stems))
        return number


class Keywords:
    """BM25 scores of documents by row."""

    def __init__(self, scorer: Any, stem: Callable[[str], str]) -> None:
        """Take a bm25s index, and the form in which it knows words. None: the documents hold no word."""
        self._scorer, self._stem = scorer, stem

    @classmethod
    def build(cls, texts: Iterable[str], language: str) -> Keywords:
        """Count the words of all texts, in order. Memory holds four bytes for each word, and no text."""
        from bm25s import BM25

        stem = stemmer(language)
        vocabulary = _Vocabulary(stem)
        numbers = [array("i", (vocabulary[word] for word in _words(text))) for text in texts]
        if not vocabulary.stems:
            return cls(None, stem)
        scorer = BM25(k1=K1, b=B, method="lucene")
        scorer.index((numbers, vocabulary.stems), create_empty_token=False, show_progress=False)
        return cls(scorer, stem)

    def save(self, folder: Path) -> None:
        """Write to a new folder."""
        folder.mkdir()
        if self._scorer is not None:
            self._scorer.save(folder, show_progress=False)

    @classmethod
    def open(cls, folder: Path, language: str) -> Keywords:
        """What `save` wrote. The scores stay on the disk until a query needs them."""
        require_package("bm25s")
        from bm25s import BM25

        scorer = BM25.load(folder, mmap=True, show_progress=False) if any(folder.iterdir()) else None
        return cls(scorer, stemmer(language))

    @property
    def stem(self) -> Callable[[str], str]:
        """The form in which words are compared."""
        return self._stem

    def scores(self, query: str, documents: int) -> NDArray[np.float32]:
        """The score of each of so many documents; 0 for one that holds no word of the query."""
        nothing = np.zeros(documents, np.float32)
        if self._scorer is None:
            return nothing
        numbers = self._scorer.get_tokens_ids([self._stem(word) for word in _words(query)])
        return np.asarray(self._scorer.get_scores_from_ids(numbers)) if numbers else nothing
