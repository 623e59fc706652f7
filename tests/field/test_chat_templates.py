"""Chat templates as models ship them: for text as a list of parts, with raise_exception, broken, or several without a default."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import make_tokenizer
from unmask.encoding.tokenization import PromptTokenizer
from unmask.errors import UnmaskError

LIST_ONLY = (
    "{% for message in messages %}<{{ message['role'] }}>{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}<assistant>"
)
REFUSES_STRINGS = (
    "{% if messages[0]['content'] is string %}{{ raise_exception('content must be a list') }}{% endif %}"
    "<user>{{ messages[0]['content'][0]['text'] }}<assistant>"
)


def tokenizer_with(template: Any) -> Any:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("template", [LIST_ONLY, REFUSES_STRINGS])
@pytest.mark.parametrize("prompt", ["chat:echo", 'chat:Say {{}} "{text}"'])
def test_a_template_that_reads_content_as_a_list_gives_the_prompt_that_reads_a_string(template: str, prompt: str) -> None:
    tokens = [
        next(PromptTokenizer(tokenizer_with(one), prompt, 512).tokenize(["Some text"]))
        for one in (template, "<user>{{ messages[0]['content'] }}<assistant>")
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ raise_exception('A system message is required.') }}", "A system message is required"),
        ("{% if messages %}{{ messages[0]['content'] }}", "end of template"),
        ("{{ messages[1]['content'] }}", "has no element 1"),
        ({"tool_use": "{{ messages }}", "rag": "{{ messages }}"}, "['rag', 'tool_use']"),
        ("You are helpful.", "leaves out the text"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_template_that_does_not_work_is_refused_with_its_cause_and_a_remedy(template: Any, cause: str) -> None:
    with pytest.raises(UnmaskError) as refused:
        PromptTokenizer(tokenizer_with(template), "chat:eol", 512)
    message = str(refused.value)
    assert cause in message and "'chat:'" in message and "chat template" in message
