"""The gate that a model's text passes before it may stand for a conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from django_convmemory.chat_models.base import ChatResponse
from django_convmemory.exceptions import BadModelOutput, ContentRefused, InvalidMessage
from django_convmemory.messages import check_text

_SENTINELS = frozenset(
    {"none", "null", "nil", "nan", "n/a", "na", "undefined", "empty", "error", "no summary", "nothing"}
)
_SENTINELS |= {"ok", "无", "没有", "空"}
_LONGEST_SENTINEL = 40
_AROUND = re.compile(r"^[\W_]+|[\W_]+$")
# A refusal begins with an apology, or with what "I" cannot do …
_REFUSAL = re.compile(
    r"""^\W*(?:(?:unfortunately|regrettably),?\ )?(?:
        (?:i['’]?m|i\ am)\ (?:\w+\ )?(?:sorry|afraid|unable|not\ (?:able|allowed|comfortable))\b
        | (?:sorry|my\ apologies|apologies)\b | i\ apologi[sz]e\b | as\ an\ ai\b
        | i\ (?:can['’]?t|cannot|can\ not|won['’]?t|will\ not|(?:must|have\ to|need\ to)\ decline)\b
        | 我?(?:非常|很|十分)?(?:抱歉|遗憾) | 对不起 | 不好意思 | 我们?(?:无法|不能)
        | 作为(?:一个|一名)?\ ?(?:AI|人工智能)
        | as\ an?\ (?:large\ )?language\ model\b
        | lo\ siento\b | lamento\b | no\ (?:puedo|podemos)\b | me\ temo\b
        | (?:je\ suis\ )?désolée?\b | je\ regrette\b | je\ ne\ (?:peux|puis|suis)\b
        | (?:es\ )?tut\ mir\ leid\b | entschuldigung\b | leider\ kann\ ich\b | ich\ kann\b
        | desculpe\b | sinto\ muito\b | não\ (?:posso|consigo)\b
        | mi\ dispiace\b | spiacente\b | mi\ scuso\b | non\ (?:posso|sono\ in\ grado)\b
        | 申し訳 | すみません | ごめんなさい
        | извините\b | простите\b | к\ сожалению\b | я\ не\ могу\b
        | عذر | آسف | أعتذر | لا\ (?:أستطيع|يمكنني)
        | 죄송 | 미안
    )""",
    re.IGNORECASE | re.VERBOSE,
)
# … and says, in the first person or of the request, that it will not be done. A summary reports in the third person.
_REFUSING = re.compile(
    r"""\b(?:i|we)(?:['’]?m|['’]re|\ am|\ are)?\ (?:\w+\ )?
        (?:can['’]?t|cannot|can\ not|won['’]?t|will\ not|unable|not\ (?:able|allowed|comfortable)|decline)\b
    | \b(?:can['’]?t|cannot|unable\ to)\ (?:assist|help|comply)\b
    | \b(?:this|that|your)\ (?:request|content|material|prompt)\b
    | \b(?:against|violat\w+)\ (?:my|our|the)\ (?:\w+\ ){0,2}(?:polic|guideline)
    | \b(?:something\ went\ wrong|try\ again)\b
    | 我们?(?:暂时)?(?:无法|不能) | (?:违反|不符合).{0,12}(?:政策|规定|准则)
    | \bno\ (?:puedo|podemos)\b | \bno\ es\ posible\b
    | \bje\ ne\ (?:peux|puis)\b | \bpas\ en\ mesure\b
    | \bich\b[^.!?]{0,60}\bnicht\b | \bnicht\ in\ der\ lage\b
    | \bnão\ (?:posso|consigo|podemos)\b | \bnon\ (?:posso|possiamo|sono\ in\ grado)\b
    | できません | かねます | \bне\ (?:могу|можем)\b | لا\ (?:أستطيع|يمكنني|نستطيع) | 수\ 없습니다 | 어렵습니다""",
    re.IGNORECASE | re.VERBOSE,
)
_MARKUP = re.compile(r"<(?:!doctype\ html|html\b|\?xml|head\b|body\b|h[1-6]\b|title\b|center\b|pre\b)", re.IGNORECASE)
# What a template, a tool or a library leaves where a text should be.
_DEBRIS = re.compile(
    r"""<\|[^<>|]{1,40}\|> | </?(?:think(?:ing)?|reasoning|tool_calls?|function_calls?)\b | \[/?INST\]
    | Traceback\ \(most\ recent\ call | (?:torch\.)?(?:cuda|out\ of\ memory)\b.{0,40}\b(?:error|memory)\b
    | you\ exceeded\ your\ current\ quota | 内容由于不合规""",
    re.IGNORECASE | re.VERBOSE,
)
# In place of a summary, and nothing else.
_NOTHING = re.compile(
    r"""\W*(?:the\ )?(?:new\ |updated\ )?summary\W*$ | \W*(?:摘要|总结)\W*$
    | there\ (?:is|was)\ (?:nothing|no\ (?:conversation|content|text))\b[^.]{0,60}\.?$
    | please\ (?:provide|share|paste)\b | 请提供""",
    re.IGNORECASE | re.VERBOSE,
)
# A line that is an error's and nothing else; "HTTP 500 errors have plagued the shop" is not.
_ERROR = re.compile(
    r"""\W{,9}(?:
        (?P<named>(?:(?:http[/\d.]*|error|status|code)\b[ :\-]*)+)?
        (?P<code>[45]\d\d\b[ :\-]*)?
        (?P<reason>(?:
            internal\ server\ error | bad\ (?:gateway|request) | gateway\ time-?out | forbidden | unauthorized
            | (?:page\ )?not\ found | request\ time-?out | service\ (?:temporarily\ )?unavailable
            | too\ many\ requests | rate\ limit\ (?:exceeded|reached)
        )\b)?
        (?:\W{,9}$ | [.!]?\ [({].* | [.!]\ .{,40}$)
        | (?P<other>upstream\ (?:\w+\ )?(?:error|timeout)\b | \{\ ?["']?(?:error|detail|message)["']?\ ?:)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_ERROR_KEYS = frozenset({"error", "errors", "detail"})
_STATUS_KEYS = frozenset({"code", "object", "status", "statusCode", "type"})
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# A refusal is short, and says what it will not do; a summary may begin with "Sorry" as well.
_LONGEST_REFUSAL = 600
# No text of this length is what was asked for, nor is it worth the time to look for what of it is.
_LONGEST_TEXT = 200_000
_LONGEST_LINE = 500

# A full stop inside of 3.50 or example.org ends none.
_SENTENCE = re.compile(r"(?:[^.!?。！？\n]|[.!?](?=[0-9A-Za-z]))*(?:[.!?。！？\n]+[\"'”’)\]]*\s*|$)")


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
    if len(response.message.text) > _LONGEST_TEXT:
        raise BadModelOutput(f"The answer was {len(response.message.text)} characters long.")
    text = _CONTROL.sub(" ", _without_thoughts(response.message.text)).strip()
    try:
        check_text(text, "The answer")
    except InvalidMessage as error:
        raise BadModelOutput(str(error)) from None
    _refuse(text)
    return text


def _refuse(text: str) -> None:
    """Raise what is wrong with ``text``, if anything is."""
    if text.startswith(_THOUGHT):
        raise BadModelOutput("The answer was cut off while the model was thinking.")
    if len(text) < _LONGEST_SENTINEL and _AROUND.sub("", text).casefold() in _SENTINELS:
        raise BadModelOutput(f"The answer was {text[:20]!r} instead of a summary.")
    if sum(character.isalnum() for character in text) < 2:
        raise BadModelOutput("The answer was blank.")
    if _MARKUP.match(text) or _DEBRIS.match(text) or _is_error(text):
        raise BadModelOutput("The answer was an error, or markup, instead of a summary.")
    if len(text) < _LONGEST_REFUSAL and _NOTHING.match(text):
        raise BadModelOutput("The answer was that there is nothing to summarize.")
    if len(text) <= _LONGEST_REFUSAL and _REFUSAL.match(text) and _REFUSING.search(text):
        raise ContentRefused("The model apologized instead of summarizing this part of the conversation.")


def _without_thoughts(text: str) -> str:
    """Return what follows the thoughts of a model that shows them first.

    Some servers give the template's opening tag to the model, and its thoughts have only the closing one, on a line of
    its own.
    """
    thoughts, ends, answer = text.partition(_THOUGHT_ENDS)
    if not ends:
        return text
    alone = not thoughts.rpartition("\n")[2].strip() and not answer.partition("\n")[0].strip()
    return answer if alone or thoughts.lstrip().startswith(_THOUGHT) else text


def _is_error(text: str) -> bool:
    match = _ERROR.match(" ".join(text.partition("\n")[0][:_LONGEST_LINE].split()))
    if match:
        named, code, reason, other = match.group("named", "code", "reason", "other")
        if reason or other or (named and code):
            return True
    if not text.startswith(("{", "[")):
        return False
    try:
        value = json.loads(text)
    except ValueError:
        return False
    value = value[0] if isinstance(value, list) and value else value
    if isinstance(value, dict) and not any(isinstance(one, str) and one.strip() for one in value.values()):
        return True
    return isinstance(value, dict) and (
        not _ERROR_KEYS.isdisjoint(value) or ("message" in value and not _STATUS_KEYS.isdisjoint(value))
    )


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
