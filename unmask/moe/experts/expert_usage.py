"""Expert usage: which experts the tokens of each domain go to, and how much the expert tells about the domain.

I(D; E) / H(D) (`unmask.moe.routing.formulas`) is measured on first choices: at each routing point, and averaged, since routing
points may use different experts for the same domain. Chance is taken off as for every measure of routing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from unmask.encoding.batching import plan
from unmask.io.array_types import NDArray
from unmask.models.decoder import pad_id_of
from unmask.moe.experts.lesson_training import LessonCollator
from unmask.moe.experts.lessons.lessons import Lesson, tokenize_lessons
from unmask.moe.mixture.gating import gates
from unmask.moe.mixture.model import Mixture
from unmask.moe.routing.formulas import information, joint_of_texts, normalised_information
from unmask.moe.routing.text_bootstrap import bootstrap_texts, permute_labels
from unmask.statistics.bootstrap import interval
from unmask.training.targets import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHUFFLES, _RESAMPLES = 200, 1000
Counts = Float[NDArray[np.float64], "lesson point expert"]


@dataclass(frozen=True)
class Usage:
    """Where tokens went.

    load: for each domain and expert, the share of tokens whose first choice is that expert, averaged over routing points.
    strength: mean sum of the gates.
    information: I(D; E) / H(D), the mean over routing points. interval: 95 %, by bootstrap over lessons. shuffled: the mean
    information with shuffled domains.
    responses, responses_shuffled: as information and shuffled, for the tokens of responses only. (Words of the prompt template come
    before the text shows its domain.)
    own: share of domains that use the expert of the same name the most; None if no expert has the name of a domain.
    """

    domains: tuple[str, ...]
    experts: tuple[str, ...]
    load: tuple[tuple[float, ...], ...]
    strength: float
    information: float
    interval: tuple[float, float]
    shuffled: float
    responses: float
    responses_shuffled: float
    own: float | None

    def as_json(self) -> dict[str, Any]:
        """For the results of a study."""
        return asdict(self)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def first_choices(
    mixture: Mixture, tokenizer: PreTrainedTokenizerBase, lessons: Sequence[Lesson], max_length: int, batch_tokens: int = 2048
) -> tuple[Counts, Counts, float]:
    """First choices of the tokens: for each lesson and routing point, the share that each expert has; the same for responses only.

    The third value is the mean sum of the gates, over all tokens and routing points.
    """
    tokens = tokenize_lessons(tokenizer, lessons, max_length)
    collate = LessonCollator(pad_id_of(tokenizer, mixture.model))
    shape = (len(tokens), len(mixture.points), len(mixture.experts))
    everywhere, answering, gates_sum, decisions = np.zeros(shape), np.zeros(shape), 0.0, 0
    for batch in plan([len(lesson.ids) for lesson in tokens], batch_tokens):
        inputs = collate([tokens[index] for index in batch])
        ids, attention_mask = inputs["input_ids"].to(mixture.model.device), inputs["attention_mask"].to(mixture.model.device)
        response = (inputs["labels"] != IGNORED).long().to(mixture.model.device)
        # not `router_logits`: a base that is a mixture itself adds its routers' logits
        with mixture.record_logits() as collected:
            mixture.body(input_ids=ids, attention_mask=attention_mask, use_cache=False)
        for point, scores in enumerate(collected):
            first = torch.nn.functional.one_hot(scores.argmax(dim=-1), scores.shape[-1])
            for counts, counted in ((everywhere, attention_mask), (answering, response)):
                shares = (first * counted.unsqueeze(-1)).sum(dim=1) / counted.sum(dim=1, keepdim=True)
                counts[batch, point] = shares.double().cpu().numpy()
            strength = gates(scores, mixture.routing).sum(dim=-1)[attention_mask.bool()]
            gates_sum, decisions = gates_sum + float(strength.sum()), decisions + len(strength)
    return everywhere, answering, gates_sum / decisions


def measure_usage(
    mixture: Mixture,
    tokenizer: PreTrainedTokenizerBase,
    domains: Mapping[str, Sequence[Lesson]],
    max_length: int = 512,
    seed: int = 0,
) -> Usage:
    """Route the lessons of each domain and count. Raises UnmaskError for a lesson that is too long."""
    lessons = [lesson for of_domain in domains.values() for lesson in of_domain]
    labels = np.repeat(np.arange(len(domains)), [len(of_domain) for of_domain in domains.values()])
    counts, answering, strength = first_choices(mixture, tokenizer, lessons, max_length)
    value = float(information(counts, labels).mean())
    samples = bootstrap_texts(
        lambda weights: normalised_information(joint_of_texts(counts, labels, weights)).mean(axis=1),
        len(labels),
        resamples=_RESAMPLES,
        seed=seed,
        strata=labels,
    )
    load = np.stack([counts[labels == domain].mean(axis=(0, 1)) for domain in range(len(domains))])
    names = [expert.name for expert in mixture.experts]
    named_domains = [(row, names.index(name)) for row, name in enumerate(domains) if name in names]
    return Usage(
        domains=tuple(domains),
        experts=tuple(names),
        load=tuple(tuple(row) for row in load.tolist()),
        strength=strength,
        information=value,
        interval=interval(samples, around=value),
        shuffled=_by_chance(counts, labels, seed),
        responses=float(information(answering, labels).mean()),
        responses_shuffled=_by_chance(answering, labels, seed),
        own=float(np.mean([load[row].argmax() == index for row, index in named_domains])) if named_domains else None,
    )


def _by_chance(counts: Counts, labels: NDArray[np.int64], seed: int) -> float:
    """The mean information under shuffled domains."""
    return float(np.mean([information(counts, dealt).mean() for dealt in permute_labels(labels, _SHUFFLES, seed)]))
