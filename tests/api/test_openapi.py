"""A site that uses drf-spectacular has the API in its own schema."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from django.urls import include, path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import patched_settings
from drf_spectacular.validation import validate_schema
from rest_framework import serializers
from rest_framework.response import Response
from rest_framework.views import APIView

from django_convmemory.api import openapi
from tests.api.test_page import names_of


class Session(serializers.Serializer[Any]):
    """A component of the site."""

    title = serializers.CharField()


class SiteView(APIView):
    """A view of the site."""

    schema = AutoSchema()
    serializer_class = Session

    def get(self, request: Any) -> Response:
        return Response()


OWN = path("own/", SiteView.as_view())
OURS = include("django_convmemory.api.urls")


def schema_of(*patterns: Any) -> dict[str, Any]:
    """Return the schema of a site with these addresses, and the settings of docs/reference/api.md."""
    generator: Any = SchemaGenerator
    with patched_settings(names_of(3)["SPECTACULAR_SETTINGS"]):
        schema: dict[str, Any] = generator(patterns=list(patterns)).get_schema(request=None, public=True)
    validate_schema(schema)  # type: ignore[no-untyped-call]
    return schema


@pytest.mark.parametrize(
    ("prefix", "parameters"), [("", []), ("api/memory/", []), ("<slug:tenant>/chats/", ["tenant"])]
)
def test_a_site_has_the_api_in_its_own_schema(prefix: str, parameters: list[str]) -> None:
    own, ours = schema_of(OWN), yaml.safe_load(openapi.PATH.read_text())
    merged = schema_of(OWN, path(prefix, OURS))
    below = f"/{prefix}".replace("<slug:tenant>", "{tenant}").removesuffix("/")
    assert merged["paths"].keys() == {"/own/", *(f"{below}{address}" for address in ours["paths"])}
    assert merged["paths"]["/own/"] == own["paths"]["/own/"]
    for address, operations in ours["paths"].items():
        for method, operation in operations.items():
            merged_operation = merged["paths"][f"{below}{address}"][method]
            names = [parameter["name"] for parameter in merged_operation["parameters"]]
            assert names == [*parameters, *(parameter["name"] for parameter in operation.get("parameters", []))]
            assert merged_operation | {"parameters": []} == operation | {"parameters": []}
    assert merged["components"]["schemas"] == ours["components"]["schemas"] | own["components"]["schemas"]


def test_two_prefixes_have_the_api_twice() -> None:
    paths = schema_of(path("a/", OURS), path("b/", include("django_convmemory.api.urls", namespace="b")))["paths"]
    assert {"/a/sessions/", "/b/sessions/"} <= paths.keys()


def test_a_site_without_the_api_has_only_its_own_schema() -> None:
    assert schema_of(OWN)["paths"].keys() == {"/own/"}
