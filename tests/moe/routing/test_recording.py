"""A record holds what the model's routers did, token by token, whatever the batch and however often it was stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmask.moe.routing.recording as recording
from tests.moe.routing.recorded import NATIVE, native, of_words, ours, topical
from unmask.encoding.encoder import Encoder
from unmask.errors import UnmaskError
from unmask.moe.mixture.gating import Routing, RoutingPoint
from unmask.moe.routing.record import Choices, RoutingRecord, read_record
from unmask.moe.routing.recording import record_routing

HALF = 5e-4  # probabilities in 16 bits
CONFIGURATIONS = {
    "block": Routing(top_k=2),
    "layer": Routing(router="layer", top_k=1),
    "final": Routing(router="final", top_k=2, renormalise=True),
    "sequence": Routing(level="sequence", top_k=1),
    "span": Routing(span=2, top_k=1),
}


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def by_hooks(model: Encoder, text: str) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """For one text alone: the logits of each router, and the indices that its module of experts was called with."""
    body, names = model.backbone.model, {module: name for name, module in model.backbone.model.named_modules()}
    logits: dict[int, torch.Tensor] = {}
    used: dict[int, torch.Tensor] = {}
    hooks = []
    for number, router in enumerate(model.backbone.routers):

        def keep(_: Any, __: Any, output: Any, number: int = number, router: Any = router) -> None:
            logits[number] = (output[router.index] if isinstance(output, tuple) else output).float()

        def note(_: Any, args: Any, named: Any, number: int = number) -> None:
            tensors = [part for part in (*args, *named.values()) if torch.is_tensor(part)]
            used[number] = next(part for part in tensors if not part.is_floating_point())

        hooks.append(router.module.register_forward_hook(keep))
        experts = getattr(body.get_submodule(names[router.module].rpartition(".")[0]), "experts", None)
        if experts is not None:
            hooks.append(experts.register_forward_pre_hook(note, with_kwargs=True))
    with torch.no_grad():
        body(torch.tensor([model.tokenizer(text)["input_ids"]]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return [logits[number] for number in range(len(logits))], [used.get(number) for number in range(len(logits))]


def of_text(choices: Choices, text: int, point: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    own = choices.texts == text
    return choices.probabilities[point][own], choices.chosen[point][own], choices.gates[point][own]


def every(record: RoutingRecord) -> Choices:
    return record.choices(range(len(record.points)))


@pytest.mark.parametrize("family", NATIVE)
def test_the_record_is_what_the_routers_of_a_native_mixture_did(family: str, tokenizer: Any, tmp_path: Path) -> None:
    model, texts = native(family, tokenizer), topical()
    record = record_routing(model, texts, tmp_path / "record")
    choices = every(record)
    for number in (0, 1, 7):
        logits, used = by_hooks(model, texts.texts[number].text)
        for point in range(len(record.points)):
            shares, chosen, gates = of_text(choices, number, point)
            assert np.allclose(shares, logits[point].softmax(dim=-1), atol=HALF)
            assert (np.sort(chosen) == used[point].sort().values.numpy()).all()  # type: ignore[union-attr]
            assert (np.diff(gates.astype(float), axis=1) <= 0).all() and (gates > 0).all()
    assert [point.experts for point in record.points] == [8] * len(record.points)
    assert [point.chosen for point in record.points] == [2] * len(record.points)
    assert record.points[-1].layer == 3


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_record_is_what_the_routers_of_our_mixture_did(name: str, tokenizer: Any, tmp_path: Path) -> None:
    routing = CONFIGURATIONS[name]
    model, texts = ours(tmp_path, tokenizer, routing), topical()
    record = record_routing(model, texts, tmp_path / "record")
    choices = every(record)
    layers = {"final": [1], "span": [1, 3]}.get(name, [1, 1, 2, 2, 3, 3])
    assert [point.layer for point in record.points] == layers, "a shared decision is recorded once"
    assert record.settings.experts == ("a", "b", "c")
    names = [name for name, module in model.backbone.model.named_modules() if isinstance(module, RoutingPoint)]
    places = [names.index(point.name) for point in record.points]
    for number in (0, 5):
        logits, _ = by_hooks(model, texts.texts[number].text)
        for point, place in enumerate(places):
            shares, chosen, gates = of_text(choices, number, point)
            expected = logits[place].softmax(dim=-1)
            best = expected.topk(routing.top_k)
            weights = best.values / best.values.sum(dim=-1, keepdim=True) if routing.renormalise else best.values
            assert np.allclose(shares, expected, atol=HALF)
            assert (chosen == best.indices.numpy()).all() and np.allclose(gates, weights, atol=HALF)


@pytest.mark.parametrize("family", ["olmoe", "gpt-oss", "ours"])
def test_alone_is_as_in_a_batch(family: str, tokenizer: Any, tmp_path: Path) -> None:
    model = ours(tmp_path, tokenizer) if family == "ours" else native(family, tokenizer)
    texts = topical()
    together = every(record_routing(model, texts, tmp_path / "together"))
    alone = every(record_routing(replace(model, batch_tokens=1), texts, tmp_path / "alone"))
    assert (together.ids == alone.ids).all() and (together.positions == alone.positions).all()
    for point in range(len(together.chosen)):
        assert np.allclose(together.probabilities[point], alone.probabilities[point], atol=HALF)
        assert (together.chosen[point] == alone.chosen[point]).mean() > 0.99


def test_labels_of_words_reach_their_tokens(tokenizer: Any, tmp_path: Path) -> None:
    texts = of_words()
    record = record_routing(native("olmoe", tokenizer), texts, tmp_path / "record")
    choices, values = every(record), record.settings.labels[0].values
    for number, text in enumerate(texts.texts):
        own = choices.texts == number
        said = [
            (tokenizer.decode([token]).strip(), values[tag] if tag >= 0 else None)
            for token, tag in zip(choices.ids[own], choices.tags["tags"][own], strict=True)
        ]
        rebuilt: list[str] = []
        for word, tag in zip(text.words, text.tags[0], strict=True):
            pieces = ""
            while pieces != word:
                piece, label = said.pop(0)
                assert label == (tag if piece else None), "a space alone is of no word"
                pieces += piece
            rebuilt.append(pieces)
        assert not said and tuple(rebuilt) == text.words


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MOST", 30)
    monkeypatch.setattr(recording, "_LEAST", 1)


def test_parts_do_not_change_what_is_recorded(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = native("olmoe", tokenizer), topical()
    whole = every(record_routing(model, texts, tmp_path / "whole"))
    small_parts(monkeypatch)
    record = record_routing(model, texts, tmp_path / "parts")
    assert record.settings.parts > 3
    parts = every(record)
    assert (parts.ids == whole.ids).all() and (parts.texts == whole.texts).all()
    assert np.allclose(parts.probabilities[1], whole.probabilities[1], atol=HALF)
    assert record.texts.texts == [text.text for text in texts.texts]
    assert (record.hidden(np.array([0, 8])) == record.hidden(np.arange(12))[[0, 8]]).all()
    one = record.choices([2])
    assert len(one.probabilities) == 1 and (one.probabilities[0] == parts.probabilities[2]).all()


def test_a_resumed_record_is_an_undisturbed_one(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch)
    model, texts = native("olmoe", tokenizer), topical()
    record_routing(model, texts, tmp_path / "undisturbed")
    original, calls, limit = recording._record_part, [0], [2]

    def counted(*args: Any, **named: Any) -> None:
        if calls[0] == limit[0]:
            raise KeyboardInterrupt
        calls[0] += 1
        original(*args, **named)

    monkeypatch.setattr(recording, "_record_part", counted)
    folder = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        record_routing(model, texts, folder)
    with pytest.raises(UnmaskError, match="not finished"):
        read_record(folder)
    with pytest.raises(UnmaskError, match=r"holds a record of something else: .*sample was not set and is 30 now"):
        record_routing(model, texts, folder, sample=30)
    calls[0], limit[0] = 0, 99
    record = record_routing(model, texts, folder)
    assert calls[0] == record.settings.parts - 2, "parts that are there stay"
    before = content(folder)
    assert before == content(tmp_path / "undisturbed")
    for name in ("tokens.parquet", "texts.parquet"):
        file = folder / "parts" / "00001" / name
        file.write_bytes(file.read_bytes()[:-9] + b"\0" * 9)
        with pytest.raises(UnmaskError, match="damaged"):
            read_record(folder)
        calls[0] = 0
        record_routing(model, texts, folder)
        assert calls[0] == 1 and content(folder) == before
