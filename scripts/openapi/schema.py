"""The schema of the HTTP API, as drf-spectacular makes it from the views and from what the other modules say."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

from django.test import override_settings
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.renderers import OpenApiYamlRenderer
from drf_spectacular.settings import patched_settings
from drf_spectacular.validation import validate_schema

import scripts.openapi.operations  # noqa: F401  it registers itself
from django_convmemory.api import urls
from django_convmemory.api.views.base import ScopedView
from scripts.openapi.components import PREFIX

SETTINGS = {
    "TITLE": "Conversation memory",
    "VERSION": "1.0.0",
    # Where the documentation includes the API. The hook replaces it by where a site does.
    "SERVERS": [{"url": "/api/memory"}],
    # The site decides how a client authenticates.
    "AUTHENTICATION_WHITELIST": [],
}


def generate() -> str:
    """Return the schema as YAML. Raises an error if it is not valid, or if drf-spectacular warns of anything."""
    generator: Any = SchemaGenerator
    with (
        patched_settings(SETTINGS),
        override_settings(REST_FRAMEWORK={"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}),
        mock.patch.object(ScopedView, "schema", AutoSchema()),  # Other generators leave our views out.
    ):
        schema: dict[str, Any] = generator(patterns=urls.urlpatterns).get_schema(request=None, public=True)
    GENERATOR_STATS.emit_summary()
    assert not GENERATOR_STATS, "drf-spectacular warns of something: see above."
    schema = _prefixed(schema)
    validate_schema(schema)  # type: ignore[no-untyped-call]
    renderer: Any = OpenApiYamlRenderer()
    return str(renderer.render(schema, renderer_context={}), "utf-8")


def _prefixed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with our prefix in the name of every component. drf-spectacular names enumerations itself."""
    text = json.dumps(schema)
    names = {name: name if PREFIX in name else f"{PREFIX}{name}" for name in schema["components"]["schemas"]}
    for name, prefixed in names.items():
        text = text.replace(f'"#/components/schemas/{name}"', f'"#/components/schemas/{prefixed}"')
    schema = json.loads(text)
    components = {names[name]: component for name, component in schema["components"]["schemas"].items()}
    return schema | {"components": {"schemas": dict(sorted(components.items()))}}
