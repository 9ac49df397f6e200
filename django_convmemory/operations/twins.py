"""The asynchronous twins of operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from asgiref.sync import sync_to_async

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


def _call(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return call(*args, **kwargs)


# The thread that has Django's connection. Made once, because asgiref takes as long to make it as to use it.
_in_thread = sync_to_async(_call)


def asynchronous(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous twin of a method. It runs the method in a thread.

    If the twin is cancelled, a method that has begun runs to its end, and one that waits for the thread does not run.
    """

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name, so that the twin calls the method of a subclass that overrides it.
        call: Callable[..., T] = getattr(self, method.__name__)
        return cast("T", await _in_thread(call, *args, **kwargs))

    functools.update_wrapper(twin, method)
    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = method.__qualname__.removesuffix(method.__name__) + twin.__name__
    twin.__doc__ = f"The asynchronous twin of :meth:`{method.__name__}`."
    return twin
