"""The reranker that compares the embedding of a query with those of the messages that its words have found."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import router

from django_convmemory import signals
from django_convmemory.contrib.embeddings import vectors
from django_convmemory.contrib.embeddings.embedder import Embedder, cosines
from django_convmemory.exceptions import ChatModelError, ContentRefused, ContextLengthExceeded, RequestRejected
from django_convmemory.models import Session
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.values import Receipt
from django_convmemory.search.reranking import Found

logger = logging.getLogger(__name__)

# So many messages are embedded in one call, and stored in one transaction.
BATCH = 32
# All times are in seconds. The longest call for a batch, and how long a worker goes on with a session.
_CALL, _LONGEST = 30.0, 60.0
# After a failure, this process does not call the model for this time.
_SILENCE = 30.0
# How much the meaning counts beside the words. On BEAM-100K and LoCoMo, 0.5 to 0.8 give nearly the same recall.
_WEIGHT = 0.8
# A text that no model refuses.
_HARMLESS = "Good morning."
# Errors that are about the texts of a request, and not about the model.
_ABOUT_TEXTS = (ContentRefused, ContextLengthExceeded, RequestRejected)


class EmbeddingReranker:
    """Orders what the words of a query have found by the words and by the meaning.

    - ``model``, ``base_url`` and ``api_key`` name the model, as for :class:`.OpenAIChatModel`.
    - ``timeout`` is the longest time, in seconds, that a search waits for the embedding of its query. The first
      search of a process also imports the client.
    - ``parameters`` are added to the body of each request, e.g. ``{"dimensions": 512}``.

    Workers embed the messages. A message that is not embedded yet counts by its words alone.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 1.0,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        if not model:
            raise ValueError("option model must name an embedding model.")
        common: dict[str, Any] = {"model": model, "base_url": base_url, "api_key": api_key, "parameters": parameters}
        self._quick, self._patient = Embedder(**common, timeout=timeout), Embedder(**common, timeout=_CALL)
        self.model = self._quick.checksum
        self._silent_until = 0.0
        # Not by the app: without this reranker, an append has nobody to tell.
        signals.messages_appended.connect(request_embeddings)

    @property
    def using(self) -> str:
        """The database of the vectors, which is that of the sessions."""
        return router.db_for_write(Session)

    @property
    def problem(self) -> str | None:
        """Why no text can be embedded with these options, or no embedding stored, or None."""
        return self._quick.problem or vectors.problem(self.using)

    def rerank(self, query: str, found: Sequence[Found]) -> Sequence[float]:
        """Return ``words / best words + 0.8 * cosine / best cosine`` for each match.

        Without a vector, it is the first part. If the query is not embedded in time, it is the score of the words.
        """
        stored = vectors.at(self.using, self.model, found)
        words = [match.score for match in found]
        if not any(stored.values()):
            return words
        try:
            [embedded] = self._embed(self._quick, [query[: vectors.LONGEST]])
        except ChatModelError as error:
            logger.warning("A search has the order of the words, because its query was not embedded: %s", error)
            return words
        meanings = cosines(embedded, [stored.get((match.session_id, match.position), b"") for match in found])
        best_words, best_meaning = max(words) or 1.0, max(0.0, *meanings) or 1.0
        pairs = zip(words, meanings, strict=True)
        return [word / best_words + _WEIGHT * max(0.0, meaning) / best_meaning for word, meaning in pairs]

    def prepare(self, session_id: int) -> None:
        """Embed the messages of a session that have no vector, for a minute at most. A worker calls this."""
        until = time.monotonic() + _LONGEST
        try:
            while self.embed_next(session_id) and time.monotonic() < until:
                pass
        except ChatModelError as error:
            logger.warning("Messages of session %s were not embedded. A later task tries again: %s", session_id, error)

    def embed_next(self, session_id: int) -> int:
        """Embed the next messages of a session, and return their number. Raises :class:`ChatModelError`."""
        using = self.using
        missing = vectors.missing(using, session_id, self.model, limit=BATCH)
        if missing is None:
            return 0
        positions = [position for position, text in missing.texts.items() if text]
        embedded = dict.fromkeys(missing.texts, b"")
        embedded |= zip(positions, self.embed_all([missing.texts[position] for position in positions]), strict=True)
        # If the session was changed meanwhile, the next call reads it again.
        vectors.store(using, session_id, self.model, missing.epoch, embedded)
        return len(embedded)

    def embed_all(self, texts: Sequence[str]) -> list[bytes]:
        """Embed texts. One that the model refuses by itself has an empty vector. Raises :class:`ChatModelError`."""
        if not texts:
            return []
        try:
            return self._embed(self._patient, texts)
        except _ABOUT_TEXTS as error:
            if len(texts) > 1:
                return [vector for text in texts for vector in self.embed_all([text])]
            self._embed(self._patient, [_HARMLESS])  # If the model refuses all texts, this raises.
            logger.warning("The model refuses to embed a message, so searches find it by its words alone: %s", error)
            return [b""]

    def _embed(self, embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
        if time.monotonic() < self._silent_until:
            raise ChatModelError("The model has failed, and is not asked for some seconds.")
        try:
            return embedder.embed(texts)
        except _ABOUT_TEXTS:
            raise
        except ChatModelError:
            self._silent_until = time.monotonic() + _SILENCE
            raise


def request_embeddings(memory: ConversationMemory, session_id: int, receipt: Receipt, **kwargs: Any) -> None:
    """Have a worker embed the messages that were appended. Without a queue, they wait for ``convmemory_embed``.

    Of a session that is due, a task is on its way already.
    """
    if isinstance(memory.reranker, EmbeddingReranker) and memory.scheduler.queues and not receipt.due:
        memory.schedule(session_id)
