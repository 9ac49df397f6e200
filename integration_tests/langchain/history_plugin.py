"""``pytest -p integration_tests.langchain.history_plugin``: LangChain's own tests, with our history instead of theirs.

``CONVMEMORY_PLUGIN_DATABASE`` is the database, as JSON. ``tests`` is LangChain's package here, so nothing of ours is
imported from there.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence

import django
import pytest
from django.conf import settings
from langchain_core import chat_history
from langchain_core.messages import BaseMessage

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_convmemory"],
    DATABASES={"default": json.loads(os.environ["CONVMEMORY_PLUGIN_DATABASE"])},
    USE_TZ=True,
    CONVMEMORY={
        "default": {
            "MEMORY": "django_convmemory.memory.ConversationSummaryBufferMemory",
            "OPTIONS": {"max_token_limit": 100_000},
            "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
            "SCHEDULER": {"BACKEND": "django_convmemory.schedulers.NullScheduler"},
        }
    },
)
django.setup()

from django_convmemory.integrations.langchain import ConvMemoryChatMessageHistory  # noqa: E402  after the settings

_numbers = itertools.count()


class Ours(ConvMemoryChatMessageHistory):
    # A test of LangChain looks for these words.
    __doc__ = chat_history.InMemoryChatMessageHistory.__doc__

    made = 0

    def __init__(self, messages: Sequence[BaseMessage] = ()) -> None:
        super().__init__(f"history {next(_numbers)}")
        self.add_messages(messages)
        Ours.made += 1


chat_history.InMemoryChatMessageHistory = Ours  # type: ignore[assignment,misc]

passed = {"ours": 0, "other": 0}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = Ours.made
    yield
    # A failed test has raised its error above.
    passed["ours" if Ours.made > before else "other"] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"passed with our history: {passed['ours']}; without it: {passed['other']}")
