"""Encoded data within texts: a note stands in its place in summaries and in the index, and nothing else is replaced."""

from __future__ import annotations

import base64
import inspect
import json
import random
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from django_convmemory import messages, models
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.fold import chunk
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules import encoded
from django_convmemory.search import indexing
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests import dialogues
from tests.chunks import Killed, assert_sound, covered_position, spoken_in, transcript_of
from tests.conversations import call
from tests.folding import MarkerModel, build

NOTE = re.compile(r"\[\d+ kB of data\]")
WORDS = ["the", "station", "of", "which", "nobody", "knew", "Rust", "Porto", "42", "a"]

ENCODINGS: dict[str, Callable[[bytes], str]] = {
    "base64": lambda data: base64.b64encode(data).decode(),
    "base64 for URLs": lambda data: base64.urlsafe_b64encode(data).decode(),
    "MIME": lambda data: base64.encodebytes(data).decode().strip(),
    "PEM, indented": lambda data: textwrap.fill(base64.b64encode(data).decode(), 64, subsequent_indent="    "),
    "MIME in JSON": lambda data: json.dumps(base64.encodebytes(data).decode().strip())[1:-1],
    "MIME in JSON in JSON": lambda data: json.dumps(json.dumps(base64.encodebytes(data).decode().strip())[1:-1])[1:-1],
    "JSON of PHP": lambda data: base64.b64encode(data).decode().replace("/", r"\/"),
    "JSON of .NET": lambda data: base64.b64encode(data).decode().replace("+", r"\u002B"),
    "hexadecimal": lambda data: data.hex(),
    "hexadecimal, capitals": lambda data: data.hex().upper(),
    "data: URL": lambda data: f"data:image/png;base64,{base64.b64encode(data).decode()}",
    "data: URL without base64": lambda data: (
        "data:image/svg+xml,%3Csvg%3E" + "%3Cpath%20d=%22M0,0%22/%3E" * (len(data) // 10)
    ),
}


def data_of(size: int, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "before_and_after", [("<img src='", "'>"), ("See ", " for it"), ('{"file": "', '"}'), ("看", "看")]
)
def test_encoded_data_becomes_a_note(encoding: str, before_and_after: tuple[str, str]) -> None:
    before, after = before_and_after
    data = ENCODINGS[encoding](data_of(3000))

    text = encoded.replaced(before + data + after)

    # The last line of MIME may be too short to be told from a word.
    assert re.fullmatch(
        rf"{re.escape(before)}\[\d+ kB of data\]\S{{,75}}?\s*.{{,64}}{re.escape(after)}", text, re.DOTALL
    )
    assert encoded.replaced(text) == text


@given(st.binary(min_size=300, max_size=600), st.sampled_from(["base64", "base64 for URLs", "hexadecimal"]))
def test_any_data_with_enough_different_bytes_becomes_a_note(data: bytes, encoding: str) -> None:
    data = bytes(data) + data_of(300)
    assert NOTE.search(encoded.replaced(ENCODINGS[encoding](data)))


def test_the_note_says_how_large_the_data_was() -> None:
    text = "Here: " + ENCODINGS["base64"](data_of(225_000)) + " and " + ENCODINGS["hexadecimal"](data_of(200)) + "."
    assert encoded.replaced(text) == "Here: [300 kB of data] and [1 kB of data]."


# What is no data.


PATH = "/srv/Users/Anna/Projects/Rust2024/crates/parser/src/tokens/" * 8
SLUG = "The-10-Best-Places-To-Visit-In-Porto-And-Where-To-Stay-There-" * 8
ORDINARY = {
    "a line of dashes": "-" * 400,
    "a table": "| name | price |\n|" + "-" * 80 + "|" + "-" * 80 + "|\n| Rust | 42 |\n" * 40,
    "lines of dashes": ("-" * 80 + "\n") * 10,
    "Chinese in JSON": json.dumps("这是一个没有空格的很长的中文文本" * 60),
    "Chinese in JSON, capitals": json.dumps("这是一个没有空格的很长的中文文本" * 60).upper().replace(r"\U", r"\u"),
    "a URL": "https://shop.example/path/item?id=LC-204817&utm_source=Newsletter2026&session=" + "aB3" * 70,
    "a long path": PATH,
    "a long slug": SLUG,
    "camel case": "getTheNumberOf2ItemsInThisShoppingBasket" * 20,
    "digits": "3141592653589793" * 40,
    "a protein": "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVK\n" * 20,
    "DNA": "acgtacgtccgattgacgatcagtacgatgacg" * 30,
    "hashes with names": "".join(f"{data_of(32, n).hex()}  file{n}.txt\n" for n in range(20)),
    "codes": "\n".join(ENCODINGS["base64"](data_of(32, n)) for n in range(20)),
    "data that is short": ENCODINGS["base64"](data_of(200)),
    "a short data: URL": ENCODINGS["data: URL"](data_of(150)),
    "a CSV line": "data:1,2,3," + ",".join(map(str, range(400))),
    "numbers": ",".join(str(n / 7) for n in range(200)),
    "minified JavaScript": "!function(e,t){var n=e.fn.x0;for(var r=0;r<t.length;r++)n[r]=t[r]&&t[r].Id||0}(A,B);" * 20,
    "code": inspect.getsource(encoded) + inspect.getsource(messages) + inspect.getsource(chunk),
    "UUIDs": "\n".join(
        f"{data_of(4, n).hex()}-{data_of(2, n).hex()}-7000-8000-{data_of(6, n).hex()}" for n in range(40)
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_what_is_no_data_stays(name: str) -> None:
    assert encoded.replaced(ORDINARY[name]) == ORDINARY[name]


def with_stops(text: str) -> str:
    return re.sub(r"(\S{50})", r"\1.", text)


TEXTS = st.one_of(
    st.text(max_size=400).map(with_stops),
    st.lists(st.sampled_from(WORDS), min_size=50, max_size=120).map("".join),
    st.lists(st.sampled_from(WORDS), min_size=50, max_size=120).map("-".join),
    st.lists(st.sampled_from(WORDS), min_size=50, max_size=120).map(" ".join),
    st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=300, max_size=400),
    st.text(st.characters(min_codepoint=0x0E01, max_codepoint=0x0E4E), min_size=300, max_size=400),
    st.text("abcdefghijklmnopqrstuvwxyz/", min_size=300, max_size=400),
    st.text("GHIJKLMNOPQRSTUVWXYZ0123456789_", min_size=300, max_size=400),
    st.text("aA1+/-_=.,;:(){}[]\"'\\ \n", max_size=400).map(with_stops),
)


@given(st.lists(TEXTS, min_size=1, max_size=3).map(". ".join))
@example("data:image/png;base64," + "A1" * 10)
def test_no_ordinary_text_is_replaced(text: str) -> None:
    assert encoded.replaced(text) == text


@dialogues.needed
@pytest.mark.parametrize(
    "read", [dialogues.taubench, dialogues.crosswoz, dialogues.locomo], ids=lambda read: read.__name__
)
def test_nothing_is_replaced_in_real_conversations(
    read: dialogues.Reader, record_property: Callable[[str, object], None]
) -> None:
    stored = [ChatMessage.from_openai(message) for _, conversation in read() for message in conversation]
    replaced = sum(encoded.replaced_in(message) is not message for message in stored)
    record_property(f"messages of {read.__name__} with text taken for data", f"{replaced} of {len(stored)}")
    assert replaced == 0


# A pattern that went back over what it has read would take hours for these.


def hostile(size: int) -> Iterator[str]:
    yield from (
        piece * (size // len(piece)) for piece in ("a", "\\", "\\n", "\\/", "a\\/", "=", " ", "data:", "data:a/b,")
    )
    yield from (piece * (size // len(piece)) for piece in ("aB3" * 19 + "a ", "aB3" * 20 + " ", "\\n" + "a" * 59))
    yield from (
        piece * (size // len(piece)) for piece in ("a" * 60 + "\\" * 5000, "aB3" * 20 + " " * 5000, "\\" * 99 + "u")
    )
    yield "data:a/" + "a" * size
    yield "data:a/b," + "a" * size
    yield base64.b64encode(data_of(size * 3 // 4)).decode()
    yield ENCODINGS["MIME in JSON"](data_of(size * 3 // 4))


def test_a_hostile_text_takes_a_time_proportional_to_its_length() -> None:
    for number, text in enumerate(hostile(1_000_000)):
        began = time.process_time()
        encoded.replaced(text)
        # Half a second on a usual machine.
        assert time.process_time() - began < 10, number


# Where the note stands.


PAGE = ChatMessage.tool(
    f"<h1>Trains to Porto</h1><img src='{ENCODINGS['data: URL'](data_of(225_000))}'> They leave at nine.",
    "c1",
)


def browsing(model: Any, store: Store) -> ConversationMemory:
    memory = build(model, store=store, max_summary_tokens=400)
    memory.append("s", ChatMessage.human("When do trains leave?"), ChatMessage.ai(tool_calls=[call("c1")]), PAGE)
    memory.append("s", ChatMessage.ai("At nine."), ChatMessage.human("Thanks. " * 40))
    return memory


def test_a_web_page_with_an_image_is_folded_without_it(store: Store) -> None:
    model = MarkerModel()
    memory = browsing(model, store)

    assert memory.compact("s") == "published"

    sent = "".join(transcript_of(request) for request in model.requests)
    assert "Trains to Porto</h1><img src='[300 kB of data]'> They leave at nine." in sent
    assert (len(model.requests) <= 3, len(sent) < 1000) == (True, True)


def test_what_is_stored_and_shown_has_the_data(store: Store) -> None:
    memory = build(MarkerModel(), store=store)
    memory.append("s", ChatMessage.human("When do trains leave?"), ChatMessage.ai(tool_calls=[call("c1")]), PAGE)
    memory.compact("s")
    assert memory.history("s")[2].message == PAGE
    assert PAGE in list(memory.load("s"))


def test_the_fallback_does_not_get_it_either(store: Store) -> None:
    memory = browsing(ExtractiveChatModel(), store)
    assert memory.compact("s") == "published"
    assert memory.load("s").tokens < 1000


def test_parts_and_calls_have_notes_too_and_images_stay() -> None:
    data = ENCODINGS["base64"](data_of(3000))
    image = {"type": "image_url", "image_url": {"url": ENCODINGS["data: URL"](data_of(300))}}
    custom = {"id": "c2", "type": "custom", "custom": {"name": "write", "input": f"a {data} b"}}
    message = ChatMessage.ai(
        [{"type": "text", "text": f"x {data}"}, image], tool_calls=[call("c1", json.dumps({"file": data})), custom]
    )

    replaced = encoded.replaced_in(message)

    assert spoken(replaced) == (
        'x [4 kB of data]\n[image_url]\n[calls look_up({"file": "[4 kB of data]"})]\n[calls write(a [4 kB of data] b)]'
    )
    assert replaced.content is not None
    assert replaced.content[1] == image


def test_a_message_without_data_is_the_same_one() -> None:
    message = ChatMessage.ai([{"type": "text", "text": "Hello"}], tool_calls=[call("c1", '{"to": "Porto"}')])
    assert encoded.replaced_in(message) is message


def test_the_index_has_a_note_and_the_words_around_it(store: Store) -> None:
    data = ENCODINGS["base64"](data_of(6000))
    memory = build(MarkerModel(), store=store)
    memory.append("s", ChatMessage.human(f"Invoice {data} Porto"), ChatMessage.human("word " * 200))
    assert indexing.indexed_text(ChatMessage.human(f"Invoice {data} Porto")) == "Invoice [8 kB of data] Porto"
    assert len(indexing.terms_of(ChatMessage.human(f"Invoice {data} Porto"))) < 10
    for _ in range(2):  # Before and after it is indexed.
        assert memory.search("Porto", session="s")[0].position == 1
        assert memory.search(data[:64], session="s") == []
        memory.compact("s")


# Parts.


@pytest.mark.django_db
@settings(max_examples=min(40, settings().max_examples), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(["text", "base64", "MIME", "hexadecimal"]), st.integers(1, 900)),
        min_size=3,
        max_size=9,
    ),
    st.integers(100, 300),
    st.integers(0, 3),
)
def test_each_character_is_in_exactly_one_part_also_if_a_worker_is_killed(
    pieces: list[tuple[str, int]], window: int, kill_after: int
) -> None:
    text = " ".join(
        " ".join(f"w{n}" for n in range(size)) if kind == "text" else ENCODINGS[kind](data_of(size, size))
        for kind, size in pieces
    )
    for store in (InMemoryStore(), ORMStore()):
        models.Session.objects.all().delete()
        model = MarkerModel()
        memory = build(model, 10, store=store, max_chunk_tokens=window)
        memory.append("s", ChatMessage.human(text), ChatMessage.human("word " * 60))
        while memory.compact("s") == "published":
            continue
        assert covered_position(memory) == 1
        sent = [spoken_in(request) for request in model.requests]
        assert "".join(sent) == encoded.replaced(text)
        if kill_after < len(sent):
            model.requests.clear()
            memory.clear("s")
            memory.append("s", ChatMessage.human(text), ChatMessage.human("word " * 60))
            killed = Killed(memory, kill_after)
            memory.compact("s")
            resumed = [spoken_in(request) for request in model.requests]
            assert "".join(resumed) == encoded.replaced(text)
            killed.steps.close()
        assert_sound(memory)
