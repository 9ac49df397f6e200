"""The requests and the code of docs/reference/api.md work as the page says."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any, get_args

import pytest
from django.core.checks.registry import registry
from rest_framework.test import APIClient

from django_convmemory import exceptions
from django_convmemory.api import conf, throttles, urls
from scripts.openapi import responses
from tests.api.conftest import ROOT

PAGE = (pathlib.Path(__file__).parent.parent.parent / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
REQUESTS = re.findall(r"```http\n(\w+) (\S+) HTTP/1.1\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def names_of(block: int) -> dict[str, Any]:
    """Run a block of the page's Python, and return its names."""
    namespace: dict[str, Any] = {}
    exec(PYTHON[block], namespace)  # noqa: S102
    return namespace


def ask(turn: Any) -> str:
    return "In a hotel."


@pytest.mark.django_db
def test_the_requests_of_the_page_succeed_in_order(api: APIClient, settings: Any) -> None:
    known: dict[str, str] = {}
    statuses = []
    # What the page's responder would ask is a model.
    settings.CONVMEMORY_API = {"RESPONDER": f"{__name__}.ask"}
    for method, path, rest in REQUESTS:
        headed, _, body = rest.partition("\n\n") if not rest.startswith("\n") else ("", "", rest)
        headers = dict(line.split(": ", 1) for line in headed.strip().splitlines())
        headers = {name: value.replace("{etag}", known.get("etag", "")) for name, value in headers.items()}
        path = path.replace("{id}", known.get("id", "")).replace("{message}", known.get("message", ""))
        body = body.replace("{message}", known.get("message", ""))
        response = api.generic(method, path, body.strip(), content_type="application/json", headers=headers)
        statuses.append(response.status_code)
        known.setdefault("id", response.json()["id"] if statuses == [201] else "")
        if method == "POST" and isinstance(response.json().get("messages"), list):
            known["message"] = response.json()["messages"][0]["id"]
        known["etag"] = response.headers.get("ETag", known.get("etag", ""))
    assert statuses == [201, 201, 200, 200, 201, *[200] * 3, 304, 200, 200, 201, 201]


@pytest.mark.django_db(transaction=True)
def test_the_page_shows_what_a_turn_returns(api: APIClient, settings: Any) -> None:
    settings.CONVMEMORY_API = {"RESPONDER": f"{__name__}.ask"}
    session = api.post(ROOT, {}).json()["url"]
    api.post(f"{session}messages/", {"messages": [{"role": "user", "content": "Hi"}]})
    answer = api.post(f"{session}turns/", {"message": {"content": "And where do we sleep?"}})
    [(tag, shown)] = re.findall(r"```http\nHTTP/1.1 201 Created\nETag: (.*?)\n\n(.*?)```", PAGE, re.DOTALL)
    assert re.fullmatch(re.sub(r"\d+", r"\\d+", tag), answer["ETag"])
    assert contains(answer.json(), json.loads(shown))


def contains(value: Any, shown: Any) -> bool:
    """Whether a value has what a shortened one shows."""
    if isinstance(shown, dict):
        return all(contains(value[name], shown[name]) for name in shown)
    if isinstance(shown, list):
        return len(value) == len(shown)
    return shown in ("…", value)


def test_the_page_names_every_address() -> None:
    table = PAGE.replace("`…/rebuild/`", "`sessions/{id}/rebuild/`")
    for pattern in urls.urlpatterns:
        address = re.sub(r"<str:(\w+)>", r"{\1}", str(pattern.pattern)).replace("{session_id}", "{id}")
        assert f"`{address}`" in table, address


def test_the_page_names_every_setting() -> None:
    defaults = conf.Limits()
    for key in map(str.upper, conf.TYPES):
        assert f"`{key}`" in PAGE
    assert f"{defaults.max_body_bytes:,}".replace(",", " ") in PAGE
    assert f'"{defaults.scope}"' in PAGE


def test_the_page_shows_the_form_of_every_part() -> None:
    limits, table = conf.Limits(content_parts=conf.CONTENT_PARTS), PAGE.split("| type ")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` +\| `\"", table, re.MULTILINE) == list(limits.content_parts)
    for part_type in limits.content_parts:
        assert f'| `"{part_type}": ' in table


def test_the_page_names_every_code() -> None:
    """The table has the codes of the schema and no others, each with its status."""
    section = PAGE.split("\n## Errors")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) +\| +([\d, ]+) \|", section, re.MULTILINE)
    named = {code for row, _ in rows for code in re.findall(r"`(\w+)`", row)}
    # The serializers refuse these first.
    assert named | {"invalid_argument", "unknown_alias"} == set(get_args(responses.ProblemCode))
    for error in vars(exceptions).values():
        if isinstance(error, type) and issubclass(error, exceptions.ConvMemoryError) and error.code in named:
            assert any(f"`{error.code}`" in row and str(error.status) in statuses for row, statuses in rows), error


def test_the_settings_of_the_page(settings: Any) -> None:
    settings.CONVMEMORY_API = names_of(6)["CONVMEMORY_API"]
    assert conf.check_settings() == []
    assert conf.limits().aliases == ("default",)


def test_the_rates_of_the_page() -> None:
    """The page names every rate, with its default where it has one."""
    [code] = [code for code in PYTHON if "DEFAULT_THROTTLE_RATES" in code]
    pattern = r'^ +"(convmemory_\w+)": "[^"]+",  # .*?(by default no limit|this is the default)$'
    rates = dict(re.findall(pattern, code, re.MULTILINE))
    classes = [each for each in vars(throttles).values() if getattr(each, "scope", None) in rates]
    assert rates.keys() == {getattr(each, "scope", None) for each in vars(throttles).values()} - {None}
    given = names_of(PYTHON.index(code))["REST_FRAMEWORK"]["DEFAULT_THROTTLE_RATES"]
    for each in classes:
        default = each.default
        assert rates[each.scope] == ("by default no limit" if default is None else "this is the default")
        assert default in (None, given[each.scope])


def test_the_urls_of_the_page() -> None:
    assert names_of(0)["urlpatterns"]


WRONG: list[tuple[Any, str]] = [
    ([], "must be a dict"),
    ({"SCOPES": "x"}, "unknown key 'SCOPES'. Did you mean SCOPE?"),
    ({"responder": "x"}, "unknown key 'responder'. Did you mean RESPONDER?"),
    ({"MODEL": "x"}, "unknown key 'MODEL'. The keys are SCOPE, ALIASES, "),
    ({"SCOPE": 7}, "SCOPE must be str"),
    ({"SCOPE": "nowhere.Scope"}, "SCOPE names 'nowhere.Scope', but: No module named 'nowhere'. Write its whole path"),
    ({"ALIASES": "default"}, "ALIASES must be a list of strings"),
    ({"WRITABLE_ROLES": ["king"]}, "WRITABLE_ROLES has the unknown role 'king'"),
    ({"CONTENT_PARTS": ["text", "bogus"]}, "CONTENT_PARTS has the unknown type 'bogus'"),
    ({"CONTENT_PARTS": "text"}, "CONTENT_PARTS must be a list of strings"),
    ({"MAX_MESSAGE_TOKENS": 0}, "MAX_MESSAGE_TOKENS must be at least 1"),
    ({"MAX_MESSAGE_TOKENS": "many"}, "MAX_MESSAGE_TOKENS must be int or None"),
    ({"WRITABLE_ROLES": None}, "WRITABLE_ROLES must be a list of strings"),
    ({"PERMISSION_CLASSES": ["a.b"]}, "PERMISSION_CLASSES names 'a.b', but: No module named 'a'"),
    ({"AUTHENTICATION_CLASSES": ["Basic"]}, "AUTHENTICATION_CLASSES names 'Basic', but: Basic doesn't look like"),
    ({"AUTHENTICATION_CLASSES": [1]}, "AUTHENTICATION_CLASSES must be a list of strings"),
    ({"MAX_MESSAGES": 0}, "MAX_MESSAGES must be at least 1"),
    ({"MAX_MESSAGES": "7"}, "MAX_MESSAGES must be int"),
    ({"MAX_PAGE_SIZE": True}, "MAX_PAGE_SIZE must be int"),
    ({"RESPONDER": 7}, "RESPONDER must be str or None"),
    ({"RESPONDER": "nowhere.ask"}, "RESPONDER names 'nowhere.ask', but: No module named 'nowhere'"),
    ({"RESPONDER": f"{__name__}.PAGE"}, "RESPONDER must name a function"),
    ({"RESPONDER_OPTIONS": ["system"]}, "must be a dict or the path of a function"),
    ({"RESPONDER_OPTIONS": {"sytem": "x"}}, "unknown key 'sytem'. The keys are system, max_tokens, recall"),
    ({"RESPONDER_OPTIONS": "nowhere.options"}, "RESPONDER_OPTIONS names 'nowhere.options', but: No module"),
]


@pytest.mark.parametrize(("value", "message"), WRONG, ids=str)
def test_a_check_reports_what_is_wrong_with_the_settings(value: Any, message: str, settings: Any) -> None:
    settings.CONVMEMORY_API = value
    [error] = conf.check_settings()
    assert (error.id, message in error.msg) == ("convmemory.E010", True)
    assert conf.check_settings in registry.registered_checks
