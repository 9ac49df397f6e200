"""``settings.CONVMEMORY_API``: what the HTTP API allows a client to do."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string

from django_convmemory.conf import DEFAULT_ALIAS, aliases as memory_aliases, from_settings
from django_convmemory.messages import ROLES
from django_convmemory.rules.options import check_type

NAME = "CONVMEMORY_API"

# The types of content parts that a site may allow: those that the reference of chat completions has for user messages.
CONTENT_PARTS = ("text", "image_url", "input_audio", "file")

RESPONDER_OPTIONS = ("system", "max_tokens", "recall")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The keys of ``CONVMEMORY_API``, in lower case. Raises ValueError, which names the key, for a wrong value."""

    # The class that decides which sessions a request reaches: see :mod:`~django_convmemory.api.scopes`.
    scope: str = "django_convmemory.api.scopes.UserScope"
    # The memories that the API may reach; None for all.
    aliases: tuple[str, ...] | None = None
    # The roles of messages that a client may store without the permission ``convmemory.write_any_role``.
    writable_roles: tuple[str, ...] = ("user",)
    # The types of content parts that a client may store without this permission. A string is always allowed.
    content_parts: tuple[str, ...] = ("text",)
    # DRF permission classes, which must permit a request beside the scope.
    permission_classes: tuple[str, ...] = ()
    # DRF throttle classes, which limit requests beside the throttles of this API.
    throttle_classes: tuple[str, ...] = ()
    # DRF authentication classes; None for those of the site.
    authentication_classes: tuple[str, ...] | None = None

    # The site's function that answers questions, as ``ask`` of ``stream_answer``. None: the API answers none.
    responder: str | None = None
    # Its ``system``, ``max_tokens`` and ``recall``, or the path of a function of the request that returns them.
    responder_options: Mapping[str, Any] | str = dataclasses.field(default_factory=dict)

    max_body_bytes: int = 1024 * 1024
    # Messages in one append.
    max_messages: int = 100
    # Tokens of one message, unless the client has the permission; None for the most that a context may have.
    max_message_tokens: int | None = None
    max_metadata_bytes: int = 16 * 1024
    # Entries of a page. If the request does not say how many, there are at most 50.
    max_page_size: int = 200
    # Event streams that a user or a visitor may have open in one process.
    max_event_streams: int = 10

    @property
    def default_page_size(self) -> int:
        """The number of entries of a page if the request does not say it."""
        return min(50, self.max_page_size)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value, annotation = field.name.upper(), getattr(self, field.name), TYPES[field.name]
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, field.name, value)
            if field.name == "responder_options":
                if not isinstance(value, str):
                    _check_options(value)
            elif annotation in (int, str, int | None, str | None):
                check_type(name, value, annotation)
            elif not (value is None and field.default is None) and not _is_strings(value):
                raise ValueError(f"{name} must be a list of strings, not {value!r:.100}.")
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")
        _check_known("WRITABLE_ROLES", "role", self.writable_roles, ROLES)
        _check_known("CONTENT_PARTS", "type", self.content_parts, CONTENT_PARTS)


def _check_known(name: str, noun: str, values: Iterable[str], known: Sequence[str]) -> None:
    for value in values:
        if value not in known:
            raise ValueError(f"{name} has the unknown {noun} {value!r:.100}. The {noun}s are {', '.join(known)}.")


def _check_options(options: object) -> None:
    """Raise ValueError unless ``options`` are arguments of ``load``."""
    if not isinstance(options, Mapping):
        raise ValueError(f"RESPONDER_OPTIONS must be a dict or the path of a function, not {options!r:.100}.")
    _check_known("RESPONDER_OPTIONS", "key", options, RESPONDER_OPTIONS)


def _is_strings(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


TYPES: Mapping[str, Any] = typing.get_type_hints(Limits)


@functools.cache
def limits() -> Limits:
    """Return the limits that the settings give. Raises ImproperlyConfigured, which says what to correct."""
    return from_settings(Limits, NAME)


def aliases() -> list[str]:
    """Return the aliases that the API may reach and that ``CONVMEMORY`` has."""
    allowed = limits().aliases
    return [alias for alias in memory_aliases() if allowed is None or alias in allowed]


def first_alias() -> str:
    """Return the alias that a request means if it names none: ``default``, or else the first one that it may reach."""
    allowed = aliases()
    return DEFAULT_ALIAS if DEFAULT_ALIAS in allowed or not allowed else allowed[0]


@functools.cache
def named(key: str) -> tuple[Any, ...]:
    """Return what the dotted paths of this key name: classes, or a function. Raises ImproperlyConfigured."""
    value = getattr(limits(), key.lower()) or ()
    return tuple(_imported(key, path) for path in ((value,) if isinstance(value, str) else value))


def _imported(key: str, path: str) -> Any:
    try:
        imported = import_string(path)
    except ImportError as error:
        problem = f"{NAME}: {key} names {path!r}, but: {error}. Write its whole path, such as mysite.chat.ask."
        raise ImproperlyConfigured(problem) from None
    if not callable(imported):
        raise ImproperlyConfigured(f"{NAME}: {key} must name a function or a class, not {imported!r:.100}.")
    return imported


def responder() -> Callable[[Any], Any] | None:
    """Return the site's function that answers questions, or None. Raises ImproperlyConfigured."""
    return named("RESPONDER")[0] if limits().responder else None


def responder_options(request: Any) -> Mapping[str, Any]:
    """Return what ``load`` is passed for the request. Raises ImproperlyConfigured."""
    options = limits().responder_options
    if isinstance(options, str):
        options = named("RESPONDER_OPTIONS")[0](request)
        try:
            _check_options(options)
        except ValueError as error:
            raise ImproperlyConfigured(f"{NAME}: {error}") from None
    return options


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == NAME:
        limits.cache_clear()
        named.cache_clear()


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Report what is wrong with ``CONVMEMORY_API``, if the site sets it."""
    if not hasattr(settings, NAME):
        return []
    try:
        for key in ("SCOPE", "PERMISSION_CLASSES", "THROTTLE_CLASSES", "AUTHENTICATION_CLASSES", "RESPONDER"):
            named(key)
        if isinstance(limits().responder_options, str):
            named("RESPONDER_OPTIONS")
    except ImproperlyConfigured as error:
        hint = "Correct the key, or remove it to use its default. docs/reference/api.md lists the keys."
        return [checks.Error(str(error), hint=hint, id="convmemory.E010")]
    return []
