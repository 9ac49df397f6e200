"""A session for the OpenAI Agents SDK, which it keeps its conversations in.

::

    from agents import Runner
    from django_convmemory.contrib.openai_agents import ConvMemorySession

    session = ConvMemorySession("main", owner=user)
    result = await Runner.run(agent, "What is Rust?", session=session)
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator
from typing import Any, cast

from agents.items import TResponseInputItem
from agents.memory import OpenAIResponsesCompactionArgs, SessionABC, SessionSettings
from asgiref.sync import sync_to_async

from django_convmemory.context.assembly import Context
from django_convmemory.contrib import framework_messages, responses_items
from django_convmemory.contrib.framework_messages import View
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.arguments import NOT_GIVEN
from django_convmemory.rules import exchanges
from django_convmemory.rules.values import StoredMessage

logger = logging.getLogger(__name__)


class ConvMemorySession(SessionABC):
    """The session ``session_id`` of a memory, with an owner, a visitor or nobody.

    - ``view="context"``: :meth:`get_items` gives the agent what fits into the budget of the memory: the summary as one
      item, and the items after it as they came. ``"history"`` gives every item.
    - ``session_settings`` may have a ``limit``. Then only the last items are given, and never the summary.

    Do not wrap it in ``EncryptedSession`` or ``OpenAIResponsesCompactionSession``: the first one hides the words that
    are summarized, and the second one replaces the items that this session keeps.

    Raises :class:`~django_convmemory.exceptions.InvalidSession` and ``InvalidArgument``.
    """

    def __init__(
        self,
        session_id: str,
        *,
        alias: str = "default",
        owner: Any = NOT_GIVEN,
        visitor: Any = NOT_GIVEN,
        view: View = "context",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        framework_messages.check_view(view)
        self.session_id = session_id
        if not isinstance(session_settings, SessionSettings):
            session_settings = SessionSettings().resolve(session_settings)
        self.session_settings = session_settings
        self.view = view
        self._session = memories[alias].session(session_id, owner=owner, visitor=visitor)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items for the next request. With ``limit``, the last so many items as they came, folded or not.

        A negative limit gives every item, as ``SQLiteSession`` does. Without a limit, a call and its result are either
        both given or both left out. A call that waits for its result is given.
        """
        settings = self.session_settings
        if settings is not None and settings.limit is not None:
            limit = settings.limit if limit is None else limit
            _warn_of_limit()
        items = await sync_to_async(self._items)(limit)
        return cast("list[TResponseInputItem]", items)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Store ``items``: all of them, or none. The memory's own summary is left out if it comes back.

        Raises :class:`~django_convmemory.exceptions.InvalidMessage` for an item with a NUL character or a lone
        surrogate, and for one with more bytes than the option ``max_message_bytes``.
        """
        await sync_to_async(self._add)(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Delete the last item and return it. None: there is no item.

        A message that the site stored itself is deleted as a whole, if it stands for several items.
        """
        while (popped := await self._session.apop()) is not None:
            # A redacted thought stands for no item.
            if made := responses_items.items([popped.message]):
                return cast("TResponseInputItem", made[-1])
        return None

    async def clear_session(self) -> None:
        """Delete all items and summaries."""
        await self._session.aclear()

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None) -> None:
        """Ask a worker to fold what is due, and return at once. Without ``force`` there is nothing to do.

        The memory asks for it by itself when a session becomes due. The SDK calls this after each turn.
        """
        if args and args.get("force"):
            await self._session.arequest_compaction()

    def _items(self, limit: int | None) -> list[responses_items.Item]:
        if limit is not None and limit >= 0:
            return _made(self._session.history(limit=limit, items=True) if limit > 0 else [])
        if limit is not None or self.view == "history":
            return _made(framework_messages.stored(self._session))
        context = self._session.load(recall=False)
        before = _before_tail(context)
        tail = [row for row in framework_messages.stored(self._session, after=before) if not row.message.pinned]
        leading = [part.message for part in context.parts if part.name in ("pinned", "summary")]
        return responses_items.items(leading) + _made(_without_lone_results(tail) if before else tail)

    def _add(self, items: list[TResponseInputItem]) -> None:
        messages = [message for message in map(responses_items.message, items) if not self._is_own_summary(message)]
        if messages:
            self._session.append(*messages)

    def _is_own_summary(self, message: ChatMessage) -> bool:
        """Whether an item is the summary that :meth:`get_items` gave. A callback may have passed it on as new input."""
        options = self._session.memory.options
        role = None if message.item is None else message.item.get("role")
        if role != options.summary_role or not message.text.startswith(options.summary_prefix):
            return False
        if options.summary_role != "user" and options.summary_prefix:
            return True
        # A user could write the same words as any prefix.
        parts = self._session.load(recall=False).parts
        return any(part.name == "summary" and part.message.text == message.text for part in parts)


def _made(history: Iterable[StoredMessage]) -> list[responses_items.Item]:
    """Return the items of stored messages. A redacted one says that it was redacted."""
    shown = [exchanges.redacted(stored.message) if stored.redacted else stored.message for stored in history]
    return responses_items.items(shown)


def _before_tail(context: Context) -> int:
    """Return the position before the first message of the tail. Without a tail, the end of what is covered."""
    positions = [part.position for part in context.parts if part.name == "tail" and part.position]
    return min(positions) - 1 if positions else context.covered


def _without_lone_results(tail: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
    """Leave out results whose calls are not in ``tail``. Providers refuse them.

    They came so late that they are not in the exchange of their call.
    """
    calls: set[str] = set()
    for stored in tail:
        calls.update(stored.message.call_ids)
        if stored.message.tool_call_id is None or stored.message.tool_call_id in calls:
            yield stored


@functools.cache
def _warn_of_limit() -> None:
    logger.warning(
        "The session settings have a limit, so the agent gets only the last items, and never the summary of what came "
        "before. Leave the limit out: the memory keeps the context within its own budget."
    )
