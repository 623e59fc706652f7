"""The cost of a chat template that is applied by accident: one model, one prompt and one data set, loaded in three ways.

    python -m benchmarks.chat_template [--model smollm2] [--pairs 1379] [--smoke]

sentence-transformers puts plain strings into the chat template of a chat model. unmask does so only if the design says `chat:`.
"""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import spearmanr

from benchmarks._common import head, row, rows, start
from unmask import Embedder
from unmask.designs.prompts import PROMPTS
from unmask.models.bundled import resolve


def main(arguments: Sequence[str] | None = None) -> None:
    """Print Spearman x 100 on the STSB test set for each way."""
    from sentence_transformers import SentenceTransformer

    args = start(__file__, __doc__, arguments, pairs=(1379, 20))
    pairs = rows("stsb/test.jsonl", args.smoke)[: args.pairs]
    texts = [pair[side] for side in ("sentence1", "sentence2") for pair in pairs]
    prompted = [PROMPTS["eol"].render(text, None)[0] for text in texts]
    plain = Embedder.from_pretrained(args.model, "prompteol")
    theirs = SentenceTransformer(resolve(args.model), model_kwargs={"dtype": str(plain.backbone.dtype).removeprefix("torch.")})
    ways = {"sentence-transformers, as it loads the model": theirs.encode(prompted, show_progress_bar=False)}
    if theirs.tokenizer.chat_template:  # the pico model of a smoke run has none
        chat = Embedder.from_model(plain.backbone.model, plain.tokenizer, "causal/chat:eol/last")
        ways["unmask, `causal/chat:eol/last`"] = chat.encode(texts, show_progress=False)
    ways["unmask, `prompteol`"] = plain.encode(texts, show_progress=False)
    first_tokens = theirs.tokenizer.decode(theirs.preprocess(prompted[:1])["input_ids"][0][:12])
    print(f"\nFirst tokens in sentence-transformers: `{first_tokens!r}`")
    head("loaded by", "Spearman x 100")
    for way, vectors in ways.items():
        cosines = Embedder.similarity_pairwise(vectors[: len(pairs)], vectors[len(pairs) :])
        row(way, f"{100 * spearmanr(cosines, [pair['score'] for pair in pairs]).statistic:.1f}")


if __name__ == "__main__":
    main()
