"""What a search returns."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import NamedTuple

from django_convmemory.rules.values import SessionName, StoredMessage


class Piece(NamedTuple):
    """A piece of an excerpt. ``marked``: it is words of the query."""

    text: str
    marked: bool


class Hit(NamedTuple):
    """A stored message that a search found.

    - ``session``: the name of its session. Operations of the memory take it instead of a key.
    - ``score``: how well it matches, for comparison within one search only.
    - ``excerpt``: the passage of its text that matches best. ``marks`` are the words of the query in it, each as the
      index of its first character and the index after its last one.
    - ``neighbours``: the messages before and after it, if the search was asked for them.
    - ``name``: the name of the speaker, if the message has one.
    """

    session: SessionName
    position: int
    created_at: dt.datetime
    role: str
    score: float
    excerpt: str
    marks: tuple[tuple[int, int], ...] = ()
    neighbours: tuple[StoredMessage, ...] = ()
    name: str | None = None

    @property
    def pieces(self) -> list[Piece]:
        """The excerpt in pieces, so that a page can show which words match. Together they are the whole excerpt."""
        ends = [0, *itertools.chain.from_iterable(self.marks), len(self.excerpt)]
        # Every second piece is a mark.
        pieces = [
            Piece(self.excerpt[start:end], bool(n % 2)) for n, (start, end) in enumerate(itertools.pairwise(ends))
        ]
        return [piece for piece in pieces if piece.text]


class Hits(list[Hit]):
    """The hits of a search, best first.

    ``complete`` is False if the search left messages out: sessions beyond the first 100 000 messages, or messages that
    are not indexed yet, except the newest 512. Of these, it reads none with a large image.
    """

    complete: bool = True
