"""Random operations on both stores. Everything observable is compared: the in-memory store has the right results."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

import hypothesis
import pytest
from django.contrib.auth import get_user_model
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from django_convmemory import exceptions, models
from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.contrib import responses_items
from django_convmemory.maintenance import integrity
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory, SessionHandle
from django_convmemory.rules.pause import Pause
from django_convmemory.rules.segments import Segment
from django_convmemory.rules.strategies import (
    Buffer,
    Pruning,
    Strategy,
    SummaryBuffer,
    SummaryWindow,
    TokenBuffer,
    Window,
)
from django_convmemory.rules.values import Claim, StoredMessage
from django_convmemory.scheduling import InlineScheduler, NullScheduler
from django_convmemory.search import indexing
from django_convmemory.search.searching import Searchable
from django_convmemory.store.in_memory import NEVER, InMemoryStore
from django_convmemory.store.orm import ORMStore
from django_convmemory.tokens import SummaryBufferEstimate
from tests import response_items
from tests.indexes import searchable, searchable_of

pytestmark = pytest.mark.vendors

# Sessions of nobody, of a visitor and of a user, and forks.
KEYS = ("a", "b", "v:a", "v:b", "u:a", "u:b", "f", "g")
CALLS = ("c1", "c2", "c3")

# The prompts name it. The two stores are used one after the other, maybe just before and after midnight.
DAY = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)


@dataclasses.dataclass
class DigestModel:
    """Answers with a digest of the request, so that two memories get equal texts for equal requests."""

    failure: exceptions.ChatModelError | None = None
    name: str = "digest"
    deadline: float = 1.0

    def chat(self, request: ChatRequest) -> ChatResponse:
        if self.failure is not None:
            raise self.failure
        text = "\n".join(message.text for message in request.messages)
        return ChatResponse(ChatMessage.ai("digest " + hashlib.sha256(text.encode()).hexdigest()[:8]))

    async def achat(self, request: ChatRequest) -> ChatResponse:
        return self.chat(request)


def texts() -> st.SearchStrategy[str]:
    return st.one_of(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60),
        st.sampled_from(["", "Order 88123-B cost 20 euros.", "Assistant: Call 030 1234567.", "order 4711"]),
    )


def calls() -> st.SearchStrategy[list[dict[str, Any]]]:
    call = st.sampled_from(CALLS).map(
        lambda call_id: {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    )
    return st.lists(call, min_size=1, max_size=3, unique_by=lambda call: call["id"])


def messages() -> st.SearchStrategy[ChatMessage]:
    """Messages of every role. Tool results come with and without a call."""
    return st.one_of(
        st.builds(ChatMessage.human, texts()),
        st.builds(ChatMessage.ai, texts()),
        st.builds(lambda tool_calls: ChatMessage.ai(tool_calls=tool_calls), calls()),
        st.builds(ChatMessage.tool, texts(), st.sampled_from(CALLS)),
        st.builds(ChatMessage.system, texts()),
        st.builds(lambda text: ChatMessage.human([{"type": "text", "text": text}], metadata={"n": 1e300}), texts()),
    )


ONCE = st.none() | st.sampled_from(["k1", "k2", "k3"])


class Ids:
    """Makes the ids of messages. Both stores get the same ones, because each operation begins at the same number."""

    made = 0

    def __call__(self, count: int) -> tuple[uuid.UUID, ...]:
        self.made += count
        return tuple(uuid.UUID(int=number) for number in range(self.made - count, self.made))


IDS = Ids()


def created(session: Any) -> Any:
    """Return what a store says of a session that was created, now or by an earlier request with the same key."""
    return session.session_name, session.title, session.replayed


STRATEGIES: list[Strategy] = [
    SummaryBuffer(20),
    SummaryBuffer(3),
    SummaryWindow(2),
    SummaryWindow(0),
    Pruning(15),
    Window(3),
    TokenBuffer(12),
    Buffer(),
]


class BothStores(RuleBasedStateMachine):
    @initialize(strategy=st.sampled_from(STRATEGIES), inline=st.booleans())
    def build(self, strategy: Strategy, inline: bool) -> None:
        models.Session.objects.all().delete()
        self.user = get_user_model().objects.get_or_create(username="ada")[0]
        self.model = DigestModel()
        self.memory, self.measured = (
            ConversationMemory(
                store,
                strategy,
                model=self.model if strategy.view().summary else None,
                counter=SummaryBufferEstimate(),
                scheduler=InlineScheduler() if inline else NullScheduler(),
                max_summary_tokens=40,
                max_context_tokens=80,
                max_chunk_tokens=100,
            )
            for store in (ORMStore(), InMemoryStore())
        )

    def named(self, memory: ConversationMemory, key: str) -> SessionHandle:
        scope, _, rest = key.rpartition(":")
        scopes: dict[str, dict[str, Any]] = {"u": {"owner": self.user}, "v": {"visitor": "vera"}, "": {}}
        return memory.session(rest, **scopes[scope])

    def both(self, operation: Callable[..., Any], *keys: str) -> Any:
        results, first_id = [], IDS.made
        for memory in (self.memory, self.measured):
            IDS.made = first_id
            # A pause has a random length, and ends by the clock: see test_pause.
            memory.store.change_pause(memory.alias, Pause.answered)
            try:
                results.append(operation(*(self.named(memory, key) for key in keys) if keys else (memory,)))
            except exceptions.ConvMemoryError as error:
                results.append(type(error))
        ours, measure = results
        assert ours == measure
        return ours

    @rule(
        key=st.sampled_from(KEYS),
        batch=st.lists(messages(), min_size=1, max_size=5),
        once=ONCE,
    )
    def append(self, key: str, batch: list[ChatMessage], once: str | None) -> None:
        self.both(lambda chat: chat.append(*batch, idempotency_key=once, created_at=DAY), key)

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 12))
    def chat(self, key: str, count: int) -> None:
        for number in range(count):
            message = ChatMessage.ai(f"reply {number}") if number % 2 else ChatMessage.human(f"question {number}")
            self.both(lambda chat, message=message: chat.append(message, created_at=DAY), key)

    @rule(key=st.sampled_from(KEYS), asked=calls(), data=st.data())
    def use_tools(self, key: str, asked: list[dict[str, Any]], data: st.DataObject) -> None:
        """An exchange with results in any order, repeated or missing, with turns between them, in batches."""
        results = [ChatMessage.tool("done", call["id"]) for call in asked]
        answers = st.lists(st.sampled_from([*results, *results, ChatMessage.human("and?")]), max_size=5)
        rest = [*data.draw(answers), *data.draw(st.lists(messages(), max_size=2))]
        turns = [ChatMessage.ai(tool_calls=asked), *rest]
        while turns:
            size = data.draw(st.integers(1, len(turns)))
            batch, turns = turns[:size], turns[size:]
            self.both(lambda chat, batch=batch: chat.append(*batch), key)

    @rule(key=st.sampled_from(KEYS), sequence=response_items.sequences(max_size=8), data=st.data())
    def act_as_agent(self, key: str, sequence: list[dict[str, Any]], data: st.DataObject) -> None:
        """Items in any order, with chat messages between them, in batches."""
        turns = [responses_items.message(item) for item in sequence]
        turns += data.draw(st.lists(messages(), max_size=2))
        while turns:
            size = data.draw(st.integers(1, len(turns)))
            batch, turns = turns[:size], turns[size:]
            self.both(lambda chat, batch=batch: chat.append(*batch), key)

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 4))
    def pop(self, key: str, count: int) -> None:
        def last(chat: SessionHandle) -> list[Any]:
            popped = chat.pop()
            return transcript([popped] if popped else [])

        for _ in range(count):
            self.both(last, key)

    @rule(key=st.sampled_from(KEYS), max_tokens=st.none() | st.integers(0, 60))
    def load(self, key: str, max_tokens: int | None) -> None:
        context = self.both(lambda chat: context_values(chat.load(max_tokens=max_tokens, system="Be kind.")), key)
        assert max_tokens is None or context["tokens"] <= max_tokens or context["over_budget"]

    @rule(key=st.sampled_from(KEYS))
    def clear(self, key: str) -> None:
        self.both(lambda chat: chat.clear(), key)

    @rule(key=st.sampled_from(KEYS), title=st.sampled_from(["", "A trip"]), number=st.integers(0, 9), once=ONCE)
    def create(self, key: str, title: str, number: int, once: str | None) -> None:
        self.both(
            lambda chat: created(chat.create(title=title, metadata={"number": number % 2}, idempotency_key=once)), key
        )

    @rule(
        key=st.sampled_from(KEYS),
        position=st.integers(1, 30),
        metadata=st.sampled_from([{}, {"thumb": "up"}, {"n": 1e300}]),
        revision=st.none() | st.integers(0, 60),
    )
    def update_message(self, key: str, position: int, metadata: dict[str, Any], revision: int | None) -> None:
        self.both(lambda chat: chat.update_message(position, metadata=metadata, revision=revision), key)

    @rule(
        key=st.sampled_from(KEYS),
        back=st.integers(-1, 12),
        batch=st.lists(messages(), min_size=1, max_size=3),
        once=ONCE,
        revision=st.none() | st.integers(0, 60),
    )
    def replace(self, key: str, back: int, batch: list[ChatMessage], once: str | None, revision: int | None) -> None:
        last = models.Session.objects.named(self.named(self.memory, key).session_name).first()
        after = max(0, (last.last_position if last else 0) - back)
        self.both(lambda chat: chat.replace(after, *batch, revision=revision, idempotency_key=once), key)

    @rule(
        key=st.sampled_from(KEYS),
        changes=st.fixed_dictionaries(
            {},
            optional={
                "title": texts(),
                "metadata": st.just({"a": [1]}),
                "archived": st.booleans(),
                "starred": st.booleans(),
            },
        ),
        revision=st.none() | st.integers(0, 60),
    )
    def update(self, key: str, changes: dict[str, Any], revision: int | None) -> None:
        self.both(lambda chat: chat.update(**changes, revision=revision), key)

    @rule(key=st.sampled_from(KEYS), revision=st.none() | st.integers(0, 60))
    def delete(self, key: str, revision: int | None) -> None:
        self.both(lambda chat: chat.delete(revision), key)

    @rule(key=st.sampled_from(KEYS))
    def compact(self, key: str) -> None:
        self.both(lambda chat: chat.compact(), key)

    @rule(key=st.sampled_from(KEYS))
    def rebuild(self, key: str) -> None:
        self.both(lambda chat: chat.rebuild(), key)

    @rule(key=st.sampled_from(KEYS), after=st.integers(0, 30), revision=st.none() | st.integers(0, 60))
    def truncate(self, key: str, after: int, revision: int | None) -> None:
        self.both(lambda chat: chat.truncate(after, revision), key)

    @rule(key=st.sampled_from(KEYS), back=st.integers(0, 12))
    def regenerate(self, key: str, back: int) -> None:
        """Delete the last messages, as a site does that lets a reply be made again."""
        last = models.Session.objects.named(self.named(self.memory, key).session_name).first()
        if last is not None:
            self.both(lambda chat: chat.truncate(max(0, last.last_position - back)), key)

    @rule(
        key=st.sampled_from(KEYS),
        at=st.integers(0, 30),
        copy=st.sampled_from(("f", "g", "a")),
        title=st.none() | st.just("A copy"),
        once=ONCE,
    )
    def fork(self, key: str, at: int, copy: str, title: str | None, once: str | None) -> None:
        titled = {} if title is None else {"title": title}
        self.both(
            lambda memory: created(memory.fork(self.named(memory, key), at, key=copy, idempotency_key=once, **titled))
        )

    @rule(key=st.sampled_from(KEYS), position=st.integers(1, 30), forks=st.booleans())
    def redact(self, key: str, position: int, forks: bool) -> None:
        self.both(lambda chat: chat.redact(position, forks), key)

    @rule(
        key=st.sampled_from(KEYS),
        before=st.none() | st.integers(0, 30),
        after=st.none() | st.integers(0, 30),
        limit=st.integers(1, 20),
        items=st.booleans(),
    )
    def history(self, key: str, before: int | None, after: int | None, limit: int, items: bool) -> None:
        self.both(lambda chat: transcript(chat.history(before=before, after=after, limit=limit, items=items)), key)

    @rule(key=st.sampled_from(KEYS), limit=st.integers(1, 12))
    def index(self, key: str, limit: int) -> None:
        self.both(
            lambda chat: indexing.index(chat.memory.store, chat.memory.store.find(chat.session_name) or 0, limit=limit),
            key,
        )

    @rule(key=st.sampled_from(KEYS), before=st.none() | st.integers(0, 30), epoch=st.none() | st.integers(0, 5))
    def searchable(self, key: str, before: int | None, epoch: int | None) -> None:
        self.both(
            lambda chat: read(searchable(chat.memory.store, chat.session_name, before=before, epoch=epoch), key),
            key,
        )

    @rule(of_user=st.booleans(), max_messages=st.integers(1, 40) | st.just(100_000))
    def searchable_of(self, of_user: bool, max_messages: int) -> None:
        scope: dict[str, Any] = {"owner_id": self.user.pk, "visitor": ""}
        if not of_user:
            scope = {"owner_id": None, "visitor": "vera"}
        # The database's times have few digits, so sessions that were changed within a millisecond are in any order.
        count = models.Session.objects.filter(**scope, last_position__gt=0).count()
        if max_messages < 100_000 and count > 1:
            return
        self.both(
            lambda memory: sorted(
                read(session, session.name.key)
                for session in searchable_of(memory.store, alias=memory.alias, **scope, max_messages=max_messages)
            )
        )

    @rule(key=st.sampled_from(KEYS), positions=st.lists(st.integers(0, 30), max_size=5), epoch=st.integers(0, 5))
    def messages_at(self, key: str, positions: list[int], epoch: int) -> None:
        def at(chat: SessionHandle) -> list[Any]:
            session_id = chat.memory.store.find(chat.session_name) or 0
            found = chat.memory.store.messages_at([(session_id, epoch, position) for position in positions])
            assert {session for session, _ in found} <= {session_id}
            return transcript([found[place] for place in sorted(found)])

        self.both(at, key)

    @rule()
    def log_in(self) -> None:
        self.both(lambda memory: sorted(handle.key for handle in memory.adopt("vera", self.user)))

    @rule(of_user=st.booleans())
    def erase(self, of_user: bool) -> None:
        self.both(lambda memory: memory.erase(owner=self.user) if of_user else memory.erase(visitor="vera"))

    @rule(
        failure=st.sampled_from(
            [
                None,
                exceptions.ModelUnavailable("down"),
                exceptions.BadModelOutput("none"),
                exceptions.ContextLengthExceeded("long"),
            ]
        )
    )
    def fail(self, failure: exceptions.ChatModelError | None) -> None:
        self.model.failure = failure

    @rule()
    def sweep(self) -> None:
        swept = []
        for memory in (self.memory, self.measured):
            ids = {memory.store.find(self.named(memory, key).session_name): key for key in KEYS}
            # Keys that got a number at login are not among them.
            swept.append(sorted(ids.get(session_id, "another") for session_id in memory.sweep(queued_for=0)))
        assert swept[0] == swept[1]

    @rule(key=st.sampled_from(KEYS), dropped=st.sampled_from(KEYS))
    def take_turns(self, key: str, dropped: str) -> None:
        seen: list[Any] = []
        for memory in (self.memory, self.measured):
            store = memory.store
            mine, other = (store.find(self.named(memory, name).session_name) for name in (key, dropped))
            if mine is None or other is None:
                seen.append(None)
                continue
            store.unqueue(other)
            claim = store.claim(mine, memory.threshold, lease=60, prompt_hash="", force=True)
            scope, following = store.scopes(mine)[-1], None
            waits = store.leases(scope), store.others_wait(scope, (memory.alias,))
            if isinstance(claim, Claim):
                following = store.following(claim) == other
                store.release(claim, memory.threshold)
            seen.append((scope.whose, waits, following))
        assert seen[0] == seen[1]

    @invariant()
    def sessions_agree(self) -> None:
        if not hasattr(self, "memory"):
            return
        store = self.measured.store
        assert isinstance(store, InMemoryStore)
        for key in KEYS:
            measured = store.session(self.named(self.measured, key).session_name)
            row = models.Session.objects.named(self.named(self.memory, key).session_name).first()
            assert (row is None) == (measured.id == 0)
            if row is None:
                continue
            assert row.counters == measured.counters
            assert list(integrity.check(models.Session.objects.filter(pk=row.pk))) == []
            for field in ("epoch", "revision", "last_version", "attempts", "last_error"):
                assert getattr(row, field) == getattr(measured, field), field
            assert row.current_version == (measured.summary.version if measured.summary else 0)
            assert (row.title, row.metadata) == (measured.title, measured.metadata)
            assert (row.archived_at is not None, row.starred_at is not None) == (measured.archived, measured.starred)
            assert {
                used.key_hash: (used.first_position, used.size, bool(used.content), used.gone_at is None)
                for used in row.convmemory_used_keys.all()
            } == {
                key_hash: (used.positions[0], len(used.positions), bool(used.content), used.gone_at == NEVER)
                for key_hash, used in measured.keys.items()
            }
            assert (row.due_since is None) == (measured.due_since == NEVER)
            assert (row.rebuild_after is None) == (measured.rebuild_after == NEVER)
            assert not row.lease_token
            assert row.pinned_count == len(row.counters.pinned)
            assert row.pinned_tokens == sum(pinned.tokens for pinned in row.counters.pinned)
            assert (row.fork_position or 0) == measured.fork_position
            assert row.indexed_position == measured.indexed_position
            assert [
                Segment(*values)
                for values in row.convmemory_segments.order_by("first").values_list("first", "last", "data")
            ] == measured.segments
            assert [
                (summary.value, summary.parent_version, summary.invalidated_at is None, summary.building)
                for summary in row.convmemory_summaries.order_by("version")
            ] == [
                (version.value, version.parent_version, version.valid, version.building)
                for version in measured.versions
            ]
            assert transcript(self.named(self.memory, key).history(limit=1000, items=True)) == transcript(
                self.named(self.measured, key).history(limit=1000, items=True)
            )
            assert list(
                row.convmemory_messages.order_by("position").values_list("position", "tokens_through", "answers")
            ) == list(map(tuple, measured.places))


def context_values(context: Any) -> dict[str, Any]:
    """Return everything that a context shows."""
    return {
        "parts": context.parts,
        "summary": context.summary,
        "tokens": context.tokens,
        "omitted": context.omitted,
        "over_budget": context.over_budget,
        "pending": context.pending,
        "revision": context.revision,
        "openai": context.to_openai(),
    }


def read(session: Searchable | None, key: str) -> Any:
    """Return what a search reads of the session with this key, without its id."""
    if session is None:
        return None
    assert session.name.key == key.rpartition(":")[2]
    return (key, session.epoch, list(session.segments), session.complete)


def transcript(messages: list[StoredMessage]) -> list[Any]:
    """Return a history without the times."""
    return [(stored.position, stored.message, stored.tokens, stored.redacted, stored.id) for stored in messages]


def run(share: float) -> None:
    """Run this share of the examples of the profile."""
    # A retry waits for a random time. Here it is the longest one, so that both stores wait equally long. And memories
    # that fold nothing are due for indexing soon.
    with (
        mock.patch("django_convmemory.rules.pause.random.uniform", lambda shortest, longest: longest),
        mock.patch("django_convmemory.operations.folding.MAX_UNINDEXED", 4),
        mock.patch("django_convmemory.rules.counters.new_ids", IDS),
    ):
        run_state_machine_as_test(
            BothStores,
            settings=hypothesis.settings(
                max_examples=round(share * hypothesis.settings().max_examples),
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            ),
        )


@pytest.mark.django_db(transaction=True)
def test_both_stores_do_the_same_in_their_own_transactions() -> None:
    run(0.6)


@pytest.mark.django_db
def test_both_stores_do_the_same_inside_the_callers_transaction() -> None:
    run(0.3)
