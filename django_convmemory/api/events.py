"""What happened in a session, as server-sent events.

The id of an event says what its reader has seen. A browser sends the last id back when it connects again, so nothing is
missed and nothing is sent twice. Four numbers of the session's row suffice for that, because messages are only added as
long as the epoch is the same.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Self

from django_convmemory import models
from django_convmemory.api.negotiation import UTF8JSONRenderer
from django_convmemory.api.serializers.contexts import SummarySerializer
from django_convmemory.api.serializers.messages import MessageSerializer
from django_convmemory.api.serializers.sessions import StatusSerializer

# The most messages that one look at a session reads. The next look reads on.
MAX_MESSAGES = 100
_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})-([a-z])", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What a reader has seen of a session. Its text is the id of an event."""

    position: int
    epoch: int
    version: int
    # The first letter of the state.
    state: str

    @classmethod
    def all_of(cls, session: models.Session) -> Self:
        """Return what somebody has seen who has seen everything. ``session`` must have been read ``with_clock``."""
        return cls(session.last_position, session.epoch, session.current_version, session.state[0])

    @classmethod
    def from_id(cls, text: str | None) -> Self | None:
        """Return what the id of an event says. None for an id that this release does not know, and without an id."""
        match = _ID.fullmatch(text or "")
        return match and cls(int(match[1]), int(match[2]), int(match[3]), match[4])

    def __str__(self) -> str:
        return f"{self.position}-{self.epoch}-{self.version}-{self.state}"


def news(session: models.Session, seen: Seen | None) -> tuple[str, Seen]:
    """Return the events since ``seen`` as text, and what has been seen after them.

    It reads the new messages and the new summary, if there are any, in one statement each. ``session`` must have been
    read ``with_clock``.
    """
    now = Seen.all_of(session)
    if seen == now:
        return "", now
    if seen is None or seen.epoch != now.epoch or seen.position > now.position:
        return _event("reset", StatusSerializer(session).data, now), now
    texts = []
    # The session may have changed since it was read. The epoch in the conditions excludes what belongs to a later one.
    if seen.position < now.position:
        messages = models.Message.objects.using(session._state.db).filter(
            session=session, session__epoch=session.epoch, position__gt=seen.position
        )
        for message in messages.order_by("position", "session_id")[:MAX_MESSAGES]:
            seen = dataclasses.replace(seen, position=message.position)
            texts.append(_event("message", MessageSerializer(message).data, seen))
    if seen.version != now.version:
        summaries = models.Summary.objects.using(session._state.db).filter(session=session)
        for summary in summaries.filter(session__epoch=session.epoch, version=now.version):
            seen = dataclasses.replace(seen, version=summary.version)
            texts.append(_event("summary", SummarySerializer(summary).data, seen))
    if seen.state != now.state:
        seen = dataclasses.replace(seen, state=now.state)
        texts.append(_event("state", StatusSerializer(session).data, seen))
    return "".join(texts), seen


def retry(seconds: float) -> str:
    """Return the line that says how long a client waits before it connects again."""
    return f"retry: {round(seconds * 1000)}\n\n"


def _event(name: str, data: Any, seen: Seen) -> str:
    # JSON has no line break outside of its escapes, so it is one line.
    return f"id: {seen}\nevent: {name}\ndata: {UTF8JSONRenderer().render(data).decode()}\n\n"
