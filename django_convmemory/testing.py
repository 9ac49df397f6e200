"""The test kit of sites: their conversation memories, without a model, a broker or a network.

:func:`scripted_memories` is all of it. The fixture ``convmemory`` gives it to pytest's tests, and
:class:`ConvMemoryTestMixin` to Django's test cases; both yield a :class:`ScriptedMemories`::

    def test_what_was_said_long_ago_is_summarized(db, convmemory):
        convmemory.reply("The user asked about Rust.")
        ...  # what the site does until a session is due
        assert convmemory.run() == ["published"]

``docs/testing.md`` is the manual.
"""

from __future__ import annotations

import contextlib
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, NoReturn
from unittest import mock

from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.chat_models.scripted import Reply, ScriptedChatModel, ScriptExhausted
from django_convmemory.conversation import ConversationMemory, asynchronous
from django_convmemory.memory import memories

if TYPE_CHECKING:
    from django_convmemory.core.compaction import Outcome
    from django_convmemory.schedulers import Memory, Work

# Held while memories are scripted: they are those of the whole process.
_in_use = threading.Lock()


class NetworkModelCalled(AssertionError):
    """A test called a chat model that would have gone to the network.

    Not a :class:`~django_convmemory.exceptions.ChatModelError`: those are handled, and the test would pass.
    """


class UnusedReplies(AssertionError):
    """Replies were queued that no model was asked for: something that the test counts on did not happen."""


class Queued(NamedTuple):
    """A session that is to be folded: the alias of its memory, and the primary key of its row."""

    alias: str
    session_id: int


class QueueScheduler:
    """Notes the sessions that become due, and folds them when it is told to, in the thread that tells it.

    A session is noted by the ``append`` that turns it due, and not at the commit, which never comes in a ``TestCase``.
    One whose transaction is rolled back stays noted, and is then found not to be due.
    """

    after_commit = False
    # As the CeleryScheduler does. A sweep then queues here what it finds, and asks for no broker.
    hints = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # In order, each session once, with the memory that noted it last and whether it is to wait.
        self._noted: dict[tuple[Queued, Work], tuple[Memory, bool]] = {}

    @property
    def queued(self) -> list[Queued]:
        """The sessions that are noted and not folded yet, in order, those that wait to be tried again included."""
        with self._lock:
            return list(dict.fromkeys(queued for queued, _ in self._noted))

    def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
        """Note the session. With a ``delay`` the :meth:`run` at hand leaves it to the next one."""
        with self._lock:
            self._noted[Queued(memory.alias, session_id), "compact"] = memory, delay > 0

    def request(self, memory: Memory, session_id: int, work: Work) -> bool:
        """Note what was asked for."""
        with self._lock:
            self._noted[Queued(memory.alias, session_id), work] = memory, False
        return True

    def run(self) -> list[Outcome]:
        """Fold what is noted, and what is noted meanwhile, until nothing is left; return what came of each, in order.

        A session is folded as :meth:`~django_convmemory.conversation.ConversationMemory.compact` does it, without
        waiting for the time of its next attempt. One that fails is tried once, and again by the next call.

        Raises what a run of folding raises: an exception of the script that no chat model may raise,
        :class:`~django_convmemory.chat_models.scripted.ScriptExhausted`, or a database's error. The session is then
        still noted.
        """
        with self._lock:
            self._noted = {noted: (memory, False) for noted, (memory, _) in self._noted.items()}
        outcomes: list[Outcome] = []
        while (taken := self._take()) is not None:
            memory, session_id, work = taken
            try:
                outcomes.append(memory.carry_out(session_id, work))
            except BaseException:
                self.request(memory, session_id, work)  # It is to be done as before.
                raise
        return outcomes

    arun = asynchronous(run)

    def _take(self) -> tuple[Memory, int, Work] | None:
        with self._lock:
            for (queued, work), (memory, waits) in self._noted.items():
                if not waits:
                    del self._noted[queued, work]
                    return memory, queued.session_id, work
        return None


class ScriptedMemories:
    """What a test has in hand while the memories of the settings are scripted.

    ``requests`` lists what the model was asked, in order, as :class:`~django_convmemory.chat_models.base.ChatRequest`.
    ``allow_unused_replies``, False unless set, makes it no error that replies are left at the end. ``failures`` are
    the :class:`NetworkModelCalled` and the :class:`~django_convmemory.chat_models.scripted.ScriptExhausted` that were
    raised, caught or not; the test fails for the first of them, so one that expects them empties the list.
    """

    def __init__(self, replies: Iterable[Reply]) -> None:
        self.failures: list[AssertionError] = []
        self.allow_unused_replies = False
        self._model = _WatchedModel(replies, self.failures)
        self._scheduler = QueueScheduler()
        self._excused = False

    @property
    def requests(self) -> list[ChatRequest]:
        return self._model.requests

    @property
    def queued(self) -> list[Queued]:
        """The sessions that are due and not folded yet: the alias and the primary key of each, in order."""
        return self._scheduler.queued

    def reply(self, *replies: Reply) -> None:
        """Queue what the model says next, after what is queued already.

        A reply is a text, a :class:`~django_convmemory.messages.ChatMessage`, a
        :class:`~django_convmemory.chat_models.base.ChatResponse`, or an exception, which is raised. Raises
        :class:`TypeError` for another type, and then queues none of them.
        """
        self._model.add(*replies)

    def run(self) -> list[Outcome]:
        """Fold what is due, and what becomes due meanwhile, as :meth:`QueueScheduler.run` does."""
        return self._scheduler.run()

    arun = asynchronous(run)

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        """Script the memories of the settings, and keep every other one from the network."""

        def script(memory: ConversationMemory) -> Callable[[], None]:
            replaced = memory.model, memory.fallback, memory.scheduler
            memory.scheduler = self._scheduler
            if memory.model is not None:
                # No fallback, which would hide that the model failed.
                memory.model, memory.fallback = self._model, None

            def put_back() -> None:
                memory.model, memory.fallback, memory.scheduler = replaced

            return put_back

        def refuse(model: OpenAIChatModel, request: ChatRequest) -> NoReturn:
            error = NetworkModelCalled(
                f"A test called {model!r}, which was kept from the network. The memories of settings.CONVMEMORY are "
                "scripted, so this one is of a memory that was built in code, or of one that memories[alias] gave "
                "before the settings were changed. Build that memory with a ScriptedChatModel, or ask memories[alias] "
                "for it where it is used, and say with convmemory.reply() what the model answers."
            )
            self.failures.append(error)
            raise error

        async def arefuse(model: OpenAIChatModel, request: ChatRequest) -> NoReturn:
            refuse(model, request)

        with (
            mock.patch.object(OpenAIChatModel, "chat", refuse),
            mock.patch.object(OpenAIChatModel, "achat", arefuse),
            memories.changed(script),
        ):
            yield

    def _excuse(self) -> None:
        """Report nothing at the end: the test has failed already, and what is left is a consequence of that."""
        self._excused = True

    def _check(self) -> None:
        """Raise what the test must not pass with."""
        if self._excused:
            return
        if self.failures:
            first, *others = self.failures
            first.add_note("It did not end the test where it was raised, and so it is raised again at the end.")
            for other in others:
                first.add_note(f"There was also: {type(other).__name__}: {other}")
            raise first
        unused = self._model.unused
        if unused and not self.allow_unused_replies:
            raise UnusedReplies(
                f"The model was asked for {len(self.requests)} replies, and these were left: "
                f"{', '.join(map(_shown, unused))}. Sessions still queued: {len(self.queued)}. Fold those with "
                "convmemory.run(), see why no more became due, or queue fewer replies; where it does not matter, set "
                "convmemory.allow_unused_replies = True."
            )


@contextlib.contextmanager
def scripted_memories(replies: Iterable[Reply] = ()) -> Iterator[ScriptedMemories]:
    """Script the memories of ``settings.CONVMEMORY`` until the end of the ``with`` block.

    Each of them, those included that are made later or after ``override_settings``, asks one model that gives
    ``replies`` and what is queued with :meth:`ScriptedMemories.reply`, in place of its chat model and of its fallback,
    and tells a :class:`QueueScheduler` what is due, in place of its scheduler. All else is as the settings say, and
    settings that are wrong raise as ever. No key, server or broker is needed. At the end all is as it was before.

    Raises :class:`TypeError` for a reply of another type, and :class:`RuntimeError` where the memories are scripted
    already. A call of an :class:`~django_convmemory.chat_models.openai.OpenAIChatModel`, by whomever, raises
    :class:`NetworkModelCalled`. A block that ends without an error raises that one or a
    :class:`~django_convmemory.chat_models.scripted.ScriptExhausted` again, for folding catches and logs what it meets,
    or else :class:`UnusedReplies` where replies are left.
    """
    scripted = ScriptedMemories(replies)
    if not _in_use.acquire(blocking=False):
        raise RuntimeError(
            "The memories are scripted already. The fixture convmemory, ConvMemoryTestMixin and scripted_memories() "
            "cannot be used inside one another, or by two threads: use the one that is there."
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
        """Script the memories until the cleanups of the test, which fail it for what would pass unseen."""
        super().setUp()
        self.convmemory = self.enterContext(scripted_memories())

    def doCleanups(self) -> None:  # noqa: N802  unittest's name
        """Run the cleanups; a test that failed already is not failed a second time."""
        # unittest tells nobody how a test went, so this looks where it keeps that. Were the attribute gone, a test that
        # failed would be reported twice, and no failure would be lost.
        outcome = getattr(self, "_outcome", None)
        scripted = getattr(self, "convmemory", None)
        if outcome is not None and scripted is not None and (not outcome.success or outcome.expectedFailure):
            scripted._excuse()
        super().doCleanups()


try:
    import pytest
except ImportError:
    pass  # Then there are no fixtures, and the test cases of Django need none.
else:

    class _Watch:
        """A plugin of pytest, for one test: whether it, or a fixture of it, has raised."""

        def __init__(self, item: object) -> None:
            self.item = item
            self.raised = False

        def pytest_runtest_makereport(self, item: object, call: pytest.CallInfo[None]) -> None:
            if item is self.item and call.excinfo is not None:
                self.raised = True

    @pytest.fixture
    def convmemory(request: pytest.FixtureRequest) -> Iterator[ScriptedMemories]:
        """The memories of the settings, scripted for one test: a :class:`ScriptedMemories`.

        Needs no database by itself; a test that appends asks for one as for any other model.
        """
        # A fixture is not told how its test ended.
        watch = _Watch(request.node)
        with scripted_memories() as scripted:
            request.config.pluginmanager.register(watch)
            yield scripted
            request.config.pluginmanager.unregister(watch)
            if watch.raised:
                scripted._excuse()


class _WatchedModel(ScriptedChatModel):
    """A scripted model that notes in ``failures`` when it is asked too often."""

    def __init__(self, replies: Iterable[Reply], failures: list[AssertionError]) -> None:
        super().__init__(replies)
        self._failures = failures

    @property
    def unused(self) -> list[ChatResponse | BaseException]:
        """The replies that are left."""
        with self._lock:
            return list(self._replies)

    def chat(self, request: ChatRequest) -> ChatResponse:
        """Do as a scripted model does. ``achat`` calls this."""
        try:
            return super().chat(request)
        except ScriptExhausted as error:
            error.add_note("With convmemory: queue it with convmemory.reply(), before the folding that asks for it.")
            self._failures.append(error)
            raise


def _shown(reply: ChatResponse | BaseException) -> str:
    shown = reply if isinstance(reply, BaseException) else reply.message.text
    return f"{shown!r:.60}"
