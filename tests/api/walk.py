"""A walk through the API on a database in memory: ``python -m tests.api.walk`` prints the responses as JSON.

With ``--hostile`` the site changes every setting of DRF. DRF reads some of them at import, so this takes a process of
its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.conf import settings

HOSTILE = {
    "DEFAULT_RENDERER_CLASSES": ["tests.api.walk.Nonsense"],
    "DEFAULT_PARSER_CLASSES": ["tests.api.walk.Nonsense"],
    "DEFAULT_PERMISSION_CLASSES": ["tests.api.walk.Nonsense"],
    "DEFAULT_THROTTLE_CLASSES": ["tests.api.walk.Nonsense"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "tests.api.walk.Nonsense",
    "DEFAULT_PAGINATION_CLASS": "tests.api.walk.Nonsense",
    "DEFAULT_FILTER_BACKENDS": ["tests.api.walk.Nonsense"],
    "DEFAULT_VERSIONING_CLASS": "tests.api.walk.Nonsense",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "tests.api.walk.nonsense",
    "NON_FIELD_ERRORS_KEY": "oops",
    "DATETIME_FORMAT": "%s",
    "DATETIME_INPUT_FORMATS": ["%d.%m.%Y"],
    "COMPACT_JSON": False,
    "UNICODE_JSON": False,
    "STRICT_JSON": False,
    "URL_FORMAT_OVERRIDE": "limit",
    "PAGE_SIZE": 1,
    "SEARCH_PARAM": "alias",
    "ORDERING_PARAM": "cursor",
    "UNAUTHENTICATED_USER": None,
}


class Nonsense:
    """A class that a site uses for its own views."""

    media_type = "text/nonsense"
    format = "nonsense"

    def __init__(self, *args: Any) -> None:
        raise AssertionError("the site's default was used")


def nonsense(error: Exception, context: Any) -> Any:
    raise AssertionError("the site's default was used")


def main() -> None:
    import tests.settings as site

    more: dict[str, Any] = {"REST_FRAMEWORK": HOSTILE, "TIME_ZONE": "Asia/Tokyo"} if "--hostile" in sys.argv else {}
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    site_settings = {name: getattr(site, name) for name in dir(site) if name.isupper()}
    settings.configure(**site_settings | {"DATABASES": {"default": database}} | more)
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    print(json.dumps(walk()))


def walk() -> list[Any]:
    """Make the requests, and return the first status and the other responses."""
    from django.contrib.auth.models import User
    from rest_framework.test import APIClient

    from django_convmemory import models
    from django_convmemory.memory import memories

    client, anna = APIClient(), User.objects.create_user("anna")
    client.force_login(anna)
    root = "/api/memory/sessions/"
    created = client.post(root, {"key": "main", "title": "å"}, format="json")
    models.Session.objects.update(
        public_id="11111111-1111-1111-1111-111111111111",
        created_at="2026-01-01T00:00:00Z",
        updated_at="2026-01-01T00:00:00Z",
    )
    memories["default"].session("main", owner=anna)
    session = f"{root}11111111-1111-1111-1111-111111111111/"
    responses = [
        client.get(root),
        client.get(f"{root}?limit=1&alias=default&created_after=2025-12-31T23:00:00-01:00"),
        client.get(session),
        client.post(f"{session}messages/", {"messages": [{"role": "user", "content": "å"}]}, format="json"),
        client.post(f"{session}messages/", {"messages": []}, format="json"),
    ]
    message_id = str(models.Message.objects.get().public_id)
    models.Message.objects.update(created_at="2026-01-01T00:00:00Z")
    responses += [
        client.get(f"{session}messages/?limit=1"),
        client.get(f"{session}messages/1/"),
        client.get(f"{session}context/?format=openai"),
        client.get(f"{session}status/"),
        client.post(f"{session}truncate/", {"after": 0}, format="json", headers={"If-Match": "*"}),
        client.post(f"{session}truncate/", "no object", format="json", headers={"If-Match": "*"}),
        client.get(f"{session}messages/9/"),
        client.put(session, {}, format="json"),
        client.get(session, headers={"Accept": "image/png"}),
        client.options(session),
        APIClient().get(root),
    ]
    return [
        created.status_code,
        *(
            [response.status_code, response["Content-Type"], response.content.decode().replace(message_id, "the id")]
            for response in responses
        ),
    ]


if __name__ == "__main__":
    main()
