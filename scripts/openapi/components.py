"""The components of the OpenAPI schema that drf-spectacular cannot derive from fields and serializers.

Components for reading name what chat completions document. A message that the site stored itself may have more fields,
and a part or a call may have another type. Components for writing have all that a client without the permission
``convmemory.write_any_role`` may send, if the site allows it. No setting decides what is in the schema.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension, OpenApiSerializerFieldExtension
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework.serializers import BaseSerializer

from django_convmemory.api import conf, serializers
from django_convmemory.api.serializers import base, messages
from django_convmemory.api.serializers.sessions import HitSerializer, ListedSessionSerializer
from django_convmemory.context.wire.anthropic import IMAGE_TYPES
from django_convmemory.context.wire.chat import LONGEST_NAME, REFUSED_IN_NAME
from django_convmemory.messages import ROLES
from scripts.openapi import responses

PREFIX = "ConvMemory"
_STRING: dict[str, Any] = {"type": "string"}


def _object(*required: str, description: str = "", **properties: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema | ({"description": description} if description else {})


def _component(auto_schema: Any, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Add a component with the prefix of this API, unless the schema has it, and return the reference to it."""
    name = f"{PREFIX}{name}"
    kind = ResolvedComponent.SCHEMA
    component = ResolvedComponent(name=name, type=kind, schema=schema, object=name)  # type: ignore[no-untyped-call]
    auto_schema.registry.register_on_missing(component)
    reference: dict[str, Any] = component.ref
    return reference


# Messages as they are read.

_CONTENT_PART = _object(
    "type",
    description="A part of a message's content. It has the field that its `type` names.",
    type=_STRING,
    text=_STRING,
    image_url=_object("url", url=_STRING, detail=_STRING),
    input_audio=_object("data", "format", data=_STRING, format=_STRING),
    file=_object(file_data=_STRING, file_id=_STRING, filename=_STRING),
    refusal=_STRING,
)
_TOOL_CALL = _object(
    "id",
    description="A call of a tool by the model. `arguments` is JSON.",
    id=_STRING,
    type=_STRING,
    function=_object("name", "arguments", name=_STRING, arguments=_STRING),
    custom=_object("name", "input", name=_STRING, input=_STRING),
)


def _chat_message(auto_schema: Any) -> dict[str, Any]:
    parts = {"type": "array", "items": _component(auto_schema, "ContentPart", _CONTENT_PART)}
    calls = {"type": "array", "items": _component(auto_schema, "ToolCall", _TOOL_CALL)}
    message = _object(
        "role",
        description="A message in chat-completions form. Only one of the assistant may lack content.",
        role={"type": "string", "enum": list(ROLES)},
        content={"oneOf": [_STRING, parts], "nullable": True},
        name=_STRING,
        tool_calls=calls,
        tool_call_id=_STRING,
    )
    return _component(auto_schema, "ChatMessage", message)


class _Wire(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    target_class = "scripts.openapi.responses.Wire"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        return _chat_message(auto_schema)


class _ContextMessages(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    target_class = "scripts.openapi.responses.ContextMessages"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        part = auto_schema.resolve_serializer(responses.PartSerializer, direction).ref
        return {"type": "array", "items": {"anyOf": [part, _chat_message(auto_schema)]}}


# Messages as they are written.

# White space in the patterns of JSON Schema is not the same as in Python: these two are missing, and U+FEFF is more.
_MORE_SPACE = r"\x1c-\x1f\x85"
_NOT_BLANK = {"type": "string", "pattern": rf"[^\s{_MORE_SPACE}]|\ufeff"}
_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)"
_IMAGE_ADDRESS = {
    "oneOf": [
        {"type": "string", "pattern": f"^{messages.WEB_ADDRESS.pattern}$", "maxLength": messages.MAX_ADDRESS_LENGTH},
        {"type": "string", "pattern": f"^data:(?:{'|'.join(IMAGE_TYPES)});base64,{_BASE64}$"},
    ]
}
_NAME = {
    "type": "string",
    "maxLength": LONGEST_NAME,
    "pattern": f"^{REFUSED_IN_NAME.pattern.replace('[', f'[^{_MORE_SPACE}', 1)}$",
}
_PAGE_SIZE = {
    "type": "integer",
    "minimum": 1,
    "maximum": 200,
    "description": "The largest number of entries on a page.",
}
_JSON_OBJECT = {"type": "object", "additionalProperties": {}}
for _field, _schema in (
    (messages.Words, _NOT_BLANK),
    (messages.ImageAddress, _IMAGE_ADDRESS),
    (messages.Base64, {"type": "string", "pattern": f"^{_BASE64}$"}),
    (messages.PDF, {"type": "string", "pattern": f"^data:application/pdf;base64,{_BASE64}$"}),
    (messages.FileName, {"type": "string", "maxLength": 255, "pattern": r"^[^\x00-\x1f\x7f]+$"}),
    (messages.Name, _NAME),
    (base.JSONObject, _JSON_OBJECT),
    (base.Metadata, _JSON_OBJECT),
    (base.PageSize, _PAGE_SIZE),
):
    extend_schema_field(_schema)(_field)


class _OneOf(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """In an allOf, because drf-spectacular would join the enumerations of all fields with the same name."""

    target_class = "django_convmemory.api.serializers.messages.OneOf"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        return {"allOf": [{"type": "string", "enum": list(self.target.choices)}]}


def _content(auto_schema: Any, direction: Any, part_types: Sequence[str]) -> dict[str, Any]:
    """Return the schema of content with these types of parts."""
    parts = [auto_schema.resolve_serializer(messages.CONTENT_PARTS[each], direction).ref for each in part_types]
    items = {"oneOf": parts} if len(parts) > 1 else parts[0]
    return {
        "oneOf": [_NOT_BLANK, {"type": "array", "minItems": 1, "items": items}],
        "description": "A string, or a list of content parts of the types that the site allows.",
    }


class _ToolCalls(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    target_class = "django_convmemory.api.serializers.messages.ToolCalls"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        calls = [auto_schema.resolve_serializer(call, direction).ref for call in messages.CALLS.values()]
        return {"type": "array", "minItems": 1, "items": {"oneOf": calls}}


class _NewMessage(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """The fields that a message must have depend on its role."""

    target_class = "django_convmemory.api.serializers.messages.NewMessage"
    priority = 1

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = _without_defaults(auto_schema._map_serializer(self.target, direction, bypass_extensions=True))

        def variant(roles: list[str], *required: str) -> dict[str, Any]:
            others = (
                {"tool_calls", "tool_call_id"} - set(required) - ({"tool_calls"} if roles == ["assistant"] else set())
            )
            properties = {name: field for name, field in schema["properties"].items() if name not in others}
            message_content = _content(auto_schema, direction, conf.CONTENT_PARTS if roles == ["user"] else ["text"])
            if "content" not in required:
                message_content["nullable"] = True
            role = {"allOf": [{"type": "string", "enum": roles}]}
            return {
                "type": "object",
                "properties": properties | {"role": role, "content": message_content},
                "required": ["role", *required],
                "additionalProperties": False,
            }

        return {
            "anyOf": [
                variant(["user"], "content"),
                variant(["system", "developer"], "content"),
                variant(["assistant"], "content"),
                variant(["assistant"], "tool_calls"),
                variant(["tool"], "content", "tool_call_id"),
            ],
            "description": schema.get("description", ""),
        }


class _Question(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """The content may have all types of parts."""

    target_class = "django_convmemory.api.serializers.messages.Question"
    priority = 1

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = _without_defaults(auto_schema._map_serializer(self.target, direction, bypass_extensions=True))
        content = _content(auto_schema, direction, conf.CONTENT_PARTS)
        return schema | {"properties": schema["properties"] | {"content": content}, "additionalProperties": False}


# The other fields and serializers.


class _Alias(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    target_class = "django_convmemory.api.serializers.base.Alias"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        return {"type": "string", "description": "An alias of the setting `CONVMEMORY`."}


class _Code(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    target_class = "scripts.openapi.responses.Code"

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        description = (
            "The kind of the error, for programs: it does not change between releases. Authentication and permission "
            "classes of the site may have codes of their own."
        )
        codes = {"type": "string", "enum": list(self.target.choices), "description": description}
        return _component(auto_schema, self.target.component, codes)


class _Strict(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """The schema says that unknown fields are refused."""

    target_class = "django_convmemory.api.serializers.base.StrictSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return _without_defaults(schema) | {"additionalProperties": False}


def _without_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an input with its defaults in the descriptions.

    Generators of clients take a field with a ``default`` for one that is always there, as it is in a response.
    """
    if "properties" not in schema:
        return schema
    properties = {}
    for name, field in schema["properties"].items():
        if "default" in field:
            described = f"By default {json.dumps(field['default'])}."
            if description := field.get("description"):
                described = f"{description}\n\n{described}"
            field = {key: value for key, value in field.items() if key != "default"} | {"description": described}
        properties[name] = field
    return schema | {"properties": properties}


# With a prefix, because a site may have a component Session of its own.
_modules = [
    responses,
    *(import_module(f"{serializers.__name__}.{module.name}") for module in pkgutil.iter_modules(serializers.__path__)),
]
for _serializer in [value for module in _modules for value in vars(module).values()]:
    if isinstance(_serializer, type) and issubclass(_serializer, BaseSerializer):
        _name = _serializer.__name__.removesuffix("Serializer")
        extend_schema_serializer(component_name=f"{PREFIX}{_name}")(_serializer)

extend_schema_field(responses.PreviewSerializer(allow_null=True))(ListedSessionSerializer.get_last_message)
extend_schema_field(responses.NeighbourSerializer(many=True))(HitSerializer.get_neighbours)
