"""Changing what is stored: the messages and the description of a session, and whose it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from django_convmemory.exceptions import InvalidSession
from django_convmemory.messages import freeze
from django_convmemory.operations import arguments
from django_convmemory.operations.arguments import NOT_GIVEN, Named
from django_convmemory.operations.folding import BaseMemory, asynchronous
from django_convmemory.rules.keys import Creation
from django_convmemory.rules.values import Edited, StoredMessage


class Redacted(NamedTuple):
    """The number of sessions in which ``redact`` emptied the message, and whether its text may still be on its way.

    ``in_flight``: a worker was folding one of the sessions. Each worker looks at the session as the last thing before
    it calls a model, so no later request has the text. But a request that had been sent by then may arrive after
    ``redact`` has returned. Its answer is not stored.
    """

    sessions: int
    in_flight: bool


class Edit(BaseMemory):
    """Changes sessions."""

    def update(
        self,
        session: str | Named,
        *,
        title: Any = NOT_GIVEN,
        metadata: Any = NOT_GIVEN,
        archived: Any = NOT_GIVEN,
        starred: Any = NOT_GIVEN,
        revision: int | None = None,
    ) -> None:
        """Replace the title or the metadata of the session, archive it or star it. Without any, it stays as it is.

        ``archived`` and ``starred`` are for lists: they change nothing else, and not the time of the last change.

        Raises :class:`~django_convmemory.exceptions.StaleRevision` if ``revision`` is given and the session has another
        revision, ``UnknownSession`` if there is no such session, and ``InvalidArgument``.
        """
        arguments.check_whole_number(revision, "revision", optional=True)
        changes = arguments.description(title, metadata, self.options.max_message_bytes)
        changes |= arguments.marks(archived=archived, starred=starred)
        self.store.update(self.resolve(session), changes, revision=revision)

    aupdate = asynchronous(update)

    def update_message(
        self, session: str | Named, position: int, *, metadata: Mapping[str, Any], revision: int | None = None
    ) -> None:
        """Replace the metadata of the message at ``position``, for feedback or a tag.

        Raises :class:`~django_convmemory.exceptions.UnknownMessage`, ``RedactedMessage``, ``UnknownSession``,
        ``StaleRevision`` and ``InvalidArgument``.
        """
        arguments.check_whole_number(position, "position", minimum=1)
        arguments.check_whole_number(revision, "revision", optional=True)
        checked = arguments.description(NOT_GIVEN, metadata, self.options.max_message_bytes)["metadata"]
        frozen: Mapping[str, Any] = freeze(checked, "metadata")
        self.store.update_message(self.resolve(session), position, frozen, revision=revision)

    aupdate_message = asynchronous(update_message)

    def delete(self, session: str | Named, revision: int | None = None) -> bool:
        """Delete the session with its messages and summaries. Return whether there was such a session.

        Raises :class:`~django_convmemory.exceptions.StaleRevision` if ``revision`` is given and the session has another
        revision, and ``InvalidArgument``.
        """
        arguments.check_whole_number(revision, "revision", optional=True)
        return self.store.delete(self.resolve(session), revision=revision)

    adelete = asynchronous(delete)

    def clear(self, session: str | Named) -> None:
        """Delete the messages and summaries of the session. The session stays, and begins again at position 1."""
        self.store.clear(self.resolve(session))

    aclear = asynchronous(clear)

    def truncate(self, session: str | Named, after: int, revision: int | None = None) -> int:
        """Delete the messages after the position ``after``, to edit or regenerate them. Return their number.

        Summaries that cover none of these messages stay. If ``revision`` is given and the session has another revision,
        nothing is deleted: so a retry cannot delete a newer reply.
        Raises :class:`~django_convmemory.exceptions.StaleRevision` then.
        """
        arguments.check_whole_number(after, "after")
        arguments.check_whole_number(revision, "revision", optional=True)
        removed, edited = self.store.truncate(self.resolve(session), after, self.threshold, revision=revision)
        self._edited(edited)
        return removed

    atruncate = asynchronous(truncate)

    def pop(self, session: str | Named) -> StoredMessage | None:
        """Delete the last message, and return it with its item. None: there is no message.

        A message that is appended at the same time is either the one that is deleted, or stays. If the connection to
        the database is lost during the COMMIT, ``django_convmemory.exceptions.OutcomeUnknown`` is raised.
        """
        popped, edited = self.store.pop(self.resolve(session), self.threshold)
        self._edited(edited)
        return popped

    apop = asynchronous(pop)

    def fork(
        self,
        session: str | Named,
        at: int,
        *,
        key: str,
        owner: Any = NOT_GIVEN,
        visitor: Any = NOT_GIVEN,
        title: Any = NOT_GIVEN,
        idempotency_key: str | None = None,
    ) -> Any:
        """Copy the session as it was at the position ``at`` to a new session ``key``. Return the copy's row.

        The copy belongs to ``owner`` or ``visitor``. Without both it has the owner of the original. Without ``title``
        it has the title of the original. It gets the summaries that cover only copied messages. Later changes of one
        session do not change the other. ``idempotency_key`` is as for :meth:`create`; the copy keeps it.
        Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``UnknownMessage`` and
        ``IdempotencyConflict``. Each is a ValueError.
        """
        arguments.check_whole_number(at, "at")
        description = arguments.description(title, NOT_GIVEN, self.options.max_message_bytes)
        idempotency_key = arguments.check_idempotency_key(idempotency_key)
        source = self.resolve(session)
        if owner is NOT_GIVEN and visitor is NOT_GIVEN:
            target = dataclasses.replace(source, key=arguments.check_key(key), row_id=None)
        else:
            target = arguments.session_name(self.store, self.alias, key, owner, visitor)
        request = ("fork", source.name_hash, at, target.alias, target.key, description)
        creation = Creation.of(target.scope, idempotency_key, *request)
        forked = self.store.fork(source, target, at, self.threshold, **description, creation=creation)
        self._edited(forked.edited)
        return forked.session

    afork = asynchronous(fork)

    def redact(self, session: str | Named, position: int, forks: bool = True) -> Redacted:
        """Empty the message at ``position``, and every summary that covers it.

        Content, metadata and the arguments of tool calls are gone from the commit on. The role, the ids of the calls
        and the tokens stay, and a model sees a notice instead of the content. Later messages are folded again. With
        ``forks`` the copies of the message in forks are emptied, too. Raises
        :class:`~django_convmemory.exceptions.UnknownMessage`.
        """
        arguments.check_whole_number(position, "position", minimum=1)
        redaction = self.store.redact(self.resolve(session), position, self.threshold, forks=forks)
        self._edited(*redaction.edited)
        return Redacted(len(redaction.edited), redaction.in_flight)

    aredact = asynchronous(redact)

    def _edited(self, *sessions: Edited | None) -> None:
        for edited in sessions:
            if edited is not None and edited.turned_due:
                self.schedule(edited.session_id)

    def erase(self, *, owner: Any = None, visitor: str | None = None) -> int:
        """Delete every session of a user or of a visitor in this memory. Return how many were deleted.

        ``memories.erase`` does it in all memories. Deleting a user also deletes the user's sessions.
        """
        if owner is None and visitor is None:
            raise InvalidSession("erase() needs an owner or a visitor: pass the one whose sessions are to be deleted.")
        return self.store.erase(self.alias, **arguments.scope(self.store, owner, visitor))

    aerase = asynchronous(erase)
