"""The settings of the tests with every setting of DRF changed, as a site may do for its own views."""

from typing import Any

from tests.settings import *  # noqa: F403  a module of settings


class Nonsense:
    """A class that a site uses for its own views."""

    media_type = "text/nonsense"
    format = "nonsense"

    def __init__(self, *args: Any) -> None:
        raise AssertionError("the site's default was used")


def nonsense(error: Exception, context: Any) -> Any:
    raise AssertionError("the site's default was used")


_CLASS = f"{__name__}.Nonsense"
TIME_ZONE = "Asia/Tokyo"
REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": [_CLASS],
    "DEFAULT_PARSER_CLASSES": [_CLASS],
    "DEFAULT_PERMISSION_CLASSES": [_CLASS],
    "DEFAULT_THROTTLE_CLASSES": [_CLASS],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": _CLASS,
    "DEFAULT_PAGINATION_CLASS": _CLASS,
    "DEFAULT_FILTER_BACKENDS": [_CLASS],
    "DEFAULT_VERSIONING_CLASS": _CLASS,
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": f"{__name__}.nonsense",
    "NON_FIELD_ERRORS_KEY": "oops",
    "DATETIME_FORMAT": "%s",
    "DATETIME_INPUT_FORMATS": ["%d.%m.%Y"],
    "COMPACT_JSON": False,
    "UNICODE_JSON": False,
    "STRICT_JSON": False,
    "URL_FORMAT_OVERRIDE": "limit",
    "PAGE_SIZE": 1,
    "SEARCH_PARAM": "alias",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
    "ORDERING_PARAM": "cursor",
    "UNAUTHENTICATED_USER": None,
}
