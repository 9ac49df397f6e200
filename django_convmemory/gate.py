"""The gate that a model's text passes before it may stand for a conversation."""

from __future__ import annotations

import re
from collections.abc import Callable

from django_convmemory.chat_models.base import ChatResponse
from django_convmemory.exceptions import BadModelOutput, ContentRefused, InvalidMessage
from django_convmemory.messages import check_text

_SENTINELS = frozenset({"none", "null", "nil", "nan", "n/a", "na", "undefined", "empty", "no summary", "nothing", "ok"})
_SENTINELS |= {"无", "没有", "空"}
_REFUSAL = re.compile(
    r"""^\W*(?:
        (?:i['’]?m|i\ am)\ (?:very\ |so\ |really\ )?(?:sorry|afraid|unable)
        | sorry\b | i\ apologi[sz]e | as\ an\ ai\b
        | (?:unfortunately,?\ )?i\ (?:can['’]?t|cannot|can\ not|won['’]?t|am\ unable)\b
        | (?:非常|很)?抱歉 | 对不起 | 很遗憾 | 作为(?:一个|一名)?(?:AI|人工智能) | 我(?:无法|不能)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSING = re.compile(
    r"""\b(?:can['’]?t|cannot|can\ not|unable|won['’]?t|not\ able|not\ allowed)\b
    | \b(?:against|policy|assist|help\ with|comply)\b | 无法 | 不能 | 违反 | 政策""",
    re.IGNORECASE | re.VERBOSE,
)
_MARKUP = re.compile(r"^\s*<(?:!doctype\ html|html\b|\?xml|head\b|body\b)", re.IGNORECASE)
_ERROR = re.compile(
    r"""^\s*(?:
        \{\s*"?(?:error|detail|message)"?\s*:
        | (?:internal\ server|bad\ gateway|gateway|upstream)\ (?:error|timeout)\b
        | (?:error|http)\s*[:\-]?\s*[45]\d\d\b
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_THOUGHT = re.compile(r"^\s*<think>.*?</think>\s*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# A refusal is short, and says what it will not do; a summary may begin with "Sorry" as well.
_LONGEST_REFUSAL = 600

_SENTENCE = re.compile(r"[^.!?。！？\n]*[.!?。！？\n]+[\"'”’)\]]*\s*|[^.!?。！？\n]+$")


def checked(response: ChatResponse) -> str:
    """Return the text of a summary, or raise what is wrong with it.

    Raises :class:`~django_convmemory.exceptions.ContentRefused` for a refusal, and
    :class:`~django_convmemory.exceptions.BadModelOutput` for what is blank, a sentinel, an error page, or cut off.
    """
    if response.finish_reason == "content_filter" or response.message.extra.get("refusal"):
        raise ContentRefused("The model refused to summarize this part of the conversation.")
    if response.finish_reason == "length":
        raise BadModelOutput("The answer was cut off by the model's length limit.")
    if response.message.role != "assistant" or response.message.tool_calls:
        raise BadModelOutput("The model answered with something else than a text.")
    text = _CONTROL.sub(" ", _THOUGHT.sub("", response.message.text)).strip()
    try:
        check_text(text, "The answer")
    except InvalidMessage as error:
        raise BadModelOutput(str(error)) from None
    if not any(character.isalnum() for character in text):
        raise BadModelOutput("The answer was blank.")
    if text.strip(" .!\"'`*()[]<>").casefold() in _SENTINELS:
        raise BadModelOutput(f"The answer was {text[:20]!r} instead of a summary.")
    if _MARKUP.match(text) or _ERROR.match(text):
        raise BadModelOutput("The answer was an error page instead of a summary.")
    if len(text) <= _LONGEST_REFUSAL and _REFUSAL.match(text) and _REFUSING.search(text):
        raise ContentRefused("The model apologized instead of summarizing this part of the conversation.")
    return text


def fitting(text: str, fits: Callable[[str], bool]) -> str:
    """Return the first sentences of ``text`` that fit together, or, where not even one does, its beginning."""
    kept = ""
    for sentence in _SENTENCE.findall(text):
        if not fits((kept + sentence).rstrip()):
            break
        kept += sentence
    if kept.strip():
        return kept.rstrip()
    least, most = 0, len(text)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(text[:middle].rstrip()) else (least, middle - 1)
    return text[:least].rstrip()
