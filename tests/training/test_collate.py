"""Collation loses and mixes up nothing; masks obey their shares; the model's loss on them is the one of the paper, by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families import FAMILIES
from unmask.embedder import Embedder
from unmask.encoding.tokenization import PromptTokenizer
from unmask.models.decoder import body_of
from unmask.starter import reference_texts
from unmask.training.collate import MaskingCollator, PairCollator, chunk_tokens
from unmask.training.data import DataSet, DataSource, Example
from unmask.training.recipe import Recipe
from unmask.training.schedule import ScheduledExample
from unmask.training.stages import STAGES
from unmask.training.stages.contrastive import SimcseOptions, two_views
from unmask.training.stages.language import MntpOptions
from unmask.training.targets import IGNORED
from unmask.training.trainee import Trainee

LENGTHS = [1, 12, 3, 7, 30, 2, 18, 5]
MASK, PAD, VOCABULARY = 9, 0, 512
SPECIAL = {0, 1, 2}
BIDIRECTIONAL = ["llama", "gpt2", "gemma3", "mixtral", "gpt-oss"]


def text_of(words: int, seed: int = 0) -> str:
    return " ".join(f"w{(seed * 31 + word * 7) % 97}" for word in range(words))


def sets_of(texts: Iterable[Sequence[str]], **source: Any) -> DataSet:
    examples = [Example(line, tuple(row)) for line, row in enumerate(texts, start=1)]
    return DataSet("rows", (), examples, DataSource(path="rows", **source), {})


def rows_of(texts: Iterable[Sequence[str]], **source: Any) -> list[ScheduledExample]:
    data = sets_of(texts, **source)
    return [ScheduledExample(data, example) for example in data.examples]


def tokens_in(batch: dict[str, Any]) -> list[tuple[list[int], list[bool]]]:
    """Real tokens and embedded ones of all rows of all chunks."""
    return [
        (ids[mask.bool()].tolist(), embed[mask.bool()].tolist())
        for chunk in batch["chunks"]
        for ids, mask, embed in zip(chunk["input_ids"], chunk["attention_mask"], chunk["pooling_mask"], strict=True)
    ]


@pytest.mark.parametrize("budget", [1, 200])
@pytest.mark.parametrize("instructions", [(None, None), ("Find it", "A passage")])
def test_the_order_leads_back_to_every_text(tokenizer: Any, budget: int, instructions: tuple[str | None, str | None]) -> None:
    texts = [[text_of(LENGTHS[(row + 3 * column) % 8], row + 9 * column) for column in range(3)] for row in range(7)]
    prompt = PromptTokenizer(tokenizer, "instruction-eos", 64)
    rows = rows_of(texts, instruction=instructions[0], document_instruction=instructions[1])
    batch = PairCollator(prompt, budget)(rows)
    found = tokens_in(batch)
    assert batch["order"].shape == (3, 7)
    assert sorted(batch["order"].flatten().tolist()) == list(range(21))
    for row, columns in enumerate(texts):
        for column, text in enumerate(columns):
            (expected,) = prompt.tokenize([text], instructions[column > 0])
            ids, embed = found[batch["order"][column, row]]
            assert tuple(ids) == expected.ids
            assert embed == [place >= expected.start for place in range(len(ids))]
    assert batch["rows"] == [f"rows:{line}" for line in range(1, 8)]
    for chunk in batch["chunks"]:
        assert chunk["input_ids"].numel() <= max(budget, chunk["input_ids"].shape[1])


def test_both_views_of_a_sentence_are_alike(tokenizer: Any) -> None:
    """Also under an instruction: without repeated words, dropout alone shall tell them apart."""
    rows = rows_of([[text_of(length, length)] for length in LENGTHS], instruction="Find it", document_instruction="Other")
    rows = two_views(rows, 0.0, 0)
    batch = PairCollator(PromptTokenizer(tokenizer, "instruction", 64), 60, are_views=True)(rows)
    found = tokens_in(batch)
    assert batch["order"].shape == (2, 8)
    for one, other in batch["order"].T.tolist():
        assert one != other and found[one] == found[other]


@pytest.mark.parametrize("columns", [1, 3])
def test_a_teachers_vectors_are_in_the_order_of_the_chunks(tokenizer: Any, columns: int) -> None:
    """Here the teacher's vector of a text is the sum of its tokens, and their number, which the collator sorts by."""
    texts = [[text_of(LENGTHS[(row + 3 * column) % 8], row + 9 * column) for column in range(columns)] for row in range(7)]
    asked: list[list[str]] = []

    def teacher(given: list[str]) -> torch.Tensor:
        asked.append(given)
        tokens = [tokenizer(text)["input_ids"] for text in given]
        return torch.tensor([[sum(ids), len(ids)] for ids in tokens])

    batch = PairCollator(PromptTokenizer(tokenizer, "plain", 200), 40, {"teacher": teacher, "guide": teacher})(rows_of(texts))
    assert asked == [[row[column] for column in range(columns) for row in texts]], "all of them, once"
    tokens = [ids for ids, _ in tokens_in(batch)]
    assert batch["teacher"].tolist() == batch["guide"].tolist() == [[sum(ids), len(ids)] for ids in tokens]
    assert batch["teacher"].tolist() != teacher(asked[0]).tolist(), "the order of the chunks has to be another one"
    assert batch["rows"] == [f"rows:{line}" for line in range(1, 8)]


# masks


def masking(seed: int = 0, **options: Any) -> MaskingCollator:
    stage = MntpOptions(data=("text",), steps=1, lr=1.0, **options)
    return MaskingCollator(
        PAD, share=stage.p, as_bert=stage.masking == "bert", mask_id=MASK, vocabulary=VOCABULARY, special=SPECIAL, seed=seed
    )


def masked(collate: MaskingCollator, chunks: int = 60, length: int = 400) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, inputs and labels of many chunks without special tokens and without the mask's own token."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(MASK + 1, VOCABULARY, (chunks, length), generator=generator)
    pairs = [collate.inputs_and_labels(place, row.tolist()) for place, row in enumerate(tokens)]
    return tokens, torch.tensor([inputs for inputs, _ in pairs]), torch.tensor([labels for _, labels in pairs])


def within(found: float, expected: float, trials: int) -> bool:
    """Whether a share is within four standard deviations."""
    return bool(abs(found - expected) < 4 * (expected * (1 - expected) / trials) ** 0.5 + 1e-9)


def test_the_shares_of_masking_as_bert() -> None:
    p = 0.2
    tokens, inputs, labels = masked(masking(p=p))
    chosen = labels != IGNORED
    assert within(float(chosen[:, 1:].float().mean()), p, chosen[:, 1:].numel())
    assert torch.equal(labels[chosen], tokens[chosen])
    assert torch.equal(inputs[~chosen], tokens[~chosen])
    count = int(chosen.sum())
    replaced = inputs[chosen] == MASK
    kept = inputs[chosen] == tokens[chosen]
    # a random token is the mask's, or the one that was there, once in VOCABULARY times
    assert within(float(replaced.float().mean()), 0.8 + 0.1 / VOCABULARY, count)
    assert within(float(kept.float().mean()), 0.1 + 0.1 / VOCABULARY, count)
    scrambled = inputs[chosen][~replaced & ~kept]
    assert int(scrambled.min()) < 10 and int(scrambled.max()) > VOCABULARY - 10


def test_the_first_token_and_special_tokens_are_never_masked() -> None:
    ids = [50, 1, 60, 2, 70, 1, 80, 2, 90]
    places = range(300)
    labels = torch.tensor([masking(p=0.9).inputs_and_labels(place, ids)[1] for place in places])
    ever = (labels != IGNORED).any(dim=0)
    assert ever.tolist() == [False, False, True, False, True, False, True, False, True]


@pytest.mark.parametrize("ids", [[50, 60], [1, 1, 2]])
def test_at_least_one_token_is_masked(ids: list[int]) -> None:
    """Also where all that could be predicted is special."""
    for place in range(50):
        _, labels = masking(p=0.001).inputs_and_labels(place, ids)
        assert labels[0] == IGNORED and any(label != IGNORED for label in labels)


def test_a_mask_is_a_function_of_seed_and_place() -> None:
    ids = list(range(10, 110))
    torch.manual_seed(1)
    one = masking(3).inputs_and_labels(7, ids)
    torch.manual_seed(2)
    assert masking(3).inputs_and_labels(7, ids) == one
    # a value that was written down: a resumed run may be another process, or another machine
    labels = masking(0).inputs_and_labels(0, list(range(10, 40)))[1]
    assert [place for place, label in enumerate(labels) if label != IGNORED] == [7, 9, 10, 17, 21, 28]
    different = [masking(seed).inputs_and_labels(place, ids) for seed, place in ((3, 8), (4, 7), (7, 3))]
    assert all(other != one for other in different)
    together = masking(3)([(6, ids[:20]), (7, ids)])
    assert together["input_ids"][1].tolist() == one[0] and together["labels"][1].tolist() == one[1]


# chunks


def test_sentences_are_cut_and_blocks_are_full(tokenizer: Any) -> None:
    texts = ["A man plays a guitar.", "x", "The stock market fell, and nobody knew why it had."]
    plain = [tokenizer(text)["input_ids"] for text in texts]
    assert chunk_tokens(tokenizer, texts, 6, blocks=False) == [ids[:6] for ids in plain if len(ids) > 1]
    stream = [token for ids in plain for token in (*ids, tokenizer.eos_token_id)]
    blocks = chunk_tokens(tokenizer, texts, 6, blocks=True)
    assert [token for block in blocks for token in block] == stream[: len(stream) // 6 * 6]
    assert all(len(block) == 6 for block in blocks)


# the loss of the paper


def trainee_of(family: str, tokenizer: Any, design: str = "bidirectional/plain/mean") -> Trainee:
    from transformers import AutoModelForCausalLM

    config = FAMILIES[family].build().config
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    recipe = Recipe.model_validate(RECIPE | {"designs": [design]})
    return Trainee(recipe, Embedder.from_model(body_of(model), tokenizer, design), model.eval())


RECIPE = {
    "name": "pico",
    "about": "A pico model is trained.",
    "model": "pico",
    "stages": ["simcse"],
    "data": {"text": {"path": "starter:reference"}},
    "simcse": {"data": ["text"], "steps": 1, "lr": 1.0},
}
STAGE = {"data": ("text",), "steps": 2, "batch": 4, "lr": 1.0, "max_length": 24}


@pytest.mark.parametrize("family", BIDIRECTIONAL)
def test_the_models_loss_predicts_token_i_from_position_i_minus_1(family: str, tokenizer: Any) -> None:
    """Bidirectional, on batches with padding, on dense models and mixtures of experts."""
    trainee = trainee_of(family, tokenizer)
    model: Any = trainee.language_model
    stage = MntpOptions(**STAGE, chunks="sentences")  # type: ignore[arg-type]
    ready = STAGES["mntp"].prepare(stage, trainee, [sets_of([[text_of(length, length)] for length in LENGTHS])], 0)
    batch = ready.collate(ready.rows[:4])
    batch.pop("rows")
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    assert not mask.all(), "the batch has to be padded"
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits.float()
        changed = ids.clone()
        last = mask.sum(dim=1) - 1
        changed[torch.arange(4), last] = (changed[torch.arange(4), last] + 5) % VOCABULARY
        moved = (model(input_ids=changed, attention_mask=mask).logits.float() - logits)[:, 0].abs().amax(dim=1)
        assert bool((moved > 1e-3).all()), "the first token has to see the last one"
        losses = [
            -logits[row, place - 1].log_softmax(0)[labels[row, place]]
            for row in range(4)
            for place in range(1, ids.shape[1])
            if labels[row, place] != IGNORED
        ]
        expected = float(torch.stack(losses).mean())
        assert float(ready.objective(model, dict(batch), None)) == pytest.approx(expected, abs=1e-4)
        # over the items of a step that has twice as many
        assert float(ready.objective(model, dict(batch), 2 * len(losses))) == pytest.approx(expected / 2, abs=1e-4)


def test_a_stage_never_asks_for_more_positions_than_the_model_has(tokenizer: Any) -> None:
    """512 of them, in a stage that asks for 10 000."""
    trainee = trainee_of("llama", tokenizer)
    long = [[f"{number} " + " ".join(reference_texts())] for number in range(8)]
    stage: Any = STAGE | {"max_length": 10_000}
    (mntp, simcse) = (
        STAGES["mntp"].prepare(MntpOptions(**stage, chunks="sentences"), trainee, [sets_of(long)], 0),
        STAGES["simcse"].prepare(SimcseOptions(**stage), trainee, [sets_of(long)], 0),
    )
    assert max(len(ids) for _, ids in mntp.rows) == 512
    assert max(chunk["input_ids"].shape[1] for chunk in simcse.collate(simcse.rows)["chunks"]) == 512


@pytest.mark.parametrize("name", [name for name in STAGES if name != "generate"])  # it trains in a frozen model
def test_every_stage_is_made_ready_and_has_a_gradient(name: str, tokenizer: Any, teacher: Path) -> None:
    stage = STAGES[name]
    trainee = trainee_of("olmoe", tokenizer)
    trainee.backbone.set_attention(stage.attention or "bidirectional")
    texts = reference_texts()
    rows = [[one, other] for one, other in zip(texts[:20], texts[20:40], strict=True)]
    data = sets_of(rows if name == "contrastive" else [[text] for text in texts[:40]])
    needed = {"teacher": str(teacher)} if name == "distill" else {}
    ready = stage.prepare(stage.options.model_validate(STAGE | needed), trainee, [data], 0)
    assert len(ready.rows) == 8
    with ready.around():
        ready.module.train()
        batch = ready.collate(ready.rows[:4])
        assert len(batch.pop("rows")) == 4
        ready.objective(ready.module, batch, None).backward()
    trained = {name for name, weight in ready.module.named_parameters() if weight.grad is not None}
    assert any("q_proj" in name for name in trained) and any("experts" in name for name in trained)
    assert trainee.backbone.model.config._attn_implementation == "sdpa"
