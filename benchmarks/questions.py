"""What one reading for many questions is worth: time and tokens of several prompts that begin with the text, together and one by one.

    python -m benchmarks.questions [--model smollm2] [--texts 60] [--questions 4] [--repeats 3] [--smoke]

Texts are STSB sentences and SciFact abstracts. The two ways take turns on the same texts, and the ratio is that of their best times, so
that a busy machine hurts both alike. The last column is the largest difference of their vectors, as a share of the largest value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks import _inputs
from benchmarks.encode import best_times, texts
from unmask import Design, Embedder
from unmask.encoding.features import Fit
from unmask.encoding.forward_pass import Vectors
from unmask.encoding.shared_prefix import PromptBatch

QUESTIONS = (
    "{text}\nThis is about one thing:",
    "{text}\nIn one word, the topic is",
    "{text}\nIn one word, its style is",
    "{text}\nIn one word, its tone is",
    "{text}\nSomebody who looks for this asks about",
    "{text}\nThe field of this text is",
    "{text}\nThis was written to",
    "{text}\nThe most important word here is",
)


def measure(embedder: Embedder, kind: str, some: Sequence[str], prompts: Sequence[str], repeats: int) -> None:
    """Print a line: how much faster the prompts are together, and how many of the tokens they compute."""
    encoder = embedder.encoder
    forwards = [encoder.forward_pass({Design("causal", prompt, "last"): Fit()}) for prompt in prompts]
    batches = [PromptBatch(forward, list(forward.tokenizer.tokenize(some))) for forward in forwards]

    def one_by_one() -> list[dict[Design, Vectors]]:
        return [encoder.encode_tokenized(batch.texts, batch.forward.fits) for batch in batches]

    result = encoder.encode_prompts(batches)
    plain, together = _stacked(one_by_one()), _stacked(result.vectors)
    difference = np.abs(plain - together).max() / np.abs(plain).max()
    competitors = {
        "together": lambda: encoder.encode_prompts(batches),
        "one by one": one_by_one,
    }
    times = best_times(competitors, repeats)
    ratio, share = times["one by one"] / times["together"], result.tokens / sum(result.tokens_alone)
    print(f"{kind:12}{len(some):7}{len(prompts):11}{ratio:11.2f} x{share:10.1%}{difference:12.1e}", flush=True)


def _stacked(vectors: Sequence[dict[Design, Vectors]]) -> Vectors:
    return np.concatenate([values for by_design in vectors for values in by_design.values()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once, and measure sentences and abstracts."""
    parser = _inputs.parser(__doc__)
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(arguments)
    count, repeats = (24, 1) if given.smoke else (given.texts, given.repeats)
    sets = texts(count, given.smoke)
    embedder = Embedder.from_pretrained(_inputs.model_of(given), "causal/plain/last")
    print(f"{'':12}{'texts':>7}{'questions':>11}{'together':>13}{'tokens':>10}{'difference':>12}")
    for kind, some in sets.items():
        measure(embedder, kind, some, QUESTIONS[: given.questions], repeats)


if __name__ == "__main__":
    main()
