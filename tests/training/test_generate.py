"""The stage `generate`: its two losses by hand, a frozen model, and vectors that come near the teacher's vectors of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from tests.training.running import ROOT, recipe, run, same
from unmask.designs.design import Design
from unmask.embedder import Embedder
from unmask.errors import UnmaskError
from unmask.evaluation.reference_models import load_sentence_transformer
from unmask.starter import reference_texts
from unmask.training.data import DataSource, read_answers
from unmask.training.recipe import Recipe, read_sets
from unmask.training.stages import STAGES
from unmask.training.trainee import Trainee

PAIRS = [(f"What is {number}?", text) for number, text in enumerate(reference_texts()[:32])]


def answers(tmp_path: Path, rows: list[tuple[str, str]] = PAIRS) -> Path:
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps({"text": text, "answer": answer}) + "\n" for text, answer in rows))
    return file


def generating(model: Path, teacher: Path, file: Path, stage: dict[str, Any] | None = None, **settings: Any) -> Recipe:
    common = {"data": ["answers"], "teacher": str(teacher), "steps": 2, "batch": 4, "lr": 1e-2, "max_length": 32}
    given = {"designs": ["llm2vec-gen"], "train": "head", "head": {"latents": 4, "read": 2, "dim": 16}} | settings
    data = {"answers": {"path": str(file)}}
    return recipe(model, **given, stages=["generate"], generate=common | (stage or {}), data=data)


def test_the_loss_is_that_of_the_paper(model: Path, teacher: Path, tmp_path: Path) -> None:
    """Text by text: the answer after the soft prompt, in a model that is given embeddings, and the squared error of the vectors."""
    made = generating(model, teacher, answers(tmp_path), {"reconstruction": 0.5, "alignment": 3.0})
    trainee = Trainee.load(made, Design.parse("llm2vec-gen"), 0)
    trainee.start_stage("generate", 0)
    ready = STAGES["generate"].prepare(made.stage("generate"), trainee, read_sets(made, "generate", ROOT, 0), 0)
    rows = ready.rows[:4]
    with torch.no_grad():
        loss = float(ready.objective(ready.module, ready.collate(rows), None))
        head, language_model = trainee.backbone.head, trainee.language_model
        tokenizer: Any = trainee.embedder.tokenizer
        assert head is not None and language_model is not None
        embed: Any = language_model.get_input_embeddings()  # type: ignore[operator]
        losses, errors = [], []
        for row in rows:
            text, answer = row.example.texts
            [tokens] = trainee.embedder.prompt.tokenize([text])
            inputs = torch.cat([embed(torch.tensor(tokens.ids)), head.latents])[None]
            states = trainee.backbone.model(inputs_embeds=inputs).last_hidden_state[0, -2:]
            soft = head.get_submodule("reconstruction")(states)
            ids = torch.tensor([*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id][:32])
            logits = language_model(inputs_embeds=torch.cat([soft, embed(ids)])[None]).logits[0, 1:-1]
            losses += cross_entropy(logits, ids, reduction="none").tolist()
            target = torch.tensor(load_sentence_transformer(str(teacher), "cpu").encode([answer])[0])
            vector = head.get_submodule("alignment")(soft.mean(dim=0))
            errors += (vector - target / target.norm() * 4).square().tolist()
    assert loss == pytest.approx(0.5 * np.mean(losses) + 3.0 * np.mean(errors), rel=1e-4)


def test_vectors_come_near_the_answers_and_the_model_stays_as_it_was(model: Path, teacher: Path, tmp_path: Path) -> None:
    def nearness(folder: Path) -> float:
        texts, replies = zip(*PAIRS, strict=True)
        theirs = torch.tensor(load_sentence_transformer(str(teacher), "cpu").encode(list(replies)))
        ours = Embedder.from_pretrained(folder / "model", device="cpu").encode(list(texts))
        return float(cosine_similarity(torch.from_numpy(ours), theirs).mean())

    file = answers(tmp_path)
    for name, steps, lr in (("before", 1, 1e-9), ("after", 60, 1e-2)):
        run(generating(model, teacher, file, {"steps": steps, "batch": 16, "lr": lr, "save_every": 100}), tmp_path / name)
    assert nearness(tmp_path / "after") > nearness(tmp_path / "before") + 0.3
    trained = Embedder.from_pretrained(tmp_path / "after" / "model", device="cpu").backbone.model
    base = Embedder.from_pretrained(model, "causal/plain/mean", device="cpu", dtype="float32").backbone.model
    assert same(dict(base.state_dict()), dict(trained.state_dict()))


def test_what_cannot_learn_is_refused(model: Path, teacher: Path, tmp_path: Path) -> None:
    file = answers(tmp_path)
    for settings in ({"train": "lora"}, {"designs": ["causal/plain/cross-attention"], "head": None}):
        with pytest.raises(UnmaskError, match="trains compression-tokens in a frozen model"):
            run(generating(model, teacher, file, **settings), tmp_path / "run")
    with pytest.raises(UnmaskError, match=r"vectors have 16 dimensions, and the head's 8: set head\.dim = 16"):
        run(generating(model, teacher, file, head={"latents": 4, "dim": 8}), tmp_path / "other")


def test_rows_without_an_answer_are_counted(tmp_path: Path) -> None:
    data = read_answers("a", DataSource(path=str(answers(tmp_path, [("a", "b"), ("c", " ")]))), tmp_path, 0)
    assert [example.texts for example in data.examples] == [("a", "b")] and data.skipped == {"without an answer": 1}
