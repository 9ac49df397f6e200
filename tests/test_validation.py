from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_convmemory.chat_models.base import ChatResponse
from django_convmemory.exceptions import BadModelOutput, ContentRefused
from django_convmemory.fold import validate
from django_convmemory.messages import ChatMessage, check_text
from django_convmemory.tokens import Utf8TokenCounter
from tests.conversations import call

SUMMARY = "Anna asked about Rust; the assistant explained ownership."


def checked(text: Any, **response: Any) -> str:
    return validate.checked(ChatResponse(ChatMessage.ai(text), **response))


@pytest.mark.parametrize(
    "text",
    [
        SUMMARY,
        "用户询问了订单4711，客服答应周五前退款20欧元。",
        "- Anna: 2 tickets\n- Friday, 8 pm",
        "**Summary**\n\nAnna asked for a refund.",
        "---\nAnna asked for a refund.",
        "“What is Rust?” was Anna's first question.",
        "Ok was all that Anna said.",
        "None of the flights suited Anna; she takes the train.",
        "No summary was given so far; Anna asked for one.",
        "42",
        '{"summary": "Anna asked about Rust.", "open": []}',
        "{Anna} asked for a refund.",
        '{"language": "en", "message": "Anna asked about Rust."}',
        '{"type": "summary", "text": "Anna asked about Rust."}',
        "Sorry was the first word of the customer, who cannot log in since Monday; the agent sent a new password.",
        "Sorry for the delay, the agent wrote: the parcel cannot be delivered before Friday, against the promise.",
        "I'm sorry was all the agent said; the customer was unable to get help with the policy.",
        "Apologies were exchanged. The assistant is not able to book trains; Anna will do so herself.",
        "Unfortunately the flight cannot be changed, for it is a basic economy ticket; Anna keeps it.",
        "抱歉是客服的第一句话：客户的订单无法按时送达，客服答应周五退款。",
        "很遗憾，客户的航班不能改签，客服建议重新预订。",
        "The assistant said: I'm sorry, I cannot help with that. Anna asked for a manager.",
        'Anna wanted a refund. The agent: "I can\'t, it is against our policy."',
        "The customer's shop answers with HTTP 500 since Monday; the agent opened a ticket.",
        "HTTP 500 errors have plagued the customer's shop since Monday; the agent opened a ticket.",
        "Error 404 on the page /cart was what Anna saw; the agent cleared her cache.",
        "Internal server error pages greeted Anna on Monday; she lost 3 orders.",
        "404. That is Anna's room.",
        "Error. That was all Anna saw.",
        "404 is Anna's room; she leaves on Friday.",
        "Upstream of the dam Anna found the error in the map.",
        "Not found so far: Anna's suitcase, tag 4711.",
        "Error handling in Rust was explained: Result, the ? operator and panics.",
        "Anna asked what </think> means; it ends a model's thoughts.",
        "Anna asked what ends a model's thoughts:\n</think> does.",
        "A model's thoughts end with </think>\nAnna asked why.",
        "404 not found. The user saw this error on the shop page on Monday, and the agent promised to look into it.",
        "Lamentó la demora el agente; el cliente pidió un reembolso de 20 euros antes del viernes.",
        "Ich-Erzählung: Der Kunde bestellte zwei Taschen, Lieferung am 9. März.",
    ],
)
def test_summaries_pass(text: str) -> None:
    assert checked(text) == text


@pytest.mark.parametrize(
    "text", ["-" * 30_000 + "ab", "", " ", "\n\t", "...", "---", "…", "“”", "\u200b", "\x00\x07", "🙂", "`"]
)
def test_blank_is_no_summary(text: str) -> None:
    response = ChatResponse(ChatMessage.restore("assistant", text, "chat"))
    with pytest.raises(BadModelOutput, match="blank"):
        validate.checked(response)


def test_nothing_is_no_summary() -> None:
    with pytest.raises(BadModelOutput, match="blank"):
        checked(None)


@pytest.mark.parametrize(
    "word",
    [
        "none",
        "n/a",
        "NaN",
        "no summary",
        "No",
        "没有",
    ],
)
@pytest.mark.parametrize(
    "around",
    ["{}", "{}.", " {}\n", '"{}"', "'{}'", "**{}**", "_{}_", "`{}`", "({})", "[{}]", "<{}>", "- {}", "“{}。”", "{}！"],
)
def test_a_sentinel_is_no_summary_in_any_case_and_punctuation(word: str, around: str) -> None:
    for text in (word, word.upper(), word.capitalize()):
        with pytest.raises(BadModelOutput, match="instead of a summary"):
            checked(around.format(text))


@pytest.mark.parametrize(
    "text",
    [
        "I am sorry, but this goes against our content policy.",
        "I am unable to summarize this conversation.",
        "I'm afraid I cannot continue this conversation.",
        "Sorry, unable to help with that.",
        "Sorry, something went wrong.",
        "Unfortunately I am not able to do so.",
        "As an AI, I'm not able to provide this.",
        "I apologise, but I won't do this.",
        "My apologies, but I can't share that.",
        "I cannot fulfill this request.",
        "I can’t assist with that.",
        "I won't be able to continue this conversation.",
        "I must decline to summarize this.",
        "非常抱歉，我无法提供帮助。",
        "对不起，我无法满足您的要求。",
        "不好意思，我不能这么做。",
        "我无法提供该内容的摘要。",
        "我们不能总结这些内容。",
        "很遗憾，该内容违反了我们的使用政策。",
        "作为AI语言模型，我不能总结这些内容。",
        "作为一个人工智能助手，我无法提供这些信息。",
        "Lo siento, pero no puedo ayudar con eso.",
        "Je suis désolé, mais je ne peux pas traiter cette demande.",
        "Es tut mir leid, aber ich kann dabei nicht helfen.",
        "Desculpe, mas não posso ajudar com isso.",
        "Mi dispiace, ma non posso aiutarti.",
        "申し訳ありませんが、そのリクエストにはお応えできません。",
        "Извините, но я не могу помочь с этим.",
        "عذرًا، لا يمكنني المساعدة في ذلك.",
        "죄송하지만 도와드릴 수 없습니다.",
        "As a language model, I am unable to process this request.",
    ],
)
def test_a_refusal_is_no_summary(text: str) -> None:
    with pytest.raises(ContentRefused):
        checked(text)


@pytest.mark.parametrize(
    "text",
    [
        "<!DOCTYPE html><html><body>502</body></html>",
        "<html>\n<head><title>502 Bad Gateway</title></head>",
        "\n<?xml version='1.0'?><Error/>",
        "<h1>Service Unavailable</h1>",
        "{'error': {'message': 'overloaded'}}",
        '{"type": "error", "error": {"type": "overloaded_error"}}',
        '{"status": 500, "message": "Internal"}',
        '[{"code": 429, "message": "Slow down."}]',
        '{"conversation": "", "open": []}',
        "Internal server error. Please try again later.",
        "HTTP Error 503: Service Unavailable",
        "Error 429: Too Many Requests",
        "Error code: 429 - {'error': {'message': 'Rate limit'}}",
        "504 Gateway Time-out",
        "404 page not found",
        "upstream connect error or disconnect/reset before headers. reset reason: connection failure",
        "upstream request timeout",
        "ERROR!",
        "Please provide the conversation that you want summarized.",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "You exceeded your current quota, please check your plan.",
        "Traceback (most recent call last):\n  File x",
        "<title>502 Bad Gateway</title>",
        "<|im_end|>",
        '<tool_call>{"name": "f"}</tool_call>',
        "<thinking>The user asked",
        "内容由于不合规被停止生成，请更换话题",
    ],
)
def test_an_error_or_a_placeholder_is_no_summary(text: str) -> None:
    with pytest.raises(BadModelOutput):
        checked(text)


@pytest.mark.parametrize(
    "text",
    [
        f"<think>What matters? None of it. I cannot say.</think>{SUMMARY}",
        f"<think>\nFirst.\n\nSecond.\n</think>\n\n{SUMMARY}",
        f"\n<think></think>\n{SUMMARY}\n",
        f"First, what matters.\nThen the rest.\n</think>\n\n{SUMMARY}",  # where the template opened it
    ],
)
def test_thoughts_are_taken_off(text: str) -> None:
    assert checked(text) == SUMMARY


def test_an_answer_of_several_lines_after_thoughts_is_kept_whole() -> None:
    text = "Anna asked about Rust.\n\nThe assistant wrote </think> to show how thoughts end."
    assert checked(f"<think>Well.</think>{text}") == text
    assert checked(f"Well.\n</think>\n{text}") == text


@pytest.mark.parametrize("fence", ["```", "````"])
@pytest.mark.parametrize("language", ["", "markdown"])
def test_a_fence_around_the_whole_answer_is_taken_off(fence: str, language: str) -> None:
    code = f"{fence}{language}\ncargo build\n{fence}"

    assert checked(f"{fence}{language}\n{SUMMARY}\n{fence}\n") == SUMMARY
    assert checked(f"{SUMMARY}\n{code}") == f"{SUMMARY}\n{code}"
    assert checked(f"{code}\n{SUMMARY}") == f"{code}\n{SUMMARY}"


def test_a_text_with_a_letter_in_twenty_characters_is_not_blank() -> None:
    text = "ok" + "." * 38

    assert checked(text) == text
    with pytest.raises(BadModelOutput, match="blank"):
        checked(f"{text}.")


@pytest.mark.parametrize("text", ["<think>Anna asked about", "<think>Anna.</think>", "<think>\nWell.\n</think>\nNONE"])
def test_thoughts_alone_are_no_summary(text: str) -> None:
    with pytest.raises(BadModelOutput):
        checked(text)


@pytest.mark.parametrize(
    ("text", "response", "reason"),
    [
        (SUMMARY, {"finish_reason": "content_filter"}, "refused"),
        (SUMMARY, {"finish_reason": "length"}, "cut off by the model's length limit"),
        ("<think>Anna asked", {}, "cut off while the model was thinking"),
        ("I'm sorry, but I can't help with that.", {}, "apologized"),
        ("502 Bad Gateway", {}, "an error message or markup"),
        ("There is nothing to summarize.", {}, "nothing to summarize"),
        ("none", {}, "'none' instead of a summary"),
        ("x" * 200_001, {}, "200001 characters long"),
    ],
)
def test_the_error_says_what_is_wrong_with_the_text(text: str, response: dict[str, str], reason: str) -> None:
    with pytest.raises((BadModelOutput, ContentRefused), match=reason):
        checked(text, **response)


def test_the_longest_text_that_is_looked_at_has_200000_characters() -> None:
    assert checked("x" * 200_000) == "x" * 200_000


@given(st.text(max_size=60), st.sampled_from(["", SUMMARY, "\x00", "\x1b[31m", "\r\n"]))
def test_what_passes_can_be_stored_and_passes_again(text: str, more: str) -> None:
    try:
        passed = validate.checked(ChatResponse(ChatMessage.restore("assistant", text + more, "chat")))
    except (BadModelOutput, ContentRefused):
        return
    assert passed == passed.strip()
    check_text(passed, "summary")
    assert not any(ord(character) < 32 and character not in "\n\r\t" for character in passed)
    assert checked(passed) == passed


def test_lone_surrogates_are_bad_output() -> None:
    with pytest.raises(BadModelOutput, match=r"The answer .*surrogate"):
        validate.checked(ChatResponse(ChatMessage.restore("assistant", "Anna \ud83d asked.", "chat")))


@pytest.mark.parametrize("finish_reason", ["stop", "eos", "end_turn", ""])
def test_other_ends_pass(finish_reason: str) -> None:
    assert checked(SUMMARY, finish_reason=finish_reason) == SUMMARY


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (ChatMessage.ai(None, extra={"refusal": "I can't."}), ContentRefused),
        (ChatMessage.ai(SUMMARY, extra={"refusal": "I can't."}), ContentRefused),
        (ChatMessage.ai(SUMMARY, tool_calls=[call("a")]), BadModelOutput),
        (ChatMessage.ai(None, extra={"function_call": {"name": "f"}}), BadModelOutput),
        (ChatMessage.human(SUMMARY), BadModelOutput),
    ],
)
def test_what_is_no_answer_is_no_summary(message: ChatMessage, error: type[Exception]) -> None:
    with pytest.raises(error):
        validate.checked(ChatResponse(message))


def test_content_parts_and_a_null_refusal_pass() -> None:
    message = ChatMessage.ai([{"type": "text", "text": SUMMARY}], extra={"refusal": None})
    assert validate.checked(ChatResponse(message)) == SUMMARY


@pytest.mark.parametrize("text", [" " * 30_000 + "a" * 3, "a b " * 8_000, "error " * 6_000])
def test_odd_texts_are_read_in_one_go(text: str) -> None:
    assert validate.checked(ChatResponse(ChatMessage.ai(text))) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "error" + " " * 150_000 + "x y",
        "\n" * 150_000 + "</think>",
        "1 " * 150_000,
        "{" * 30_000 + "ab",
        "```\n" * 40_000,
    ],
)
def test_hostile_texts_are_read_in_one_go_too(text: str) -> None:
    with contextlib.suppress(BadModelOutput):
        validate.checked(ChatResponse(ChatMessage.ai(text)))


def test_a_text_longer_than_a_refusal_is_a_summary_that_begins_with_an_apology() -> None:
    refusal = "I'm sorry, but I can't help with that. "
    longest = refusal + "x" * (600 - len(refusal))
    with pytest.raises(ContentRefused):
        checked(longest)
    assert checked(longest + "x") == longest + "x"


texts = st.one_of(
    st.text(max_size=80), st.lists(st.sampled_from(["Anna", " ", ". ", "3.50", "!\n", "好。", "”", ".”"])).map("".join)
)


@given(texts, st.integers(0, 25))
def test_what_fits_is_a_beginning_of_the_text_and_fits(text: str, limit: int) -> None:
    counter = Utf8TokenCounter()
    fitted = validate.fitting(text, lambda part: counter.count_text(part) <= limit) if text.isprintable() else ""
    assert text.startswith(fitted)
    assert fitted == "" or counter.count_text(fitted) <= limit


@given(st.text(max_size=80), st.integers(0, 90))
def test_as_much_as_fits_is_kept(text: str, limit: int) -> None:
    fitted = validate.fitting(text, lambda part: len(part) <= limit)
    assert text.startswith(fitted)
    assert len(fitted) <= limit
    if len(text) <= limit:
        assert fitted == text.rstrip()
    if text[:limit].strip():
        assert fitted


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("One. Two. Three.", 9, "One. Two."),
        ("One. Two. Three.", 8, "One."),
        ("一句。两句！三句？", 6, "一句。两句！"),
        ("He said “Go.” Then he went.", 20, "He said “Go.”"),
        ("- one\n- two\n- three", 12, "- one\n- two"),
        ("The ticket costs 3.50 euros. Anna pays.", 20, "The ticket costs 3.5"),  # not "3.": no sentence fits
        ("Anna pays. The ticket costs 3.50 euros.", 32, "Anna pays."),
        ("Wordswithoutanend", 5, "Words"),
        ("Words without end", 6, "Words"),
        ("One. Two.", 0, ""),
        ("", 5, ""),
    ],
)
def test_whole_sentences_are_kept_where_one_fits(text: str, limit: int, kept: str) -> None:
    assert validate.fitting(text, lambda part: len(part) <= limit) == kept
