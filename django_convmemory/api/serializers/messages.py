"""Messages: what a client may store, and which ones it may ask for."""

from __future__ import annotations

import binascii
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail

from django_convmemory.api import conf
from django_convmemory.api.serializers import base
from django_convmemory.content_parts import DATA_URL
from django_convmemory.context.wire.anthropic import IMAGE_TYPES
from django_convmemory.context.wire.chat import LONGEST_NAME, REFUSED_IN_NAME
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import MODEL_KINDS, ROLES, ChatMessage

MAX_ADDRESS_LENGTH = 2048
# How many wrong parts of a message an error lists.
_MAX_WRONG_PARTS = 50
# A host name in ASCII (RFC 3986), because a host of other characters may be read as another one. No user or password.
WEB_ADDRESS = re.compile(r"https://[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:[/?#][^\s\\\x00-\x1f\x7f-\x9f]*)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Content(serializers.JSONField):
    """A string, or a list of content parts: objects with a ``type``."""

    default_error_messages = {"invalid": "The content must be a string, or a list of objects with a type."}

    def to_internal_value(self, data: Any) -> Any:
        parts = isinstance(data, list) and all(
            isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in data
        )
        if not (isinstance(data, str) or parts):
            self.fail("invalid")
        return data


class Name(base.Text):
    """The name of a speaker."""


class OneOf(base.Choice):
    """One of a few strings."""


class ToolCalls(serializers.JSONField):
    """The tool calls of an assistant message: objects with an ``id``. One without an id gets ``call``."""

    default_error_messages = {"invalid": "The tool calls must be a list of objects, each with a string as its id."}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, list) or not all(
            isinstance(call, Mapping) and isinstance(call.get("id") or "", str) for call in data
        ):
            self.fail("invalid")
        return data


class NewMessage(base.StrictSerializer):
    """A message in chat-completions form, with the ``kind`` and ``metadata`` that the site gives it.

    ``id`` may be a UUID that the client has chosen. No other message of the session may have it.
    """

    id = base.MessageId(required=False)
    role = base.Choice(choices=ROLES)
    content = Content(allow_null=True, required=False)
    name = Name(max_length=LONGEST_NAME, required=False)
    tool_calls = ToolCalls(required=False)
    tool_call_id = base.Text(max_length=255, required=False, allow_blank=True)
    kind = base.Text(max_length=32, default="chat")
    metadata = base.Metadata(default=dict)

    def validate(self, attrs: dict[str, Any]) -> Any:
        kind, metadata, message_id = attrs.pop("kind"), attrs.pop("metadata"), attrs.pop("id", None)
        try:
            message = ChatMessage.from_openai(attrs, kind=kind, metadata=metadata)
            message = dataclasses.replace(message, id=message_id) if message_id else message
        except InvalidMessage as error:
            raise serializers.ValidationError(str(error), "invalid_message") from None
        errors = errors_of(message)
        # The permission is asked for last, because that may take two statements.
        if errors and not self.context["view"].may_write_any_role:
            raise serializers.ValidationError(errors)
        return message


class Messages(serializers.ListField):
    """A list of messages. Its length is checked before its entries are."""

    default_error_messages = {
        "too_many_messages": "The request has {count} messages; the limit is {limit}. Send them in several requests.",
    }

    def to_internal_value(self, data: Any) -> Any:
        limit = conf.limits().max_messages
        if isinstance(data, list) and len(data) > limit:
            self.fail("too_many_messages", count=len(data), limit=limit)
        return super().to_internal_value(data)


class NewMessages(base.StrictSerializer):
    """The messages to append: all are stored, or none. ``usage`` is what the provider reported for a reply."""

    messages = Messages(child=NewMessage(), min_length=1)
    usage = base.Metadata(required=False)


class Replacement(NewMessages):
    """The message after which all messages are replaced, by its id, and what takes their place. null: all messages."""

    after = base.MessageId(allow_null=True)


class Question(NewMessage):
    """A message of the user."""

    role = OneOf(choices=["user"], default="user")
    content = Content()
    tool_calls = tool_call_id = None  # type: ignore[assignment]


class NewTurn(base.StrictSerializer):
    """A question, or which stored question to answer: without a field, the newest one that has no reply.

    ``edit`` is the id of the question in whose place ``message`` is put, and in that of all that follows. ``again`` is
    the id of a question that is answered anew: what follows it is replaced.
    """

    message = Question(required=False)
    edit = base.MessageId(required=False)
    again = base.MessageId(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "again" in attrs and len(attrs) > 1:
            raise serializers.ValidationError({"again": ["Send neither a message nor edit with again."]})
        if "edit" in attrs and "message" not in attrs:
            raise serializers.ValidationError({"message": ["Send the message that is put in the place of the other."]})
        return attrs


class MessageChanges(base.StrictSerializer):
    """What the owner of a session may change of a message."""

    metadata = base.Metadata(required=False)


class Redaction(base.StrictSerializer):
    """Whether to redact the message in copies of the session too."""

    forks = base.Flag(default=True)


class MessageQuery(base.PageQuery):
    """The bounds and the order of a list of messages. The source of a bound is its lookup."""

    after = base.QueryNumber(required=False, source="position__gt")
    before = base.QueryNumber(required=False, source="position__lt")
    ordering = base.Choice(choices=["position", "-position"], default="position")


# What a client may put into a message without the permission to write any role.
#
# A provider gets the content of a message as it was stored. So a part has a type that the site allows, and exactly the
# fields that the reference of chat completions documents for this type. The field ``file_id`` is missing: it would name
# a file in the site's account with the provider, which may be somebody else's.


class Words(base.Text):
    """A text with more than white space."""

    default_error_messages = {"empty_content": "The text is empty. Send a text, or leave the part out."}

    def run_validation(self, data: Any = serializers.empty) -> Any:
        if isinstance(data, str) and (not data or data.isspace()):
            self.fail("empty_content")
        return super().run_validation(data)


class ImageAddress(base.Text):
    """The address of an image: an https address, or a data URL of an image type that providers take."""

    default_error_messages = {
        "address_not_allowed": (
            "An image needs an address that begins with https:// and has at most {length} characters, or a data URL "
            "in base64 with one of these types: {types}."
        )
    }

    def check(self, text: str) -> None:
        is_web_address = len(text) <= MAX_ADDRESS_LENGTH and WEB_ADDRESS.fullmatch(text)
        if not is_web_address and not _is_data_url(text, IMAGE_TYPES):
            self.fail("address_not_allowed", length=MAX_ADDRESS_LENGTH, types=", ".join(IMAGE_TYPES))


class Base64(base.Text):
    """Bytes in base64 (RFC 4648) with its padding."""

    default_error_messages = {"not_base64": "The value must be base64, with its padding and without line breaks."}

    def check(self, text: str) -> None:
        if not _is_base64(text):
            self.fail("not_base64")


class PDF(base.Text):
    """A data URL of a PDF file."""

    default_error_messages = {"not_a_pdf": "The file must be a data URL: data:application/pdf;base64,…"}

    def check(self, text: str) -> None:
        if not _is_data_url(text, ("application/pdf",)):
            self.fail("not_a_pdf")


class FileName(base.Text):
    """The name of a file, in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_length": 255, **options})

    def check(self, text: str) -> None:
        if _CONTROL.search(text):
            self.fail("invalid")


class TextPart(base.StrictSerializer):
    """A text."""

    type = OneOf(choices=["text"])
    text = Words()


class ImageURL(base.StrictSerializer):
    """The address of an image, and how closely the model looks at it."""

    url = ImageAddress()
    detail = OneOf(choices=["auto", "low", "high"], required=False)


class ImagePart(base.StrictSerializer):
    """An image."""

    type = OneOf(choices=["image_url"])
    image_url = ImageURL()


class Audio(base.StrictSerializer):
    """A recording."""

    data = Base64()  # type: ignore[assignment]
    format = OneOf(choices=["wav", "mp3"])


class AudioPart(base.StrictSerializer):
    """A recording of speech."""

    type = OneOf(choices=["input_audio"])
    input_audio = Audio()


class File(base.StrictSerializer):
    """A file with its content."""

    file_data = PDF()
    filename = FileName(required=False)


class FilePart(base.StrictSerializer):
    """A file that the model reads."""

    type = OneOf(choices=["file"])
    file = File()


class CalledFunction(base.StrictSerializer):
    """The function that a model calls, and its arguments as JSON."""

    name = base.Text(max_length=64)
    arguments = base.Text(allow_blank=True)


class FunctionCall(base.StrictSerializer):
    """A call of a function."""

    id = base.Text()
    type = OneOf(choices=["function"])
    function = CalledFunction()


class CustomTool(base.StrictSerializer):
    """The custom tool that a model calls, and its input."""

    name = base.Text(max_length=64)
    input = base.Text(allow_blank=True)


class CustomCall(base.StrictSerializer):
    """A call of a custom tool."""

    id = base.Text()
    type = OneOf(choices=["custom"])
    custom = CustomTool()


# By the type of the part, and of the call.
CONTENT_PARTS: Mapping[str, type[base.StrictSerializer]] = {
    "text": TextPart,
    "image_url": ImagePart,
    "input_audio": AudioPart,
    "file": FilePart,
}
CALLS: Mapping[str, type[base.StrictSerializer]] = {"function": FunctionCall, "custom": CustomCall}


def errors_of(message: ChatMessage) -> dict[str, Any]:
    """Return why a client without the permission may not store ``message``, by field, as DRF's errors are; or {}."""
    errors: dict[str, Any] = {}
    if content := _errors_of_content(message):
        errors["content"] = content
    if message.name is not None and REFUSED_IN_NAME.search(message.name):
        errors["name"] = [ErrorDetail("A name has no spaces, line breaks, or any of < | \\ / >.", "invalid_name")]
    if message.role != "assistant" and message.kind in MODEL_KINDS:
        detail = f"Only messages of the assistant have the kinds {', '.join(sorted(MODEL_KINDS))}."
        errors["kind"] = [ErrorDetail(detail, "kind_not_allowed")]
    detail = f"The type of a call is one of these: {', '.join(CALLS)}."
    if calls := _numbered(_errors_by_type(call, CALLS, detail, "invalid_choice") for call in message.tool_calls):
        errors["tool_calls"] = calls
    if "tool_calls" in message.extra:
        errors["tool_calls"] = [ErrorDetail("The list is empty. Leave tool_calls out.", "empty")]
    return errors


def _errors_of_content(message: ChatMessage) -> Any:
    content = message.content
    is_blank = isinstance(content, str) and content.isspace()
    if (is_blank or not content) and not message.tool_calls:
        return [ErrorDetail("The message has no content. Send a text with more than white space.", "empty_content")]
    if isinstance(content, str) or content is None:
        return None
    # The reference has the other types for user messages only.
    names = [name for name in conf.limits().content_parts if name == "text" or message.role == "user"]
    allowed = {name: CONTENT_PARTS[name] for name in names}
    allowed_types = ", ".join(names) or "none: send the content as a string"
    detail = f"Parts of this type are not allowed here. Allowed types: {allowed_types}."
    return _numbered(_errors_by_type(part, allowed, detail, "content_part_not_allowed") for part in content)


def _errors_by_type(
    value: Mapping[str, Any], allowed: Mapping[str, type[base.StrictSerializer]], detail: str, code: str
) -> Any:
    """Return what is wrong with a part or a call. ``detail`` and ``code`` are those for a type that is not allowed."""
    if not isinstance(value.get("type"), str) or value["type"] not in allowed:
        return {"type": [ErrorDetail(detail, code)]}
    try:
        _instance(allowed[value["type"]]).run_validation(value)
    except serializers.ValidationError as error:
        return error.detail
    return None


@functools.cache
def _instance(serializer_class: type[base.StrictSerializer]) -> base.StrictSerializer:
    """Return the one instance that checks all parts of a type. To make one takes longer than to check a part."""
    return serializer_class()


def _numbered(errors: Iterator[Any]) -> dict[int, Any]:
    """Return the errors of each entry that has some, by its index."""
    return dict(itertools.islice(((index, error) for index, error in enumerate(errors) if error), _MAX_WRONG_PARTS))


def _is_data_url(text: str, types: tuple[str, ...]) -> bool:
    match = DATA_URL.fullmatch(text)
    return match is not None and match[1] in types and _is_base64(match[2])


def _is_base64(text: str) -> bool:
    if len(text) % 4:  # Python accepts too much padding.
        return False
    try:
        return bool(binascii.a2b_base64(text, strict_mode=True))
    except ValueError:  # Other characters, or wrong padding.
        return False
