from __future__ import annotations

import json
import logging
import pathlib
import shutil
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from benchmarks import kinds_of_text, token_counters
from django_convmemory import tokens
from django_convmemory.messages import ChatMessage
from tests import conversations, dialogues

VOCABULARY = "fb374d419588a4632f3f557e76b4b70aebbca790"
COUNTERS = (tokens.Utf8TokenCounter(), tokens.TokenBufferEstimate(), tokens.SummaryBufferEstimate())


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Make sockets refuse to connect; yield the list of addresses that were tried."""
    asked: list[object] = []

    def refuse(self: object, address: object, *args: object) -> None:
        asked.append(address)
        raise OSError("This test has no network.")

    def refuse_name(*args: object, **kwargs: object) -> None:
        refuse(None, args)

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse_name)
    return asked


@pytest.fixture(autouse=True)
def _forget_vocabularies() -> Iterator[None]:
    tokens._encoder.cache_clear()
    yield
    tokens._encoder.cache_clear()


@pytest.fixture
def vocabularies(monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Set the folder of tiktoken's vocabularies in the environment. Without the folder the test is skipped."""
    pytest.importorskip("tiktoken")
    if not (dialogues.FOLDER / "tiktoken" / VOCABULARY).is_file():
        pytest.skip(f"{dialogues.FOLDER / 'tiktoken'} is absent; CONVMEMORY_DATA names the folder that has it")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(dialogues.FOLDER / "tiktoken"))
    return dialogues.FOLDER / "tiktoken"


@pytest.mark.parametrize(
    ("text", "token_buffer", "summary_buffer"),
    [
        ("", 1, 1),
        ("abc", 1, 1),
        ("abcd", 2, 1),
        ("aaaa bbbb cccc dddd", 5, 4),
        ("x" * 400, 101, 100),
        ("é" * 2, 2, 1),
        ("中" * 100, 76, 75),
    ],
)
def test_the_seeds_estimates(text: str, token_buffer: int, summary_buffer: int) -> None:
    assert tokens.TokenBufferEstimate().count_text(text) == token_buffer
    assert tokens.SummaryBufferEstimate().count_text(text) == summary_buffer


@pytest.mark.parametrize("counter", [tokens.TokenBufferEstimate(), tokens.SummaryBufferEstimate()])
def test_the_seeds_estimates_count_content_only(counter: tokens.TokenCounter) -> None:
    bare = ChatMessage.ai("Let me look.")
    calling = ChatMessage.ai("Let me look.", name="anna", tool_calls=[conversations.call("c", "x" * 900)])
    assert counter.count(calling) == counter.count(bare) == counter.count_text("Let me look.")


@given(conversations.conversations(min_size=1, max_size=3))
def test_every_count_is_at_least_one_and_the_same_each_time(conversation: list[ChatMessage]) -> None:
    for counter in COUNTERS:
        for message in conversation:
            count = counter.count(message)
            assert count >= 1
            assert count == counter.count(message)
            assert type(count) is int
            assert counter.count_text(message.text) >= 1


def test_counters_have_different_names(vocabularies: pathlib.Path) -> None:
    counters: list[tokens.TokenCounter] = [*COUNTERS, tokens.TiktokenCounter(), tokens.TiktokenCounter("cl100k_base")]
    assert len({counter.name for counter in counters}) == len(counters)
    assert all(isinstance(counter, tokens.TokenCounter) for counter in counters)


TEXT = ChatMessage.ai("Let me look.")


@pytest.mark.parametrize(
    "more",
    [
        ChatMessage.ai("Let me look.", name="anna"),
        ChatMessage.ai("Let me look.", tool_calls=[conversations.call("c")]),
        ChatMessage.ai("Let me look.", extra={"refusal": "No."}),
        ChatMessage.tool("Let me look.", "call_1"),
    ],
)
def test_the_default_counts_what_is_not_content(more: ChatMessage) -> None:
    counter = tokens.Utf8TokenCounter()
    assert counter.count(more) > counter.count(TEXT) > counter.count_text(TEXT.text)


def test_the_default_counts_each_call_and_its_arguments() -> None:
    counter = tokens.Utf8TokenCounter()
    one_call, two_calls, long_call = (
        counter.count(ChatMessage.ai(tool_calls=calls))
        for calls in (
            [conversations.call("c")],
            [conversations.call("c"), conversations.call("d")],
            [conversations.call("c", json.dumps({"text": "word " * 400}))],
        )
    )
    assert 1 < one_call < two_calls < long_call
    assert long_call - one_call > 350


PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 1000


@pytest.mark.parametrize(
    ("image_url", "expected"),
    [
        ({"url": PICTURE}, 765),  # OpenAI's guide: 1024 by 1024 pixels
        ({"url": PICTURE, "detail": "auto"}, 765),
        ({"url": "https://example.org/cat.png", "detail": "high"}, 765),
        (PICTURE, 765),
        ({"url": PICTURE, "detail": "low"}, 85),
    ],
)
def test_an_image_counts_by_its_detail_and_not_by_its_bytes(image_url: Any, expected: int) -> None:
    counter = tokens.Utf8TokenCounter()
    message = ChatMessage.human([{"type": "text", "text": "a cat"}, {"type": "image_url", "image_url": image_url}])
    assert counter.count(message) == counter.count(ChatMessage.human("a cat")) + expected


@given(st.one_of(st.none(), conversations.TEXTS, st.integers(), st.lists(st.integers()), st.just({"url": None})))
def test_malformed_image_parts_are_counted_too(image_url: Any) -> None:
    for part in ({"type": "image_url", "image_url": image_url}, {"type": "image_url"}, {"type": "text", "text": 1}):
        assert tokens.Utf8TokenCounter().count(ChatMessage.human([part])) >= 1


@pytest.mark.parametrize("size", [0, -1, 10**25])
def test_the_tokens_of_a_file_of_any_size_can_be_stored(size: int) -> None:
    assert 0 < tokens.Utf8TokenCounter().count(ChatMessage.human([{"type": "document", "size": size}])) < 2**31


def test_tiktoken_counts_exactly(vocabularies: pathlib.Path, no_network: list[object]) -> None:
    counter = tokens.TiktokenCounter()
    assert counter.name == "tiktoken:o200k_base"
    assert counter.count_text("hello world") == 2
    assert counter.count_text("") == 1
    assert counter.count_text("<|endoftext|>") > 1  # text of a user, never the special token
    assert tokens.TiktokenCounter("cl100k_base").count_text("hello world") == 2
    assert no_network == []


def spoil(folder: pathlib.Path, how: str) -> str:
    if how == "damaged":
        (folder / VOCABULARY).write_bytes(b"aGVsbG8= 1\n")
    elif how == "a folder":
        (folder / VOCABULARY).mkdir()
    return "" if how == "switched off" else str(folder)


@pytest.mark.parametrize("how", ["absent", "damaged", "a folder", "switched off"])
def test_without_a_vocabulary_the_tiktoken_counter_warns_once_and_estimates(
    how: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    no_network: list[object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", spoil(tmp_path, how))
    with caplog.at_level(logging.WARNING, "django_convmemory.tokens"):
        for text in ("hello world", "中文", ""):
            for counter in (tokens.TiktokenCounter(), tokens.TiktokenCounter()):
                assert counter.count_text(text) == tokens.Utf8TokenCounter().count_text(text)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "TIKTOKEN_CACHE_DIR" in caplog.text
    assert no_network == []


def test_a_vocabulary_is_found_in_tiktokens_default_folder(
    vocabularies: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, no_network: list[object]
) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(tmp_path))
    shutil.copy(vocabularies / VOCABULARY, tmp_path)
    assert tokens.TiktokenCounter().count_text("hello world" * 50) == 100
    assert no_network == []


def test_without_tiktoken_the_warning_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert tokens.TiktokenCounter().count_text("hello world") == tokens.Utf8TokenCounter().count_text("hello world")
    assert "django-convmemory[tiktoken]" in caplog.text


def test_an_unknown_encoding_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"encoding must be one of .*o200k_base.*not 'gpt-4o'"):
        tokens.TiktokenCounter("gpt-4o")


def test_the_default_is_near_tiktoken_on_each_kind_of_text(vocabularies: pathlib.Path) -> None:
    exact, estimate = tokens.TiktokenCounter().count_text, tokens.Utf8TokenCounter().count_text
    far = {}
    for kind, texts in kinds_of_text.kinds().items():
        checked = kinds_of_text.checked(texts)
        ratio, low = token_counters.quality(estimate, checked, [exact(text) for text in checked])
        if not 0.95 < ratio < 1.35 or low > 0.1:
            far[kind] = ratio, low
    assert far == {}


class Listening(tokens.Utf8TokenCounter):
    """A counter that remembers how many characters it has counted."""

    def __init__(self) -> None:
        self.characters = 0

    def count_text(self, text: str) -> int:
        self.characters += len(text)
        return super().count_text(text)


@pytest.mark.parametrize("limit", [1, 1000, 100_000])
def test_the_time_to_measure_a_message_depends_on_the_limit(limit: int) -> None:
    counter = Listening()
    size = tokens.measure(ChatMessage.human("word " * 200_000), counter, limit)
    assert 200_000 <= size <= 201_000
    assert counter.characters <= 6 * limit + 8192


@given(
    st.lists(st.tuples(st.sampled_from(["word ", "漢", "a", "\n", "🙂"]), st.integers(0, 20_000)), max_size=4),
    st.booleans(),
)
def test_a_message_within_the_limit_is_measured_as_it_is_counted(runs: list[tuple[str, int]], in_parts: bool) -> None:
    texts = [text * count for text, count in runs]
    content: Any = [{"type": "text", "text": text} for text in texts] if in_parts else "".join(texts)
    message, counter = ChatMessage.human(content, name="anna"), tokens.Utf8TokenCounter()
    exact = counter.count(message)
    pieces = sum(len(text) // 8192 for text in (texts if in_parts else [content]))
    assert exact <= tokens.measure(message, counter, exact + pieces) <= exact + pieces
    assert tokens.measure(message, counter, 10**9) <= exact + pieces


def test_an_exact_counter_measures_in_pieces(vocabularies: pathlib.Path) -> None:
    counter = tokens.TiktokenCounter()
    for text, exact in (("word " * 100_000, 100_005), ("a" * 100_000, 12_504)):
        assert exact <= tokens.measure(ChatMessage.human(text), counter, 10**9) <= exact + len(text) // 8192 + 1
        assert tokens.measure(ChatMessage.human(text), counter, 100) > 100
