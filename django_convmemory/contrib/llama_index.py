"""A memory for the agents and chat engines of LlamaIndex.

::

    from django_convmemory.contrib.llama_index import ConvMemory

    response = await agent.run("What is Rust?", memory=ConvMemory("main", owner=user))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import BaseMemory
from pydantic import PrivateAttr, ValidationError
from pydantic_core import PydanticSerializationError

from django_convmemory import content_parts, messages as chat
from django_convmemory.context.wire import forms
from django_convmemory.contrib import framework_messages
from django_convmemory.contrib.framework_messages import FrameworkMessage, View
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.memory import memories
from django_convmemory.operations.arguments import NOT_GIVEN
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules.values import SessionName

FORMAT = "llama_index"

Item = dict[str, Any]

_ROLES = {role: role for role in chat.ROLES} | {"chatbot": "assistant", "model": "assistant"}
_SILENT = frozenset({"cache", "thinking", "tool_call"})


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
        not be read again, and for a message with more bytes than the option ``max_message_bytes``.
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
        self._given[view] = framework_messages.given(self.session, view, FORMAT)
        return _messages(self._given[view])

    def _lists(self) -> Iterator[list[ChatMessage]]:
        """Yield the lists to which messages may have been added."""
        yield from [_messages(given) for given in self._given.values()]
        if now := self.get():
            yield now


def _messages(given: Sequence[FrameworkMessage]) -> list[ChatMessage]:
    """Return the messages of LlamaIndex for which ``given`` stand. One that has no item is made into one."""
    messages = [each.message for each in given]
    items = [_made(message) if message.item is None else chat.thaw(message.item) for message in messages]
    return [ChatMessage.model_validate_json(chat.dumps(item)) for item in items]


def _chat_messages(messages: Sequence[ChatMessage]) -> list[chat.ChatMessage]:
    return list(with_items(map(_item, messages)))


def _item(message: ChatMessage) -> dict[str, Any]:
    try:
        item: Item = chat.storable(message.model_dump(mode="json"))
        ChatMessage.model_validate_json(chat.dumps(item))
    except (PydanticSerializationError, ValidationError, TypeError, ValueError, AttributeError) as error:
        raise InvalidMessage(f"LlamaIndex cannot write this message as JSON and read it again: {error}") from error
    return item


# Messages of LlamaIndex as chat messages. A chat message is counted, summarized and found instead of the item, which is
# what ``ChatMessage.model_dump(mode="json")`` returns. Its classes are in ``llama_index.core.base.llms.types``.


def with_items(items: Iterable[Item]) -> Iterator[chat.ChatMessage]:
    """Yield the chat messages that stand for ``items``, with the items."""
    for item in items:
        for place in (item["additional_kwargs"], *item["blocks"]):
            if place.get("tool_call_id") == "":
                place["tool_call_id"] = chat.NO_CALL_ID
        yield chat.ChatMessage(**_fields(item), format=FORMAT, item=item)  # type: ignore[arg-type]


def _fields(item: Mapping[str, Any]) -> Item:
    """Return the fields of the chat message."""
    blocks, more = item["blocks"], item["additional_kwargs"]
    content = content_parts.joined([part for block in blocks for part in _parts(block)])
    role, call_id = _ROLES.get(item["role"], ""), more.get("tool_call_id")
    if role == "tool" and isinstance(call_id, str) and call_id:
        return {"role": role, "content": content, "tool_call_id": call_id}
    if role in ("", "tool"):  # A result of a form that has no id.
        return {"role": "assistant", "content": f"[{item['role']}] {chat.as_text(content)}", "kind": item["role"][:32]}
    if role != "assistant":
        return {"role": role, "content": content}
    calls = _calls(blocks, more)
    is_thought = blocks and not calls and all(block["block_type"] in _SILENT for block in blocks)
    kind = chat.REASONING if is_thought else "chat"
    return {"role": role, "content": content or None, "tool_calls": calls, "kind": kind}


def _calls(blocks: Sequence[Item], more: Mapping[str, Any]) -> list[Item]:
    """Return the calls in the form of chat completions. Models without ids have the name of the tool in their place."""
    calls = []
    for block in blocks:
        if block["block_type"] == "tool_call":
            call_id = block["tool_call_id"] or block["tool_name"] or "tool"
            calls.append(forms.call(call_id, block["tool_name"], chat.as_text(block["tool_kwargs"])))
    if not calls and isinstance(more.get("tool_calls"), list):
        for call in more["tool_calls"]:
            if isinstance(call, Mapping):
                name = chat.NO_CALL_ID if call.get("id") == "" else chat.called(call)[0] or "tool"
                calls.append({**call, "id": str(call.get("id") or name)})
    return calls


def _parts(block: Item) -> list[Item]:
    """Return the texts and parts of a block in the form of chat completions."""
    form = block["block_type"]
    if form in _SILENT:
        return []
    if form == "text":
        return [{"type": "text", "text": block["text"]}]
    if form == "citable":
        return [part for each in block["content"] for part in _parts(each)]
    if form == "citation":
        return _parts(block["cited_content"])
    url = content_parts.web_address(block.get("url"))
    if form == "image" and url:
        return [content_parts.image(url, block.get("detail"))]
    # The bytes of a file are in the item. They need not be stored twice.
    if form in ("image", "audio", "video", "document"):
        data = block.get("data" if form == "document" else form) or block.get("url")
        return [content_parts.stub(form, data=data, detail=block.get("detail"))]
    return [content_parts.stub(form, len(chat.dumps(block)))]


def _made(message: chat.ChatMessage) -> Item:
    """Return the item that is made from a chat message."""
    blocks: list[Item] = []
    if isinstance(message.content, str):
        if message.content:
            blocks = [{"block_type": "text", "text": message.content}]
    else:
        blocks = [_block(part) for part in message.content or ()]
    for call in message.tool_calls:
        name, arguments = chat.called(call)
        block = {"block_type": "tool_call", "tool_call_id": call["id"]}
        blocks.append({**block, "tool_name": name or "tool", "tool_kwargs": arguments})
    more = {} if message.tool_call_id is None else {"tool_call_id": message.tool_call_id}
    return {"role": message.role, "blocks": blocks, "additional_kwargs": more}


def _block(part: Mapping[str, Any]) -> Item:
    if url := content_parts.web_address(part.get("image_url")):
        return {"block_type": "image", "url": url}
    text = part.get("text")
    return {"block_type": "text", "text": text if isinstance(text, str) else f"[{part['type']}]"}
