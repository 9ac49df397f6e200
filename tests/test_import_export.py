"""``manage.py convmemory_import`` and ``convmemory_export``: what comes in, what goes out, and what is refused."""

from __future__ import annotations

import datetime as dt
import functools
import io
import json
import pathlib
import stat
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from hypothesis import given, strategies as st

from django_convmemory import integrity, models, transfer
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests import conversations, dialogues, processes

if TYPE_CHECKING:
    from pytest_django import Settings

TURN = "The cat sat on the mat and thought about the sea. " * 4
TIME = "2024-05-01T10:00:00+00:00"


class Terminal(io.StringIO):
    """A stream of somebody who looks at it."""

    def isatty(self) -> bool:
        return True


def human(text: str = "What is Rust?") -> dict[str, Any]:
    return {"role": "user", "content": text}


def record(key: str = "a", *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"key": key, "messages": list(messages) or [human()], **fields}


def call(command: str, *arguments: object, stream: io.StringIO | None = None, **options: Any) -> str:
    """Run a command, and return what it says."""
    out = stream or io.StringIO()
    call_command(command, *map(str, arguments), stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue()


def exported(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call("convmemory_export", *arguments).splitlines()]


def stored(key: str, **scope: Any) -> list[ChatMessage]:
    memory = memories["default"]
    return [one.message for one in memory.history(memory.session(key, **scope), limit=100_000)]


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Iterator[Any]:
    """Write records to a file, a line each."""

    def write(*records: Any, name: str = "given.jsonl") -> pathlib.Path:
        path = tmp_path / name
        path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records))
        return path

    return write


@pytest.fixture
def two(settings: Settings) -> None:
    """A second memory, ``other``."""
    settings.CONVMEMORY = dict.fromkeys(("default", "other"), settings.CONVMEMORY["default"])


# Reading.


@pytest.mark.django_db
@pytest.mark.parametrize(
    "form", ["{0}\n{1}\n", "\n\n {0}\r\n\n{1}", "[{0},{1}]", " \n [\n{0}\n, {1}\n]\n", "\ufeff{0}\n{1}"]
)
def test_records_come_a_line_each_or_in_a_list(form: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "given"
    path.write_text(form.format(json.dumps(record("a")), json.dumps(record("b"))), encoding="utf-8", newline="")

    assert call("convmemory_import", path).endswith("2 sessions imported with 2 messages, 0 were there already.\n")
    assert set(models.Session.objects.values_list("key", flat=True)) == {"a", "b"}


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["", " \n", "[]", " [ ] "])
def test_a_file_may_hold_nothing(text: str, write: Any) -> None:
    assert "0 sessions imported" in call("convmemory_import", write(text))


_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
)


@given(
    metadata=st.lists(st.dictionaries(_TEXTS, _JSON, max_size=3), max_size=5), chunk=st.integers(1, 100), data=st.data()
)
def test_a_list_is_read_the_same_in_whatever_pieces_it_comes(
    metadata: list[dict[str, Any]], chunk: int, data: st.DataObject
) -> None:
    given = [record(str(number), metadata=one) for number, one in enumerate(metadata)]
    text = json.dumps(given, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_CHUNK", chunk)
        found = list(transfer.read(io.StringIO(text)))

    assert [(one.place, one.key, one.metadata) for one in found] == [
        (f"item {number}", str(number - 1), one) for number, one in enumerate(metadata, 1)
    ]


def test_a_mistake_in_a_list_is_found_before_the_rest_is_read() -> None:
    file = io.StringIO('[{"key": nobody, "messages": []}, ' + " " * 1_000_000)

    with pytest.raises(transfer.BadRecord, match=r"item 1: it is not JSON .*character 9"):
        list(transfer.read(file))
    assert file.tell() < 100_000


@pytest.mark.django_db
def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given = io.TextIOWrapper(
        io.BytesIO(json.dumps(record("a", human("一种语言")), ensure_ascii=False).encode()), "ascii"
    )
    monkeypatch.setattr(sys, "stdin", given)

    assert call("convmemory_import", "-") == "1 sessions imported with 1 messages, 0 were there already.\n"
    assert stored("a") == [ChatMessage.human("一种语言")]
    assert not given.buffer.closed


# Importing.


@pytest.mark.django_db
def test_a_session_belongs_to_whom_the_record_says(write: Any) -> None:
    user = User.objects.create_user("anna")
    path = write(record(owner="anna"), record(visitor="v1"), record())

    call("convmemory_import", path)

    assert list(models.Session.objects.order_by("pk").values_list("key", "owner", "visitor")) == [
        ("a", user.pk, ""),
        ("a", None, "v1"),
        ("a", None, ""),
    ]


@pytest.mark.django_db
def test_what_is_said_of_a_session_and_its_messages_is_kept(write: Any) -> None:
    notes = {"2": {"kind": "plan", "metadata": {"by": [None]}, "created_at": "2024-05-02T12:00:00.000123+02:00"}}
    path = write(record("a", human(), human(), human(), title="Rust", metadata={"n": 1}, created_at=TIME, notes=notes))

    call("convmemory_import", path)

    session = models.Session.objects.get()
    assert (session.title, session.metadata) == ("Rust", {"n": 1})
    first, second = dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC), dt.datetime(2024, 5, 2, 10, 0, 0, 123, tzinfo=dt.UTC)
    rows = models.Message.objects.order_by("position")
    assert list(rows.values_list("kind", "metadata", "created_at")) == [
        ("chat", None, first),
        ("plan", {"by": [None]}, second),
        ("chat", None, first),
    ]


@pytest.mark.django_db
def test_a_second_run_goes_on_where_the_first_one_ended(write: Any) -> None:
    good, bad = [record(key, human(), human()) for key in "abc"], record("d", {"role": "robot", "content": "x"})
    with pytest.raises(CommandError):
        call("convmemory_import", write(*good[:2], bad))
    memories["default"].append("b", human("And now?"))

    said = call("convmemory_import", write(*good))

    assert said.endswith("1 sessions imported with 2 messages, 2 were there already.\n")
    assert [len(stored(key)) for key in "abc"] == [2, 3, 2]


@pytest.mark.django_db
def test_a_session_that_was_emptied_is_filled(write: Any) -> None:
    memories["default"].append("a", human("before"))
    memories["default"].clear("a")

    call("convmemory_import", write(record("a")))

    assert stored("a") == [ChatMessage.human("What is Rust?")]


@pytest.mark.django_db
def test_a_session_that_somebody_else_makes_meanwhile_is_left_alone(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories["default"].append("a", human("theirs"))
    monkeypatch.setattr(transfer.Importer, "_is_there", lambda self, session: False)

    assert "0 sessions imported with 0 messages, 1 were there" in call("convmemory_import", write(record("a")))
    assert stored("a") == [ChatMessage.human("theirs")]


@pytest.mark.django_db(transaction=True)
def test_two_imports_at_once_make_each_session_once(write: Any) -> None:
    path = write(*[record(str(number), *[human()] * 5, title="Rust") for number in range(40)])
    together, said = threading.Barrier(2), []

    def work() -> None:
        try:
            together.wait()
            said.append(call("convmemory_import", path))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    imported = [int(one.splitlines()[-1].split()[0]) for one in said]
    assert len(imported) == 2
    assert sum(imported) == 40
    assert list(models.Session.objects.values_list("last_position", "title")) == [(5, "Rust")] * 40
    assert models.Message.objects.count() == 200


@pytest.mark.django_db
def test_a_record_without_messages_is_left_out(write: Any) -> None:
    said = call("convmemory_import", write({"key": "a", "messages": []}, record("b")))

    assert said.endswith("1 sessions imported with 1 messages, 0 were there already, 1 without messages left out.\n")
    assert models.Session.objects.count() == 1


@pytest.mark.django_db
def test_more_messages_than_a_batch_keep_their_exchanges(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_BATCH", 3)
    asked = {"role": "assistant", "content": None, "tool_calls": [conversations.call("call_1")]}
    messages = [human(), human(), asked, {"role": "tool", "tool_call_id": "call_1", "content": ""}, human()]

    call("convmemory_import", write(record("a", *messages)))

    assert [one.to_openai() for one in stored("a")] == messages
    assert models.Message.objects.get(position=4).answers == 3


@pytest.mark.django_db
def test_sessions_become_due_and_nobody_is_told(write: Any, settings: Settings) -> None:
    inline = {"BACKEND": "django_convmemory.schedulers.InlineScheduler"}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "SCHEDULER": inline}}

    call("convmemory_import", write(record("long", *[human(TURN)] * 30), record("short")))

    due = models.Session.objects.due()
    assert list(due.values_list("key", "hinted_at")) == [("long", None)]
    assert not models.Attempt.objects.exists()


@pytest.mark.django_db
def test_without_compaction_they_are_undue_until_their_next_message(write: Any) -> None:
    said = call("convmemory_import", write(record("long", *[human(TURN)] * 30)), "--no-compact")

    assert "model" not in said
    assert not models.Session.objects.due().exists()
    assert memories["default"].append("long", human()).due


@pytest.mark.django_db
def test_it_says_what_folding_will_take(write: Any, settings: Settings) -> None:
    options = {"max_token_limit": 200, "max_chunk_tokens": 500}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    path = write(record("there", *[human(TURN)] * 30), name="there.jsonl")
    call("convmemory_import", path)
    each = memories["default"].counter.count(ChatMessage.human(TURN))
    kept = 100 // each

    said = call("convmemory_import", path, write(record("long", *[human(TURN)] * 30), record("short", *[human()] * 2)))

    tokens = (30 - kept) * each
    assert said.startswith(
        f"3 sessions to import. To fold the new ones takes about {-(-tokens // 500)} calls of the model "
        f"over {tokens} tokens.\n"
    )


@pytest.mark.django_db
@pytest.mark.parametrize("memory", ["Summary", "SummaryBuffer", "TokenBuffer"])
def test_every_memory_can_be_imported_into(memory: str, write: Any, settings: Settings) -> None:
    settings.CONVMEMORY = {
        "default": {
            **settings.CONVMEMORY["default"],
            "MEMORY": f"django_convmemory.memory.Conversation{memory}Memory",
            "OPTIONS": {},
        }
    }
    said = call("convmemory_import", write(record("long", *[human(TURN)] * 60)))

    assert ("about 1 calls of the model" in said) == (memory != "TokenBuffer")
    assert models.Session.objects.due().exists() == (memory != "TokenBuffer")


@pytest.mark.django_db
def test_another_memory_is_left_alone(write: Any, two: None) -> None:
    call("convmemory_import", write(record("a")), "--alias", "other")

    assert list(models.Session.objects.values_list("alias", flat=True)) == ["other"]


# What is refused.

_LATE = {"role": "tool", "tool_call_id": "call_9", "content": "late"}
BAD = {
    "no JSON": ('{"key": "b", nonsense}', "it is not JSON"),
    "cut off": ('{"key": "b", "messages": [', "it is not JSON"),
    "nested too deep": ('{"key":' + "[" * 200_000, "nested too deep"),
    "a number too long": ('{"key": ' + "9" * 5000 + "}", "it is not JSON"),
    "no object": ('"b"', "a record is an object .* not a text"),
    "no key": ({"messages": [human()]}, "no 'key'"),
    "no messages": ({"key": "b"}, "no 'messages'"),
    "an unknown field": (record("b", user="anna"), "unknown field 'user'"),
    "a key of another type": ({"key": 7, "messages": [human()]}, "key must be a text, not a number"),
    "an empty key": (record(""), "1 to 255 characters"),
    "a key too long": (record("k" * 256), "1 to 255 characters"),
    "a key with NUL": (record("a\0b"), "key contains a NUL"),
    "messages of another type": ({"key": "b", "messages": {}}, "messages must be a list, not an object"),
    "an owner of null": (record("b", owner=None), "owner must be a text, not null"),
    "an unknown owner": (record("b", owner="nobody"), "no user 'nobody'"),
    "an owner with NUL": (record("b", owner="an\0na"), "owner contains a NUL"),
    "an owner and a visitor": (record("b", owner="anna", visitor="v1"), "to an owner or to a visitor"),
    "an empty visitor": (record("b", visitor=""), "1 to 64 characters"),
    "a title too long": (record("b", title="t" * 256), "more than 255 characters"),
    "metadata of another type": (record("b", metadata=[]), "metadata must be an object, not a list"),
    "metadata that is no JSON": ('{"key": "b", "messages": [], "metadata": {"n": NaN}}', "metadata.n holds nan"),
    "a time without zone": (record("b", created_at="2024-05-01T10:00:00"), "created_at is .* with its zone"),
    "a time that is none": (record("b", created_at="yesterday"), "created_at is 'yesterday'"),
    "a time before all zones": (record("b", created_at="0001-01-01T00:00:00+14:00"), "created_at is"),
    "a note nowhere": (record("b", notes={"2": {}}), "position '2', and there are 1 to 1"),
    "a note on no position": (record("b", notes={"first": {}}), "position 'first'"),
    "a note of another type": (record("b", notes={"1": None}), "note on position 1 must be an object, not null"),
    "an unknown note": (record("b", notes={"1": {"tokens": 3}}), "note on position 1 has the unknown field 'tokens'"),
    "a kind of another type": (record("b", notes={"1": {"kind": 7}}), "message 1: kind must be a text"),
    "a time of a note": (record("b", notes={"1": {"created_at": 7}}), "created_at of the note on position 1 is 7"),
    "a message of another type": (record("b", human(), 7), "message 2: Cannot read a message from a int"),  # type: ignore[arg-type]
    "an unknown role": (record("b", human(), {"role": "robot"}), "message 2: Unknown role 'robot'"),
    "a message with NUL": (record("b", human("a\0b")), "message 1: content contains a NUL"),
    "half a character": (
        '{"key": "b", "messages": [{"role": "user", "content": "\\ud83d"}]}',
        "message 1: .*surrogate",
    ),
    "a result of no call": (record("b", human(), human(), _LATE), "message 3: No open exchange has a call"),
    "too many pinned": (record("b", *[{"role": "system", "content": "x"}] * 65), "message 65: The session holds 64"),
    "a message too large": (record("b", human(), human("x" * 5_000_000)), "message 2: .*max_message_bytes"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("listed", [False, True], ids=["lines", "list"])
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_imported_is_named_and_what_comes_before_it_stays(name: str, listed: bool, write: Any) -> None:
    given, why = BAD[name]
    records = [record("a"), given, record("c")]
    if listed:
        texts = [one if isinstance(one, str) else json.dumps(one) for one in records]
        path, place = write("[" + ", ".join(texts) + "]"), "item 2"
    else:
        path, place = write("", *records), "line 3"

    with pytest.raises(CommandError, match=rf"^{path}, {place}: (?s:.*){why}") as raised:
        call("convmemory_import", path)

    assert raised.value.returncode == 1
    assert "What comes before it is imported (1 sessions imported with 1 messages" in str(raised.value)
    assert list(models.Session.objects.values_list("key", flat=True)) == ["a"]


@pytest.mark.django_db
def test_bytes_that_are_no_utf_8_are_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(json.dumps(record("a")).encode() + b"\n" + '{"key": "Zoë"}\n'.encode("latin-1"))

    with pytest.raises(CommandError, match=r"line 2: it is not UTF-8\. Convert"):
        call("convmemory_import", path)
    assert models.Session.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[{0}", "item 1: neither a comma"),
        ("[{0} {0}]", "item 1: neither a comma"),
        ("[{0},]", "item 2: it is not JSON"),
        ("[{0}] []", "item 1: there is text after"),
    ],
)
def test_a_list_that_does_not_end_well_is_an_error(text: str, why: str, write: Any) -> None:
    with pytest.raises(CommandError, match=why):
        call("convmemory_import", write(text.replace("{0}", json.dumps(record("a")))))


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [2, 1000])
def test_a_session_whose_last_message_is_refused_is_not_there_at_all(
    batch: int, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_BATCH", batch)

    with pytest.raises(CommandError, match=r"message 6: .*Nothing was imported\."):
        call("convmemory_import", write(record("a", *[human()] * 5, _LATE)))

    assert not models.Session.objects.exists()
    assert not models.Message.objects.exists()


@pytest.mark.django_db
def test_what_the_database_refuses_is_named(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    update = models.SessionQuerySet.update

    def refuse(self: models.SessionQuerySet, **columns: Any) -> int:
        if "title" in columns:
            raise OperationalError("out of space")
        return update(self, **columns)

    monkeypatch.setattr(models.SessionQuerySet, "update", refuse)

    with pytest.raises(CommandError, match=r"line 2: the database failed it .*1 sessions imported"):
        call("convmemory_import", write(record("a"), record("b", title="Rust")))
    assert list(models.Session.objects.values_list("key", flat=True)) == ["a"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["absent.jsonl"], "absent.jsonl is not a file"),
        ([str(pathlib.Path(__file__).parent)], "is not a file"),
        (["-", "--alias", "absent"], "no alias 'absent'; there are default"),
        (["-", "--database", "absent"], "There is no database 'absent'; there are default"),
    ],
)
def test_a_wrong_command_line_is_told_from_a_failure(arguments: list[str], why: str) -> None:
    with pytest.raises(CommandError, match=why) as raised:
        call("convmemory_import", *arguments)

    assert raised.value.returncode == 2


@pytest.mark.django_db(transaction=True)
def test_the_process_ends_with_what_the_error_says(tmp_path: pathlib.Path) -> None:
    (tmp_path / "given").write_text(json.dumps(record("a")) + "\nnonsense\n")

    def run(*arguments: str) -> tuple[int, str]:
        code = processes.start(tmp_path, "django", *arguments).wait(processes.PATIENCE)
        return code, (tmp_path / "output").read_text()

    code, output = run("convmemory_import", str(tmp_path / "given"))
    assert code == 1
    assert output.count("CommandError: ") == 1
    assert "line 2: it is not JSON" in output
    assert "Traceback" not in output
    assert run("convmemory_import")[0] == 2
    assert run("convmemory_export", "--alias", "absent")[0] == 2
    assert run("convmemory_export", "--output", str(tmp_path / "out"))[0] == 0
    assert json.loads((tmp_path / "out").read_text())["key"] == "a"


@pytest.mark.django_db(transaction=True)
def test_an_export_is_utf_8_whatever_the_locale(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    memories["default"].append("a", human("一种语言"))

    assert processes.start(tmp_path, "django", "convmemory_export", "--verbosity=0").wait(processes.PATIENCE) == 0

    assert json.loads((tmp_path / "output").read_text("utf-8"))["messages"] == [human("一种语言")]


# What is said.


@pytest.mark.django_db
def test_on_a_terminal_there_is_a_bar(write: Any, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tqdm")
    path = write(*[record(str(number)) for number in range(3)])

    imported = call("convmemory_import", path, stream=Terminal())
    said = call("convmemory_export", "--output", tmp_path / "out", stream=Terminal())

    assert "\rimported: 100%" in imported
    assert "3/3" in imported
    assert imported.endswith("3 sessions imported with 3 messages, 0 were there already.\n")
    assert "\rexported: 100%" in said


@pytest.mark.django_db
def test_without_tqdm_there_are_lines_on_a_terminal_too(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)

    said = call("convmemory_import", write(record("a")), stream=Terminal())

    assert "\r" not in said
    assert said.endswith("1 sessions imported with 1 messages, 0 were there already.\n")


@pytest.mark.django_db
def test_elsewhere_there_are_lines(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_convmemory.management.progress._EACH", 2)
    path = write(*[record(str(number)) for number in range(5)])

    assert call("convmemory_import", path).splitlines()[1:] == [
        "2 sessions imported so far",
        "4 sessions imported so far",
        "5 sessions imported with 5 messages, 0 were there already.",
    ]


@pytest.mark.django_db
def test_it_is_quiet_when_told_to_be(write: Any, tmp_path: pathlib.Path) -> None:
    assert call("convmemory_import", write(record("a")), verbosity=0, stream=Terminal()) == ""
    assert call("convmemory_export", "--output", tmp_path / "out", verbosity=0, stream=Terminal()) == ""


@pytest.mark.django_db
def test_what_is_exported_to_standard_output_is_alone_there(write: Any) -> None:
    call("convmemory_import", write(record("a")))
    out, said = Terminal(), Terminal()

    call_command("convmemory_export", stdout=out, stderr=said)

    assert [json.loads(line)["key"] for line in out.getvalue().splitlines()] == ["a"]
    assert said.getvalue() == "1 sessions exported with 1 messages.\n"


# The round trip.

HARD: list[dict[str, Any]] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}], "name": "site"},
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}, {"type": "new", "a": None}],
    },
    {"role": "assistant", "content": None, "tool_calls": [conversations.call("c", '{"n":1e300}')], "refusal": None},
    {"role": "tool", "tool_call_id": "c", "content": ""},
    {
        "role": "assistant",
        "content": "a\nb\u2028c\u0085d\r\ne 🙂",
        "audio": {"x": [[None, {"y": None}], 1e300, -0.0, 2**70]},
    },
    {"role": "assistant", "content": "", "tool_calls": [], "annotations": [], "": {"": ""}},
]


@pytest.mark.django_db
def test_hard_messages_come_back_as_they_were(write: Any, two: None, tmp_path: pathlib.Path) -> None:
    User.objects.create_user("anna")
    notes = {
        "2": {"kind": "plan"},
        "5": {"metadata": {"n": [1e300, None, {"z": 1, "a": {}}]}, "created_at": "2024-05-01T10:00:00.000001+00:00"},
    }
    given = record("a", *HARD, owner="anna", title="Zoë 一", metadata={"n": None}, created_at=TIME, notes=notes)
    given_visitor = record("b", *HARD, visitor="v1", created_at="1970-01-01T00:00:00+00:00")
    call("convmemory_import", write(given, given_visitor))
    first, second = tmp_path / "first", tmp_path / "second"

    call("convmemory_export", "--output", first)
    call("convmemory_import", first, "--alias", "other")
    call("convmemory_export", "--alias", "other", "--output", second)

    assert [json.loads(line) for line in first.read_text().splitlines()] == [given, given_visitor]
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.django_db(transaction=True)
@given(talks=st.lists(conversations.conversations(min_size=1), max_size=3), data=st.data())
def test_any_conversation_comes_back_as_it_was(talks: list[list[ChatMessage]], data: st.DataObject) -> None:
    memory = memories["default"]
    kinds, notes = st.sampled_from(["chat", "plan"]), st.dictionaries(_TEXTS, _JSON, max_size=2)
    models.Session.objects.all().delete()
    for number, talk in enumerate(talks):
        for message in talk:
            wire = {**message.to_openai(), "x": data.draw(_JSON)}
            value = ChatMessage.from_openai(wire, kind=data.draw(kinds), metadata=data.draw(notes))
            memory.append(f"talk {number}", value)
    columns = ("session__key", "position", "role", "kind", "content", "wire", "metadata", "tokens", "created_at")
    rows = models.Message.objects.order_by("session_id", "position").values_list(*columns)
    before, text = list(rows), call("convmemory_export")

    models.Session.objects.all().delete()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8"))
        call("convmemory_import", "-")

    assert list(rows) == before
    assert call("convmemory_export") == text
    assert list(integrity.check(models.Session.objects.all())) == []


@dialogues.needed
@pytest.mark.django_db
@pytest.mark.parametrize("reader", [dialogues.locomo, dialogues.taubench, dialogues.crosswoz])
def test_real_conversations_come_back_as_they_were(reader: dialogues.Reader, write: Any, two: None) -> None:
    real = [record(key, *messages) for key, messages in reader()]

    said = call("convmemory_import", write(*real))
    once = exported("--alias", "default")
    call("convmemory_import", write(*once), "--alias", "other")

    assert f"{len(real)} sessions imported with {sum(len(one['messages']) for one in real)} messages" in said
    assert [{"key": one["key"], "messages": one["messages"]} for one in once] == real
    assert exported("--alias", "other") == once
    assert list(integrity.check(models.Session.objects.all())) == []


# Exporting.


@pytest.fixture
def sessions(two: None) -> None:
    """The session ``main`` of two users, a visitor and nobody, and others."""
    anna, bert = (User.objects.create_user(name) for name in ("anna", "bert"))
    for alias in ("default", "other"):
        memory = memories[alias]
        for number, scope in enumerate(({"owner": anna}, {"owner": bert}, {"visitor": "v1"}, {})):
            for key in ("main", "Main"):
                memory.append(memory.session(key, **scope), human(f"{alias} {key} {number}"))


@pytest.mark.django_db
@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--owner", "anna"], ["default main 0", "default Main 0", "other main 0", "other Main 0"]),
        (["--owner", "bert", "--key", "main"], ["default main 1", "other main 1"]),
        (["--visitor", "v1", "--alias", "other"], ["other main 2", "other Main 2"]),
        (["--key", "main"], ["default main 3", "other main 3"]),
        (["--visitor", "V1"], []),
        (["--key", "absent"], []),
    ],
)
def test_what_is_exported_can_be_chosen(arguments: list[str], expected: list[str]) -> None:
    assert [one["messages"][0]["content"] for one in exported(*arguments)] == expected


@pytest.mark.django_db
@pytest.mark.usefixtures("sessions")
def test_everything_is_exported_in_order_and_aliases_are_spoken_of() -> None:
    said = io.StringIO()
    out = io.StringIO()

    call_command("convmemory_export", stdout=out, stderr=said)

    assert len(out.getvalue().splitlines()) == 16
    assert "export one alias at a time" in said.getvalue()
    assert out.getvalue() == call("convmemory_export", "--alias", "other", "--alias", "default")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--alias", "absent"], "no alias 'absent'"),
        (["--owner", "absent"], "no user 'absent'"),
        (["--owner", ""], "--owner is empty"),
        (["--visitor", ""], "--visitor is empty"),
        (["--key", ""], "--key is empty"),
        (["--output", "/dev/null"], "is not a file"),
        (["--output", "/absent/file"], "is not a file, or not in a folder"),
        (["--database", "absent"], "There is no database 'absent'"),
    ],
)
def test_an_export_that_is_not_possible_is_a_wrong_command_line(arguments: list[str], why: str) -> None:
    with pytest.raises(CommandError, match=why) as raised:
        call("convmemory_export", *arguments)

    assert raised.value.returncode == 2


@pytest.mark.django_db
def test_an_alias_that_has_gone_from_the_settings_can_be_exported(settings: Settings, two: None) -> None:
    memories["other"].append("a", human())
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"]}

    assert exported() == []
    assert [one["key"] for one in exported("--alias", "other")] == ["a"]


@pytest.mark.django_db
def test_a_session_without_messages_is_left_out() -> None:
    memories["default"].append("a", human())
    memories["default"].clear("a")

    assert exported() == []


@pytest.mark.django_db
def test_a_file_is_written_whole_and_for_its_owner_alone(tmp_path: pathlib.Path) -> None:
    memories["default"].append("a", human())
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_text("before")
    link.symlink_to(path)

    call("convmemory_export", "--output", link)

    assert json.loads(path.read_text())["key"] == "a"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert link.is_symlink()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("error", "raised"), [(OSError("the disk is full"), CommandError), (KeyboardInterrupt(), None)]
)
def test_a_file_that_cannot_be_written_is_as_it_was(
    error: BaseException, raised: type[Exception] | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> int:
        raise error

    path = tmp_path / "out"
    path.write_text("before")
    memories["default"].append("a", human())
    monkeypatch.setattr(transfer, "write", fail)

    with pytest.raises(raised or KeyboardInterrupt):
        call("convmemory_export", "--output", path)

    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.django_db
def test_a_session_that_is_cut_while_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memories["default"]
    memory.append("a", *[human(str(number)) for number in range(5)])
    read = transfer.sql.message_of
    messages: list[str | None] = []

    def reading(role: str, kind: str, content: str | None, *rest: Any) -> ChatMessage:
        messages.append(content)
        if len(messages) == 2:
            memory.truncate("a", after=1)
            memory.append("a", human("anew"), human("and more"), human("and more"))
        return read(role, kind, content, *rest)

    monkeypatch.setattr(transfer, "_BATCH", 2)
    monkeypatch.setattr(transfer.sql, "message_of", reading)

    [found] = exported()

    assert [one["content"] for one in found["messages"]] == ["0", "anew", "and more", "and more"]
    assert messages[:2] == ["0", "1"]


# Memory.


def peak(command: functools.partial[str]) -> float:
    """Run a command, and return the most memory it took, in MB."""
    tracemalloc.start()
    try:
        command()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.only_on("sqlite")
@pytest.mark.django_db
@pytest.mark.parametrize("listed", [False, True], ids=["lines", "list"])
def test_memory_does_not_grow_with_the_number_of_sessions(listed: bool, tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "given", tmp_path / "out"
    texts = [json.dumps(record(str(number), *[human("It is a long story. " * 5)] * 100)) for number in range(200)]
    path.write_text(f"[{','.join(texts)}]" if listed else "\n".join(texts))
    call("convmemory_export", "--output", out)  # what is imported once

    imported = peak(functools.partial(call, "convmemory_import", path))
    written = peak(functools.partial(call, "convmemory_export", "--output", out))

    assert models.Message.objects.count() == 20_000
    assert path.stat().st_size > 2_500_000
    assert imported < 1.5
    assert written < 1.5


@pytest.mark.only_on("sqlite")
@pytest.mark.django_db
def test_memory_does_not_grow_with_a_session_that_is_exported(tmp_path: pathlib.Path) -> None:
    memory, out = memories["default"], tmp_path / "out"
    for _ in range(20):
        memory.append("a", *[human("It is a long story. " * 20)] * 1000)

    written = peak(functools.partial(call, "convmemory_export", "--output", out))

    assert out.stat().st_size > 8_000_000
    assert written < 4
