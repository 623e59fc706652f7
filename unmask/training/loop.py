"""The loop: transformers' Trainer, for every stage.

What it adds: the schedule decides what a step sees; a loss that is NaN or explodes stops the run and says where; checkpoints
hold what trains and nothing else; scores of an embedder serve as evaluation.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import Trainer, TrainingArguments

from unmask.errors import UnmaskError
from unmask.io.files import name_in_errors, remove, sync
from unmask.io.seals import Damaged, check_seal, load_tensors, save_tensors, seal
from unmask.training import processes
from unmask.training.cpu_kernels import attention_kernel
from unmask.training.stages.stage import StageOptions

Evaluate = Callable[[], dict[str, float]]
Rates = Mapping[float, Collection[nn.Parameter]]
"""Learning rates, each with the weights that train at it."""
WEIGHTS = "trainable.safetensors"
AVERAGE = "average.safetensors"
COMPLETE = "complete"  # the seal of a checkpoint, written last, when every process has written its part
_RETAINED = 2  # checkpoints, besides the best one: if the last is damaged, the one before it is used
_EXPLODED = 10.0  # times the median of the last losses
_AT_LEAST = 1.0  # a loss near zero may rise to this times _EXPLODED: a harder data set is not an explosion
_HISTORY = 50


class Loop(Trainer):  # type: ignore[misc]
    """One stage of training.

    objective: (model, inputs of a batch, items of the whole step) -> loss. evaluate_with: returns the current model's scores.
    own_rates: for weights that train at another rate than the rest. average: the trained weights are their mean at this many last
    checkpoints (1: as they are at the last or best one). Raises UnmaskError with the step, the rows and the last good
    checkpoint when the loss is not finite or explodes.
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
        own_rates: Rates | None = None,
        average: int = 1,
    ) -> None:
        # Trainer writes it into the model's configuration, which is saved with a trained model
        arguments.use_cache = bool(getattr(getattr(model, "config", None), "use_cache", False))
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=rows,  # torch takes any sequence
            eval_dataset=[] if evaluate_with else None,  # Trainer requires one; scores come from tasks
            data_collator=collate,
            callbacks=list(callbacks),
        )
        self.objective, self.evaluate_with, self.own_rates = objective, evaluate_with, own_rates or {}
        self.model_accepts_loss_kwargs = True  # the objective divides by the items of the whole step itself
        self._losses: deque[float] = deque(maxlen=_HISTORY)
        self._losses_by_data: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_HISTORY))
        every, steps = int(arguments.save_steps), arguments.max_steps
        self._averaged_steps = [*range(every, steps, every)[1 - average :], steps] if average > 1 else []
        self._average: dict[str, Tensor] = {}
        if arguments.process_index:  # every process drops in its own way; in the first one as a process alone does
            torch.manual_seed(arguments.seed + 1_000_003 * arguments.process_index)

    def _get_train_sampler(self, *_: Any, **__: Any) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Trainer's optimizer. Weights with a separate learning rate form separate groups: a schedule scales the rate of each group."""
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        for rate, weights in self.own_rates.items() if is_new else ():
            ids = {id(weight) for weight in weights}
            for group in list(optimizer.param_groups):  # their other settings, such as weight decay, stay
                if moved := [weight for weight in group["params"] if id(weight) in ids]:
                    group["params"] = [weight for weight in group["params"] if id(weight) not in ids]
                    optimizer.add_param_group({**group, "params": moved, "lr": rate})
        return optimizer

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """The loss of this process's part of a batch, such that its average over processes is the loss of the whole."""
        rows = inputs.pop("rows")
        loss = self.objective(self.model, inputs, num_items_in_batch)  # not as wrapped: see training_step
        parts = 1 if num_items_in_batch is None else self.args.gradient_accumulation_steps * self.accelerator.num_processes
        self._check_loss(float(loss.detach()) * parts, rows)
        # the loss was already divided by the item count across processes, and is averaged over processes again
        return loss if num_items_in_batch is None else loss * self.accelerator.num_processes

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **options: Any) -> Tensor:
        """One forward and backward pass. Gradients are averaged over processes by us (see processes.py), not by the wrapper."""
        with attention_kernel(self.model, inputs):
            loss: Tensor = super().training_step(model, inputs, *args, **options)
        if self.accelerator.sync_gradients:  # the last pass of this step
            processes.average_gradients(self.model.parameters())
        return loss

    def _check_loss(self, loss: float, rows: Sequence[str]) -> None:
        of_data = self._losses_by_data[rows[0].rpartition(":")[0]]  # CoSENT is larger than InfoNCE
        typical = max(map(statistics.median, (self._losses, of_data))) if len(self._losses) >= 10 and of_data else math.inf
        if math.isfinite(loss) and loss <= _EXPLODED * max(typical, _AT_LEAST):
            self._losses.append(loss)
            of_data.append(loss)
            return
        problem = "is not finite" if not math.isfinite(loss) else f"is more than {_EXPLODED:g} times the usual {typical:.3g}"
        excerpt = ", ".join(rows[:8]) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
        raise UnmaskError(
            f"Step {self.state.global_step + 1}: the loss {problem} ({loss:g}). Rows: {excerpt}. {self._advice()}"
        )

    def _advice(self) -> str:
        good = last_checkpoint(Path(str(self.args.output_dir)))
        return f"Last good checkpoint: {good or 'none yet'}. A lower learning rate may help."

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Scores of the current model. Evaluation does not affect training; the first process's scores count for all."""
        if self.evaluate_with is None:
            return {}
        training = self.model.training
        self.model.eval()
        with preserve_random_state():
            results = processes.broadcast(self.evaluate_with())
        self.model.train(training)
        scores = {f"eval_{name}": value for name, value in results.items()}
        self.log(scores)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        for name, weight in trainable(self.model).items():
            if not bool(weight.isfinite().all()):
                raise UnmaskError(f"Step {self.state.global_step}: weights of {name} are not finite. {self._advice()}")
        if (
            self.state.global_step in self._averaged_steps
        ):  # the running mean is in the checkpoint, so that a run can be resumed
            count = 1 + self._averaged_steps.index(self.state.global_step)
            for name, weight in trainable(self.model).items():
                value = weight.detach().cpu()
                self._average[name] = value.clone() if count == 1 else self._average[name].lerp(value, 1 / count)
        with name_in_errors(Path(str(self.args.output_dir))):
            super()._save_checkpoint(model, trial)
        processes.wait()
        if self.args.should_save:
            folder = Path(str(self.args.output_dir))
            seal(folder / f"checkpoint-{self.state.global_step}", COMPLETE)
            sync(folder)
            best = f"checkpoint-{self.state.best_global_step}"
            for checkpoint in checkpoints(folder)[:-_RETAINED]:  # those before are whole and durable
                if checkpoint.name != best:
                    remove(checkpoint)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        save_trainable(self.model, folder / WEIGHTS)
        if self._average and processes.is_first():
            save_tensors(folder / AVERAGE, self._average)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        load_trainable(self.model, folder / WEIGHTS)
        self._average = load_tensors(folder / AVERAGE) if (folder / AVERAGE).is_file() else {}

    def _finalize_training(self, *arguments: Any, **options: Any) -> Any:
        output = super()._finalize_training(*arguments, **options)
        with torch.no_grad():
            for name, weight in trainable(self.model).items() if self._average else ():
                weight.copy_(self._average[name])
        return output

    def _load_best_model(self) -> None:
        # the state records a path, but the run may have been moved since
        load_trainable(self.model, Path(str(self.args.output_dir)) / f"checkpoint-{self.state.best_global_step}" / WEIGHTS)


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore every random generator: tasks seed the global ones, and dropout would then repeat itself after each evaluation."""
    before, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(before)
        np.random.set_state(arrays)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a stage's folder, the earliest first, whether they are complete or not."""
    return sorted(folder.glob("checkpoint-*"), key=lambda checkpoint: int(checkpoint.name.rpartition("-")[2]))


def last_checkpoint(folder: Path) -> Path | None:
    """The last complete checkpoint; a run may have been killed while it wrote the very last."""
    return next((checkpoint for checkpoint in reversed(checkpoints(folder)) if (checkpoint / COMPLETE).is_file()), None)


def find_resumable_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint of a stage from which training can be resumed. Those that cannot be used are removed.

    A checkpoint is used if it is complete and not damaged, and if the best one so far, to which training would return at its end, is
    there as well.
    """
    if processes.is_first():
        intact = [checkpoint for checkpoint in checkpoints(folder) if _is_intact(checkpoint)]
        while intact and _best_before(intact[-1]) not in {None, *(checkpoint.name for checkpoint in intact)}:
            intact.pop()
        for checkpoint in checkpoints(folder):
            if checkpoint not in intact:
                remove(checkpoint)
    processes.wait()
    return last_checkpoint(folder)


def _is_intact(checkpoint: Path) -> bool:
    if not (checkpoint / COMPLETE).is_file():
        return False  # of a run that was killed while it wrote it
    try:
        check_seal(checkpoint, COMPLETE)
    except Damaged as error:
        warnings.warn(f"A checkpoint cannot be used, so training is resumed from an earlier state: {error}", stacklevel=2)
        return False
    return True


def _best_before(checkpoint: Path) -> str | None:
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    best = state.get("best_model_checkpoint")
    return Path(best).name if best else None


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter that trains, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def save_trainable(model: nn.Module, file: Path) -> None:
    """Write every parameter that trains, bit for bit; only the first process does."""
    if processes.is_first():
        save_tensors(file, {name: weight.detach().cpu().contiguous() for name, weight in trainable(model).items()})


def load_trainable(model: nn.Module, file: Path) -> None:
    """Read what `save_trainable` wrote. Raises UnmaskError if it belongs to another run, Damaged if it is not what was written."""
    saved = load_tensors(file)
    training = trainable(model)
    if saved.keys() != training.keys():
        raise UnmaskError(f"{file} belongs to a run that trained other weights than this one.")
    with torch.no_grad():
        for name, weight in training.items():
            weight.copy_(saved[name])


def trainer_arguments(stage: StageOptions, folder: Path, seed: int, cpu: bool, evaluates: bool) -> TrainingArguments:
    """The arguments of transformers' Trainer for a stage. Raises UnmaskError if the batch cannot be divided between the processes."""
    world = processes.count()
    share, rest = divmod(stage.batch, stage.accumulate * world)
    if rest:
        raise UnmaskError(
            f"A batch of {stage.batch} cannot be shared by {world} processes in {stage.accumulate} parts: "
            f"choose a multiple of {stage.accumulate * world}."
        )
    evaluating = evaluates and stage.evaluate_every > 0
    chooses = evaluating and stage.average == 1
    every = stage.evaluate_every if evaluating else stage.save_every
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=stage.steps,
        per_device_train_batch_size=share,
        gradient_accumulation_steps=stage.accumulate,
        learning_rate=stage.lr,
        warmup_steps=stage.warmup,
        lr_scheduler_type="constant_with_warmup" if stage.schedule == "constant" else stage.schedule,  # "constant" has none
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
        save_total_limit=None,  # older ones go when the new one is sealed, not before
        eval_strategy="steps" if evaluating else "no",
        eval_steps=every,
        load_best_model_at_end=chooses,
        metric_for_best_model="eval_score" if chooses else None,
        greater_is_better=True if chooses else None,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
    )
    # one process uses one GPU: Trainer would spread it over all that it sees, and make the batch larger by that
    settings._n_gpu = min(settings.n_gpu, 1)
    return settings
