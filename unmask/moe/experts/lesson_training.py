"""Lesson training: the loop that trains an expert or a router on lessons. Only the responses count.

The loss of an example is the mean over its tokens; the loss of a step is the mean over its examples. A mean over all tokens would give
little weight to domains with short answers, and a router would then collapse onto the experts of the other domains.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unmask.encoding.batching import plan as plan_batches
from unmask.errors import UnmaskError, in_one_sentence
from unmask.io.terminal import say
from unmask.moe.experts.lessons.lessons import LessonTokens
from unmask.moe.names import LossAverage
from unmask.training.collate import pad
from unmask.training.stages.stage import StageOptions
from unmask.training.targets import IGNORED, mean_by_text, target_logits

if TYPE_CHECKING:
    from unmask.training.loop import Rates

Penalty = Callable[[Tensor], Tensor]
"""Takes the mask of the tokens of the latest pass. Returns what is added to the loss of the step."""


@dataclass(frozen=True)
class Learning:
    """How to train on lessons: steps of `batch` examples, in `accumulate` passes each. average: what the loss is a mean of."""

    steps: int
    lr: float
    batch: int = 8
    accumulate: int = 1
    warmup: int = 0
    max_length: int = 512
    average: LossAverage = "example"
    seed: int = 0
    save_every: int = 50

    def __post_init__(self) -> None:
        """Raise UnmaskError for numbers that cannot train. Zero steps are allowed: the model stays as it starts."""
        if self.steps:
            self.stage  # noqa: B018 (it checks)
        if not 0 <= self.seed < 2**32:
            raise UnmaskError(f"seed must be from 0 to {2**32 - 1}, not {self.seed}.")

    def with_options(self, options: Any) -> Learning:
        """These settings with the options of a command; None keeps the default."""
        steps = self.steps if options.steps is None else options.steps
        return Learning(
            steps=steps,
            lr=self.lr if options.lr is None else options.lr,
            batch=options.batch,
            accumulate=options.accumulate,
            warmup=max(0, min(self.warmup, steps - 1)),
            max_length=options.max_length,
            average=options.average,
            seed=options.seed,
        )

    def require_first_gpu(self, device: str) -> None:
        """Raise UnmaskError for another GPU than the first one: the Trainer of transformers would move the model there."""
        kind, _, number = device.partition(":")
        if self.steps and kind == "cuda" and number not in ("", "0"):
            raise UnmaskError(
                f"Training uses the first GPU that it sees, and not {device}. Leave --device out, and set CUDA_VISIBLE_DEVICES={number}."
            )

    @property
    def stage(self) -> StageOptions:
        """The same as a stage, for the common training loop. Raises UnmaskError for numbers that cannot train."""
        values = {
            name: getattr(self, name) for name in ("steps", "lr", "batch", "accumulate", "warmup", "max_length", "save_every")
        }
        with in_one_sentence():
            return StageOptions.model_validate(values | {"data": ("lessons",), "max_grad_norm": 1.0})


def share_of(batch: int, domains: Collection[str]) -> int:
    """Examples of each domain in a batch. Raises UnmaskError if the domains cannot share it equally."""
    share, rest = divmod(batch, len(domains))
    if rest or not share:
        raise UnmaskError(
            f"A batch of {batch} cannot hold equally many examples of {len(domains)} domains. Choose a multiple of {len(domains)}."
        )
    return share


def schedule(domains: Mapping[str, Sequence[LessonTokens]], steps: int, batch: int, seed: int) -> list[LessonTokens]:
    """Batches with the same number of examples of every domain, each domain shuffled pass after pass.

    Raises UnmaskError for a domain without lessons, and for a batch that the domains cannot share equally.
    """
    share = share_of(batch, domains)
    streams = {}
    for name, lessons in domains.items():
        if not lessons:
            raise UnmaskError(f"The domain '{name}' has no lessons.")
        generator = random.Random(f"{seed}:{name}")
        order: list[LessonTokens] = []
        while len(order) < steps * share:
            order += generator.sample(list(lessons), len(lessons))
        streams[name] = order
    return [lesson for step in range(steps) for name in domains for lesson in streams[name][step * share : (step + 1) * share]]


class LessonCollator:
    """Makes a batch of lessons: ids and labels. Tokens of prompts have no label."""

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, lessons: Sequence[LessonTokens]) -> dict[str, Any]:
        """Right-padded tensors, and the lessons' names."""
        rows = [
            (lesson.ids, [token if position >= lesson.start else IGNORED for position, token in enumerate(lesson.ids)])
            for lesson in lessons
        ]
        return pad(rows, self.pad_id) | {"rows": [lesson.where for lesson in lessons]}


def response_loss(
    learning: Learning, computing: Callable[[], Any], penalty: Penalty | None = None
) -> Callable[[nn.Module, dict[str, Any], Any], Tensor]:
    """The loss of one pass. The losses of the passes in a step add up to the loss of the step.

    A penalty needs all lessons of a pass at once. Without a penalty, lessons of similar length are computed together, each group padded
    to its own longest: otherwise half of a batch can be padding.
    """
    by_example = learning.average == "example"

    def sum_of_losses(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        with computing():
            logits, targets, before = target_logits(model, inputs, inputs.pop("labels"))
        if by_example:
            return mean_by_text(logits, targets, before).sum()
        return cross_entropy(logits.float(), targets, reduction="sum")

    def objective(model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        mask = inputs["attention_mask"]
        lengths = mask.sum(dim=1).tolist()
        if items is None:
            items = (inputs["labels"][:, 1:] != IGNORED).sum()
        groups = [list(range(len(lengths)))] if penalty else plan_batches(lengths, mask.numel())
        chunks = [{name: value[rows, : max(lengths[row] for row in rows)] for name, value in inputs.items()} for rows in groups]
        loss = torch.stack([sum_of_losses(model, chunk) for chunk in chunks]).sum() / (learning.batch if by_example else items)
        return loss + penalty(mask.bool()) if penalty else loss

    return objective


def learn(
    model: nn.Module,
    domains: Mapping[str, Sequence[LessonTokens]],
    learning: Learning,
    pad_id: int,
    folder: Path,
    computing: Callable[[], Any],
    callbacks: Sequence[Any] = (),
    penalty: Penalty | None = None,
    own_rates: Rates | None = None,
) -> list[dict[str, Any]]:
    """Train all weights that are not frozen, at `learning.lr` or at the rate in `own_rates`. Returns the log of each step.

    Checkpoints go to `folder`; an interrupted run resumes from them. Raises UnmaskError if nothing trains or if the loss explodes.
    """
    from transformers.trainer_callback import PrinterCallback

    from unmask.training.loop import Loop, find_resumable_checkpoint, trainer_arguments

    if not any(weight.requires_grad for weight in model.parameters()):
        raise UnmaskError("All weights are frozen, so there is nothing to train.")
    cpu = next(model.parameters()).device.type == "cpu"
    rows = schedule(domains, learning.steps, learning.batch, learning.seed)
    for name, lessons in domains.items():
        if cut := sum(lesson.cut for lesson in lessons):
            say(
                f"{name}: {cut} of {len(lessons)} lessons are cut to {learning.max_length} tokens (--max-length), so their end is not "
                "learned"
            )
    loop = Loop(
        model,
        trainer_arguments(learning.stage, folder, learning.seed, cpu, evaluates=False),
        rows,
        LessonCollator(pad_id),
        response_loss(learning, computing, penalty),
        callbacks=callbacks,
        own_rates=own_rates,
    )
    loop.remove_callback(PrinterCallback)
    checkpoint = find_resumable_checkpoint(folder)
    loop.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    model.eval()
    return list(loop.state.log_history)
