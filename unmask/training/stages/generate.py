"""LLM2Vec-Gen (arXiv 2603.10913): the vector of a text is that of the answer that a frozen LLM would give to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from unmask.designs.design import Design
from unmask.embedder_module import EmbedderModule
from unmask.encoding.backbone import TokenBatch
from unmask.encoding.batching import collate
from unmask.encoding.heads import CompressionTokens
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError
from unmask.io.unicode import without_surrogates
from unmask.models.soft_prompt import SoftPrompt
from unmask.training import processes
from unmask.training.collate import pad
from unmask.training.data import DataSet, DataSource, read_answers
from unmask.training.schedule import ScheduledExample, language_schedule
from unmask.training.stages.distill import TeacherOptions, teacher_loader
from unmask.training.stages.stage import PreparedStage, TeacherName, TrainableModel, TrainingStage
from unmask.training.targets import IGNORED, target_logits
from unmask.training.teachers import Teacher, loaded, shares


class GenerateOptions(TeacherOptions):
    """Compression tokens learn to hold the answer to a text, and to be near its vector.

    loss = reconstruction * (cross-entropy of the answer, in nats per token, after the soft prompt of the text's compression tokens)
    + alignment * (mean squared error of the text's vector and the teacher's vector of the answer).

    The teacher's vectors are scaled to a mean square of 1, which changes no cosine: of unit length, they would make the squared error
    a thousand times smaller than the cross-entropy. max_length: of a text, and of an answer.
    """

    reconstruction: float = Field(default=1.0, ge=0)
    alignment: float = Field(default=1.0, gt=0)


class Generate(TrainingStage[GenerateOptions]):
    """Texts with answers."""

    name = "generate"
    options = GenerateOptions
    pools = True
    predicts_tokens = True

    def teachers(self, options: GenerateOptions) -> dict[str, TeacherName]:
        """The model that gives each answer its vector."""
        return {"teacher": options.teacher_name}

    def read(self, name: str, source: DataSource, root: Path, seed: int) -> DataSet:
        """Texts with answers."""
        return read_answers(name, source, root, seed)

    def require_trainable(self, train: str | tuple[str, ...], design: Design) -> None:
        """Raise UnmaskError unless compression tokens train in a frozen model."""
        if design.pooling != CompressionTokens.kind or train != "head":
            raise UnmaskError(
                f"Stage '{self.name}' trains compression-tokens in a frozen model: set designs = [\"llm2vec-gen\"] (or another design "
                'with this pooling) and train = "head".'
            )

    def prepare(self, options: GenerateOptions, model: TrainableModel, sets: Sequence[DataSet], seed: int) -> PreparedStage:
        """Batches of texts and answers of similar length, with the teacher's vectors, which are computed batch by batch."""
        embedder, language_model = model.embedder, model.language_model
        backbone, head = embedder.backbone, embedder.backbone.head
        assert isinstance(head, CompressionTokens) and language_model is not None
        longest = backbone.within_positions(options.max_length)
        prompt = embedder.design.require_one_prompt("Training")
        tokenizer = PromptTokenizer(embedder.tokenizer, prompt, longest, backbone.vocabulary)
        examples = [ScheduledExample(data, example) for data in sets for example in data.examples]
        lengths = [sum(map(len, row.example.texts)) for row in examples]
        rows = [examples[index] for index in language_schedule(lengths, options.steps, options.batch, seed)]
        collator = AnswerCollator(tokenizer, head.alignment.out_features)
        for data in sets:  # an instruction that the prompt does not take, or a limit that leaves no room, shows before training
            collator([ScheduledExample(data, data.examples[0])])

        def objective(_: nn.Module, inputs: dict[str, Any], __: Any) -> Tensor:
            text, answer = inputs["text"], inputs["answer"]
            states = backbone.compress(TokenBatch(*(text[name].bool() if "mask" in name else text[name] for name in text)))
            vectors = head(states, torch.ones(states.shape[:2], dtype=torch.bool, device=states.device))
            loss = options.alignment * mse_loss(vectors, inputs["teacher"].to(vectors))
            if options.reconstruction:
                with backbone.computing():
                    logits, targets = answer_logits(language_model, head.reconstruction(states), answer)
                    loss = loss + options.reconstruction * cross_entropy(logits.float(), targets)
            return loss

        parts = shares(rows, options.batch // (processes.count() * options.accumulate))
        teacher = Teacher(
            teacher_loader(options, model, sets, seed), ([row.example.texts[1] for row in part] for part in parts)
        )
        collate_rows = replace(collator, teacher=teacher)
        return PreparedStage(EmbedderModule(embedder), rows, collate_rows, objective, partial(loaded, [teacher]))


def answer_logits(language_model: Any, prompt: Tensor, answer: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits of the tokens of answers after a soft prompt of shape (text, soft, dim), and these tokens.

    answer: `input_ids`, `attention_mask` and `labels`, padded on the right.
    """
    texts, soft = prompt.shape[:2]

    def after(part: Tensor, value: int) -> Tensor:
        return torch.cat([part.new_full((texts, soft), value), part], dim=1)

    inputs = {"input_ids": after(answer["input_ids"], 0), "attention_mask": after(answer["attention_mask"], 1)}
    positions = torch.arange(soft, device=prompt.device).expand(texts, -1)
    with SoftPrompt(positions, prompt).inside(language_model):
        logits, targets, _ = target_logits(language_model, inputs, after(answer["labels"], IGNORED))
    return logits, targets


@dataclass(frozen=True)
class AnswerCollator:
    """Texts in their prompt, the tokens of their answers, and the teacher's vectors of the answers, of `dim` dimensions.

    An answer that is not cut ends with the end-of-sequence token.
    """

    tokenizer: PromptTokenizer
    dim: int
    teacher: Teacher | None = None

    def __call__(self, rows: Sequence[ScheduledExample]) -> dict[str, Any]:
        """Inputs and the ids of the rows. Raises UnmaskError for a teacher of other dimensions."""
        texts = [text for row in rows for text in self.tokenizer.tokenize([row.example.texts[0]], row.data.source.instruction)]
        batch = collate(texts, self.tokenizer.pad_id)
        answers = [row.example.texts[1] for row in rows]
        tokens = [self._answer_tokens(answer) for answer in answers]
        inputs: dict[str, Any] = {
            "text": {"ids": batch.ids, "attention_mask": batch.attention_mask, "pooling_mask": batch.pooling_mask},
            "answer": pad([(ids, ids) for ids in tokens], self.tokenizer.pad_id),
            "rows": [row.id for row in rows],
        }
        return inputs if self.teacher is None else inputs | {"teacher": self._vectors(self.teacher, answers)}

    def _answer_tokens(self, answer: str) -> list[int]:
        tokenizer, longest = self.tokenizer.tokenizer, self.tokenizer.max_length
        ids: list[int] = tokenizer(without_surrogates(answer), add_special_tokens=False, verbose=False)["input_ids"]
        return (ids if tokenizer.eos_token_id is None else [*ids, tokenizer.eos_token_id])[:longest]

    def _vectors(self, teacher: Teacher, answers: list[str]) -> Tensor:
        vectors = teacher(answers)
        if vectors.shape[1] != self.dim:
            raise UnmaskError(
                f"The teacher's vectors have {vectors.shape[1]} dimensions, and the head's {self.dim}: set head.dim = {vectors.shape[1]}."
            )
        return normalize(vectors, dim=1) * self.dim**0.5
