"""The example's offline responder: it quotes what was said, with who said it, when, and where."""

from __future__ import annotations

import datetime as dt
import importlib
import re
import uuid
from collections.abc import Callable
from typing import Any

import openai
import pytest

from django_convmemory.chat_models.base import ChatRequest, FoldData
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import ConversationSummaryBufferMemory, ConversationWindowMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules.values import StoredMessage
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.tokens import Utf8TokenCounter
from tests.openai_server import Behaviour, OpenAIServer, prompt
from tests.test_example_project import PROJECT

STORED = "Noted."
MARCH = dt.datetime(2026, 3, 3, 9, 30, tzinfo=dt.UTC)
SUMMARY = """\
2026-03-03
User: I keep a heron. It is grey. Is that allowed?
Assistant: A heron needs fish.
Tool: herons=1
Nobody knows the heron.

Also mentioned by the heron: 4711"""
human, ai = ChatMessage.human, ChatMessage.ai

Ask = Callable[[SessionHandle, str], str]


def nothing(*words: str) -> str:
    about = " or ".join(f"“{word}”" for word in words)
    return f"I have found nothing about {about} in this conversation."


@pytest.fixture
def responder(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PROJECT)
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    module = importlib.import_module("chat.responder")
    monkeypatch.setattr(module, "PACE", 0)
    return module


def whole(responder: Any, session: SessionHandle, question: str) -> str:
    """Ask the responder a question, and return the whole answer."""
    return "".join(session.stream_answer(question, responder.ask, system=responder.SYSTEM, recall=True))


@pytest.fixture
def ask(responder: Any) -> Ask:
    """Ask the responder a question, and return the answer without the introduction."""
    return lambda session, question: whole(responder, session, question).removeprefix(f"{responder.INTRODUCTION}\n\n")


@pytest.fixture
def session() -> SessionHandle:
    """A session that shows its last two messages only."""
    return ConversationWindowMemory(InMemoryStore(), 2, counter=Utf8TokenCounter()).session("s")


def test_it_says_who_it_is_once_in_a_conversation(responder: Any) -> None:
    """Also after its introduction was folded, and in a conversation that others began."""
    offline = importlib.import_module("chat.summaries").OfflineChatModel()
    memory = ConversationSummaryBufferMemory(InMemoryStore(), offline, max_token_limit=60, max_summary_tokens=40)
    for key, begun in (("new", []), ("told before", [human("My cat is called Mina."), ai("A good name.")])):
        session = memory.session(key)
        if begun:
            session.append(*begun)
        answers = []
        for text in (*TALK, "Where is the castle?", "Is it raining?") * 2:
            answers.append(whole(responder, session, text))
            session.compact()
        assert session.load().covered > 20
        assert [responder.INTRODUCTION in answer for answer in answers] == [True] + [False] * (len(answers) - 1)
        assert not any("offline" in answer for answer in answers[1:])


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Tell me about the castle", "You told me: “The castle of Bled stands on a rock.”"),
        ("tell me about castles please", "You told me: “The castle of Bled stands on a rock.”"),
        ("What did I tell you about the rain?", "You told me: “It rains, and I have to tell you about it.”"),
        ("What about the tickets?", "I told you: “The tickets cost 15 euros.”"),
        ("Tell me about the zeppelin", nothing("zeppelin")),
        ("And what did you say about a submarine or a zeppelin?", nothing("submarine", "zeppelin")),
        (
            "Where do penguins, herons, storks and swallows sleep?",
            "I have found nothing about that in this conversation.",
        ),
        ("Tell me about it", "Tell me something to remember, or ask about something that was said here."),
        ("¿?", "Tell me something to remember, or ask about something that was said here."),
        ("Herons!", nothing("herons")),
    ],
)
def test_the_words_that_tell_something_decide(session: SessionHandle, ask: Ask, question: str, answer: str) -> None:
    session.append(human("The castle of Bled stands on a rock. We walk."), ai("The tickets cost 15 euros."))
    session.append(human("It rains, and I have to tell you about it. What about me?"), ai("Tell me about it!"))
    assert ask(session, question) == answer
    # What was asked before tells nothing.
    assert ask(session, question) == answer


@pytest.mark.parametrize(
    ("said", "replied", "question", "quote"),
    [
        (
            human("Good morning. I have an allergy to peanuts. It is raining."),
            "I will keep it in mind.",
            "What did I tell you about allergies?",
            "You told me on 3 March 2026: “I have an allergy to peanuts.”",
        ),
        (
            human("Book it, please."),
            "Your order number is LC-204817.",
            "Which order number was it?",
            "I told you on 3 March 2026: “Your order number is LC-204817.”",
        ),
        (
            human("The key is under the flowerpot.", name="Ada"),
            "Good.",
            "Where is the key?",
            "Ada said on 3 March 2026: “The key is under the flowerpot.”",
        ),
    ],
    ids=["the user", "the assistant", "somebody with a name"],
)
def test_a_sentence_is_quoted_with_its_speaker_and_its_day(
    session: SessionHandle, ask: Ask, said: ChatMessage, replied: str, question: str, quote: str
) -> None:
    session.append(said, ai(replied), human("Hm."), ai("Yes?"), created_at=MARCH)
    # The answers themselves are not quoted.
    assert [ask(session, question) for _ in range(3)] == [quote] * 3


def test_what_was_said_long_ago_on_the_same_day_says_how_long(session: SessionHandle, ask: Ask) -> None:
    session.append(human("My cat is called Mina."), ai("A good name."))
    for _ in range(6):
        session.append(human("It rains."), ai("So it does."))
    assert ask(session, "What is my cat called?") == "You told me 14 messages ago: “My cat is called Mina.”"


def test_results_of_tools_and_messages_without_text_are_not_quoted(session: SessionHandle, ask: Ask) -> None:
    call: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "herons", "arguments": "{}"}}
    session.append(human("Look for herons?"), {"role": "assistant", "content": None, "tool_calls": [call]})
    session.append(ChatMessage.tool("A heron stands by the lake.", "c"), ai("Done."))
    session.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}, ai("Nice."))
    assert ask(session, "Herons!") == nothing("herons")


def test_at_most_three_sentences_are_quoted_and_each_once(session: SessionHandle, ask: Ask) -> None:
    for text in ("I saw a heron.", "I saw a heron.", "The heron flew.", "A heron ate.", "A heron slept.", "Fine."):
        session.append(human(text), ai("Indeed."), created_at=MARCH)
    quotes = re.findall("“.*?”", ask(session, "heron"))
    assert len(quotes) == len(set(quotes)) == 3


def test_without_a_hit_the_context_is_quoted_with_the_speakers(ask: Ask) -> None:
    model = ScriptedChatModel([SUMMARY] * 20)
    memory = ConversationSummaryBufferMemory(
        InMemoryStore(), model, 40, keep_identifiers=False, max_context_tokens=2000, counter=Utf8TokenCounter()
    )
    session = memory.session("s")
    for _ in range(5):
        session.append(human("So many words about nothing in particular today."), ai("And as many in reply to them."))
    assert session.load().summary == SUMMARY
    assert ask(session, "heron") == (
        "According to the summary, you told me on 3 March 2026: “I keep a heron.” "
        "According to the summary, I told you on 3 March 2026: “A heron needs fish.” "
        "According to the summary, it was said on 3 March 2026: “Nobody knows the heron.”"
    )


FACTS = (
    ("My daughter Ines is allergic to peanuts and we live in Graz.", "What did I tell you about allergies?", "peanuts"),
    ("I work as a nurse at the children's hospital.", "Where do I work?", "hospital"),
    ("We are going to Slovenia in May for nine days.", "For how many days shall we be in Slovenia?", "nine"),
    ("Our budget for the trip is 2,400 euros.", "How much money may the trip cost?", "2,400"),
    ("My husband's name is Jonas, and he does not eat meat.", "What is my husband called?", "Jonas"),
    ("I drive an old blue Volvo.", "What car do I drive?", "Volvo"),
    ("My birthday is on the 14th of March.", "When is my birthday?", "14th"),
    ("The hint for the router is the name of our first cat, Pixel.", "What was our first cat called?", "Pixel"),
    ("I am learning to play the cello.", "Which instrument do I learn?", "cello"),
    ("My mother moved to Lisbon last autumn.", "Where does my mother live now?", "Lisbon"),
)
TALK = (
    *("The weather is nice.", "I had a coffee.", "What is in the news?", "It rains again.", "I saw a film."),
    *("My neighbour is loud.", "The bus was late.", "Do you like music?", "I am tired.", "Lunch was good."),
)


def test_what_was_told_is_found_in_other_words_after_a_long_talk(ask: Ask) -> None:
    offline = importlib.import_module("chat.summaries").OfflineChatModel()
    memory = ConversationSummaryBufferMemory(
        InMemoryStore(), offline, max_token_limit=300, max_summary_tokens=200, max_context_tokens=700
    )
    session = memory.session("s")
    for said in [*[fact for fact, _, _ in FACTS], *TALK * 6]:
        ask(session, said)
        session.compact()
    summary = session.load().summary
    assert summary is not None
    assert FACTS[0][0] in summary
    # What the responder says takes no room.
    assert "Noted" not in summary
    assert "offline" not in summary
    answers = [ask(session, question) for _, question, _ in FACTS]
    assert [word for (_, _, word), answer in zip(FACTS, answers, strict=True) if word not in answer] == []


def test_a_fold_of_nothing_but_the_responders_words_has_a_text(ask: Ask) -> None:
    summaries, quotes = importlib.import_module("chat.summaries"), importlib.import_module("chat.quotes")
    fold = FoldData(
        previous="", turns=[ChatMessage.ai("You told me: “A heron.”", metadata=quotes.OWN)], max_tokens=50, count=len
    )
    assert summaries.OfflineChatModel().chat(ChatRequest([human("Sum up.")], fold)).message.text


@pytest.mark.parametrize(
    ("said", "is_statement"),
    [
        ("My daughter Ines is allergic to peanuts, and we live in Graz.", True),
        ("请记住：我的订单号是 LC-204817。", True),
        ("I do not like coriander at all.", True),
        ("Do not send coriander.", True),
        ("I like tea", True),
        ("Tea, please.", True),
        ("Where is the spare key?", False),
        ("where is the spare key", False),
        ("Tell me about the trains.", False),
        ("The trains, when do they leave?", False),
        ("我的订单号是什么？", False),
        ("heron", False),
    ],
)
def test_what_asks_nothing_is_not_answered_with_quotes(
    said: str, is_statement: bool, session: SessionHandle, ask: Ask
) -> None:
    session.append(human("I do like coriander, and my daughter likes trains and the heron at all times."), ai("Good."))
    assert (ask(session, said) == STORED) == is_statement


@pytest.mark.parametrize("reads", ["Under ", "Under a pot."])
def test_a_model_gets_what_is_recalled_and_the_reply_names_it(
    reads: str, session: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PROJECT)
    monkeypatch.setenv("OPENAI_MODEL", "fake")
    responder = importlib.import_module("chat.responder")
    session.append(human("My daughter is allergic to peanuts."), ai("Noted."), human("Hm."), ai("Yes?"))
    with OpenAIServer() as server:
        server.default = Behaviour(text="Under a pot.", pace=0)
        monkeypatch.setattr(
            responder, "_client", lambda: openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        )
        question = "What did I tell you about allergies?"
        stream = session.stream_answer(question, responder.ask, system=responder.SYSTEM, recall=True)
        text, pieces = "", iter(stream)
        while text != reads:
            text += next(pieces)
        # Whether the reader waits for the end, or goes away.
        if reads == "Under ":
            stream.close()
        list(pieces)
        [request] = server.log
    assert "allergic to peanuts" in prompt(request.body)
    reply = stream.turn.reply
    assert reply is not None
    assert (reply.message.text, reply.cut_off) == (reads, "lost" if reads == "Under " else "")
    assert 1 in reply.message.metadata["recalled"]


@pytest.mark.parametrize(
    ("message", "named", "shown"),
    [
        (ai, [4, 2], [2, 4]),
        # Clients of the API write metadata as they like.
        (ai, [5, 6, 0, -1, True, "2", 2.0, None, [1], 10**30, 3, 3], [3]),
        (ai, {"2": 2}, []),
        (ai, "12", []),
        (human, [2], []),
    ],
)
def test_only_earlier_messages_count_as_recalled(
    message: Callable[..., ChatMessage], named: Any, shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PROJECT)
    positions = importlib.import_module("chat.recalls").positions
    stored = StoredMessage(5, MARCH, message("So.", metadata={"recalled": named}), 1, False, uuid.uuid4())
    assert positions(stored) == shown
