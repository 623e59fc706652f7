"""Masked tokens: which are masked, from where they are predicted, and what is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TEXTS
from tests.probing.models import predicting, saved_language_model
from unmask.embedder import Embedder
from unmask.encoding.tokenization import mask_id
from unmask.errors import UnmaskError
from unmask.models.loading import Source
from unmask.probing.masked import mask_text, probe_masked, score_logits
from unmask.saving.load_model import load_encoder

IDS = list(range(10, 60))
PLAIN = [0] * 50


def scores_of(found: Any) -> tuple[float, ...]:
    return found.accuracy_at_1, found.accuracy_at_5, found.cross_entropy


# --- what is masked --------------------------------------------------------------------------------------------------


def test_masking_is_a_share_of_the_tokens_that_can_be_predicted() -> None:
    special = [1, *PLAIN[1:-1], 1]
    found = mask_text(IDS, special, 0.25, 3, seed=0)
    assert len(found.positions) == 12 and 0 not in found.positions and 49 not in found.positions
    assert list(found.targets) == [IDS[at] for at in found.positions]
    assert [token == 3 for token in found.ids] == [at in found.positions for at in range(50)]
    assert [token for token in found.ids if token != 3] == [token for at, token in enumerate(IDS) if at not in found.positions]
    assert mask_text(IDS, PLAIN, 1.0, 3, 0).positions == tuple(range(1, 50))
    assert len(mask_text([5, 6], [0, 0], 0.01, 3, 0).positions) == 1  # at least one


def test_the_seed_decides_and_the_text_does_but_nothing_else() -> None:
    one = mask_text(IDS, PLAIN, 0.3, 3, seed=1)
    assert one == mask_text(IDS, PLAIN, 0.3, 3, seed=1)
    assert one.positions != mask_text(IDS, PLAIN, 0.3, 3, seed=2).positions
    assert one.positions != mask_text(IDS[::-1], PLAIN, 0.3, 3, seed=1).positions


# --- what is counted -------------------------------------------------------------------------------------------------


def test_scores_by_hand() -> None:
    logits = torch.tensor([[0.0, 1, 2, 3, 4, 5, 6], [0.0, 1, 2, 3, 4, 5, 6], [0.0, 1, 2, 3, 4, 5, 6]])
    found = score_logits(logits, torch.tensor([6, 2, 1]))
    assert found[:, :2].tolist() == [[1, 1], [0, 1], [0, 0]]
    ties = score_logits(torch.zeros(3, 8), torch.tensor([0, 4, 5]))
    assert ties[:, :2].tolist() == [[1, 1], [0, 1], [0, 0]], "of equal logits, the smallest id goes first"
    assert torch.allclose(found[:, 2], torch.nn.functional.cross_entropy(logits, torch.tensor([6, 2, 1]), reduction="none"))


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_the_score_is_that_of_the_position_before_by_hand(attention: Any, tokenizer: Any) -> None:
    one = predicting(tokenizer, attention)
    entropy = hits = count = 0.0
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        masked = mask_text(ids, [0] * len(ids), 0.4, mask_id(tokenizer, "_"), 5)
        if masked.positions:
            with torch.inference_mode():
                logits = one.language_model(torch.tensor([masked.ids])).logits[0]
            for at in masked.positions:
                entropy -= float(logits[at - 1].log_softmax(dim=0)[ids[at]])
                hits += int(logits[at - 1].argmax()) == ids[at]
                count += 1
    found = probe_masked(one, TEXTS, rate=0.4, seed=5)
    assert found.tokens == count > 20
    assert found.cross_entropy == pytest.approx(entropy / count, abs=1e-5)
    assert found.accuracy_at_1 == pytest.approx(hits / count)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_neither_batch_nor_order_nor_padding_changes_it(attention: Any, tokenizer: Any) -> None:
    one = predicting(tokenizer, attention)
    together = scores_of(probe_masked(one, TEXTS))
    for other in (probe_masked(replace(one, batch_tokens=1), TEXTS), probe_masked(one, TEXTS[::-1])):
        assert scores_of(other) == pytest.approx(together, abs=1e-5)
    singles = [probe_masked(one, [text]) for text in TEXTS if len(tokenizer(text)["input_ids"]) > 1]
    total = sum(single.cross_entropy * single.tokens for single in singles)
    assert total / sum(single.tokens for single in singles) == pytest.approx(together[2], abs=1e-5)


def test_what_is_skipped_and_cut_is_counted(tokenizer: Any) -> None:
    found = probe_masked(replace(predicting(tokenizer), max_length=8), ["x", "", *TEXTS[:3]])
    assert (found.texts, found.skipped, found.max_length) == (3, 2, 8) and found.truncated == 3
    content = json.loads(json.dumps(found.as_json()))
    assert content["provenance"]["attention"] == "bidirectional" and content["mask_token"] == "_"
    with pytest.raises(UnmaskError, match="None of these texts"):
        probe_masked(predicting(tokenizer), ["x", ""])


# --- where the model comes from --------------------------------------------------------------------------------------


def test_a_saved_embedder_has_its_attention_and_its_tied_head(tokenizer: Any, tmp_path: Path) -> None:
    base = saved_language_model(tmp_path / "base", tokenizer)
    Embedder.from_pretrained(base, "bidirectional/plain/mean").save_pretrained(tmp_path / "saved")
    own = load_encoder(Source(str(tmp_path / "saved")), predicts=True)
    assert own.backbone.attention == "bidirectional"
    told = load_encoder(Source(str(base)), "bidirectional", predicts=True)
    assert scores_of(probe_masked(own, TEXTS)) == scores_of(probe_masked(told, TEXTS))
    assert load_encoder(Source(str(tmp_path / "saved")), "causal", predicts=True).backbone.attention == "causal"
    assert load_encoder(Source(str(tmp_path / "saved"))).backbone.attention == "bidirectional"
