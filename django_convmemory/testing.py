"""Tests of a site's conversation memories without a model, a broker or a network.

Each of these gives a test a :class:`ScriptedMemories`:

- the fixture ``convmemory``, for pytest,
- the mixin :class:`ConvMemoryTestMixin`, for Django's test cases,
- the context manager :func:`scripted_memories`, for anything else. The other two use it.

For example::

    def test_old_messages_are_summarized(db, convmemory):
        convmemory.reply("The user asked about Rust.")
        ...  # Append messages until a session is due.
        assert convmemory.run() == ["published"]

``docs/guides/testing.md`` is the manual.
"""

from __future__ import annotations

import contextlib
import threading
import unittest
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from unittest import mock

from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.chat_models.scripted import Reply, ScriptedChatModel, ScriptExhausted
from django_convmemory.memory import memories
from django_convmemory.operations.folding import asynchronous
from django_convmemory.operations.handles import ConversationMemory

if TYPE_CHECKING:
    from django_convmemory.fold.run import Outcome
    from django_convmemory.scheduling import Memory, Work

# Held while the memories are scripted, because all threads of the process share them.
_in_use = threading.Lock()


class NetworkModelCalled(AssertionError):
    """A test called a chat model that would have gone to the network.

    It is not a :class:`~django_convmemory.exceptions.ChatModelError`: compaction would handle it, and the test would
    pass.
    """


class UnusedReplies(AssertionError):
    """Queued replies are left at the end of a test: the model was asked less often than the test expected."""


class Queued(NamedTuple):
    """A session that waits to be folded: the alias of its memory and the primary key of its row."""

    alias: str
    session_id: int


class QueueScheduler:
    """Queues the sessions that become due, and folds them when :meth:`run` is called, in the calling thread.

    The ``append`` that makes a session due queues it at once. Queuing does not wait for the commit, because a
    ``TestCase`` never commits. If the transaction is rolled back, the session stays queued, and ``run`` returns
    ``not_due`` for it.
    """

    after_commit = False
    # As for the CeleryScheduler. A sweep then queues due sessions here and needs no broker.
    queues = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # In order, each session once: the memory that queued it last, and whether it waits for the next run.
        self._queue: dict[tuple[Queued, Work], tuple[Memory, bool]] = {}

    @property
    def queued(self) -> list[Queued]:
        """The sessions that wait to be folded, in order, including those that failed and wait for the next run."""
        with self._lock:
            return list(dict.fromkeys(queued for queued, _ in self._queue))

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Queue the session. If ``delay`` (in seconds) is above 0, the current :meth:`run` leaves it to the next."""
        with self._lock:
            self._queue[Queued(memory.alias, session_id), "compact"] = memory, delay > 0

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Queue the session for ``work``: ``"compact"`` or ``"rebuild"``."""
        with self._lock:
            self._queue[Queued(memory.alias, session_id), work] = memory, False
        return True

    def run(self) -> list[Outcome]:
        """Fold the queued sessions until none is left; return the outcome of each, in order.

        Sessions that are queued during the run are folded too. Each is folded as
        :meth:`~.conversation.ConversationMemory.compact` does it, without waiting for the time of its next attempt. A
        session that fails is tried once, and again by the next call of ``run``.

        If folding raises an exception, ``run`` raises it and the session stays queued. These are
        :class:`~django_convmemory.chat_models.scripted.ScriptExhausted`, a database's error, or a scripted exception
        that is not a :class:`~django_convmemory.exceptions.ChatModelError`.
        """
        with self._lock:
            self._queue = {key: (memory, False) for key, (memory, _) in self._queue.items()}
        outcomes: list[Outcome] = []
        while (next_job := self._pop()) is not None:
            memory, session_id, work = next_job
            try:
                # The test decides when to fold: a pause of the alias would only be in its way.
                result = memory.carry_out(session_id, "retry" if work == "compact" else work)
                outcomes.append(result.outcome)
            except BaseException:
                self.request(memory, session_id, work)
                raise
        return outcomes

    arun = asynchronous(run)

    def _pop(self) -> tuple[Memory, int, Work] | None:
        with self._lock:
            for (queued, work), (memory, waits) in self._queue.items():
                if not waits:
                    del self._queue[queued, work]
                    return memory, queued.session_id, work
        return None


class ScriptedMemories(QueueScheduler):
    """The script and the queue of a test, while the memories of the settings are scripted. It is their scheduler.

    - ``requests`` lists the requests to the model, in order, as
      :class:`~django_convmemory.chat_models.base.ChatRequest`.
    - ``allow_unused_replies`` is False by default. If it is True, a test may end with replies left.
    - ``failures`` lists each :class:`NetworkModelCalled` and each
      :class:`~django_convmemory.chat_models.scripted.ScriptExhausted` that was raised, also if it was caught. The test
      fails with the first of them at its end. A test that expects them empties the list.
    """

    def __init__(self, replies: Iterable[Reply]) -> None:
        super().__init__()
        self.failures: list[AssertionError] = []
        self.allow_unused_replies = False
        self._model = _RecordingModel(replies, self.failures)
        self.requests = self._model.requests
        self._test_failed = False

    def reply(self, *replies: Reply) -> None:
        """Queue the model's next replies, after those that are queued already.

        A reply is a text, a :class:`~django_convmemory.messages.ChatMessage`, a
        :class:`~django_convmemory.chat_models.base.ChatResponse`, or an exception, which the model raises. If a reply
        has another type, this raises :class:`TypeError` and queues none of them.
        """
        self._model.add(*replies)

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        """Script the memories of the settings, and keep every other memory from the network."""
        make, restoring = memories._make, contextlib.ExitStack()

        def script(memory: ConversationMemory) -> ConversationMemory:
            # In place, because a site may hold a memory in a variable. A sweep waits for no task of an append.
            changes: dict[str, Any] = {"scheduler": self, "swept_after": 0.0}
            if memory.model is not None:
                # A fallback would hide that the model failed.
                changes |= {"model": self._model, "fallback": None}
            restoring.enter_context(mock.patch.multiple(memory, **changes))
            return memory

        def refuse(model: OpenAIChatModel, request: ChatRequest) -> NoReturn:
            error = NetworkModelCalled(
                f"A test called {model!r}; the call was stopped before it reached the network. The model belongs to a "
                "memory that is not scripted. If the memory was built in code, give it a ScriptedChatModel. If it was "
                "read from memories[alias] before the settings changed, read it again where it is used, and queue the "
                "model's answer with convmemory.reply()."
            )
            self.failures.append(error)
            raise error

        async def arefuse(model: OpenAIChatModel, request: ChatRequest) -> NoReturn:
            refuse(model, request)

        try:
            # Memories are made under this lock, so each is made either before the change or after it.
            with memories._lock:
                restoring.enter_context(mock.patch.multiple(OpenAIChatModel, chat=refuse, achat=arefuse))
                restoring.enter_context(mock.patch.object(memories, "_make", lambda alias: script(make(alias))))
                for memory in memories._made.values():
                    script(memory)
            yield
        finally:
            with memories._lock:
                restoring.close()

    def _check(self) -> None:
        """Raise the first failure, or an error for unused replies. If the test has failed anyway, raise nothing."""
        if self._test_failed:
            return
        if self.failures:
            first, *others = self.failures
            first.add_note("The test went on after this error, so the error is raised again at the test's end.")
            for other in others:
                first.add_note(f"There was also: {type(other).__name__}: {other}")
            raise first
        unused = self._model.unused
        if unused and not self.allow_unused_replies:
            raise UnusedReplies(
                f"Replies are left that the model was not asked for: {', '.join(map(_excerpt, unused))}. Requests to "
                f"the model: {len(self.requests)}. Sessions still queued: {len(self.queued)}. Fold them with "
                "convmemory.run(), find out why no other session became due, or queue fewer replies. If unused replies "
                "are fine, set convmemory.allow_unused_replies = True."
            )


@contextlib.contextmanager
def scripted_memories(replies: Iterable[Reply] = ()) -> Iterator[ScriptedMemories]:
    """Script the memories of ``settings.CONVMEMORY`` until the end of the ``with`` block.

    During the block, for each of these memories:

    - One scripted model replaces the chat model, if there is one. Its replies are ``replies``, then those queued with
      :meth:`ScriptedMemories.reply`.
    - There is no fallback model.
    - A :class:`QueueScheduler` replaces the scheduler.

    The same holds for memories that are made during the block, also after ``override_settings``. All other settings
    keep their effect, and wrong settings raise their usual errors. No key, server or broker is needed. The end of the
    block restores everything.

    Every call of an :class:`~django_convmemory.chat_models.openai.OpenAIChatModel` raises :class:`NetworkModelCalled`.

    Raises :class:`TypeError` for a reply of a wrong type, and :class:`RuntimeError` if the memories are scripted
    already. If the block ends without an exception, this raises:

    - the first :class:`NetworkModelCalled` or :class:`~django_convmemory.chat_models.scripted.ScriptExhausted` of the
      block, again. Folding logs such an error and continues, so the test would otherwise pass.
    - otherwise :class:`UnusedReplies`, if replies are left.
    """
    scripted = ScriptedMemories(replies)
    if not _in_use.acquire(blocking=False):
        raise RuntimeError(
            "The memories are scripted already. The fixture convmemory, ConvMemoryTestMixin and scripted_memories() "
            "cannot be used inside one another, nor in two threads at once. Use the one that is already active."
        )
    try:
        with scripted._installed():
            yield scripted
    finally:
        _in_use.release()
    scripted._check()


class ConvMemoryTestMixin(unittest.TestCase):
    """Scripts the memories of the settings for each test of a test case of Django, as ``self.convmemory``.

    A class with a ``setUp`` of its own calls ``super().setUp()`` first. What is appended in ``setUpTestData`` or
    ``setUpClass`` comes before, and is not queued::

        class ChatTests(ConvMemoryTestMixin, TestCase):
            def test_what_was_said_long_ago_is_summarized(self):
                self.convmemory.reply("The user asked about Rust.")
    """

    convmemory: ScriptedMemories

    def setUp(self) -> None:
        """Script the memories. The cleanups of the test restore them and check for failures and unused replies."""
        super().setUp()
        self.convmemory = self.enterContext(scripted_memories())

    def doCleanups(self) -> None:  # noqa: N802  unittest's name
        """Run the cleanups. If the test has failed, they report no further failure."""
        # unittest has no public way to learn the outcome of a test. If this attribute disappeared, a failed test would
        # be reported twice, but no failure would be lost.
        outcome = getattr(self, "_outcome", None)
        scripted = getattr(self, "convmemory", None)
        if outcome is not None and scripted is not None and (not outcome.success or outcome.expectedFailure):
            scripted._test_failed = True
        super().doCleanups()


try:
    import pytest
except ImportError:
    pass  # Django's test cases need no fixture.
else:

    class _Watch:
        """A pytest plugin for one test. ``raised`` tells whether the test or one of its fixtures raised."""

        def __init__(self, item: object) -> None:
            self.item = item
            self.raised = False

        def pytest_runtest_makereport(self, item: object, call: pytest.CallInfo[None]) -> None:
            if item is self.item and call.excinfo is not None:
                self.raised = True

    @pytest.fixture
    def convmemory(request: pytest.FixtureRequest) -> Iterator[ScriptedMemories]:
        """Script the memories of the settings for one test; yield a :class:`ScriptedMemories`.

        The fixture itself needs no database. A test that appends messages asks for the database as for other models.
        """
        # pytest does not tell a fixture how its test ended.
        watch = _Watch(request.node)
        with scripted_memories() as scripted:
            request.config.pluginmanager.register(watch)
            yield scripted
            request.config.pluginmanager.unregister(watch)
            scripted._test_failed = watch.raised


class _RecordingModel(ScriptedChatModel):
    """A scripted model that adds to ``failures`` each request for which it has no reply."""

    def __init__(self, replies: Iterable[Reply], failures: list[AssertionError]) -> None:
        super().__init__(replies)
        self._failures = failures

    @property
    def unused(self) -> list[ChatResponse | BaseException]:
        """The replies that the model has not given yet."""
        with self._lock:
            return list(self._replies)

    def chat(self, request: ChatRequest) -> ChatResponse:
        """Give the next reply. ``achat`` calls this method too."""
        try:
            return super().chat(request)
        except ScriptExhausted as error:
            error.add_note("In a test with convmemory, call convmemory.reply() before the session is folded.")
            self._failures.append(error)
            raise


def _excerpt(reply: ChatResponse | BaseException) -> str:
    content = reply if isinstance(reply, BaseException) else reply.message.text
    return f"{content!r:.60}"
