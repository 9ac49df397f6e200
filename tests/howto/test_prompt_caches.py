"""The code and the statements of docs/howto/prompt-caches.md."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import checks
from django.utils import timezone

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.howto.test_pages import PAGES, module_of

pytestmark = pytest.mark.django_db
TURN = ChatMessage.human("word " * 500)


def test_the_memory_of_the_page_trims_in_steps(settings: Any) -> None:
    settings.CONVMEMORY = module_of("prompt-caches", "settings.py")["CONVMEMORY"]
    assert checks.run_checks(tags=["convmemory"]) == []
    session = memories["default"].session("main")
    firsts = []
    for _ in range(40):
        session.append(TURN)
        firsts.append(session.load().parts[0].position)
    steps = [after for before, after in itertools.pairwise(firsts) if before != after]
    assert 5 < len(steps) < 12


def test_the_share_of_cached_tokens() -> None:
    cached_share = module_of("prompt-caches", "caches.py")["cached_share"]
    ann = User.objects.create_user("ann")
    since = timezone.now() - dt.timedelta(hours=1)
    assert cached_share(ann, since) == 0.0
    session = memories["default"].session("main", owner=ann)
    for usage in (
        {"prompt_tokens": 3000, "prompt_tokens_details": {"cached_tokens": 2048}},
        {"prompt_tokens": 1000, "prompt_tokens_details": None},
        {"prompt_tokens": 1000},
    ):
        session.append(ChatMessage.ai("Yes."), usage=usage)
    session.append(ChatMessage.ai("No usage."))
    assert cached_share(ann, since) == 2048 / 5000


def test_what_changes_the_beginning() -> None:
    """The rows of the table that are about one operation."""
    session = memories["default"].session("main")
    session.append(*[ChatMessage.human(f"Message {number}") for number in range(4)])

    def loaded(system: str = "Be brief.") -> list[Any]:
        return list(session.load(system=system).to_openai())

    before = loaded()
    session.append(ChatMessage.ai("A reply."))
    assert loaded()[: len(before)] == before
    assert loaded(system="Be kind.")[0] != before[0]
    session.redact(2)
    assert [after == old for after, old in zip(loaded(), before, strict=False)] == [True, True, False, True, True]
    before = loaded()
    session.append(ChatMessage.system("Be kind."))
    assert [after == old for after, old in zip(loaded(), before, strict=False)] == [True, *[False] * 5]


def test_the_stable_prefix_is_shorter_in_the_two_cases_of_the_page(settings: Any) -> None:
    session = memories["default"].session("main")
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    session.append(ChatMessage.human("Hello."))
    assert session.load().stable_prefix == 1
    session.append(ChatMessage.ai(tool_calls=[call]))
    context = session.load()
    assert (len(context), context.stable_prefix) == (3, 2)
    session.append(ChatMessage.tool("1", "a"))
    assert session.load().stable_prefix == 3

    settings.CONVMEMORY = {"default": {"OPTIONS": {"roles": "alternating"}}}
    session = memories["default"].session("other")
    session.append(ChatMessage.human("Hello."), ChatMessage.ai("Hi."), ChatMessage.human("Well?"))
    assert (len(session.load()), session.load().stable_prefix) == (3, 2)


def test_the_marks_for_anthropic() -> None:
    session = memories["default"].session("main")
    session.append(ChatMessage.human("Hello."), ChatMessage.ai("Hi."))
    wire = session.load(system="Be brief.").to_anthropic(cache_control=True)
    blocks = [*wire["system"], *(block for message in wire["messages"] for block in message["content"])]
    assert ["cache_control" in block for block in blocks] == [True, False, True]


def test_the_table_names_its_source_and_the_cheapest_rows_are_cached_most() -> None:
    assert "`benchmarks/prompt_caches.py`" in PAGES["prompt-caches"]
    rows = re.findall(
        r"^\| [a-z ]+, .*?\| +([\d ]+)\| +([\d.]+) % \| +([\d.]+) \|$", PAGES["prompt-caches"], re.MULTILINE
    )
    assert len(rows) == 18
    for _, cached, price in rows:
        assert float(price) == pytest.approx(1 - 0.9 * float(cached) / 100, abs=0.006)
