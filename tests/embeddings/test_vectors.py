"""Workers make the vectors, and these go with what they were made from, also while they are on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core import checks
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings

from django_convmemory import models, tasks
from django_convmemory.contrib.embeddings import vectors
from django_convmemory.contrib.embeddings.models import Vector
from django_convmemory.contrib.embeddings.reranker import BATCH, EmbeddingReranker
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.scheduling import NullScheduler
from tests.embeddings.conftest import asked, embedded, id_of, ranker
from tests.indexes import say
from tests.openai_server import Behaviour, OpenAIServer
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendors]


class Queue(NullScheduler):
    """Notes what would be sent to a worker."""

    queues = True

    def __init__(self) -> None:
        self.sent: list[int] = []

    def schedule(self, memory: Any, session_id: int, *, delay: float = 0.0) -> None:
        self.sent.append(session_id)


def test_an_append_sends_a_task_and_the_worker_embeds_in_batches(
    memory: ConversationMemory, provider: OpenAIServer
) -> None:
    memory.scheduler = queue = Queue()
    say(memory, BATCH + 3)
    assert (queue.sent, asked(provider)) == ([id_of()], [])
    memory.compact_id(id_of())
    assert list(map(len, asked(provider))) == [BATCH, 3]
    assert embedded() == [*range(1, BATCH + 4)]
    memory.append("s", ChatMessage.ai("A boat."))
    memory.compact_id(id_of())
    assert asked(provider)[2:] == [["A boat."]]
    memory.compact_id(id_of())
    assert len(asked(provider)) == 3


def test_what_no_search_finds_is_not_embedded(memory: ConversationMemory, provider: OpenAIServer) -> None:
    memory.append("s", ChatMessage.system("Be kind."), ChatMessage.human("A boat."), ChatMessage.human("A dog."))
    memory.redact("s", 2)
    memory.compact_id(id_of())
    assert asked(provider) == [["A dog."]]
    assert embedded() == [1, 2, 3]
    memory.compact_id(id_of())
    assert len(asked(provider)) == 1


CHANGES: dict[str, tuple[Callable[[ConversationMemory], Any], list[int]]] = {
    "redact": (lambda memory: memory.redact("s", 3), [1, 2, 4, 5, 6]),
    "truncate": (lambda memory: memory.truncate("s", 4), [1, 2, 3, 4]),
    "pop": (lambda memory: memory.pop("s"), [1, 2, 3, 4, 5]),
    "replace": (lambda memory: memory.replace("s", 2, ChatMessage.human("A ship.")), [1, 2]),
    "clear": (lambda memory: memory.clear("s"), []),
    "delete": (lambda memory: memory.delete("s"), []),
    "erase": (lambda memory: call_command("convmemory_erase", key="s", interactive=False, verbosity=0), []),
    "deleting the row": (lambda memory: models.Session.objects.get(key="s").delete(), []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_vectors_go_with_their_messages_and_no_others(memory: ConversationMemory, name: str) -> None:
    change, left = CHANGES[name]
    for key in ("s", "another"):
        say(memory, 6, key)
        memory.compact_id(id_of(key))
    change(memory)
    assert embedded() == left
    assert embedded("another") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", CHANGES)
def test_a_vector_on_its_way_is_not_stored_if_its_message_goes(
    memory: ConversationMemory, provider: OpenAIServer, name: str
) -> None:
    change, left = CHANGES[name]
    say(memory, 6)
    session_id = id_of()
    provider.queue(Behaviour("embed", latency=1.0))
    worker = InThread(lambda: memory.reranker.embed_next(session_id))  # type: ignore[union-attr]
    assert provider.wait_for(lambda log: len(log) == 1)
    change(memory)
    worker.result()
    assert embedded() == []
    memory.compact_id(session_id)
    # Of what is embedded after that, nothing is of a message that is gone.
    assert "heron number 2" not in [text for texts in asked(provider)[1:] for text in texts] or 3 in left
    assert Vector.objects.exclude(data=b"").count() == len(models.Message.objects.filter(redacted_at=None))


def test_storing_waits_for_a_redaction_that_has_begun_and_then_stores_nothing(
    memory: ConversationMemory, reranker: EmbeddingReranker
) -> None:
    say(memory, 3)
    session_id = id_of()
    read = vectors.missing(reranker.using, session_id, reranker.model, limit=BATCH)
    assert read is not None
    new = dict.fromkeys(read.texts, b"1234")
    with transaction.atomic():
        memory.redact("s", 2)
        worker = InThread(lambda: vectors.store(reranker.using, session_id, reranker.model, read.epoch, new))
        worker.join(0.2)
    assert (worker.result(), embedded()) == (False, [])


def test_a_redaction_waits_for_vectors_that_are_being_stored_and_then_removes_them(
    memory: ConversationMemory, reranker: EmbeddingReranker
) -> None:
    say(memory, 3)
    session_id = id_of()
    with transaction.atomic():
        assert vectors.store(reranker.using, session_id, reranker.model, 0, dict.fromkeys((1, 2, 3), b"1234"))
        person = InThread(lambda: memory.redact("s", 2))
        person.join(0.2)
    person.result()
    assert embedded() == [1, 3]


def test_a_fork_has_the_vectors_of_what_it_copies(memory: ConversationMemory, provider: OpenAIServer) -> None:
    say(memory, 6)
    memory.compact_id(id_of())
    memory.fork("s", 4, key="copy")
    assert embedded("copy") == [1, 2, 3, 4]
    memory.redact("s", 2, forks=True)
    assert (embedded(), embedded("copy")) == ([1, 3, 4, 5, 6], [1, 3, 4])
    memory.compact_id(id_of("copy"))
    assert len(asked(provider)) == 1


def test_a_redaction_that_fails_keeps_the_vector(memory: ConversationMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    say(memory, 3)
    memory.compact_id(id_of())

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("after the vectors")

    monkeypatch.setattr("django_convmemory.store.editing.finish", fail)
    with pytest.raises(RuntimeError):
        memory.redact("s", 2)
    assert embedded() == [1, 2, 3]


def test_another_model_embeds_again(memory: ConversationMemory, provider: OpenAIServer) -> None:
    say(memory, 3)
    memory.compact_id(id_of())
    memory.reranker = ranker(provider, model="large")
    assert memory.search("heron", session="s")
    memory.compact_id(id_of())
    assert {exchange.body["model"] for exchange in provider.log} == {"small", "large"}
    assert (embedded(), Vector.objects.values("model").distinct().count()) == ([1, 2, 3], 1)


def test_a_model_that_comes_back_embeds_again_what_another_one_has_begun(
    memory: ConversationMemory, provider: OpenAIServer
) -> None:
    say(memory, BATCH + 3)
    memory.compact_id(id_of())
    ranker(provider, model="large").embed_next(id_of())
    memory.compact_id(id_of())
    assert embedded() == [*range(1, BATCH + 4)]
    assert Vector.objects.values("model").distinct().count() == 1


def test_half_of_a_pair_in_the_json_of_a_tool_can_be_embedded(
    memory: ConversationMemory, provider: OpenAIServer
) -> None:
    function = {"name": "look_up", "arguments": '{"bird": "heron \\ud83d"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    memory.append("s", ChatMessage.human("A boat."), ChatMessage.ai(tool_calls=[call]))
    memory.compact_id(id_of())
    assert asked(provider) == [["A boat.", "bird\nheron ?"]]
    assert embedded() == [1, 2]


@pytest.mark.parametrize("numbers", [[0.0, 0.0], [float("nan"), 1.0], [1.0, float("nan")], [float("inf"), 1.0]])
def test_a_vector_that_has_no_direction_counts_as_none(
    numbers: list[float], memory: ConversationMemory, provider: OpenAIServer
) -> None:
    say(memory, 2)
    rows = [{"index": 0, "embedding": numbers}, {"index": 1, "embedding": [1.0, 0.5]}]
    provider.queue(Behaviour("raw", body={"data": rows}))
    memory.compact_id(id_of())
    assert embedded() == [1, 2]
    assert list(Vector.objects.filter(data=b"").values_list("position", flat=True)) == [1]


def test_a_text_that_the_model_refuses_does_not_keep_the_others_from_being_embedded(
    memory: ConversationMemory, provider: OpenAIServer
) -> None:
    memory.append("s", ChatMessage.human("A boat."), ChatMessage.human("Unspeakable."), ChatMessage.human("A dog."))
    provider.queue(*(Behaviour(kind) for kind in ("content_filter", "embed", "content_filter", "embed", "embed")))
    memory.compact_id(id_of())
    assert embedded() == [1, 2, 3]
    assert list(Vector.objects.filter(data=b"").values_list("position", flat=True)) == [2]


def test_a_model_that_refuses_everything_marks_nothing_as_embedded(
    memory: ConversationMemory, provider: OpenAIServer
) -> None:
    say(memory, 3)
    provider.default = Behaviour("content_filter")
    memory.compact_id(id_of())
    assert embedded() == []


def test_after_a_failure_the_model_is_left_alone_for_a_while(
    memory: ConversationMemory,
    provider: OpenAIServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    say(memory, 3)
    provider.queue(Behaviour("server_error"))
    memory.compact_id(id_of())
    memory.compact_id(id_of())
    assert (len(provider.log), embedded()) == (1, [])
    assert "Messages of session" in caplog.text
    monkeypatch.setattr(memory.reranker, "_silent_until", 0.0)
    memory.compact_id(id_of())
    assert embedded() == [1, 2, 3]


@pytest.mark.parametrize("body", ["", "[]", {"data": []}, {"data": [{"index": 0, "embedding": []}]}])
def test_an_answer_without_vectors_is_an_error(memory: ConversationMemory, provider: OpenAIServer, body: Any) -> None:
    say(memory, 1)
    provider.queue(Behaviour("raw", body=body))
    memory.compact_id(id_of())
    assert embedded() == []


@pytest.fixture
def configured(provider: OpenAIServer) -> Any:
    """The setting of the tests, with embeddings."""
    options = {"model": "small", "base_url": provider.base_url, "api_key": "key"}
    path = "django_convmemory.contrib.embeddings.reranker.EmbeddingReranker"
    scheduler = {"BACKEND": "django_convmemory.scheduling.NullScheduler"}
    alias = {"SCHEDULER": scheduler, "RERANKER": {"BACKEND": path, "OPTIONS": options}}
    with override_settings(CONVMEMORY={"default": alias, "plain": {"SCHEDULER": scheduler}}):
        yield


@pytest.mark.usefixtures("configured")
def test_the_command_embeds_what_is_missing_and_resumes(
    provider: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = memories["default"]
    for key in ("a", "b", "c"):
        say(memory, 3, key)
    say(memories["plain"], 3, "without embeddings")
    provider.queue(Behaviour("embed"), Behaviour("server_error"))
    with pytest.raises(CommandError, match="3 messages embedded"):
        call_command("convmemory_embed")
    assert (embedded("a"), embedded("b")) == ([1, 2, 3], [])
    monkeypatch.setattr(memory.reranker, "_silent_until", 0.0)
    call_command("convmemory_embed", verbosity=0)
    assert [embedded(key) for key in ("b", "c", "without embeddings")] == [[1, 2, 3], [1, 2, 3], []]
    assert len(provider.log) == 4
    call_command("convmemory_embed", verbosity=0)
    assert len(provider.log) == 4


@pytest.mark.usefixtures("configured")
def test_the_command_removes_the_embeddings_of_an_alias(settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with_embeddings = settings.CONVMEMORY["default"]
    settings.CONVMEMORY = {"default": with_embeddings, "other": with_embeddings}
    for alias in ("default", "other"):
        say(memories[alias], 3, alias)
    call_command("convmemory_embed")
    settings.CONVMEMORY = {"default": with_embeddings, "other": {}}
    call_command("convmemory_embed", "--remove", "--alias", "other")
    assert capsys.readouterr().out == "6 messages embedded.\n3 embeddings removed.\n"
    assert (embedded("default"), embedded("other")) == ([1, 2, 3], [])


@pytest.mark.usefixtures("configured")
def test_the_task_that_folds_embeds_too() -> None:
    say(memories["default"], 3)
    tasks.compact("default", id_of())
    assert embedded() == [1, 2, 3]


@pytest.mark.usefixtures("configured")
def test_a_check_reports_options_without_a_key(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    del settings.CONVMEMORY["default"]["RERANKER"]["OPTIONS"]["api_key"]
    memories.forget()
    reports = [warning.msg for warning in checks.run_checks(databases=["default"]) if warning.id == "convmemory.W008"]
    assert any("There is no API key" in report and '"api_key": "none"' in report for report in reports)


@pytest.mark.usefixtures("configured")
def test_a_check_and_the_command_say_that_the_table_is_missing() -> None:
    def reports() -> list[str]:
        found = checks.run_checks(databases=["default"])
        return [warning.msg for warning in found if warning.id == "convmemory.W008" and "is missing" in warning.msg]

    call_command("migrate", "convmemory_embeddings", "zero", verbosity=0)
    try:
        [report] = reports()
        with pytest.raises(CommandError, match="table of the embeddings is missing"):
            call_command("convmemory_embed")
    finally:
        call_command("migrate", verbosity=0)
    assert 'Run "manage.py migrate"' in report
    assert reports() == []


@pytest.mark.usefixtures("configured")
def test_the_command_says_that_there_is_nothing_to_embed_or_that_removing_is_too_early(settings: Any) -> None:
    with pytest.raises(CommandError, match="No alias of --alias has an EmbeddingReranker"):
        call_command("convmemory_embed", "--alias", "plain")
    with pytest.raises(CommandError, match="Take RERANKER out"):
        call_command("convmemory_embed", "--remove")
    settings.CONVMEMORY = {"default": {}}
    with pytest.raises(CommandError, match="No alias of CONVMEMORY has an EmbeddingReranker"):
        call_command("convmemory_embed")
