"""Which messages have had a position, so that each message gets an id that no other message ever has.

Messages are deleted from the end of a session only, and positions are used again after that. A session's row keeps its
cuts: from which position on messages were deleted, and at which epoch. A message is younger than every cut below its
position, because it would be gone otherwise. So the last of these cuts and the position name one message for ever. A
message that was never in reach of a cut needs no text at all.
"""

from __future__ import annotations

import uuid


def cut(text: str, after: int, epoch: int) -> str:
    """Return the cuts of a session whose messages after the position ``after`` were deleted at this new ``epoch``.

    ``text`` has the cuts before. Those at ``after`` or behind it do not matter any more: the new one is younger.
    """
    cuts = [entry for entry in text.split() if int(entry.partition(":")[0]) < after]
    return " ".join([*cuts, f"{after}:{epoch}"])


def message_id(session_id: uuid.UUID, text: str | None, position: int) -> uuid.UUID:
    """Return the id of the message that has this position now. ``session_id`` is the public id of its session."""
    epoch = 0
    for entry in (text or "").split():
        after, _, cut_at = entry.partition(":")
        if int(after) >= position:
            break
        epoch = int(cut_at)
    return uuid.uuid5(session_id, f"{epoch}:{position}")
