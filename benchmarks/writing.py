"""What three savings are worth when a model writes lessons: how much longer it would take without each of them.

    python -m benchmarks.writing [--model smollm2] [--texts 32] [--tokens 256] [--repeats 1] [--smoke]

A text leaves its batch when it ends; attention reads keys and values once for all heads that share them; and sampling does not sort the
whole vocabulary. As `unmask specialise` does, the model sees three starter lessons and samples instructions; it sees five and answers
instructions greedily. The first table gives the slowdown without the first saving (none leaves), and without the second (plain). `the same`
counts the responses that are equal both ways; in bf16, roundings can change a token. Sampled texts differ, because other numbers are drawn.
The second table draws the first token of each text as transformers does. Competitors take turns, and a ratio is that of their best times,
so a busy machine slows all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from unittest.mock import patch

import torch
from transformers import TopPLogitsWarper

from benchmarks import _inputs
from benchmarks.encode import best_times
from unmask.models.loading import Source, load_language_model
from unmask.moe.experts.lessons import generation
from unmask.moe.experts.lessons.domain import BLANK, STOP, load_domain, shipped_domains
from unmask.moe.experts.lessons.generation import GenerationJob, NucleusSampling, Sampling, Text, Writer, packed_attention
from unmask.moe.experts.lessons.lessons import read_lessons
from unmask.starter import starter_lessons

_TOP_P = 0.98


def instructions(name: str, shown: int, texts: int, tokens: int) -> GenerationJob:
    """A batch of new instructions of a domain, sampled. shown: starter lessons before them."""
    prompt = load_domain(name).brainstorm(read_lessons(starter_lessons(name))[:shown])
    sampling = Sampling(tokens, 1.0, _TOP_P)
    return GenerationJob(prompt.removesuffix("Instruction:"), ("Instruction:",) * texts, sampling, BLANK, 0)


def responses(name: str, shown: int, texts: int, tokens: int) -> GenerationJob:
    """A batch of responses to starter lessons of a domain, greedy. There are few lessons, so an instruction can come several times."""
    domain, lessons = load_domain(name), read_lessons(starter_lessons(name))
    asked = [lessons[shown + place % (len(lessons) - shown)] for place in range(texts)]
    return GenerationJob(domain.respond(lessons[:shown]), tuple(map(domain.question, asked)), Sampling(tokens), STOP, 0)


def written(writer: Writer, batch: GenerationJob, stays: bool = False, plain: bool = False) -> list[Text]:
    """The texts of a batch. stays: no text leaves it before its end. plain: attention as transformers has it."""
    stretch = batch.sampling.max_new_tokens if stays else generation._STRETCH
    attention = (lambda _: nullcontext()) if plain else packed_attention
    with patch.object(generation, "_STRETCH", stretch), patch.object(generation, "packed_attention", attention):
        return writer.write_all([batch])[0]


def writing(writer: Writer, name: str, batch: GenerationJob, repeats: int) -> None:
    """Print a line: how much slower the batch is without each saving, and how many of its texts are then the same."""
    found: dict[str, list[Text]] = {}
    competitors = {
        "as it is": lambda: found.update(as_it_is=written(writer, batch)),
        "stay": lambda: found.update(stay=written(writer, batch, stays=True)),
        "plain": lambda: found.update(plain=written(writer, batch, plain=True)),
    }
    times = best_times(competitors, repeats)
    ended = sum(text.ended for text in found["as_it_is"])
    print(f"{name:24}{len(batch.rows):7}{ended:11}", end="")
    for other in ("stay", "plain"):
        same = sum(one == two for one, two in zip(found["as_it_is"], found[other], strict=True))
        print(f"{times[other] / times['as it is']:11.2f} x{'' if batch.sampling.temperature else same:>10}", end="")
    print(flush=True)


def drawing(writer: Writer, name: str, batch: GenerationJob, repeats: int) -> None:
    """Print a line: how much slower transformers draws the first tokens of the texts, and the size of the nucleus (median)."""
    with torch.inference_mode():
        ids = [writer.tokenizer(batch.prefix + row, return_tensors="pt")["input_ids"] for row in batch.rows]
        scores = torch.cat([writer.model(input_ids=each, logits_to_keep=1).logits[:, -1].float() for each in ids])
    before, theirs = torch.zeros(len(scores), 1, dtype=torch.long), TopPLogitsWarper(_TOP_P)
    competitors = {
        "unmask": lambda: NucleusSampling(1.0, _TOP_P)(before, scores).argmax(dim=1),
        "transformers": lambda: torch.multinomial(theirs(before, scores).softmax(dim=1), 1),
    }
    times = best_times(competitors, repeats)
    size = int(theirs(before, scores).isfinite().sum(dim=1).float().median())
    print(f"{name:24}{len(scores):7}{size:11}{times['transformers'] / times['unmask']:11.2f} x", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the model once, and measure instructions and responses of each domain."""
    parser = _inputs.parser(__doc__)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args(arguments)
    texts, tokens, repeats = (3, 20, 1) if given.smoke else (given.texts, given.tokens, given.repeats)
    writer = Writer(*load_language_model(Source(_inputs.model_of(given), dtype="bfloat16")))
    batches = {}
    for name in shipped_domains():
        batches[f"{name}, instructions"] = instructions(name, 1 if given.smoke else 3, texts, tokens // 2)
        batches[f"{name}, responses"] = responses(name, 1 if given.smoke else 5, texts, tokens)
    print(f"{'':24}{'texts':>7}{'that ended':>11}{'none leaves':>13}{'the same':>10}{'plain':>13}{'the same':>10}")
    for name, batch in batches.items():
        writing(writer, name, batch, repeats)
    print(f"\n{'':24}{'texts':>7}{'nucleus':>11}{'transformers':>13}")
    for name, batch in batches.items():
        drawing(writer, name, batch, repeats)


if __name__ == "__main__":
    main()
