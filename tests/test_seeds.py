"""The documented results of the libraries that this app replaces, on both stores."""

from __future__ import annotations

import pytest

from django_convmemory.chat_models.base import ChatResponse
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import (
    BufferSummaryChatMemory,
    ConversationBufferMemory,
    ConversationSummaryBufferMemory,
    ConversationSummaryMemory,
    ConversationTokenBufferMemory,
    ConversationWindowMemory,
)
from django_convmemory.messages import ChatMessage
from django_convmemory.store import Store

pytestmark = pytest.mark.django_db


def contents(context: object) -> list[str]:
    return [message.text for message in context]  # type: ignore[attr-defined]


def of_tokens(count: int, mark: str = "x") -> ChatMessage:
    """A message that the summary buffer's estimate counts as ``count`` tokens."""
    return ChatMessage.human(mark * (4 * count))


def test_buffer_returns_everything(store: Store) -> None:
    memory = ConversationBufferMemory(store)
    for message in (
        ChatMessage.human("Hello"),
        ChatMessage.ai("Hi there!"),
        ChatMessage.human("What is Rust?"),
        ChatMessage.ai("Rust is a systems programming language."),
    ):
        memory.append("user-1", message)
    assert contents(memory.load("user-1")) == [
        "Hello",
        "Hi there!",
        "What is Rust?",
        "Rust is a systems programming language.",
    ]
    memory.clear("user-1")
    assert memory.load("user-1") == []


def test_window_returns_the_last_messages(store: Store) -> None:
    memory = ConversationWindowMemory(store, 4)
    for number in (1, 2, 3):
        memory.append("user-1", ChatMessage.human(f"Message {number}"))
        memory.append("user-1", ChatMessage.ai(f"Reply {number}"))
    assert contents(memory.load("user-1")) == ["Message 2", "Reply 2", "Message 3", "Reply 3"]


def test_token_buffer_drops_the_oldest(store: Store) -> None:
    memory = ConversationTokenBufferMemory(store, 5)
    memory.append("s1", ChatMessage.human("aaaa bbbb cccc dddd"))  # 19 bytes: 5 tokens
    memory.append("s1", ChatMessage.ai("eeee ffff"))  # 9 bytes: 3 tokens
    memory.append("s1", ChatMessage.human("gg"))  # 1 token
    assert contents(memory.load("s1")) == ["eeee ffff", "gg"]


def test_summary_folds_all_but_the_last_messages(store: Store) -> None:
    model = ScriptedChatModel([ChatResponse(ChatMessage.ai("User discussed greetings and weather."))])
    memory = ConversationSummaryMemory(store, model, 2)
    for text in ("hello", "hi", "weather?", "sunny", "thanks"):
        memory.append("s1", ChatMessage.human(text))
    context = memory.load("s1")
    assert contents(context) == [
        "Summary of earlier conversation: User discussed greetings and weather.",
        "sunny",
        "thanks",
    ]
    assert context[0].role == "system"
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("limit", "tokens", "calls", "kept"),
    [
        (50, (3, 20, 6, 23), 1, 1),
        (5, (1, 2, 4, 4), 2, 1),
        (3, (1, 1, 1, 1), 1, 1),
        (10, (3,) * 8, 2, 2),
    ],
)
def test_summary_buffer_reference_results(
    store: Store, limit: int, tokens: tuple[int, ...], calls: int, kept: int
) -> None:
    model = ScriptedChatModel([f"Summary {number}." for number in range(1, calls + 1)])
    memory = ConversationSummaryBufferMemory(store, model, limit)
    called_at = []
    for number, count in enumerate(tokens, start=1):
        before = len(model.requests)
        memory.append("s1", of_tokens(count, mark=str(number)))
        called_at += [number] * (len(model.requests) - before)
    context = memory.load("s1")
    assert len(model.requests) == calls
    assert context.summary == f"Summary {calls}."
    assert [message.text[0] for message in context[1:]] == [str(len(tokens) - kept + 1 + i) for i in range(kept)]
    if limit == 10:
        assert called_at == [4, 7]


def test_summary_buffer_of_the_documentation(store: Store) -> None:
    model = ScriptedChatModel([ChatResponse(ChatMessage.ai("The user asked about Rust and ownership."))])
    memory = ConversationSummaryBufferMemory(store, model, 50)
    for message in (
        ChatMessage.human("What is Rust?"),
        ChatMessage.ai("Rust is a systems programming language focused on safety, speed, and concurrency."),
        ChatMessage.human("How does ownership work?"),
        ChatMessage.ai(
            "Ownership is a set of rules the compiler checks at compile time. Each value has a single owner."
        ),
    ):
        memory.append("test", message)
    history = memory.load("test")
    assert history[0].text == "Summary of earlier conversation: The user asked about Rust and ownership."
    assert [message.role for message in history] == ["system", "assistant"]


def test_tinygent_prunes_into_a_summary(store: Store) -> None:
    llm = ScriptedChatModel(
        ["The human greeted.", "The human greeted the assistant and asked for a plan of the weekend."]
    )
    memory = BufferSummaryChatMemory(llm, max_token_limit=30, return_messages=True, store=store)
    memory.save_context(ChatMessage.human("Hello, assistant."))
    memory.save_context(ChatMessage.ai("Hi there! How can I help you today?"))
    memory.save_context(ChatMessage.human("Can you make a plan for my weekend?"))
    memory.save_context(ChatMessage.ai("Sure! 1. Go hiking. 2. Watch a movie. 3. Relax.", kind="plan"))
    messages = memory.load_variables()["summarized_chat"]
    assert isinstance(messages, list)
    assert [message.kind for message in messages] == ["summary", "plan"]
    assert messages[0].text == "The human greeted the assistant and asked for a plan of the weekend."
    memory.clear()
    assert memory.load_variables() == {"summarized_chat": []}


def test_tinygent_returns_lines_of_text(store: Store) -> None:
    memory = BufferSummaryChatMemory(ScriptedChatModel([]), store=store)
    memory.save_multiple_context([ChatMessage.human("Hello"), ChatMessage.ai("Hi!"), ChatMessage.ai("1.", kind="plan")])
    assert memory.load_variables() == {"summarized_chat": "USER (instruction): Hello\nAI: Hi!\nAI Plan: 1."}
