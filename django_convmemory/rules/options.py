"""The options of a memory, except those of its strategy."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_type_hints

from django_convmemory.messages import ChatMessage, check_text

ROLES = ("any", "one_system", "alternating")
SUMMARY_ROLES = ("system", "developer", "user")
# How large a prompt may be without a setting, in tokens. The other sizes are shares of it.
MAX_CONTEXT_TOKENS = 6000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The keys of ``OPTIONS`` besides the strategy's own limit.

    Sizes are in tokens, unless the name says bytes. Times are in seconds. One size decides: ``max_context_tokens``. The
    summary may have a twelfth of it, pinned messages a quarter, and quotes of recall a tenth.

    Raises ValueError, with the name of the option, for a value of the wrong type or out of range.
    """

    # What load shows.
    max_context_tokens: int | None = None
    max_summary_tokens: int | None = None
    summary_prefix: str = "Summary of earlier conversation: "
    summary_role: str = "system"
    roles: str = "any"
    clear_tool_results: int | None = None  # So many results of tools stay. None: all.

    # What is found again of what is not shown any more.
    index: bool = True
    recall: bool = False

    # What append accepts.
    max_message_bytes: int = 4 * 1024 * 1024

    # How compaction runs.
    instructions: str = ""
    keep_identifiers: bool = True
    max_chunk_tokens: int | None = None  # None: see chunk_tokens.
    max_run_seconds: float = 240.0
    max_runs_per_owner: int = 2  # While others wait.
    max_attempts: int = 5
    fallback_after: float = 1800.0
    rebuild_stand_ins: bool = True

    # How long a turn stays open without a sign of life.
    turn_timeout: float = 120.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_type(f"option {field.name}", getattr(self, field.name), TYPES[field.name])
        for name, minimum in _MINIMUMS.items():
            value = getattr(self, name)
            if value is not None and not value >= minimum:  # NaN compares like this.
                raise ValueError(f"option {name} must be at least {minimum}, not {value}.")
        check_text(self.summary_prefix, "option summary_prefix")
        check_text(self.instructions, "option instructions")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"option {name} must be one of {', '.join(known)}, not {getattr(self, name)!r}.")

    def sized(self, limit: int | None) -> Options:
        """Return the options for a strategy that folds what exceeds ``limit`` tokens, or nothing.

        Raises ValueError if even a folded conversation might not fit.
        """
        if limit is None:
            return self
        usual = max(MAX_CONTEXT_TOKENS, 3 * limit, 2 * (limit + (self.max_summary_tokens or 0)))
        most = self.max_context_tokens or usual
        options = dataclasses.replace(self, max_context_tokens=most)
        needed = limit + options.summary_tokens + options.pinned_tokens
        if most < needed:
            raise ValueError(
                f"option max_context_tokens is {most}, but max_token_limit ({limit}), the summary "
                f"({options.summary_tokens}) and a quarter for pinned messages need {needed}: even a folded "
                "conversation might not fit. Raise max_context_tokens, or lower the other two."
            )
        return options

    @property
    def summary_tokens(self) -> int:
        """The most tokens that a summary may have."""
        return self.max_summary_tokens or max(_SMALLEST_SUMMARY, self._size // 12)

    @property
    def pinned_tokens(self) -> float:
        """The tokens that pinned messages may take from the other ones. No limit without ``max_context_tokens``."""
        return self.max_context_tokens // 4 if self.max_context_tokens else math.inf

    @property
    def recall_tokens(self) -> int:
        """The most tokens that the quotes of recall have together."""
        return self._size // 10

    @property
    def _size(self) -> int:
        return self.max_context_tokens or MAX_CONTEXT_TOKENS

    def summary_message(self, text: str) -> ChatMessage:
        """Return the message that shows a summary. ``text`` is not checked: it is one, or a part of one."""
        return ChatMessage.restore(self.summary_role, self.summary_prefix + text, "summary")

    def chunk_tokens(self, limit: int | None) -> int:
        """Return how many tokens of messages one model call folds if the limit is ``limit`` tokens."""
        return self.max_chunk_tokens or max(8000, limit or 0)


TYPES: Mapping[str, Any] = get_type_hints(Options)
_SMALLEST_SUMMARY = 16
_MINIMUMS = {
    "max_summary_tokens": _SMALLEST_SUMMARY,
    "max_context_tokens": 1,
    "clear_tool_results": 1,
    "max_message_bytes": 1,
    "max_chunk_tokens": 100,
    "max_run_seconds": 1,
    "max_runs_per_owner": 1,
    "max_attempts": 1,
    "fallback_after": 0,
    "turn_timeout": 1,
}

_CHOICES = {"roles": ROLES, "summary_role": SUMMARY_ROLES}

Roles = Literal["any", "one_system", "alternating"]


def check_type(what: str, value: object, annotation: Any, *, shown: bool = True) -> None:
    """Raise ValueError unless ``value`` has the type ``annotation``: a plain type or a union of plain types.

    The error shows the value if ``shown`` is true. A secret must not be shown.
    """
    allowed = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    kinds = (*allowed, int) if float in allowed else tuple(allowed)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
        is_not = repr(value)[:100] if shown else f"a {type(value).__name__}"
        raise ValueError(f"{what} must be {names}, not {is_not}.")


Fields = TypeVar("Fields")


def from_setting(kind: type[Fields], configured: object) -> Fields:
    """Return the dataclass ``kind`` with what a setting says: a dict whose keys are its fields, in upper case.

    Raises ValueError or TypeError, which says what to correct.
    """
    if not isinstance(configured, Mapping):
        raise ValueError(f"The setting must be a dict, not a {type(configured).__name__}.")
    keys = [field.name.upper() for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = [key for key in configured if key not in keys]
    if unknown:
        alike = difflib.get_close_matches(str(unknown[0]).upper(), keys, n=1)
        hint = f"Did you mean {alike[0]}?" if alike else f"The keys are {', '.join(keys)}."
        raise ValueError(f"The setting has the unknown key {unknown[0]!r:.100}. {hint}")
    return kind(**{key.lower(): value for key, value in configured.items()})
