"""Records to import, and calls of the commands."""

from __future__ import annotations

import io
import json
from typing import Any

from django.core.management import call_command
from hypothesis import strategies as st

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage

TURN = "The cat sat on the mat and thought about the sea. " * 4
TIME = "2024-05-01T10:00:00+00:00"


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def human(text: str = "What is Rust?") -> dict[str, Any]:
    return {"role": "user", "content": text}


def record(key: str = "a", *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"key": key, "messages": list(messages) or [human()], **fields}


def call(command: str, *arguments: object, stream: io.StringIO | None = None, **options: Any) -> str:
    """Run a command and return its output."""
    out = stream or io.StringIO()
    call_command(command, *map(str, arguments), stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue()


def exported(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call("convmemory_export", *arguments).splitlines()]


def without_ids(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records as they were before they had the ids of their messages."""
    return [{field: value for field, value in record.items() if field != "ids"} for record in records]


def stored(key: str, **scope: Any) -> list[ChatMessage]:
    memory = memories["default"]
    return [row.message for row in memory.history(memory.session(key, **scope), limit=100_000)]
