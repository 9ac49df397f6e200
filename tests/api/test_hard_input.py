"""Input that is not valid. The API refuses it with a problem document and writes nothing."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.http import QueryDict
from rest_framework.test import APIClient

from django_convmemory.api import problems
from django_convmemory.operations.handles import SessionHandle
from tests.api.conftest import FIRST, NO_MESSAGE, ROOT, messages_body, row_of, url_of
from tests.api.test_owners import dump_tables

SEARCH = "/api/memory/search/"
DEEP = "[" * 100_000 + "]" * 100_000


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def assert_problem(response: Any, status: int, code: str, pointer: str | None = None) -> None:
    assert response.status_code == status, response.content[:500]
    assert response["Content-Type"] == problems.MEDIA_TYPE
    problem = response.json()
    assert problem["status"] == status
    assert problem["type"].endswith(problem["code"])
    assert problem["title"]
    assert problem["detail"]
    codes = {error["code"] for error in problem.get("errors", [])} | {problem["code"]}
    assert code in codes, problem
    if pointer is not None:
        assert pointer in {error["pointer"] for error in problem["errors"]}, problem


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "required"),
        (b"{", 400, "parse_error"),
        (b"\xff\xfe", 400, "parse_error"),
        (b'{"messages": [{"role": "user", "content": NaN}]}', 400, "parse_error"),
        (b'{"messages": [{"role": "user", "content": Infinity}]}', 400, "parse_error"),
        (f'{{"messages": {DEEP}}}'.encode(), 400, "parse_error"),
        (b'{"messages": [{"role": "user", "metadata": {"n": ' + b"9" * 5000 + b"}}]}", 400, "parse_error"),
        (b'{"messages": "' + b"x" * (10 * 1024 * 1024) + b'"}', 413, "body_too_large"),
        (b'{"messages": [{"role": "user", "content": "half a \\ud800 pair"}]}', 400, "parse_error"),
        (b'{"\\ud800": 1}', 400, "parse_error"),
        (b"[]", 400, "invalid"),
        (b"null", 400, "invalid"),
        (b'"text"', 400, "invalid"),
        (b"1e999", 400, "invalid"),
    ],
    ids=lambda value: value[:40].decode(errors="replace") if isinstance(value, bytes) else None,
)
def test_bodies_that_are_not_valid(api: APIClient, chat: SessionHandle, body: bytes, status: int, code: str) -> None:
    before = dump_tables()
    response = api.generic("POST", url_of(chat, "messages/"), body, content_type="application/json")  # type: ignore[arg-type]
    assert_problem(response, status, code)
    assert dump_tables() == before


def test_a_body_above_the_limit_is_refused(api: APIClient, chat: SessionHandle, settings: Any) -> None:
    settings.CONVMEMORY_API = {"MAX_BODY_BYTES": 100}
    assert_problem(api.post(url_of(chat, "messages/"), messages_body("x" * 100)), 413, "body_too_large")
    assert api.post(url_of(chat, "messages/"), messages_body("x")).status_code == 201


def test_a_body_without_a_length_is_refused(api: APIClient, chat: SessionHandle) -> None:
    chunked: dict[str, Any] = {"wsgi.input": io.BytesIO(b'{"forks": false}'), "HTTP_TRANSFER_ENCODING": "chunked"}
    assert_problem(api.generic("POST", url_of(chat, f"messages/{FIRST}/redact/"), **chunked), 411, "length_required")
    assert row_of(chat).revision == 1


def test_at_most_50_errors_are_listed(api: APIClient, chat: SessionHandle) -> None:
    for body in ({"messages": [0] * 100}, {f"x{number}": 1 for number in range(1000)}):
        response = api.post(url_of(chat, "messages/"), body)
        assert response.status_code == 400
        assert len(response.json()["errors"]) <= 50
    # The messages are counted before each is validated.
    assert_problem(api.post(url_of(chat, "messages/"), {"messages": [0] * 101}), 400, "too_many_messages")


@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=x", "application/xml", ""])
def test_a_body_that_is_not_json_is_refused(api: APIClient, chat: SessionHandle, content_type: str) -> None:
    response = api.generic("POST", url_of(chat, "messages/"), json.dumps(messages_body("x")), content_type=content_type)
    assert_problem(response, 415, "unsupported_media_type")


def test_an_empty_form_is_refused(api: APIClient, chat: SessionHandle) -> None:
    """A page of another site can make a browser send such a form."""
    form = "application/x-www-form-urlencoded"
    response = api.generic("POST", url_of(chat, "clear/"), CONTENT_TYPE=form, content_type=form)
    assert_problem(response, 415, "unsupported_media_type")
    assert row_of(chat).last_position == 2


FINE = {"role": "user", "content": "fine"}
MESSAGES: list[tuple[Any, str, str]] = [
    ({}, "required", "/messages"),
    ({"messages": []}, "min_length", "/messages"),
    ({"messages": {}}, "not_a_list", "/messages"),
    ({"messages": ["text"]}, "invalid", "/messages/0"),
    ({"messages": [{"content": "x"}]}, "required", "/messages/0/role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "invalid_choice", "/messages/0/role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "invalid_choice", "/messages/0/role"),
    ({"messages": [{"role": "user", "content": 7}]}, "invalid", "/messages/0/content"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "invalid", "/messages/0/content"),
    ({"messages": [{"role": "user", "content": "x", "naem": "y"}]}, "unknown_field", "/messages/0/naem"),
    ({"messages": [{"role": "user", "content": "x", "name": 7}]}, "invalid", "/messages/0/name"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": "no"}]}, "invalid", "/messages/0/tool_calls"),
    ({"messages": [{"role": "user", "content": "x", "kind": "k" * 33}]}, "max_length", "/messages/0/kind"),
    ({"messages": [{"role": "user", "content": "x", "metadata": 7}]}, "not_an_object", "/messages/0/metadata"),
    ({"messages": [{"role": "user", "content": "x", "metadata": nested(9)}]}, "too_deep", "/messages/0/metadata"),
    ({"messages": [{"role": "user", "content": "x", "metadata": {"a": "\0"}}]}, "unstorable", "/messages/0/metadata"),
    ({"messages": [{"role": "user", "content": "x"}] * 101}, "too_many_messages", "/messages"),
    ({"messages": [{"role": "user", "content": "x", "metadata": {"a": "x" * 20_000}}]}, "too_large", ""),
    ({"messages": [{"role": "user", "content": "x"}], "position": 7}, "unknown_field", "/position"),
    # What no store accepts, after a message that all of them accept.
    ({"messages": [FINE, {"role": "user", "content": "a\0b"}]}, "invalid_message", ""),
    ({"messages": [FINE, {"role": "user", "content": None}]}, "invalid_message", ""),
    ({"messages": [FINE, {"role": "user"}]}, "invalid_message", ""),
    ({"messages": [FINE, {"role": "user", "content": "x", "tool_call_id": "c"}]}, "invalid_message", ""),
    ({"messages": [FINE, {"role": "user", "content": "x", "tool_calls": [{"id": "c"}]}]}, "invalid_message", ""),
    ({"messages": [FINE, {"role": "user", "content": [{"type": "text", "text": "\0"}]}]}, "invalid_message", ""),
    ({"messages": [FINE, {"role": "user", "content": [{"type": "x", "deep": nested(70)}]}]}, "invalid_message", ""),
]


@pytest.mark.parametrize(("body", "code", "pointer"), MESSAGES, ids=lambda value: str(value)[:60])
def test_messages_that_are_not_valid(api: APIClient, chat: SessionHandle, body: Any, code: str, pointer: str) -> None:
    before = dump_tables()
    assert_problem(api.post(url_of(chat, "messages/"), body), 400, code, pointer or None)
    assert dump_tables() == before


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("truncate/", {}, "/after"),
        ("truncate/", {"after": "1"}, "/after"),
        ("truncate/", {"after": True}, "/after"),
        ("truncate/", {"after": 1}, "/after"),
        ("fork/", {"at": None}, "/at"),
        ("truncate/", {"after": FIRST, "before": 2}, "/before"),
        ("fork/", {"at": FIRST, "key": "k" * 256}, "/key"),
        ("fork/", {"at": FIRST, "key": "a\0b"}, "/key"),
        (f"messages/{FIRST}/redact/", {"forks": 1}, "/forks"),
        ("clear/", {"all": True}, "/all"),
        ("compact/", {"now": True}, "/now"),
        ("rebuild/", {"x": 1}, "/x"),
        ("fork/", {"at": FIRST, "title": "t" * 256}, "/title"),
        ("replace/", {"messages": [{"role": "user", "content": "x"}]}, "/after"),
        ("replace/", {"after": FIRST, "messages": []}, "/messages"),
    ],
    ids=str,
)
def test_actions_with_a_wrong_body(api: APIClient, chat: SessionHandle, path: str, body: Any, pointer: str) -> None:
    before = dump_tables()
    response = api.post(url_of(chat, path), body, headers={"If-Match": "*"})
    assert pointer in {error["pointer"] for error in response.json()["errors"]}
    assert response.status_code == 400
    assert dump_tables() == before


@pytest.mark.parametrize(
    "body",
    [
        {"key": ""},
        {"key": 7},
        {"key": "a\0b"},
        {"title": "t" * 256},
        {"title": None},
        {"metadata": []},
        {"metadata": nested(9)},
        {"metadata": {"a": 1e308, "b": "\0"}},
        {"alias": "nobody"},
        {"alias": ["default"]},
        {"state": "due"},
        {"owner": 1},
    ],
    ids=lambda body: ascii(body)[:60],
)
def test_sessions_that_are_not_valid(api: APIClient, chat: SessionHandle, body: Any) -> None:
    before = dump_tables()
    for method, url in (("POST", ROOT), ("PATCH", url_of(chat))):
        if method == "PATCH" and body.keys() & {"key", "alias"}:
            continue
        response = api.generic(method, url, json.dumps(body), content_type="application/json")
        assert_problem(response, 400, "invalid")
    assert dump_tables() == before


SEARCHES = [
    *("", "q=", "q=%00", "q=a&q=b", "q=a&limit=0", "q=a&limit=201", "q=a&neighbours=11", "q=a&neighbours=-1"),
    *("q=a&neighbours=x", "query=a", "q=a&owner=1", "q=a&visitor=x", "q=a&offset=3"),
]
QUERIES = {
    "": [
        *("limit=0", "limit=-1", "limit=x", "limit=201", "limit=1&limit=2", "limit=%00", "limit=٣", "limit=1e1"),
        *(
            "state=sleeping",
            "created_after=yesterday",
            "created_before=2026-01-01",
            "updated_after=2026-01-01T00:00:00",
        ),
        *("archived=yes", "starred=1", "key=", "key=%00"),
        *("ordering=owner__password", "ordering=", "search=", "search=%00", "alias=nobody", "owner=1", "seach=x"),
        *("created_after=9999-12-31T23:59:59-23:00", "updated_before=0001-01-01T00:00:00%2B23:00"),
    ],
    "messages/": ["after=-1", "after=x", "before=99999999999999999999", "after=1.5", "ordering=created", "page=2"],
    "context/": [
        *("max_tokens=-1", "max_tokens=x", "max_tokens=9007199254740992", "format=xml", "explain=1", "system=x"),
    ],
    "summaries/": ["after=1", "limit=x"],
    "export/": ["format=csv"],
    "search/": [*SEARCHES, "q=a&before=-1", "q=a&after=x", "q=a&after=1.5", "q=a&alias=default"],
    SEARCH: [*SEARCHES, "q=a&before=1", "q=a&after=1", "q=a&alias=nobody"],
}


@pytest.mark.parametrize(("path", "query"), [(path, query) for path, queries in QUERIES.items() for query in queries])
def test_queries_that_are_not_valid(api: APIClient, chat: SessionHandle, path: str, query: str) -> None:
    url = path if path == SEARCH else url_of(chat, path) if path else ROOT
    assert_problem(api.get(f"{url}?{query}"), 400, "invalid")


LISTS = [
    *(("", "-created"), ("", "-updated"), ("", "-starred")),
    *(("messages/", "position"), ("messages/", "-position"), ("summaries/", None)),
]


@pytest.mark.parametrize("text", ["x", "%00", "cD0x", "é", "A" * 600])
@pytest.mark.parametrize(("path", "ordering"), LISTS)
def test_cursors_that_are_not_valid(
    api: APIClient, chat: SessionHandle, path: str, ordering: str | None, text: str
) -> None:
    url = url_of(chat, path) if path else ROOT
    response = api.get(url, {"cursor": text} | ({"ordering": ordering} if ordering else {}))
    assert_problem(response, 404, "not_found")


def test_a_cursor_is_of_one_list_one_order_and_one_session(api: APIClient, chat: SessionHandle) -> None:
    following = api.get(url_of(chat, "messages/?limit=1")).json()["next"]
    assert api.get(following).json()["results"][0]["position"] == 2
    [cursor] = QueryDict(urlsplit(following).query).getlist("cursor")
    paths = ("messages/?ordering=-position&", "summaries/?", "search/?q=Rust&")
    other = chat.memory.session("other", owner=row_of(chat).owner)
    other.create()
    others = (f"{url_of(other, 'messages/')}?limit=1&", f"{ROOT}?", f"{SEARCH}?q=Rust&")
    for url in (*(url_of(chat, path) for path in paths), *others):
        assert_problem(api.get(f"{url}cursor={quote(cursor)}"), 404, "not_found")
    for url in (url_of(chat, "search/"), SEARCH):
        for wrong in ("x", "20", "-1", "9" * 600, "٣"):
            assert_problem(api.get(url, {"q": "Rust", "cursor": wrong}), 404, "not_found")


@pytest.mark.parametrize("accept", ["image/png", "text/plain", "application/xml"])
def test_an_unknown_representation_is_not_acceptable(api: APIClient, chat: SessionHandle, accept: str) -> None:
    for url in (ROOT, url_of(chat), url_of(chat, "context/"), url_of(chat, "export/")):
        assert_problem(api.get(url, headers={"Accept": accept}), 406, "not_acceptable")


@pytest.mark.parametrize("key", ["", " ", "k" * 256])
def test_idempotency_keys_that_are_not_valid(api: APIClient, chat: SessionHandle, key: str) -> None:
    before = dump_tables()
    for url, body in (
        (url_of(chat, "messages/"), messages_body("x")),
        (url_of(chat, "replace/"), {"after": FIRST, **messages_body("x")}),
        (url_of(chat, "fork/"), {"at": FIRST}),
        (ROOT, {}),
    ):
        response = api.post(url, body, headers={"Idempotency-Key": key, "If-Match": "*"})
        assert_problem(response, 400, "invalid_idempotency_key")
    assert dump_tables() == before


@pytest.mark.parametrize("session", ["x", "1", "../..", "00000000-0000-0000-0000-00000000000g", "%00", "é" * 300])
def test_addresses_with_a_wrong_id(api: APIClient, session: str) -> None:
    response = api.get(f"{ROOT}{session}/")
    assert response.status_code == 404


def test_input_is_escaped_in_pages(api: APIClient, chat: SessionHandle) -> None:
    script = "<script>alert(1)</script>"
    api.patch(url_of(chat), {"title": script})
    api.post(url_of(chat, "messages/"), messages_body(script))
    for url in (ROOT, url_of(chat), url_of(chat, "messages/"), url_of(chat, "context/"), f"{ROOT}?ordering={script}"):
        page = api.get(url, headers={"Accept": "text/html"})
        assert page["Content-Type"].startswith("text/html")
        assert script not in page.content.decode()
        assert "&lt;script&gt;" in page.content.decode()


def test_what_the_browsable_api_proposes_is_accepted(api: APIClient) -> None:
    page = api.get(ROOT, headers={"Accept": "text/html"}).content.decode()
    proposed = re.search(r'<textarea name="_content"[^>]*>(.*?)</textarea>', page, re.DOTALL)
    assert proposed is not None
    assert api.post(ROOT, json.loads(html.unescape(proposed[1]))).status_code == 201


@pytest.mark.parametrize(("method", "status"), [("get", 405), ("post", 404)])
def test_the_browsable_api_shows_errors_as_pages(api: APIClient, chat: SessionHandle, method: str, status: int) -> None:
    call: Callable[..., Any] = getattr(api, method)
    page = call(url_of(chat, f"messages/{NO_MESSAGE}/redact/"), {}, headers={"Accept": "text/html"})
    assert page.status_code == status
    assert page["Content-Type"].startswith("text/html")
