"""The index has another form after an update. A worker makes it anew, also while old workers still run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import call_command

from django_convmemory import models
from django_convmemory.memory import ConversationMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.rules import segments
from django_convmemory.scheduling import Memory, NullScheduler
from django_convmemory.store import index_rows
from django_convmemory.store.orm import ORMStore
from tests.indexes import SECRET, build, expected, index, index_all, indexed, say, stored

pytestmark = pytest.mark.django_db


@pytest.fixture
def memory() -> ConversationMemory:
    return build()


@pytest.fixture
def as_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Go on as code of this version."""

    def become(version: int) -> None:
        for module in (segments, index_rows):
            monkeypatch.setattr(module, "VERSION", version)

    return become


def made_by(version: int, **sessions: str) -> None:
    """Let code of this version have made the index."""
    for row in models.Segment.objects.filter(**{f"session__{name}": value for name, value in sessions.items()}):
        _, _, rest = row.data.partition("\t")
        row.data = f"v{version}\t{rest}" if version else rest
        row.save()


@pytest.mark.parametrize("version", [0, 1])
def test_an_index_of_an_older_version_counts_as_none_and_is_made_anew(version: int, memory: ConversationMemory) -> None:
    say(memory, 300)
    say(memory, 3, "sound")
    index_all()
    index_all("sound")
    whole = stored()
    made_by(version, key="s")

    hits = memory.search("heron", sessions=models.Session.objects.all())

    assert {hit.session.key for hit in hits} == {"sound"}
    assert not hits.complete
    assert index_all() == 300
    assert stored() == whole == expected(memory, 300)
    assert memory.search("heron", session="s").complete


def test_a_search_has_sessions_of_an_older_version_indexed() -> None:
    memory, asked = build(), list[int]()

    class Queue(NullScheduler):
        after_commit = False

        def schedule(self, memory: Memory, session_id: int, *, delay: float = 0.0) -> None:
            asked.append(session_id)

    memory.scheduler = Queue()
    say(memory, 3)
    index()
    made_by(1)

    assert memory.search("heron", session="s") == []

    assert asked == [models.Session.objects.get().pk]


@pytest.mark.parametrize(
    "edit",
    [
        lambda memory: memory.redact("s", 2),
        lambda memory: memory.truncate("s", 1),
        lambda memory: memory.pop("s"),
        lambda memory: memory.clear("s"),
    ],
    ids=["redact", "truncate", "pop", "clear"],
)
@pytest.mark.parametrize("version", [1, 3])
def test_an_edit_leaves_no_word_in_an_index_of_another_version(
    version: int, edit: Callable[[ConversationMemory], object], memory: ConversationMemory
) -> None:
    memory.append("s", ChatMessage.human("heron"), ChatMessage.human(SECRET))
    index()
    made_by(version)

    edit(memory)

    assert not models.Segment.objects.filter(data__contains=SECRET).exists()
    assert indexed() == 0
    index_all()
    assert stored() == expected(memory, models.Session.objects.get().last_position)


def test_a_fork_does_not_copy_an_index_of_another_version(memory: ConversationMemory) -> None:
    say(memory, 3)
    index()
    made_by(1)

    memory.fork("s", 2, key="copy")

    assert (stored("copy"), indexed("copy")) == ([], 0)
    index_all("copy")
    assert stored("copy") == expected(memory, 2, "copy")


def test_an_old_worker_cannot_write_into_a_session_of_the_new(
    as_version: Callable[[int], None], memory: ConversationMemory
) -> None:
    store = ORMStore()
    say(memory, 20)
    session_id = models.Session.objects.get().pk
    as_version(1)
    index(limit=10)
    read = store.unindexed(session_id, limit=10)
    assert read is not None
    messages = [segments.Document(["heron"], begins_sitting=False) for _ in read.messages]
    late = segments.extended(read.last, 11, messages)
    as_version(2)
    # The new worker reaches the same position.
    assert index(limit=10) == 10

    assert not store.add_segments(session_id, read, late)

    as_version(1)
    say(memory, 5)
    assert index() == 0
    as_version(2)
    assert index_all() == 15
    assert stored() == expected(memory, 25)


def test_the_command_makes_the_index_anew_and_skips_what_is_done(
    memory: ConversationMemory, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("a", "b", "c"):
        say(memory, 3, key)
        index(key)
    made_by(1)
    first = models.Session.objects.get(key="a")
    index("a")  # A run before was killed here.
    caplog.set_level(logging.WARNING)
    output = StringIO()

    call_command("convmemory_check", "--reindex", stdout=output)

    assert output.getvalue() == "Checked 3 sessions. 2 sessions reindexed. Nothing is wrong.\n"
    assert models.Session.objects.get(pk=first.pk).epoch == first.epoch + 1
    for key in ("a", "b", "c"):
        assert stored(key) == expected(memory, 3, key)
    assert not caplog.records


def test_the_command_says_how_far_it_is(memory: ConversationMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a", "b"):
        say(memory, 3, key)
    monkeypatch.setattr("django_convmemory.management.commands.convmemory_check._SAYS_EVERY", 0.0)
    output = StringIO()

    call_command("convmemory_check", "--reindex", stdout=StringIO(), stderr=output)

    first, last = models.Session.objects.order_by("pk").values_list("pk", flat=True)
    assert output.getvalue().splitlines() == [
        f"Checked 1 session, 1 is left. To continue from here: --after {first}.",
        f"Checked 2 sessions, 0 are left. To continue from here: --after {last}.",
    ]
