"""Which earlier messages the memory recalled for a reply: the reply's metadata names their positions."""

from __future__ import annotations

from django_convmemory.rules.values import StoredMessage

# The most messages that a page names for a reply.
MOST = 20


def positions(reply: StoredMessage) -> list[int]:
    """Return the positions of the messages that were recalled for a reply.

    Clients of the API write metadata, too. So whatever is no earlier position is left out.
    """
    named = reply.message.metadata.get("recalled")
    if reply.message.role != "assistant" or not isinstance(named, list | tuple):
        return []
    earlier = {number for number in named if type(number) is int and 0 < number < reply.position}
    return sorted(earlier)[:MOST]
