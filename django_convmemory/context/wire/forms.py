"""Messages in the forms of Anthropic and of OpenAI's Responses API, as chat messages.

A chat message says what they say. What it cannot say, such as a thought with its signature or a search of the provider,
stays in ``extra``, under the name of the form, and goes back to that provider only.

Sources: Anthropic's references of "Create a Message", extended thinking and the server tools, and OpenAI's reference of
"Create a model response".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_convmemory import content_parts
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ANTHROPIC, CHAT, RESPONSES, ChatMessage, as_mapping, checked_parts, dumps

# The blocks of an assistant that a chat message can say, and what only Anthropic has.
_SAID = frozenset({"text", "tool_use"})
_OF_ANTHROPIC = frozenset({"tool_use", "tool_result", "redacted_thinking", "server_tool_use", "mcp_tool_use"})
# The items of a response that a chat message can say. Others are the provider's own.
_CALLS = frozenset({"function_call", "custom_tool_call"})
_RESULTS = frozenset({"function_call_output", "custom_tool_call_output"})
_OTHER_ITEMS = frozenset({"reasoning", "compaction", "mcp_list_tools"})
# These wait for an answer that a chat message cannot be.
_ANSWERED_OTHERWISE = frozenset(
    {"computer_call", "shell_call", "local_shell_call", "apply_patch_call", "mcp_approval_request", "tool_search_call"}
)


def chat_messages(messages: Iterable[Any]) -> list[ChatMessage]:
    """Return ``messages`` of any form as chat messages. One message may be several: a result of a tool is one.

    Neighbouring items of a response are one message. Raises :class:`~django_convmemory.exceptions.InvalidMessage`.
    """
    made: list[ChatMessage] = []
    fields = [message if isinstance(message, ChatMessage) else as_mapping(message) for message in messages]
    for is_response, run in itertools.groupby(fields, key=_is_of_response):
        if is_response:
            made.append(of_response([item for item in run if not isinstance(item, ChatMessage)]))
        else:
            made += itertools.chain.from_iterable(map(_of, run))
    return made


def _of(message: ChatMessage | Mapping[str, Any]) -> list[ChatMessage]:
    if isinstance(message, ChatMessage):
        # A message with an item of a framework stands for the item. It has the blocks.
        return of_anthropic(message) if message.format == CHAT and _is_anthropic(message.content) else [message]
    if "stop_reason" in message or _is_anthropic(message.get("content")):
        return of_anthropic(message)
    form = str(message.get("type") or "")
    is_item = form == "message" if "role" in message else form.endswith("_output")
    return [_of_item(message) if is_item else ChatMessage.from_openai(message)]


def _is_anthropic(content: Any) -> bool:
    """Whether a content has blocks that only Anthropic has. A text, an image and a document may be anybody's."""
    if not isinstance(content, (list, tuple)):
        return False
    blocks = [block for block in content if isinstance(block, Mapping)]
    forms = {str(block.get("type")) for block in blocks}
    # Mistral's thoughts are lists.
    is_own = any(isinstance(block.get("thinking"), str) or "citations" in block for block in blocks)
    return is_own or any(form in _OF_ANTHROPIC or form.endswith("_tool_result") for form in forms)


def _is_of_response(message: ChatMessage | Mapping[str, Any]) -> bool:
    """Whether a message is an item that the model or the provider has said in a response."""
    if isinstance(message, ChatMessage) or "stop_reason" in message:
        return False
    form = str(message.get("type") or "")
    if "role" in message:
        return form == "message" and message["role"] == "assistant"
    if form in _ANSWERED_OTHERWISE:
        raise _is_no_message(form)
    return form.endswith("_call") or form in _OTHER_ITEMS


def _is_no_message(form: str) -> InvalidMessage:
    return InvalidMessage(
        f"A {form:.100} is no chat message. Store it with a session of the OpenAI Agents SDK: see "
        "django_convmemory.contrib.openai_agents."
    )


def of_anthropic(message: ChatMessage | Mapping[str, Any]) -> list[ChatMessage]:
    """Return one of Anthropic's messages as chat messages: results of tools first, as Anthropic has them."""
    others: dict[str, Any] = {}
    own: dict[str, Any] = {}
    content: Any
    if isinstance(message, ChatMessage):
        role, content = message.role, message.content or ()
        others = {"kind": message.kind, "metadata": message.metadata, "name": message.name, "id": message.id}
    else:
        role, content = message.get("role", "assistant"), message.get("content")
        own = {name: message[name] for name in ("model", "stop_reason") if message.get(name)}
    blocks = checked_parts([{"type": "text", "text": content}] if isinstance(content, str) else content or ())
    if role == "assistant":
        used = [block for block in blocks if block["type"] == "tool_use"]
        calls = [call(block.get("id"), block.get("name"), dumps(block.get("input") or {})) for block in used]
        text = "\n".join(content_parts.texts([block for block in blocks if block["type"] == "text"]))
        is_plain = all(block["type"] in _SAID and not block.get("citations") for block in blocks)
        extra = {} if is_plain else {ANTHROPIC: {"content": blocks, **own}}
        return [ChatMessage("assistant", text or None, tool_calls=calls, extra=extra, **others)]  # type: ignore[arg-type]
    results = [_result(block) for block in blocks if block["type"] == "tool_result"]
    rest = [block for block in blocks if block["type"] != "tool_result"]
    return [*results, *([ChatMessage(role, rest, **others)] if rest or not results else [])]  # type: ignore[arg-type]


def _result(block: Mapping[str, Any]) -> ChatMessage:
    extra = {ANTHROPIC: {"is_error": True}} if block.get("is_error") else {}
    return ChatMessage.tool(block.get("content") or "", str(block.get("tool_use_id") or ""), extra=extra)


def _of_item(item: Mapping[str, Any]) -> ChatMessage:
    """Return the chat message of an item that the model has not said: a message, or the result of a call."""
    form = item["type"]
    if form == "message":
        return ChatMessage.from_openai({"role": item.get("role"), "content": item.get("content")})
    if form not in _RESULTS:
        raise _is_no_message(form)
    output = item.get("output")
    content = output if isinstance(output, (str, list, tuple)) else dumps(output)
    return ChatMessage.tool(content, str(item.get("call_id") or ""))


def of_response(items: Sequence[Mapping[str, Any]], model: Any = None) -> ChatMessage:
    """Return the message that the items of a response of ``model`` make together."""
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[dict[str, Any]] = []
    for item in checked_parts(items, "output"):
        if item["type"] == "message":
            content = item.get("content") or ()
            for part in checked_parts([{"type": "text", "text": content}] if isinstance(content, str) else content):
                (refusals if part.get("refusal") else texts).append(content_parts.read(part).text)
        elif item["type"] == "function_call":
            calls.append(call(item.get("call_id"), item.get("name"), item.get("arguments") or ""))
        elif item["type"] == "custom_tool_call":
            custom = {"name": item.get("name"), "input": item.get("input") or ""}
            calls.append({"id": item.get("call_id"), "type": "custom", "custom": custom})
    extra: dict[str, Any] = {"refusal": "\n".join(refusals)} if refusals else {}
    if any(item["type"] not in {"message", *_CALLS} for item in items):
        extra[RESPONSES] = {"content": items} | ({"model": model} if model else {})
    text = "\n".join(text for text in texts if text)
    return ChatMessage("assistant", text or None, tool_calls=calls, extra=extra)  # type: ignore[arg-type]


def call(call_id: Any, name: Any, arguments: str) -> dict[str, Any]:
    """Return the call of a function in the form of chat completions."""
    return {"id": call_id, "type": "function", "function": {"name": name or "", "arguments": arguments}}
