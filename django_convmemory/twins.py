"""Asynchronous twins of the operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


def asynchronous(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous twin of a method: one hop to a thread. Cancelling it does not undo it."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name, so that the twin of an overridden method is the overriding one's.
        call: Callable[..., T] = getattr(self, method.__name__)
        return await sync_to_async(call)(*args, **kwargs)

    functools.update_wrapper(twin, method)
    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = method.__qualname__.removesuffix(method.__name__) + twin.__name__
    twin.__doc__ = f"The asynchronous twin of :meth:`{method.__name__}`."
    return twin
