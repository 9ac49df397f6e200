"""Observers learn when the app folds a session, calls a model, searches, and leaves messages out of a context.

``contrib.telemetry`` is one. Without an observer, nothing of this costs more than a look at an empty tuple.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse
from django_convmemory.search.hits import Hit

logger = logging.getLogger(__name__)

_FAILED = "An observer failed, and what it would have reported is missing: %r"
_origin: ContextVar[Mapping[str, str]] = ContextVar("convmemory_origin", default={})  # noqa: B039  nobody changes it


@dataclasses.dataclass(slots=True, kw_only=True)
class Run:
    """One run of a fold. ``public_id`` is set once the session is claimed, and ``outcome`` at the end.

    ``origin`` is what the observers of another process returned from ``headers``, when the session became due there.
    """

    alias: str
    session_id: int
    work: str
    origin: Mapping[str, str] = dataclasses.field(default_factory=_origin.get)
    public_id: str = ""
    outcome: str = ""


@dataclasses.dataclass(slots=True, kw_only=True)
class ModelCall:
    """A request that a run has a model answer. ``response`` is set when the model has answered.

    ``alias`` and ``public_id`` are those of the session.
    """

    model: ChatModel
    request: ChatRequest
    alias: str
    public_id: str
    by_fallback: bool
    response: ChatResponse | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Search:
    """A search for messages that match ``query``. ``hits`` is set when they are found."""

    alias: str
    query: str
    hits: Sequence[Hit] = ()


T = TypeVar("T")
Manager = contextlib.AbstractContextManager[object]


class Observer:
    """An observer that does nothing. Override what you want to know about.

    The context managers surround what they are named after. An error of an observer is logged and goes no further.
    """

    def folding(self, run: Run) -> Manager:
        return contextlib.nullcontext()

    def calling(self, call: ModelCall) -> Manager:
        return contextlib.nullcontext()

    def searching(self, search: Search) -> Manager:
        return contextlib.nullcontext()

    def loaded(self, alias: str, omitted: int) -> None:
        """A context was made for a model. ``omitted`` messages are neither shown nor covered by the summary."""

    def headers(self) -> Mapping[str, str]:
        """Return what the process that folds the session is to know about this one. A task carries it."""
        return {}


registered: tuple[Observer, ...] = ()


def add(observer: Observer) -> None:
    """Have ``observer`` told about everything from now on, in this process."""
    global registered  # noqa: PLW0603
    registered = (*registered, observer)


def remove(observer: Observer) -> None:
    global registered  # noqa: PLW0603
    registered = tuple(other for other in registered if other is not observer)


def folding(run: Run) -> contextlib.AbstractContextManager[Run]:
    """Surrounds a run of compaction."""
    return _observed([observer.folding for observer in registered], run)


def calling(call: ModelCall) -> Manager:
    """Surrounds a model call."""
    return _observed([observer.calling for observer in registered], call)


def searching(search: Search) -> Manager:
    """Surrounds a search."""
    return _observed([observer.searching for observer in registered], search)


def loaded(alias: str, omitted: int) -> None:
    for observer in registered:
        try:
            observer.loaded(alias, omitted)
        except Exception:
            logger.exception(_FAILED, observer)


def headers() -> dict[str, str]:
    """Return what a task carries to the process that folds the session."""
    collected: dict[str, str] = {}
    for observer in registered:
        try:
            collected |= observer.headers()
        except Exception:
            logger.exception(_FAILED, observer)
    return collected


@contextlib.contextmanager
def originating(origin: object) -> Iterator[None]:
    """Fold with the headers that a task carried. Anything else than a mapping of strings is ignored."""
    valid = isinstance(origin, Mapping) and all(isinstance(text, str) for item in origin.items() for text in item)
    token = _origin.set(origin if isinstance(origin, Mapping) and valid else {})
    try:
        yield
    finally:
        _origin.reset(token)


@contextlib.contextmanager
def _observed(makers: Sequence[Callable[[T], Manager]], operation: T) -> Iterator[T]:
    """Enter the context managers that ``makers`` return for ``operation``. Their own errors are only logged."""
    with contextlib.ExitStack() as stack:
        for make in makers:
            try:
                manager = make(operation)
                manager.__enter__()
            except Exception:
                logger.exception(_FAILED, make)
            else:
                stack.push(functools.partial(_exit, manager))
        yield operation


def _exit(manager: Manager, kind: Any, error: BaseException | None, traceback: Any) -> None:
    """Leave one of them. It swallows no error of the operation."""
    try:
        manager.__exit__(kind, error, traceback)
    except Exception as raised:
        if raised is not error:
            logger.exception(_FAILED, manager)
