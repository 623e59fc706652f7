"""Word probe: how much of a word's part of speech, chunk or entity a linear classifier can read from its frozen states.

The words of a sentence are joined by spaces and tokenized ONCE. Character offsets assign sub-tokens to words: a sub-token that spans two
words belongs to both, a space alone to none. The vector of a word is the mean of its sub-tokens' states. With `shift`, for models trained
with MNTP, the state at position i-1 represents sub-token i, since MNTP predicts it there. Position 0 keeps its own state; if the tokenizer
adds a BOS token, that is position 0 and no word is concerned. The probe is LLM2Vec's (arXiv 2404.05961, section 4), with multinomial
logistic regression in place of its SGD.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.encoding.backbone import Backbone, HiddenRead
from unmask.encoding.batching import collate, plan
from unmask.encoding.encoder import Encoder
from unmask.encoding.forward_pass import require_finite
from unmask.encoding.tokenization import TokenizedText, tokenize_bare
from unmask.errors import UnmaskError
from unmask.io.array_types import NDArray
from unmask.io.terminal import progress_bar
from unmask.models.provenance import fingerprint_of
from unmask.statistics.ratios import Ratio
from unmask.tasks.tagged import Sentence

Matrix = Float[NDArray[np.float32], "word dim"]
CS = (1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of regularisation to choose from. Standardised vectors of hundreds of dimensions need strong regularisation."""
_HELD_OUT, _ITERATIONS = 0.1, 1000
_BIO = re.compile(r"[BI]-.+|O")


@dataclass(frozen=True)
class WordTokens:
    """Token ids of one sentence, and the positions of each word's sub-tokens."""

    ids: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Scores:
    """What a probe got right in each test sentence: words, and entities (predicted, gold, both) if the tags are BIO."""

    correct: NDArray[np.int64]
    words: NDArray[np.int64]
    true_positives: NDArray[np.int64] | None = None
    gold: NDArray[np.int64] | None = None
    predicted: NDArray[np.int64] | None = None

    @property
    def accuracy(self) -> Ratio:
        """Correct words over words."""
        return Ratio(self.correct.astype(np.float64), self.words.astype(np.float64), share=True)

    @property
    def entity_f1(self) -> Ratio | None:
        """2 x true positives / (gold + predicted entities), exact in span and type; None if tags are not BIO."""
        if self.true_positives is None or self.gold is None or self.predicted is None:
            return None
        return Ratio((2 * self.true_positives).astype(np.float64), (self.gold + self.predicted).astype(np.float64), share=True)


@dataclass(frozen=True, eq=False)
class WordProbe:
    """The outcome of a word-level probe.

    metric: entity_f1 for BIO tags, else accuracy; value, interval: of the metric, 95 % by bootstrap over test sentences; majority:
    accuracy of always guessing the most frequent training tag; unseen: test words whose tag is not in the training data, which count as
    errors; dim: size of a word's vector; c: regularisation, chosen on a tenth of the training sentences; converged: whether lbfgs
    converged.
    """

    metric: str
    value: float
    interval: tuple[float, float] | None
    accuracy: float
    accuracy_interval: tuple[float, float] | None
    majority: float
    classes: int
    train_sentences: int
    train_words: int
    test_sentences: int
    test_words: int
    unseen: int
    layer: int
    dim: int
    shift: bool
    c: float
    converged: bool
    seed: int
    scores: Scores
    test_data: str
    provenance: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """For `--json`. The scores of single sentences come last."""
        content = {name: value for name, value in asdict(self).items() if name != "scores"}
        scores = {name: value for name, value in asdict(self.scores).items() if value is not None}
        return content | {"scores": {name: value.tolist() for name, value in scores.items()}}


def probe_words(
    encoder: Encoder,
    train: Sequence[Sentence],
    test: Sequence[Sentence],
    *,
    layer: int | None = None,
    **options: Any,
) -> WordProbe:
    """Fit a linear probe on the words of `train` and score it on `test`, at one layer (1..L, by default the last).

    Options and errors are the same as for `probe_words_at_layers`.
    """
    layer = encoder.backbone.depth if layer is None else layer
    return probe_words_at_layers(encoder, train, test, [layer], **options)[layer]


def probe_words_at_layers(
    encoder: Encoder,
    train: Sequence[Sentence],
    test: Sequence[Sentence],
    layers: Sequence[int],
    *,
    shift: bool = False,
    seed: int = 0,
) -> dict[int, WordProbe]:
    """A linear probe at each of several layers (1..L, the last after the final norm), all from the same forward passes.

    The regularisation is chosen for each layer, by accuracy on a tenth of the training sentences that the seed draws. Raises UnmaskError
    for a layer that the model lacks, a sentence longer than the model's positions, a word without sub-tokens, and fewer than two tags.
    """
    labels = np.array([tag for sentence in train for tag in sentence.tags])
    gold = [tag for sentence in test for tag in sentence.tags]
    classes = Counter(labels.tolist())
    if len(classes) < 2:
        raise UnmaskError(f"The training sentences have {len(classes)} tag(s); a probe needs at least 2.")
    if not test:
        raise UnmaskError("The test data hold no sentences.")
    train_vectors = layer_vectors(encoder, train, layers, shift=shift)
    test_vectors = layer_vectors(encoder, test, layers, shift=shift)
    provenance = encoder.provenance | {"attention": encoder.backbone.attention, "train_data": _fingerprint(train)}
    probes = {}
    for layer in layers:
        c = _choose_c(train_vectors[layer], labels, [len(sentence.words) for sentence in train], seed)
        predict, converged = fit_probe(train_vectors[layer], labels, c)
        guesses = _split(predict(test_vectors[layer]), [len(sentence.words) for sentence in test])
        scores = score([sentence.tags for sentence in test], [tags.tolist() for tags in guesses])
        main = scores.entity_f1 or scores.accuracy
        probes[layer] = WordProbe(
            metric="accuracy" if scores.entity_f1 is None else "entity_f1",
            value=main.value,
            interval=main.interval(),
            accuracy=scores.accuracy.value,
            accuracy_interval=scores.accuracy.interval(),
            majority=gold.count(classes.most_common(1)[0][0]) / len(gold),
            classes=len(classes),
            train_sentences=len(train),
            train_words=len(labels),
            test_sentences=len(test),
            test_words=len(gold),
            unseen=len(gold) - int(np.isin(gold, labels).sum()),
            layer=layer,
            dim=test_vectors[layer].shape[1],
            shift=shift,
            c=c,
            converged=converged,
            seed=seed,
            scores=scores,
            test_data=_fingerprint(test),
            provenance=provenance,
        )
    return probes


def word_tokens(encoder: Encoder, sentences: Sequence[Sentence]) -> list[WordTokens]:
    """Tokenize sentences and find each word's sub-tokens. Raises UnmaskError for a word without sub-tokens and a too long sentence."""
    limit = encoder.backbone.within_positions(2**31)
    tokenized = []
    for sentence in sentences:
        text = " ".join(sentence.words)
        tokens = tokenize_bare(encoder.tokenizer, text)
        if len(tokens.ids) > limit:
            raise UnmaskError(
                f"{sentence.where or text[:40]}: {len(tokens.ids)} tokens do not fit the {limit} positions of the model. Leave it out."
            )
        tokenized.append(WordTokens(tokens.ids, assign_words(sentence, tokens.offsets)))
    return tokenized


def assign_words(sentence: Sentence, offsets: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """For each word, the positions of the sub-tokens that share a character with it. Both are sorted, so one walk is enough."""
    words, begin, first = [], 0, 0
    for word in sentence.words:
        end = begin + len(word)
        while first < len(offsets) and offsets[first][1] <= begin:
            first += 1
        positions, index = [], first
        while index < len(offsets) and offsets[index][0] < end:
            if offsets[index][1] > begin:
                positions.append(index)
            index += 1
        if not positions:
            raise UnmaskError(f"{sentence.where or 'A sentence'}: the tokenizer makes no token of the word {word!r}.")
        words.append(tuple(positions))
        begin = end + 1
    return tuple(words)


def layer_vectors(
    encoder: Encoder,
    sentences: Sequence[Sentence],
    layers: Sequence[int],
    *,
    shift: bool = False,
) -> dict[int, Matrix]:
    """One vector for each word at each of some layers, float32 of shape (word, dim), sentence after sentence. Raises UnmaskError.

    States are averaged inside the forward pass: only word vectors are held in memory, never the states of every token.
    """
    backbone = encoder.backbone
    for layer in layers:
        if not 1 <= layer <= backbone.depth:
            raise UnmaskError(f"Layer {layer} does not exist: this model has {backbone.depth} layers, 1 to {backbone.depth}.")
    tokens = word_tokens(encoder, sentences)
    starts = np.cumsum([0, *(len(sentence.words) for sentence in tokens)])
    vectors: dict[int, Matrix] = {}
    batches = plan([len(sentence.ids) for sentence in tokens], encoder.batch_tokens)
    with progress_bar("reading sentences", len(tokens)) as advance:
        for batch in batches:
            lengths = [len(tokens[index].words) for index in batch]
            for layer, values in _pool_words(backbone, [tokens[index] for index in batch], layers, shift).items():
                if layer not in vectors:
                    vectors[layer] = np.empty((int(starts[-1]), values.shape[1]), np.float32)
                require_finite(values, np.repeat(batch, lengths).tolist(), backbone.dtype, "the sentence")
                for index, rows in zip(batch, _split(values, lengths), strict=True):
                    vectors[layer][starts[index] : starts[index + 1]] = rows
            advance(len(batch))
    return vectors


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _pool_words(backbone: Backbone, texts: Sequence[WordTokens], layers: Sequence[int], shift: bool) -> dict[int, Matrix]:
    batch = collate([TokenizedText(text.ids, 0) for text in texts], pad_id=0)
    # weights that average each word's sub-token states (with `shift`: the states before)
    weights = torch.zeros(len(texts), max(len(text.words) for text in texts), batch.ids.shape[1])
    for row, text in enumerate(texts):
        for column, positions in enumerate(text.words):
            for position in positions:
                weights[row, column, max(position - shift, 0)] += 1 / len(positions)
    present = weights.any(dim=2)

    def pool(hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]) -> Float[Tensor, "word dim"]:
        states = hidden.float().masked_fill(~mask.unsqueeze(-1), 0.0)  # NaN * 0 is NaN, and padding may hold anything
        return torch.bmm(weights.to(states.device), states)[present.to(states.device)]

    reads = {layer: HiddenRead(layer, pool) for layer in layers}
    values = backbone.read(batch, reads.values())
    return {layer: np.asarray(values[hidden_read].cpu().numpy(), np.float32) for layer, hidden_read in reads.items()}


def fit_probe(vectors: Matrix, labels: NDArray[Any], c: float) -> tuple[Callable[[Matrix], NDArray[Any]], bool]:
    """Multinomial logistic regression (lbfgs) on standardised vectors: a function from vectors to tags, and if it converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, deviation = vectors.mean(axis=0, dtype=np.float64), vectors.std(axis=0, dtype=np.float64)
    deviation[deviation == 0] = 1.0  # a constant dimension must not divide by zero
    shift, scale = mean.astype(np.float32), deviation.astype(np.float32)
    model = LogisticRegression(C=c, max_iter=_ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the result says so
        model.fit((vectors - shift) / scale, labels)
    return lambda new: np.asarray(model.predict((new - shift) / scale)), int(model.n_iter_.max()) < _ITERATIONS


def _choose_c(vectors: Matrix, labels: NDArray[Any], lengths: Sequence[int], seed: int) -> float:
    """The C of CS with the best accuracy on a tenth of the sentences; of equal ones the smallest, which regularises most."""
    held_out = np.zeros(len(lengths), dtype=bool)
    held_out[np.random.default_rng(seed).permutation(len(lengths))[: max(1, round(_HELD_OUT * len(lengths)))]] = True
    out = np.repeat(held_out, lengths)
    if len(set(labels[~out].tolist())) < 2:
        raise UnmaskError("There are too few training sentences to choose the regularisation on a tenth of them.")
    accuracies = {}
    for c in CS:
        predict, _ = fit_probe(vectors[~out], labels[~out], c)
        accuracies[c] = float((predict(vectors[out]) == labels[out]).mean())
    return max(CS, key=lambda c: accuracies[c])


def score(gold: Sequence[Sequence[str]], guesses: Sequence[Sequence[str]]) -> Scores:
    """Count what is right in each sentence: words, and entities if all gold tags are BIO."""
    pairs = list(zip(gold, guesses, strict=True))
    correct = np.array([sum(a == b for a, b in zip(tags, guessed, strict=True)) for tags, guessed in pairs])
    words = np.array([len(tags) for tags, _ in pairs])
    tags = {tag for sentence in gold for tag in sentence}
    if tags <= {"O"} or not all(_BIO.fullmatch(tag) for tag in tags):
        return Scores(correct, words)
    spans = [(entities(tags), entities(guessed)) for tags, guessed in pairs]
    return Scores(
        correct,
        words,
        np.array([len(gold_spans & guessed) for gold_spans, guessed in spans]),
        np.array([len(gold_spans) for gold_spans, _ in spans]),
        np.array([len(guessed) for _, guessed in spans]),
    )


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Entities (first word, end, type) of BIO tags. As in conlleval, I-X after O or after another type begins an entity too."""
    spans, start, kind = set(), 0, ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, now = tag.partition("-")
        if kind and (prefix != "I" or now != kind):
            spans.add((start, position, kind))
            kind = ""
        if now and not kind:
            start, kind = position, now
    return spans


def _split(values: NDArray[Any], lengths: Sequence[int]) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum(lengths)[:-1])


def _fingerprint(sentences: Sequence[Sentence]) -> str:
    return fingerprint_of([text for sentence in sentences for text in (*sentence.words, "", *sentence.tags, "")])
