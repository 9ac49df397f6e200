"""Validation: the checks that a model's text must pass before it may stand for a conversation."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable

from django_convmemory.chat_models.base import ChatResponse
from django_convmemory.exceptions import BadModelOutput, ContentRefused, InvalidMessage
from django_convmemory.messages import check_text, loads

# A whole answer that is one of these words.
_SENTINELS = frozenset(
    {"none", "null", "nil", "nan", "n/a", "na", "undefined", "empty", "error", "no summary", "nothing", "ok"}
    | {"done", "yes", "no", "sure", "okay", "understood", "success", "true", "false", "todo", "tbd", "noted", "ready"}
    | {"(no changes)", "no changes", "unchanged", "erledigt", "verstanden", "hecho", "entendido", "fait", "compris"}
    | {"无", "没有", "空", "好的", "好", "完成", "已完成", "明白", "收到", "是", "否"}
)
_MAX_SENTINEL_LENGTH = 40
_PUNCTUATION_AROUND = re.compile(r"^[\W_]+|[\W_]+$")

# Refusals. A refusal that passed would replace a conversation's memory. Models refuse in the language of the
# conversation, so both patterns have each language in which the large models were seen to refuse.
# How a refusal begins: with an apology, or with what "I" cannot do.
_BEGINS_LIKE_A_REFUSAL = re.compile(
    r"""^\W*(?:(?:unfortunately|regrettably),?\ )?(?:
    (?:i['’]?m|i\ am)\ (?:\w+\ )?(?:sorry|afraid|unable|not\ (?:able|allowed|comfortable))\b
    | (?:sorry|my\ apologies|apologies)\b | i\ apologi[sz]e\b | as\ an\ ai\b
    | i\ (?:can['’]?t|cannot|can\ not|won['’]?t|will\ not|(?:must|have\ to|need\ to)\ decline)\b
    | as\ an?\ (?:large\ )?language\ model\b
    | 我?(?:非常|很|十分)?(?:抱歉|遗憾) | 对不起 | 不好意思 | 我们?(?:无法|不能)
    | 作为(?:一个|一名)?\ ?(?:AI|人工智能)
    | lo\ siento\b | lamento\b | no\ (?:puedo|podemos)\b | me\ temo\b
    | (?:je\ suis\ )?désolée?\b | je\ regrette\b | je\ ne\ (?:peux|puis|suis)\b
    | (?:es\ )?tut\ mir\ leid\b | entschuldigung\b | leider\ kann\ ich\b | ich\ kann\b
    | desculpe\b | sinto\ muito\b | não\ (?:posso|consigo)\b
    | mi\ dispiace\b | spiacente\b | mi\ scuso\b | non\ (?:posso|sono\ in\ grado)\b
    | 申し訳 | すみません | ごめんなさい
    | извините\b | простите\b | к\ сожалению\b | я\ не\ могу\b
    | عذر | آسف | أعتذر | لا\ (?:أستطيع|يمكنني)
    | 죄송 | 미안)""",
    re.IGNORECASE | re.VERBOSE,
)
# What it also says, in the first person or about the request: that it will not be done. A summary reports in the third
# person.
_SAYS_IT_WILL_NOT = re.compile(
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
    | \bnão\ (?:posso|consigo|podemos)\b
    | \bnon\ (?:posso|possiamo|sono\ in\ grado)\b
    | できません | かねます
    | \bне\ (?:могу|можем)\b
    | لا\ (?:أستطيع|يمكنني|نستطيع)
    | 수\ 없습니다 | 어렵습니다""",
    re.IGNORECASE | re.VERBOSE,
)
# A refusal is short. A longer text is a summary, even if it begins with "Sorry".
_MAX_REFUSAL_LENGTH = 600

_MARKUP = re.compile(r"<(?:!doctype\ html|html\b|\?xml|head\b|body\b|h[1-6]\b|title\b|center\b|pre\b)", re.IGNORECASE)
# What a chat template, a tool or a library leaves instead of a text.
_LEFTOVERS = re.compile(
    r"""<\|[^<>|]{1,40}\|> | </?(?:think(?:ing)?|reasoning|tool_calls?|function_calls?)\b | \[/?INST\]
    | Traceback\ \(most\ recent\ call | (?:torch\.)?(?:cuda|out\ of\ memory)\b.{0,40}\b(?:error|memory)\b
    | you\ exceeded\ your\ current\ quota | 内容由于不合规""",
    re.IGNORECASE | re.VERBOSE,
)
# The model says that there is nothing to summarize, or repeats only the heading.
_NO_SUMMARY = re.compile(
    r"""\W*(?:the\ )?(?:new\ |updated\ )?summary\W*$ | \W*(?:摘要|总结)\W*$
    | there\ (?:is|was)\ (?:nothing|no\ (?:conversation|content|text))\b[^.]{0,60}\.?$
    | please\ (?:provide|share|paste)\b | 请提供
    | [^\n]{,80}[:：][\s*_"'”`]*$  # It announces the summary, and ends.
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A first line that is an error message as a whole. "HTTP 500 errors have plagued the shop" is not.
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
_THINK, _THINK_END = "<think>", "</think>"
_CODE_FENCE = re.compile(r"(`{3,})[\w-]*\n((?:(?!```).)*)\1", re.DOTALL)
# A text has a letter or a digit in so many characters.
_CHARACTERS_PER_LETTER = 20
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# A longer answer is no summary, and scanning it would take long. In characters, as all lengths here.
_MAX_LENGTH = 200_000
_MAX_LINE_LENGTH = 500

# A full stop within 3.50 or example.org does not end a sentence.
_SENTENCE = re.compile(r"(?:[^.!?。！？\n]|[.!?](?=[0-9A-Za-z]))*(?:[.!?。！？\n]+[\"'”’)\]]*\s*|$)")


def checked(response: ChatResponse) -> str:
    """Return the text of a summary.

    Raises :class:`~django_convmemory.exceptions.ContentRefused` if the model refused, and
    :class:`~django_convmemory.exceptions.BadModelOutput` if the answer is blank, a sentinel such as ``NONE``, an error
    page, or cut off.
    """
    if response.finish_reason == "content_filter" or response.message.extra.get("refusal"):
        raise ContentRefused("The model refused to summarize this part of the conversation.")
    if response.finish_reason == "length":
        raise BadModelOutput("The answer was cut off by the model's length limit.")
    if response.message.role != "assistant" or response.message.tool_calls:
        raise BadModelOutput("The model answered with a tool call or another role instead of a text.")
    if len(response.message.text) > _MAX_LENGTH:
        raise BadModelOutput(
            f"The answer was {len(response.message.text)} characters long. At most {_MAX_LENGTH} are allowed."
        )
    text = _CONTROL.sub(" ", _without_thoughts(response.message.text)).strip()
    if fenced := _CODE_FENCE.fullmatch(text):
        text = fenced[2].strip()
    try:
        check_text(text, "The answer")
    except InvalidMessage as error:
        raise BadModelOutput(str(error)) from None
    refuse(text)
    return text


def refuse(text: str) -> None:
    """Raise an error if ``text`` is not a summary."""
    if text.startswith(_THINK):
        raise BadModelOutput("The answer was cut off while the model was thinking.")
    if len(text) < _MAX_SENTINEL_LENGTH and _PUNCTUATION_AROUND.sub("", text).casefold() in _SENTINELS:
        raise BadModelOutput(f"The answer was {text[:20]!r} instead of a summary.")
    if sum(character.isalnum() for character in text) < max(2, len(text) / _CHARACTERS_PER_LETTER):
        raise BadModelOutput("The answer was blank.")
    if _MARKUP.match(text) or _LEFTOVERS.match(text) or _is_error(text):
        raise BadModelOutput("The answer was an error message or markup instead of a summary.")
    if len(text) < _MAX_REFUSAL_LENGTH and _NO_SUMMARY.match(text):
        raise BadModelOutput("The model answered that there is nothing to summarize.")
    if len(text) <= _MAX_REFUSAL_LENGTH and _BEGINS_LIKE_A_REFUSAL.match(text) and _SAYS_IT_WILL_NOT.search(text):
        raise ContentRefused("The model apologized instead of summarizing this part of the conversation.")


def _without_thoughts(text: str) -> str:
    """Return the answer that follows the thoughts of a model that shows them.

    On some servers the opening tag is part of the prompt. Then the answer has only the closing tag, on its own line.
    """
    thoughts, end_tag, answer = text.partition(_THINK_END)
    if not end_tag:
        return text
    alone = not thoughts.rpartition("\n")[2].strip() and not answer.partition("\n")[0].strip()
    return answer if alone or thoughts.lstrip().startswith(_THINK) else text


def _is_error(text: str) -> bool:
    match = _ERROR.match(" ".join(text.partition("\n")[0][:_MAX_LINE_LENGTH].split()))
    if match and (match["reason"] or match["other"] or (match["named"] and match["code"])):
        return True
    value = loads(text) if text.startswith(("{", "[")) else None
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, dict):
        return False
    says_nothing = not any(isinstance(entry, str) and entry.strip() for entry in value.values())
    has_status = "message" in value and not _STATUS_KEYS.isdisjoint(value)
    return says_nothing or has_status or not _ERROR_KEYS.isdisjoint(value)


def fitting(text: str, fits: Callable[[str], bool]) -> str:
    """Return the first sentences of ``text`` that fit together. If not even one fits, return its beginning."""
    kept = ""
    for sentence in _SENTENCE.findall(text):
        if not fits((kept + sentence).rstrip()):
            break
        kept += sentence
    if kept.strip():
        return kept.rstrip()
    longest = bisect.bisect_left(range(1, len(text) + 1), True, key=lambda length: not fits(text[:length].rstrip()))
    return text[:longest].rstrip()
