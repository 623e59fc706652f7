"""Export to model2vec: a vector for each token, so that a text is embedded by looking up and averaging, without the model.

Each entry of the vocabulary is embedded inside the prompt, by the design. Then, as model2vec distils: the first principal components, and
weights that make frequent tokens count less (SIF, with frequencies by Zipf's law, since a vocabulary is ordered by frequency).
The result is another model. So it is not compared number by number: the check says how far it agrees, and what it loses.
"""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from unmask.encoding.encode import encode_tokenized
from unmask.encoding.tokenization import TokenizedText
from unmask.errors import UnmaskError
from unmask.io.terminal import progress_bar
from unmask.saving.exports.target import Checked, Exportable, Target, Vectors, check_texts, our_vectors, unit
from unmask.statistics.correlations import spearman_matrix
from unmask.tasks.find import resolve_tasks
from unmask.tasks.mteb.evaluator import evaluate

DIMENSIONS = 256
SIF = 1e-4
_LEAST_AGREEMENT = 0.1  # Spearman; below it, the vectors say next to nothing of the model's


def _write(embedder: Exportable, folder: Path) -> None:
    from model2vec import StaticModel
    from tokenizers import Tokenizer

    vectors = weighted(principal(token_vectors(embedder), DIMENSIONS))
    tokenizer = Tokenizer.from_str(embedder.tokenizer.backend_tokenizer.to_str())
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "apply_pca": DIMENSIONS, "sif_coefficient": SIF,
              "hidden_dim": vectors.shape[1], "seq_length": 1_000_000}  # fmt: skip
    StaticModel(vectors, tokenizer, config, normalize=True, max_length=embedder.prompt.max_length).save_pretrained(folder)


def token_vectors(embedder: Exportable) -> Vectors:
    """The vector of every entry of the vocabulary, of shape (token, dim). Tokens that no text becomes (BOS, padding, those
    that the model has no embedding of) are zero.

    Raises UnmaskError for a vocabulary with gaps.
    """
    content = embedder.tokenizer.backend_tokenizer
    size = content.get_vocab_size(with_added_tokens=True)
    if sorted(content.get_vocab().values()) != list(range(size)):
        raise UnmaskError(
            "The ids of this vocabulary have gaps, and model2vec needs a vector for each id: it cannot be exported."
        )
    special = {*embedder.tokenizer.all_special_ids, *range(embedder.backbone.vocabulary, size)}
    texts = {id_: text for id_, text in enumerate(one_token_texts(embedder, size)) if id_ not in special}
    design = embedder.design
    with progress_bar("embedding the vocabulary", len(texts), None) as advance:
        vectors_by_token = encode_tokenized(
            embedder.backbone,
            embedder.prompt,
            {design: embedder.fitted},
            list(texts.values()),
            batch_tokens=embedder.batch_tokens,
            progress=advance,
        )[design]
    vectors = np.zeros((size, vectors_by_token.shape[1]), np.float32)
    vectors[list(texts)] = unit(vectors_by_token)
    return vectors


def one_token_texts(embedder: Exportable, size: int) -> list[TokenizedText]:
    """The first `size` ids, each as the only token of a text inside the prompt. Raises UnmaskError if the prompt leaves no such place."""
    letters = sorted(embedder.prompt.tokenize(list(ascii_lowercase)), key=lambda text: len(text.ids))
    first, second = letters[:2]  # letters of a single token
    positions = [
        position
        for position, (first_id, second_id) in enumerate(zip(first.ids, second.ids, strict=False))
        if first_id != second_id
    ]
    copies = sum(field == "text" for _, field in embedder.prompt.layout["prompt"])
    if len(first.ids) != len(second.ids) or len(positions) != copies:
        raise UnmaskError(
            f"'{embedder.design.name}' leaves no place for a single token, so it cannot be exported to model2vec."
        )
    texts = []
    for id_ in range(size):
        ids = list(first.ids)
        for position in positions:
            ids[position] = id_
        texts.append(TokenizedText(tuple(ids), first.start))
    return texts


def principal(vectors: Vectors, dimensions: int) -> Vectors:
    """The first principal components of token vectors."""
    from sklearn.decomposition import PCA

    keep = min(dimensions, *vectors.shape)
    return np.asarray(PCA(keep, svd_solver="covariance_eigh").fit_transform(vectors.astype(np.float64)), np.float32)


def weighted(vectors: Vectors) -> Vectors:
    """Each token weighs SIF / (SIF + p), where p is its frequency by Zipf's law."""
    shares = 1 / np.arange(2, len(vectors) + 2)
    shares /= shares.sum()
    return np.asarray(vectors * (SIF / (SIF + shares))[:, None], np.float32)


def _check(embedder: Exportable, folder: Path) -> Checked:
    """How far the similarities of texts agree, and the scores of both on the starter tasks. Raises UnmaskError if they do not agree."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(folder)
    texts = [text for text in check_texts(embedder) if text]
    agreement = agreement_of(our_vectors(embedder, texts), unit(model.encode(texts)))
    if not agreement >= _LEAST_AGREEMENT:  # NaN too
        raise UnmaskError(
            f"The similarities of {len(texts)} texts by the static vectors have a Spearman correlation of {agreement:.2f} with the "
            f"embedder's, which is below {_LEAST_AGREEMENT}: they say next to nothing of it. Nothing is written."
        )
    rows = starter_scores(embedder, model)
    lost = "; ".join(f"{task} {100 * before:.1f} -> {100 * after:.1f}" for task, _, before, after in rows)
    table = "".join(f"| {task} | {metric} | {100 * before:.1f} | {100 * after:.1f} |\n" for task, metric, before, after in rows)
    return Checked(
        f"Spearman correlation of similarities {agreement:.2f}; starter tasks: {lost}",
        f"The static model is another model: it sees no order and no context. The pairwise similarities of {len(texts)} texts have a "
        f"Spearman correlation of {agreement:.2f} with the embedder's.\n\nScores on the starter tasks (x 100; a demonstration, not a "
        f"benchmark):\n\n| task | metric | embedder | static model |\n|---|---|--:|--:|\n{table}",
    )


def agreement_of(first: Vectors, second: Vectors) -> float:
    """Spearman correlation of the pairwise cosines under two models."""
    pairs = np.triu_indices(len(first), k=1)
    return float(spearman_matrix(np.stack([(vectors @ vectors.T)[pairs] for vectors in (first, second)], axis=1))[0, 1])


def starter_scores(embedder: Exportable, model: Any) -> list[tuple[str, str, float, float]]:
    """Task, metric, and the scores of the embedder and of the static model, for each starter task."""
    takes = embedder.prompt.prompt.takes_instruction
    rows = []
    for task in resolve_tasks(["starter"]):
        before = evaluate(
            task, "embedder", lambda texts, instruction: our_vectors(embedder, texts, instruction if takes else None)
        )
        after = evaluate(task, "model2vec", lambda texts, _: unit(model.encode(list(texts))))
        rows.append((task.name, before.metric, before.main_score, after.main_score))
    return rows


MODEL2VEC = Target(
    name="model2vec",
    meaning="model2vec and sentence-transformers, as static vectors: no model runs, much is lost",
    precision=None,
    writes=("model2vec", "sklearn"),
    checks=("mteb",),
    refusal=lambda _: None,
    write=_write,
    check=_check,
    usage=lambda _: (
        'from model2vec import StaticModel\n\nmodel = StaticModel.from_pretrained("FOLDER")\n'
        'vectors = model.encode(["A man plays a guitar."])'
    ),
)
