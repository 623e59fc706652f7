"""Any text under any option: finite vectors that do not depend on the other texts, or a sentence that says why not.

`make test` draws a hundred cases, `make test-all` 10 000.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.conftest import make_tokenizer
from tests.encoding.test_encoder import CASES
from tests.families import FAMILIES
from tests.proofs import ALL
from unmask.embedder import Embedder
from unmask.errors import UnmaskError

NUMBER = 10_000 if ALL else 100
PIECES = [
    "", " ", "\n", "\t", "\0", "\x1b[31m", "</s>", "<s>", "<pad>", "{text}", "{instruction}", "{", "}", '"', "\\", "/", "\ufeff",
    "\u200b", "\u202e", "\u0301", "\U0001f468\u200d\U0001f469", "\U0001f1e6\U0001f1f9", "ﷺ", "ß", "İ", "가", "今日は",
    "\uffff", "\U0010ffff", "\ud800", "a" * 400,
    "word " * 90,
    "[INST]", "<|im_start|>", "A man plays a guitar.",
]  # fmt: skip
TEXTS = st.lists(
    st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=5).map("".join)), min_size=1, max_size=5
)
LENGTHS = (4, 12, 40, 512)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "normalize": st.booleans(),
        "dim": st.sampled_from((-1, 0, 1, 8, 8, 64, 65)),
        "precision": st.sampled_from(["float32", "float32", "float16", "int8", "binary", "int3"]),
        "instruction": st.one_of(st.none(), st.none(), st.text(max_size=20)),
    },
)


@cache
def embedder(family: str, name: str, max_length: int, batch_tokens: int) -> Embedder | None:
    """An embedder of a pico model; None where the design does not fit the length."""
    try:
        made = Embedder.from_model(_model(family), _tokenizer(), name, max_length=max_length, batch_tokens=batch_tokens)
        made.encode(["x"])
    except UnmaskError:
        return None
    return made


@cache
def _model(family: str) -> Any:
    return FAMILIES[family].build()


@cache
def _tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@settings(max_examples=NUMBER, suppress_health_check=list(HealthCheck), derandomize=not ALL, database=None)
@given(st.sampled_from(CASES), st.sampled_from(LENGTHS), st.sampled_from((32, 4096)), TEXTS, OPTIONS, st.data())
def test_a_text_has_a_finite_vector_of_its_own_or_is_refused(
    case: tuple[str, str], max_length: int, batch_tokens: int, texts: list[str], options: dict[str, Any], data: Any
) -> None:
    made = embedder(*case, max_length, batch_tokens)
    if made is None:
        return
    try:
        together = made.encode(texts, show_progress=False, **options)
    except UnmaskError as error:
        assert len(str(error)) < 500
        event("refused")
        return
    assert len(together) == len(texts)
    if together.dtype.kind == "f":
        assert np.isfinite(together).all()
    assert np.array_equal(made.encode(texts, show_progress=False, **options), together), "the same call gives other vectors"
    if options.get("precision", "float32") != "float32":
        return
    event("compared")
    place = data.draw(st.integers(0, len(texts) - 1))
    alone = made.encode([texts[place]], show_progress=False, **options)[0]
    scale = max(1.0, float(np.abs(alone).max()))
    assert np.abs(alone - together[place]).max() <= 2e-4 * scale, "a text's vector depends on its neighbours"
