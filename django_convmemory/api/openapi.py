"""The API in the OpenAPI schema of a site that uses drf-spectacular.

``openapi.yaml``, beside this module, is the schema of the API alone.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import yaml
from rest_framework.schemas.generators import EndpointEnumerator

from django_convmemory.api.views.sessions import SessionList

PATH = pathlib.Path(__file__).with_name("openapi.yaml")


class _Mounts(EndpointEnumerator):
    """The addresses of the list of sessions in the site's URL configuration."""

    def should_include_endpoint(self, path: str, callback: Any) -> bool:
        return getattr(callback, "cls", None) is SessionList


def add_paths(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add this API to the schema of the site, below the prefix at which the site includes our URLs.

    A site names it in ``SPECTACULAR_SETTINGS["POSTPROCESSING_HOOKS"]``.
    """
    schema = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    for mount, *_ in _Mounts(generator.patterns, generator.urlconf).get_api_endpoints():
        prefix = mount.removesuffix("/sessions/")
        # The parameters of the prefix, such as a tenant.
        names = re.findall(r"{(\w+)}", prefix)
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        for path, operations in schema["paths"].items():
            result["paths"][prefix + path] = {
                method: operation | {"parameters": [*parameters, *operation.get("parameters", [])]}
                for method, operation in operations.items()
            }
        components = result.setdefault("components", {})
        components["schemas"] = schema["components"]["schemas"] | components.get("schemas", {})
    return result
