"""A memory for the agents and chat engines of LlamaIndex.

::

    from django_convmemory.contrib.llama_index import ConvMemory

    response = await agent.run("What is Rust?", memory=ConvMemory("main", owner=user))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import BaseMemory
from pydantic import PrivateAttr, ValidationError
from pydantic_core import PydanticSerializationError

from django_convmemory import messages as chat
from django_convmemory.contrib import framework_messages, llama_index_items
from django_convmemory.contrib.framework_messages import FrameworkMessage, View
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.memory import memories
from django_convmemory.operations.arguments import NOT_GIVEN
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules.values import SessionName


class ConvMemory(BaseMemory):
    """The session ``session_id`` of a memory, with an owner, a visitor or nobody.

    :meth:`get` gives what fits into the budget of the memory: the summary as one message, and the messages after it as
    they came. :meth:`get_all` gives every message. The context of a workflow can be written as JSON with this memory in
    it: of an owner it has the primary key, ``owner_id``.

    Raises :class:`~django_convmemory.exceptions.InvalidSession`.
    """

    session_id: str
    alias: str
    owner_id: Any
    visitor: str
    # What was read, by the view, since this object last changed the session. Others may have changed it since.
    _given: dict[View, list[FrameworkMessage]] = PrivateAttr(default_factory=dict)

    def __init__(
        self,
        session_id: str,
        *,
        alias: str = "default",
        owner: Any = NOT_GIVEN,
        visitor: Any = NOT_GIVEN,
        **fields: Any,
    ) -> None:
        if "owner_id" in fields:  # as from_dict() calls it
            name = SessionName(alias, session_id, fields["owner_id"], visitor)
        else:
            name = memories[alias].session(session_id, owner=owner, visitor=visitor).session_name
        values = {"session_id": name.key, "alias": alias, "owner_id": name.owner_id, "visitor": name.visitor}
        super().__init__(**values)

    @classmethod
    def class_name(cls) -> str:
        return "ConvMemory"

    @classmethod
    def from_defaults(cls, session_id: str = "", **arguments: Any) -> ConvMemory:
        """Make a memory. The arguments are those of the class."""
        return cls(session_id, **arguments)

    @property
    def session(self) -> SessionHandle:
        """The handle of the session."""
        memory = memories[self.alias]
        return memory.session(SessionName(self.alias, self.session_id, self.owner_id, self.visitor))

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002  LlamaIndex' name
        """Return the messages for the next request. The arguments are ignored."""
        return self._read("context")

    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:  # noqa: A002
        """The asynchronous twin of :meth:`get`."""
        return await sync_to_async(self.get)(input, **kwargs)

    def get_all(self) -> list[ChatMessage]:
        """Return all messages, folded or not."""
        return self._read("history")

    async def aget_all(self) -> list[ChatMessage]:
        """The asynchronous twin of :meth:`get_all`."""
        return await sync_to_async(self.get_all)()

    def put(self, message: ChatMessage) -> None:
        """Store a message. Raises what :meth:`put_messages` raises."""
        self.put_messages([message])

    async def aput(self, message: ChatMessage) -> None:
        """The asynchronous twin of :meth:`put`."""
        await self.aput_messages([message])

    def put_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Store ``messages``: all of them, or none. Without any, it does nothing.

        Raises :class:`~django_convmemory.exceptions.InvalidMessage` for a message that cannot be written as JSON, or
        not be read again, for a text with a NUL character or a lone surrogate, and for a message with more bytes than
        the option ``max_message_bytes``.
        """
        framework_messages.store(self.session, _chat_messages(messages))
        self._given.clear()

    async def aput_messages(self, messages: Sequence[ChatMessage]) -> None:
        """The asynchronous twin of :meth:`put_messages`."""
        await sync_to_async(self.put_messages)(messages)

    def set(self, messages: Sequence[ChatMessage]) -> None:
        """Replace all messages, summaries included, with ``messages``.

        If they begin with what :meth:`get` or :meth:`get_all` returned last, only the others are added, and nothing is
        deleted. Raises what :meth:`put_messages` raises. Then nothing was changed.
        """
        framework_messages.assign(self.session, self._lists(), list(messages), _chat_messages)
        self._given.clear()

    async def aset(self, messages: Sequence[ChatMessage]) -> None:
        """The asynchronous twin of :meth:`set`."""
        await sync_to_async(self.set)(messages)

    def reset(self) -> None:
        """Delete all messages and summaries."""
        self.session.clear()
        self._given.clear()

    async def areset(self) -> None:
        """The asynchronous twin of :meth:`reset`."""
        await sync_to_async(self.reset)()

    def _read(self, view: View) -> list[ChatMessage]:
        self._given[view] = framework_messages.given(self.session, view, llama_index_items.FORMAT)
        return _messages(self._given[view])

    def _lists(self) -> Iterator[list[ChatMessage]]:
        """Yield the lists to which messages may have been added."""
        yield from [_messages(given) for given in self._given.values()]
        if now := self.get():
            yield now


def _messages(given: Sequence[FrameworkMessage]) -> list[ChatMessage]:
    items = llama_index_items.items([each.message for each in given])
    return [ChatMessage.model_validate_json(chat.dumps(item)) for item in items]


def _chat_messages(messages: Sequence[ChatMessage]) -> list[chat.ChatMessage]:
    return list(llama_index_items.messages(map(_item, messages)))


def _item(message: ChatMessage) -> dict[str, Any]:
    try:
        item = message.model_dump(mode="json")
        ChatMessage.model_validate_json(chat.dumps(item))
    except (PydanticSerializationError, ValidationError, TypeError, ValueError, AttributeError) as error:
        raise InvalidMessage(f"LlamaIndex cannot write this message as JSON and read it again: {error}") from error
    return item
