"""A message history for LangChain.

::

    from django_convmemory.contrib.langchain import ConvMemoryChatMessageHistory

    history = ConvMemoryChatMessageHistory("main", owner=user)
    history.add_messages([HumanMessage("What is Rust?")])
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, message_to_dict, messages_from_dict
from pydantic_core import to_jsonable_python

from django_convmemory import messages as chat
from django_convmemory.context.wire import forms
from django_convmemory.contrib import framework_messages, langchain_items
from django_convmemory.contrib.framework_messages import FrameworkMessage, View
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.memory import memories
from django_convmemory.operations.arguments import NOT_GIVEN

_TYPES = {"user": "human", "assistant": "ai", "system": "system", "developer": "system", "tool": "tool"}


class ConvMemoryChatMessageHistory(BaseChatMessageHistory):
    """The session ``session_id`` of a memory, with an owner, a visitor or nobody.

    ``view="context"``: :attr:`messages` are what fits into the budget of the memory: the summary as one message, and
    the messages after it as they came. ``"history"``: they are all messages.

    Make one for each run, as ``RunnableWithMessageHistory`` does: it gives the same messages until it stores some.

    Two histories are equal if their messages are. Raises :class:`~django_convmemory.exceptions.InvalidSession` and
    ``InvalidArgument``.
    """

    def __init__(
        self,
        session_id: str,
        *,
        alias: str = "default",
        owner: Any = NOT_GIVEN,
        visitor: Any = NOT_GIVEN,
        view: View = "context",
    ) -> None:
        framework_messages.check_view(view)
        self.session = memories[alias].session(session_id, owner=owner, visitor=visitor)
        self.view = view
        # What was read, by the view, since this object last changed the session. Others may have changed it since.
        self._given: dict[View, list[FrameworkMessage]] = {}

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages. They are read once, and again after this object has changed them.

        ``RunnableWithMessageHistory`` reads them before and after a run. Of what it gave the model, it stores what is
        longer than what it reads then. So what others fold or append during a run must not show. A change of the list
        changes nothing that is stored.

        If they are set, the new messages replace all messages, summaries included. If they begin with those that were
        read last, only the others are added, and nothing is deleted.
        """
        if self.view not in self._given:
            self._given[self.view] = self._read()
        return _messages(self._given[self.view])

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        framework_messages.assign(self.session, self._lists(), list(messages), _chat_messages)
        self._given.clear()

    def _read(self) -> list[FrameworkMessage]:
        return framework_messages.given(self.session, self.view, langchain_items.FORMAT)

    def _lists(self) -> Iterator[list[BaseMessage]]:
        """Yield the lists to which messages may have been added."""
        yield from [_messages(given) for given in self._given.values()]
        if now := self._read():
            yield _messages(now)

    async def aget_messages(self) -> list[BaseMessage]:
        """The asynchronous twin of :attr:`messages`."""
        return await sync_to_async(lambda: self.messages)()

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store ``messages``: all of them, or none. Without any, it does nothing.

        A value that is not JSON is stored as JSON, or as text. Raises
        :class:`~django_convmemory.exceptions.InvalidMessage` for a message of a class that LangChain does not know, and
        for one with more bytes than the option ``max_message_bytes``.
        """
        framework_messages.store(self.session, _chat_messages(messages))
        self._given.clear()

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """The asynchronous twin of :meth:`add_messages`."""
        await sync_to_async(self.add_messages)(messages)

    def clear(self) -> None:
        """Delete all messages and summaries."""
        self.session.clear()
        self._given.clear()

    async def aclear(self) -> None:
        """The asynchronous twin of :meth:`clear`."""
        await sync_to_async(self.clear)()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseChatMessageHistory):
            return NotImplemented
        return self.messages == other.messages

    __hash__ = None  # type: ignore[assignment]


def _messages(given: Sequence[FrameworkMessage]) -> list[BaseMessage]:
    return messages_from_dict([_item(each.message) for each in given])


def _chat_messages(messages: Sequence[BaseMessage]) -> list[chat.ChatMessage]:
    try:
        made = [chat.storable(message_to_dict(message)) for message in messages]
        items = to_jsonable_python(made, bytes_mode="base64", inf_nan_mode="null", serialize_unknown=True)
        stored = [langchain_items.message(item) for item in items]
        messages_from_dict(items)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"LangChain cannot write these messages as JSON and read them again: {error}") from error
    return stored


def _item(message: chat.ChatMessage) -> dict[str, Any]:
    """Return the item for which a message stands. A message that has none is made into one."""
    if message.item is not None:
        item: dict[str, Any] = chat.thaw(message.item)
        return item
    data: dict[str, Any] = {"content": message.to_openai().get("content") or ""}
    if message.name is not None:
        data["name"] = message.name
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        # LangChain tells calls whose arguments are no JSON object from the others.
        called = AIMessage("", additional_kwargs={"tool_calls": [_function_call(call) for call in message.tool_calls]})
        data |= called.model_dump(include={"tool_calls", "invalid_tool_calls"})
    return {"type": _TYPES[message.role], "data": data}


def _function_call(call: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = chat.called(call)
    with contextlib.suppress(ValueError, RecursionError):
        if not isinstance(value := json.loads(arguments or "{}"), dict):  # LangChain has objects only.
            arguments = chat.dumps({"_raw": value})
    return forms.call(call["id"], name or "tool", arguments or "{}")
