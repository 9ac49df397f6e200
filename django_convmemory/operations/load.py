"""Reading sessions: ``load`` for a model, ``history`` and ``search`` for people."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_convmemory import observers
from django_convmemory.context import assembly, recalling
from django_convmemory.messages import ChatMessage
from django_convmemory.operations import arguments
from django_convmemory.operations.append import Append
from django_convmemory.operations.arguments import Named
from django_convmemory.operations.folding import asynchronous
from django_convmemory.rules.strategies import View
from django_convmemory.rules.values import Receipt, SessionName, StoredMessage
from django_convmemory.search import searching, tokenizer
from django_convmemory.search.hits import Hits

# How often load() reads a session again because messages were removed while it searched.
_RECALL_TRIES = 3


class Load(Append):
    """Reads sessions."""

    def load(
        self,
        session: str | Named,
        *,
        system: Any = None,
        max_tokens: int | None = None,
        recall: bool | str | None = None,
    ) -> assembly.Context:
        """Return the messages to send to a model now: system prompt, pinned messages, summary, and the tail that fits.

        ``system`` is the site's own prompt, a text or a message. It is not stored. ``max_tokens`` bounds the whole
        context. The system prompt, pinned messages and the newest exchange are never left out: if they exceed the
        bound, ``over_budget`` is true. A session that does not exist gives an empty context.

        ``recall`` quotes messages that are not shown any more, in a user message before the newest one: those that
        match the newest user message (True) or another text. They take at most a tenth of ``max_context_tokens``, and
        displace nothing. None: as the option ``recall`` says.

        Raises :class:`~django_convmemory.exceptions.InvalidArgument`.
        """
        return self.load_turn(self.resolve(session), system=system, max_tokens=max_tokens, recall=recall)

    def load_turn(
        self,
        name: SessionName,
        *,
        question: StoredMessage | None = None,
        at: int | None = None,
        system: Any = None,
        max_tokens: int | None = None,
        recall: bool | str | None = None,
    ) -> assembly.Context:
        """Do the same as :meth:`load` for a turn, whose ``question`` is always shown. ``at``: as if all ended there."""
        if max_tokens is not None:
            arguments.check_whole_number(max_tokens, "max_tokens", maximum=None)
        view = self.strategy.view()
        budget = self.options.max_context_tokens if max_tokens is None else max_tokens
        if budget is not None:
            view = View(view.messages, budget if view.tokens is None else min(view.tokens, budget), view.summary)
        recall = self.options.recall if recall is None else recall
        for _ in range(_RECALL_TRIES):
            if at is None:
                snapshot = self.store.load(name, view, self.options.pinned_tokens)
            else:
                snapshot = self.store.load_at(name, view, self.options.pinned_tokens, at)
            loaded = assembly.assemble(
                snapshot,
                self.strategy,
                self.options,
                self.counter,
                system=system,
                max_tokens=max_tokens,
                question=question,
            )
            if recall is False or snapshot is None:
                break
            quoting = recalling.with_quotes(
                loaded,
                snapshot,
                name,
                recall,
                store=self.store,
                options=self.options,
                counter=self.counter,
                zone=self.requests.zone,
            )
            if quoting is not None:
                loaded = quoting
                break
        if observers.registered:
            observers.loaded(self.alias, loaded.omitted)
        return loaded

    aload = asynchronous(load)

    def append_and_load(
        self,
        session: str | Named,
        *messages: Any,
        idempotency_key: str | None = None,
        usage: Any = None,
        system: Any = None,
        max_tokens: int | None = None,
        recall: bool | str | None = None,
    ) -> tuple[Receipt, assembly.Context]:
        """Store messages and return the messages to send to a model now: :meth:`append`, and then :meth:`load`.

        The parameters are theirs. An asynchronous view waits for a thread once instead of twice. Wrong arguments are
        found before anything is written. Raises the errors of both operations.
        """
        message = self.check_loading(system=system, max_tokens=max_tokens, recall=recall)
        receipt = self.append(session, *messages, idempotency_key=idempotency_key, usage=usage)
        return receipt, self.load(session, system=message, max_tokens=max_tokens, recall=recall)

    aappend_and_load = asynchronous(append_and_load)

    @staticmethod
    def check_loading(*, system: Any, max_tokens: int | None, recall: bool | str | None) -> ChatMessage | None:
        """Check the arguments of :meth:`load` before anything is written. Return ``system`` as a message."""
        arguments.check_whole_number(max_tokens, "max_tokens", maximum=None, optional=True)
        if recall is not None and not isinstance(recall, bool):
            tokenizer.query(recall)
        return assembly.system_message(system)

    def history(
        self,
        session: str | Named,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
        items: bool = False,
    ) -> list[StoredMessage]:
        """Return stored messages for people to read, in order, also those that were folded: at most ``limit``.

        They are the last messages, or those before the position ``before``, or those after the position ``after``.
        With ``items`` the messages have the items of other frameworks for which they stand.
        """
        arguments.check_whole_number(limit, "limit", minimum=1)
        arguments.check_whole_number(before, "before", optional=True)
        arguments.check_whole_number(after, "after", optional=True)
        return self.store.history(self.resolve(session), before=before, after=after, limit=limit, items=items)

    ahistory = asynchronous(history)

    def search(
        self,
        query: str,
        *,
        session: str | Named | None = None,
        owner: Any = None,
        visitor: str | None = None,
        sessions: Any = None,
        limit: int = 10,
        offset: int = 0,
        before: int | None = None,
        after: int | None = None,
        neighbours: int = 0,
    ) -> Hits:
        """Return the messages that match ``query`` best, at most ``limit``, folded or not.

        The query is any text, for example a question. It has no syntax: its rarest words count most. Search one
        ``session``, or all sessions of an ``owner`` or a ``visitor`` in this memory, or those of ``sessions``, a query
        of ``Session`` rows: the newest first, as far as they have 100 000 messages. ``before`` and ``after`` are
        positions in the session. ``offset`` leaves out the best hits, for a next page. With ``neighbours`` each hit has
        so many messages on both sides, at most 10. If there are more than 512 messages that are not indexed yet, the
        older ones of these are not found, and the scheduler is told to have their sessions indexed.

        System messages, reasoning and redacted messages are not found. A session that does not exist has no hits.
        Raises :class:`~django_convmemory.exceptions.InvalidSession` and ``InvalidArgument``.
        """
        numbers: dict[str, Any] = {
            "limit": limit,
            "offset": offset,
            "before": before,
            "after": after,
            "neighbours": neighbours,
        }
        arguments.check_search(session, owner, visitor, sessions, **numbers)
        parsed = tokenizer.query(query, dt.datetime.now(self.requests.zone))
        name = None if session is None else self.resolve(session)
        observed = observers.Search(alias=self.alias, query=query)
        with observers.searching(observed):
            most = searching.MAX_MESSAGES
            if name is not None:
                read = self.store.read_index(name, before=before, epoch=None)
                reads = [] if read is None else [read]
            elif sessions is not None:
                reads = self.store.read_indexes_among(self.alias, sessions, max_messages=most)
            else:
                scope = arguments.scope(self.store, owner, visitor)
                reads = self.store.read_indexes_of(self.alias, **scope, max_messages=most)
            searched = [searching.searchable(read) for read in reads]
            if self.options.index:
                for session_id in searching.to_index(searched):
                    self.schedule(session_id)
            observed.hits = hits = searching.search(
                self.store, searched, parsed, **numbers, reranker=self.reranker, text=query
            )
        return hits

    asearch = asynchronous(search)
