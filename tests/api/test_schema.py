"""The schema is current, generates no warnings, and describes the responses correctly."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import re
import sys
import uuid
from typing import Any, get_args

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer
from rest_framework.exceptions import ValidationError
from rest_framework.fields import Field
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api import conf, openapi
from django_convmemory.api.serializers import messages
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from scripts.openapi import responses
from scripts.openapi.schema import generate
from tests import processes
from tests.api import test_content, test_hard_input
from tests.api.conftest import FIRST, ROOT, messages_body, url_of

FOLDER = pathlib.Path(__file__).parent
# The number of examples for each endpoint. 200 examples give about 10 000 cases.
EXAMPLES = int(os.environ.get("CONVMEMORY_TEST_EXAMPLES", "10"))


def shipped() -> dict[str, Any]:
    schema: dict[str, Any] = yaml.safe_load(openapi.PATH.read_text(encoding="utf-8"))
    return schema


def conversations(owner: User, count: int) -> list[uuid.UUID]:
    """Create folded conversations and return their public ids."""
    session = memories["default"].session("0", owner=owner)
    for number in range(12):
        session.append(ChatMessage.human(f"Question {number}. " + "word " * 20), ChatMessage.ai(f"Answer {number}."))
    return [session.fork(24, key=str(number)).public_id for number in range(1, count + 1)]


def test_the_schema_of_the_package_is_current() -> None:
    assert openapi.PATH.read_text(encoding="utf-8") == generate(), "Run 'make schema'."


def test_every_operation_has_a_unique_name() -> None:
    names = [operation["operationId"] for path in shipped()["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) == 27
    assert all(name.startswith("convmemory_") for name in names)


def components() -> dict[str, Any]:
    schemas: dict[str, Any] = shipped()["components"]["schemas"]
    return schemas


def test_no_component_of_the_api_replaces_one_of_the_site() -> None:
    assert all("ConvMemory" in name for name in components())


def test_no_input_has_a_default_that_generators_take_for_a_required_field() -> None:
    schemas = components()
    inputs = {name: schema for name, schema in schemas.items() if schema.get("additionalProperties") is False}
    assert {"ConvMemoryNewSession", "ConvMemoryRedaction", "ConvMemoryTextPart"} <= set(inputs)
    assert "'default'" not in str([*inputs.values(), schemas["ConvMemoryNewMessage"]])
    assert "required" not in schemas["ConvMemoryNewSession"]


def test_every_page_has_both_of_its_neighbours() -> None:
    pages = [schema for name, schema in components().items() if name.startswith("Paginated")]
    assert len(pages) == 4
    assert all({"next", "previous", "results"} <= set(page["required"]) for page in pages)


def test_what_a_page_renders_is_typed() -> None:
    schemas = components()
    message = schemas["ConvMemoryChatMessage"]["properties"]
    assert message["role"]["$ref"].endswith("/ConvMemoryRoleEnum")
    assert message["content"]["oneOf"][1]["items"]["$ref"].endswith("/ConvMemoryContentPart")
    assert message["tool_calls"]["items"]["$ref"].endswith("/ConvMemoryToolCall")
    for component, field in (("Message", "message"), ("Neighbour", "message"), ("Part", "message")):
        assert schemas[f"ConvMemory{component}"]["properties"][field]["$ref"].endswith("/ConvMemoryChatMessage")
    assert set(schemas["ConvMemoryStatus"]["properties"]["lag"]["properties"]) == {"messages", "tokens"}
    for component in ("Session", "Message", "Neighbour"):
        assert schemas[f"ConvMemory{component}"]["properties"]["metadata"]["type"] == "object"
    for component, known in (("ProblemCode", responses.ProblemCode), ("ValueCode", responses.ValueCode)):
        assert schemas[f"ConvMemory{component}"]["enum"] == list(get_args(known))


def test_the_schema_has_every_type_of_part() -> None:
    assert {f"ConvMemory{part.__name__}" for part in messages.CONTENT_PARTS.values()} <= components().keys()


# Valid and not valid by the patterns of the schema, and by the server.
@pytest.mark.parametrize(
    ("field", "valid", "refused"),
    [
        (messages.ImageAddress(), ["https://a.example/b?c#d", "data:image/gif;base64,AAAA"], ["http://a", "https://"]),
        (messages.Base64(), ["AAAA", "AA==", "AAAAAAA="], ["", "AAA", "AAAA=", "A A="]),
        (messages.PDF(), ["data:application/pdf;base64,AAA="], ["AAAA", "data:application/pdf;base64,"]),
        (messages.FileName(), ["a b.pdf"], ["a\nb", "", "x" * 256]),
        (messages.Words(), [" a ", "\ufeff"], ["", " \t", "\x1f\x85"]),
        (messages.Name(), ["Anna-Lee"], ["Anna Lee", "a<b", "a\x1fb", "a\x85b", "a\ufeffb", "", "x" * 65]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Field) else None,
)
def test_the_patterns_of_the_schema_are_those_of_the_server(
    field: Field[Any, Any, Any, Any], valid: list[str], refused: list[str]
) -> None:
    schema: Any = field._spectacular_annotation["field"]  # type: ignore[attr-defined]
    validator = jsonschema.Draft202012Validator(schema)
    for value in valid:
        assert field.run_validation(value) == value
        assert validator.is_valid(value)
    for value in refused:
        assert not validator.is_valid(value)
        if not isinstance(field, messages.Name):  # The server asks first whether the client has the permission.
            with pytest.raises(ValidationError):
                field.run_validation(value)


# The codes of values that no other test lists, each with a request that gets it.
OTHER_VALUES: dict[str, tuple[str, Any]] = {
    "blank": ("fork/", {"at": FIRST, "key": ""}),
    "max_value": (f"messages/?after={2**53}", None),
    "message_too_large": ("messages/", messages_body("word " * 9000)),
    "min_value": ("messages/?after=-1", None),
    "null_characters_not_allowed": ("fork/", {"at": FIRST, "key": "\0"}),
    "out_of_range": ("messages/?limit=0", None),
    "overflow": ("?created_after=9999-12-31T23:59:59-23:00", None),
    "unknown_alias": ("?alias=nobody", None),
}


def test_every_code_of_a_value_occurs(api: APIClient, chat: SessionHandle) -> None:
    listed = {code for _, code, _ in (*test_hard_input.MESSAGES, *test_content.NEVER)}
    assert listed | OTHER_VALUES.keys() == set(get_args(responses.ValueCode))
    for code, (path, body) in OTHER_VALUES.items():
        url = f"{ROOT}{path}" if path.startswith("?") else url_of(chat, path)
        response = api.get(url) if body is None else api.post(url, body)
        assert code in {error["code"] for error in response.json()["errors"]}, (code, response.json())


@pytest.mark.only_on("postgresql")
def test_responses_match_the_schema(
    live_server: LiveServer,
    settings: Any,
    tmp_path: pathlib.Path,
    record_property: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "django.request")
    settings.CONVMEMORY_API = {
        "AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"],
        "CONTENT_PARTS": list(conf.CONTENT_PARTS),
    }
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": {"convmemory_model": None}}
    settings.CONVMEMORY = {
        "default": settings.CONVMEMORY["default"]
        | {"SCHEDULER": {"BACKEND": "django_convmemory.scheduling.InlineScheduler"}}
    }
    anna = User.objects.create_user("anna", password="pw")
    User.objects.create_user("berta", password="pw")
    schema, config = tmp_path / "openapi.yaml", tmp_path / "schemathesis.toml"
    described = shipped()
    described["components"]["securitySchemes"] = {"basicAuth": {"type": "http", "scheme": "basic"}}
    schema.write_text(yaml.safe_dump(described | {"security": [{"basicAuth": []}]}))
    session_ids = json.dumps([str(public_id) for public_id in conversations(anna, 200)])
    config.write_text(
        (FOLDER / "schemathesis.toml").read_text() + f"\n[dictionaries.sessions]\nvalues = {session_ids}\n"
    )
    done = processes.run(
        [
            pathlib.Path(sys.executable).with_name("st"),
            *("--config-file", config),
            *(
                "run",
                schema,
                "--url",
                f"{live_server.url}/api/memory",
                "--checks",
                "all",
                "--max-examples",
                str(EXAMPLES),
            ),
            *("--workers", "1", "--no-color"),
            *(["--generation-deterministic"] if os.environ.get("CI") else []),
        ],
        tmp_path,
        os.environ | {"SCHEMATHESIS_HOOKS": str(FOLDER / "schemathesis_hooks.py")},
    )
    cases = re.search(r"(\d+) generated", done.stdout)
    record_property("cases against the schema", cases.group(1) if cases else "?")
    if done.returncode:
        pytest.fail(done.stdout, pytrace=False)
    assert list(integrity.check(models.Session.objects.all())) == []
