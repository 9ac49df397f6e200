"""The faults by name, with what ``docs/inside/reliability.md`` says about each."""

from __future__ import annotations

import dataclasses
import enum
import importlib
from collections.abc import Callable

from tests.chaos.runs import Run

Function = Callable[[Run], None]

# Kinds of sites. The name of a site contains its database and its broker, or "django-tasks" if it has none.
CELERY = ("redis", "rabbitmq")
POSTGRESQL = ("postgresql", "pooled", "pgbouncer", "routed")
SERVERS = (*POSTGRESQL, "mariadb")
SQLITE = ("sqlite",)


class Heading(enum.StrEnum):
    """The headings of the lists in ``docs/inside/reliability.md``, in its order."""

    WORKER = "A worker"
    SERVICES = "A process that serves requests, the broker or the database"
    CHANGES = "A change of the session while the model answers"
    MODEL = "The model"
    TOGETHER = "Several faults at once"


class Drawn(enum.Enum):
    """When a fault is injected: in both forms of the suite, only in the long one, or only if it is named."""

    ALWAYS = enum.auto()
    LONG = enum.auto()
    NAMED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault. ``says`` is the sentence of the documentation; ``on`` are the sites on which it can occur."""

    name: str
    inject: Function
    heading: Heading
    says: str
    on: tuple[str, ...]
    drawn: Drawn

    def possible(self, site: str) -> bool:
        return any(part in site for part in self.on)


_FAULTS: dict[str, Fault] = {}


def fault(
    heading: Heading,
    says: str,
    *,
    on: tuple[str, ...] = ("",),
    drawn: Drawn = Drawn.ALWAYS,
    name: str = "",
) -> Callable[[Function], Function]:
    """Register a function as a fault. It injects the fault during conversations, and returns when it is over."""

    def register(function: Function) -> Function:
        own = name or function.__name__
        assert own not in _FAULTS
        _FAULTS[own] = Fault(own, function, heading, says, on, drawn)
        return function

    return register


def faults() -> dict[str, Fault]:
    """Return all faults by name, in the order of the documentation."""
    for module in ("workers", "frozen", "infrastructure", "surroundings", "changes", "model", "together"):
        importlib.import_module(f"tests.chaos.faults.{module}")
    headings = list(Heading)
    return dict(sorted(_FAULTS.items(), key=lambda item: headings.index(item[1].heading)))


def drawn(site: str, *, long: bool) -> list[str]:
    """Return the names of the faults that the long or the short form of the suite injects on a site."""
    times = {Drawn.ALWAYS, Drawn.LONG} if long else {Drawn.ALWAYS}
    return [fault.name for fault in faults().values() if fault.drawn in times and fault.possible(site)]
