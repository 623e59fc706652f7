"""The loop: transformers' Trainer, for every stage.

What it adds: the schedule decides what a step sees; a loss that is no number or explodes stops the run and says where; checkpoints
hold what trains and nothing else; scores of an embedder serve as evaluation.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from unmask.errors import UnmaskError
from unmask.training.recipe import Stage

Evaluate = Callable[[], dict[str, float]]
WEIGHTS = "trainable.safetensors"
_EXPLODED = 10.0  # times the median of the last losses
_MEMORY = 50


class Places(Dataset[Any]):
    """The rows of a schedule, as torch wants them."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        return self.rows[place]


class Loop(Trainer):  # type: ignore[misc]
    """One stage of training.

    objective: (model, inputs of a batch, items of the whole step) -> loss. evaluate_with: gives the scores of the model as it is, or
    None. Raises UnmaskError with the step, the rows and the last good checkpoint when the loss is not finite or explodes.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: TrainingArguments,
        rows: Sequence[Any],
        collate: Callable[[Sequence[Any]], dict[str, Any]],
        objective: Callable[[nn.Module, dict[str, Any], Any], Tensor],
        evaluate_with: Evaluate | None = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=Places(rows),
            eval_dataset=Places([]) if evaluate_with else None,  # Trainer asks for one; scores come from tasks
            data_collator=collate,
            callbacks=list(callbacks),
        )
        self.objective, self.evaluate_with = objective, evaluate_with
        self.model_accepts_loss_kwargs = True  # the objective divides by the items of the whole step itself
        self._losses: deque[float] = deque(maxlen=_MEMORY)

    def _get_train_sampler(self, *_: Any, **__: Any) -> Sampler[int]:
        assert isinstance(self.train_dataset, Places)
        return SequentialSampler(self.train_dataset)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        rows = inputs.pop("rows")
        loss = self.objective(model, inputs, num_items_in_batch)
        parts = 1 if num_items_in_batch is None else self.args.gradient_accumulation_steps * self.accelerator.num_processes
        self._require_sane(float(loss.detach()) * parts, rows)
        # a loss that was divided by the items of all processes is averaged over them once more by DDP
        return loss if num_items_in_batch is None else loss * self.accelerator.num_processes

    def _require_sane(self, loss: float, rows: Sequence[str]) -> None:
        typical = statistics.median(self._losses) if len(self._losses) >= 10 else math.inf
        if math.isfinite(loss) and loss <= _EXPLODED * max(typical, 0.1):
            self._losses.append(loss)
            return
        what = "is not finite" if not math.isfinite(loss) else f"is more than {_EXPLODED:g} times the usual {typical:.3g}"
        folder = str(self.args.output_dir)
        checkpoint = get_last_checkpoint(folder) if Path(folder).is_dir() else None
        shown = ", ".join(rows[:8]) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
        raise UnmaskError(
            f"Step {self.state.global_step + 1}: the loss {what} ({loss:g}). Rows: {shown}. "
            f"Last good checkpoint: {checkpoint or 'none yet'}. A lower learning rate may help."
        )

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        if self.evaluate_with is None:
            return {}
        training = self.model.training
        self.model.eval()
        scores = {f"eval_{name}": value for name, value in self.evaluate_with().items()}
        self.model.train(training)
        self.log(scores)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        save_trainable(self.model, folder / WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_trainable(self.model, Path(resume_from_checkpoint) / WEIGHTS)

    def _load_best_model(self) -> None:
        load_trainable(self.model, Path(str(self.state.best_model_checkpoint)) / WEIGHTS)


def save_trainable(model: nn.Module, file: Path) -> None:
    """Write every parameter that trains, bit for bit."""
    from safetensors.torch import save_file

    save_file({name: weight.detach().contiguous() for name, weight in model.named_parameters() if weight.requires_grad}, file)


def load_trainable(model: nn.Module, file: Path) -> None:
    """Read what `save_trainable` wrote. Raises UnmaskError if it belongs to another run."""
    from safetensors.torch import load_file

    saved = load_file(file)
    training = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if saved.keys() != training.keys():
        raise UnmaskError(f"{file} belongs to a run that trained other weights than this one.")
    with torch.no_grad():
        for name, weight in training.items():
            weight.copy_(saved[name])


def arguments(stage: Stage, folder: Path, seed: int, cpu: bool, evaluates: bool) -> TrainingArguments:
    """What transformers' Trainer has to know of a stage. Raises UnmaskError if the batch cannot be shared between the processes."""
    import os

    world = int(os.environ.get("WORLD_SIZE", "1"))
    share, rest = divmod(stage.batch, stage.accumulate * world)
    if rest:
        raise UnmaskError(
            f"A batch of {stage.batch} cannot be shared by {world} processes in {stage.accumulate} parts: choose a multiple."
        )
    evaluating = evaluates and stage.evaluate_every > 0
    every = stage.evaluate_every if evaluating else stage.save_every
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=stage.steps,
        per_device_train_batch_size=share,
        gradient_accumulation_steps=stage.accumulate,
        learning_rate=stage.lr,
        warmup_steps=stage.warmup,
        lr_scheduler_type=stage.schedule,
        weight_decay=stage.weight_decay,
        max_grad_norm=stage.max_grad_norm,
        seed=seed,
        use_cpu=cpu,
        gradient_checkpointing=False,  # set on the decoder itself, which Trainer may not know to be inside
        logging_steps=max(1, stage.steps // 200),
        logging_first_step=True,
        logging_nan_inf_filter=False,
        report_to=[],  # TensorBoard's callback is given a folder of ours
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        eval_strategy="steps" if evaluating else "no",
        eval_steps=every,
        load_best_model_at_end=evaluating,
        metric_for_best_model="eval_score" if evaluating else None,
        greater_is_better=True if evaluating else None,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
    )
