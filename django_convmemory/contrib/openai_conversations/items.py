"""Items as the Conversations API takes and shows them, and the ids by which they are found again.

Source: ``ResponseInputItemParam`` and ``ConversationItem`` of the ``openai`` package.

Note [The ids need no table]

The public id of a message is unique in its session, and indexed. So the message of an item that came with an id gets a
public id that is computed from it: a second message with this id cannot be stored. The id of any other item is made
from the public id of its message, which it contains.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Mapping
from typing import Any

from django.db.models import Q

from django_convmemory import models
from django_convmemory.contrib import responses_items
from django_convmemory.contrib.responses_items import Item
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage, dumps, freeze, thaw
from django_convmemory.rules import counters, exchanges
from django_convmemory.store import columns

_NAMESPACE = uuid.UUID("5c2a7c5e-5f0e-4a57-9d0b-0f4c7f6f1d21")
# What an address can hold.
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
_OWN_ID = re.compile(r"[a-z]+_([0-9a-f]{32})(?:_[0-9]+)?")
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}

_ROLES = ("user", "assistant", "system", "developer")
# The fields without which nobody could use an item: texts, and what is a text or a list of parts.
_TEXTS = {
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id",),
}
_CONTENT = {"message": "content", "function_call_output": "output", "custom_tool_call_output": "output"}
_PART_DEFAULTS: Mapping[str, Item] = {
    "output_text": {"annotations": [], "logprobs": []},
    "input_image": {"detail": "auto"},
}

# The messages that are shown. Of a redacted message, a call or a result is left, because the other side needs it.
SHOWN = Q(redacted_at__isnull=True) | Q(role__in=("assistant", "tool"), wire__isnull=False)


def message(item: Any) -> ChatMessage:
    """Return the message for an item, which it holds exactly as it is. Raises InvalidMessage if that is impossible."""
    if not isinstance(item, Mapping):
        raise InvalidMessage("An item must be an object.")
    frozen = freeze(item, "item")
    _check(item)
    made = responses_items.message(item)
    if made.item != frozen:
        raise InvalidMessage("The item has an empty call_id, or is nested too deeply. It cannot be stored as it is.")
    [new_id] = counters.new_ids(1)
    return dataclasses.replace(made, id=new_id if item.get("id") is None else public_id(item["id"]))


def _check(item: Mapping[str, Any]) -> None:
    for name in ("id", "type", "status"):
        if not isinstance(item.get(name), str | None):
            raise InvalidMessage(f"The {name} of an item must be a string.")
    if item.get("id") is not None and not _ID.fullmatch(item["id"]):
        raise InvalidMessage("The id of an item has 1 to 255 letters, digits and _ . : - signs.")
    form = item.get("type") or "message"
    if form == "item_reference":
        raise InvalidMessage("An item_reference cannot be stored. Send the item itself.")
    if form == "message" and item.get("role") not in _ROLES:
        raise InvalidMessage(f"The role of a message is one of {', '.join(_ROLES)}.")
    for name in _TEXTS.get(form, ()):
        if not isinstance(item.get(name), str):
            raise InvalidMessage(f"The {name} of a {form} must be a string.")
    if form in _CONTENT and not _is_content(item.get(_CONTENT[form])):
        raise InvalidMessage(f"The {_CONTENT[form]} of a {form} must be a string, or a list of objects with a type.")


def _is_content(content: Any) -> bool:
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_part, content)))


def _is_part(part: Any) -> bool:
    form = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(form, str) and (not form.endswith("_text") or isinstance(part.get("text"), str))


def is_plain(item: Mapping[str, Any], roles: tuple[str, ...]) -> bool:
    """Return whether an item is a text in one of these ``roles``, and nothing else."""
    content = item.get("content")
    return (
        item.keys() <= {"id", "type", "status", "role", "content"}
        and (item.get("type") or "message") == "message"
        and item.get("role") in roles
        and (isinstance(content, str) or all(part.keys() == {"type", "text"} for part in content or ()))
    )


def public_id(item_id: str) -> uuid.UUID:
    """Return the public id of the message of an item that came with this id."""
    return uuid.uuid5(_NAMESPACE, item_id)


def public_ids(item_id: str) -> set[uuid.UUID]:
    """Return the public ids that the message of the item with this id may have."""
    own = _OWN_ID.fullmatch(item_id)
    return {public_id(item_id)} | ({uuid.UUID(own[1])} if own else set())


def shown(row: models.Message) -> list[Item]:
    """Return the items for which a row of :data:`SHOWN` stands: one, or several if the site stored it as a message."""
    stored = columns.message_of_row(row)
    stored = exchanges.redacted(stored) if row.redacted_at is not None else stored
    made = responses_items.items([stored]) or [{"role": stored.role, "content": ""}]
    return [normalized(item, row.public_id, number) for number, item in enumerate(made)]


def is_paired(row: models.Message) -> bool:
    """Return whether :data:`SHOWN` would have the row if it was redacted."""
    return row.role in ("assistant", "tool") and bool(columns.wire_of(columns.message_of_row(row).emptied()))


def normalized(item: Any, message_id: Any, number: int = 0) -> Item:
    """Return an item as OpenAI completes it: with an id, a type, a status, and its content as parts.

    It is item ``number`` of the message with the public id ``message_id``.
    """
    whole: Item = thaw(item)
    # A site may have stored any item.
    form = whole["type"] = whole["type"] if whole.get("type") and isinstance(whole["type"], str) else "message"
    if not isinstance(whole.get("id"), str) or public_id(whole["id"]) != message_id:
        whole["id"] = f"{_PREFIXES.get(form, 'item')}_{message_id.hex}" + (f"_{number}" if number else "")
    if form == "message":
        content = whole.get("content") or ""
        if not isinstance(content, list) or not _is_content(content):
            text = content if isinstance(content, str) else dumps(content)
            content = [{"type": "output_text" if whole.get("role") == "assistant" else "input_text", "text": text}]
        whole["content"] = [{**_PART_DEFAULTS.get(part["type"], {}), **part} for part in content]
    has_status = form == "message" or (form.endswith(("_call", "_output")) and not form.startswith(("custom_", "mcp_")))
    if has_status and whole.get("status") is None:
        whole["status"] = "completed"
    return whole
