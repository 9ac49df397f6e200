"""A conversation in which each message carries its own mark, and the proof that no message is lost or doubled.

The model answers with the marks that it is shown. So the text of a summary says which messages it was made from.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from typing import Any

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.operations.handles import SessionHandle
from tests.chaos.site_processes import Client
from tests.openai_server import MARKER, prompt

# How many pieces a long message has, and their numbers.
PIECES = 40
PIECE = re.compile(r"\{\{\d+\}\}")


def with_pieces(body: dict[str, Any]) -> str:
    """Answer a request like the server, and repeat the numbers of the pieces too."""
    shown = re.findall(f"{MARKER.pattern}|{PIECE.pattern}", prompt(body))
    return " ".join(dict.fromkeys(shown)) or "Nothing was marked."


@dataclasses.dataclass
class Talk:
    """A session, and its expected content: the mark of the message at each position, or None if it was redacted."""

    key: str
    rng: random.Random
    alias: str = "default"
    owner: Any = None
    expected_marks: dict[int, str | None] = dataclasses.field(default_factory=dict)
    # The messages by their marks.
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    gone: bool = False
    number: int = 0
    # The ids of the assistant's unanswered calls.
    asked: list[str] = dataclasses.field(default_factory=list)

    @property
    def session(self) -> SessionHandle:
        scope = {"owner": self.owner} if self.owner is not None else {}
        return memories[self.alias].session(self.key, **scope)

    @property
    def rows(self) -> Any:
        """The session's row, as a query set."""
        return models.Session.objects.named(self.session.session_name)

    @property
    def name(self) -> dict[str, Any]:
        owner = {"owner": self.owner.pk} if self.owner is not None else {}
        return {"key": self.key, "alias": self.alias} | owner

    def mark(self) -> str:
        self.number += 1
        return f"[[{self.key}.{self.number}]]"

    def messages(self, count: int = 0) -> list[dict[str, Any]]:
        """Return the messages of the next append: plain turns, a tool exchange, or a part of one."""
        rng = self.rng
        if self.asked:
            return self._results(rng.randint(1, len(self.asked)))
        if rng.random() < 0.2:
            self.asked = [f"call_{index}" for index in range(rng.randint(1, 3))]
            calls = [
                {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
                for call_id in self.asked
            ]
            turn = {"role": "assistant", "content": f"{self.mark()} I look it up.", "tool_calls": calls}
            return [turn, *self._results(rng.randint(0, len(calls)))]
        return [
            {"role": rng.choice(["user", "assistant"]), "content": f"{self.mark()} " + "word " * rng.randint(1, 25)}
            for _ in range(count or rng.randint(1, 3))
        ]

    def _results(self, count: int) -> list[dict[str, Any]]:
        answered, self.asked = self.asked[:count], self.asked[count:]
        return [{"role": "tool", "tool_call_id": call_id, "content": f"{self.mark()} found"} for call_id in answered]

    def long_message(self) -> dict[str, str]:
        """Return a message of many times ``max_chunk_tokens``, whose pieces are numbered."""
        pieces = " ".join(f"{{{{{number}}}}} {'word ' * 50}" for number in range(PIECES))
        return {"role": "user", "content": f"{self.mark()} {pieces}"}

    def forget(self, after: int = 0) -> None:
        """Note that the messages after a position are gone."""
        self.expected_marks = {position: mark for position, mark in self.expected_marks.items() if position <= after}
        self.asked = []

    def say(self, client: Client, messages: Sequence[dict[str, Any]], key: str | None = None) -> dict[str, Any]:
        """Have a client append, and note what it reports as stored. Raises :class:`Died` if it does not answer."""
        answer = client.ask(session=self.name, messages=messages, key=key)
        if "error" not in answer:
            stored = range(answer["first"], answer["last"] + 1)
            marks = [MARKER.findall(message["content"])[0] for message in messages]
            self.expected_marks.update(zip(stored, marks, strict=True))
            self.texts |= {mark: message["content"] for mark, message in zip(marks, messages, strict=True)}
        return answer

    # The proof.

    def problems(self) -> list[str]:
        """Return the faults in the stored rows, one line each."""
        if self.gone:
            return [f"{self.key} is still there"] if self.rows.exists() else []
        row = self.rows.first()
        if row is None:
            return [f"{self.key} is not there"] if self.expected_marks else []
        problems = [f"{self.key}: {problem}" for problem in integrity.check(self.rows)]
        rows = dict(models.Message.objects.filter(session=row).values_list("position", "content"))
        stored = {position: (MARKER.findall(content or "") or [None])[0] for position, content in rows.items()}
        texts = {mark: rows[position] for position, mark in stored.items() if mark is not None}
        problems += [f"{self.key}: {mark} says something else" for mark in texts if texts[mark] != self.texts.get(mark)]
        due = row.is_over(memories[self.alias].threshold)
        if due != (row.due_since is not None):
            problems.append(f"{self.key}: it is {'' if due else 'not '}due, and its row does not say so")
        lost = {position: mark for position, mark in self.expected_marks.items() if stored.get(position) != mark}
        more = {position: mark for position, mark in stored.items() if position not in self.expected_marks}
        if lost:
            problems.append(f"{self.key}: lost {lost}; stored are {stored}")
        if more:
            problems.append(f"{self.key}: stored without being said, or twice: {more}")
        return problems + self._wrong_summaries(row) + self._wrong_context()

    def marks(self, first: int, last: int) -> list[str]:
        return [mark for position in range(first, last + 1) if (mark := self.expected_marks.get(position)) is not None]

    def _wrong_summaries(self, row: models.Session) -> list[str]:
        wrong = []
        for version in models.Summary.objects.filter(session=row).valid():
            if version.fallback or version.part_end is not None:
                continue  # The fallback says what it likes, and a part is not the whole of its messages.
            marks = MARKER.findall(version.text)
            if marks != self.marks(1, version.last_position):
                stands_for = f"summary {version.version} stands for 1 to {version.last_position}"
                wrong.append(f"{self.key}: {stands_for}, and is made of {marks}")
        return wrong

    def _wrong_context(self) -> list[str]:
        """Each message is shown once: in the summary, or by itself."""
        context = self.session.load()
        if context.summary is not None and self._by_fallback(context):
            return []
        marks = [mark for message in context for mark in MARKER.findall(message.text)]
        if marks != self.marks(1, max(self.expected_marks, default=0)) or context.omitted:
            return [f"{self.key}: the context shows {marks}, but the messages are {self.expected_marks}"]
        return []

    def _by_fallback(self, context: Any) -> bool:
        row = self.rows.get()
        line = models.Summary.objects.filter(session=row, version__lte=row.current_version).valid()
        return line.filter(fallback=True).exists()
