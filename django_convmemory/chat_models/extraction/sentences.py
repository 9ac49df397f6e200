"""The sentences of a chat message, in English, Chinese and languages with similar sentence ends.

The functions are pure, and each takes time linear in the length of the text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

# A longer sentence is cut into pieces of at most so many characters.
MAX_LENGTH = 320

# A directional mark has an effect until it is closed. In a sentence out of its context it could stay open.
_DIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), " ")
_UNWANTED: dict[int, str | None] = {**_CONTROL, 0x0A: "\n", **{ord(mark): None for mark in _DIRECTIONAL}}
_LINE_ENDS = re.compile(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
# Characters without a width. Those that join letters or choose their form stay, but only one in a row.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]|(?<=[\u200c-\u200f\ufe00-\ufe0f])[\u200c-\u200f\ufe00-\ufe0f]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_KANA = re.compile("[\u3040-\u30ff]")
_LETTER = re.compile(r"[^\W_]")

# The look-behind allows a match to begin only at the first mark of a run. So a million full stops take linear time.
_END = re.compile(
    r"[。！？；｡][。！？；｡!?]*+[”’」』）)\"']*+|(?<![.!?…])[.!?…]++[)\]\"'”’]*+(?=\s)|[।؟۔።။]++",
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Za-z]|(?:[A-Za-z]\.)+[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|approx|No|Jan|Feb|Mar|Apr|Jun|Jul"
    r"|Aug|Sept?|Oct|Nov|Dec)\.$"
)
_BULLET = re.compile(r"^\s*(?:[-*•·+]\s+|#{1,6}\s+|>\s*|\d{1,3}[.)]\s+)+")
_MARKUP = re.compile(r"\*\*|__|```\w*|`")

_OPENING = re.compile(
    r"^(?:oh|ah|aw+|wow|whoa|woah|hey|hi|hello|yeah|yep|yup|ok|okay|well|so|haha+|lol|hmm+|cool|nice|great|awesome"
    r"|amazing|sweet|sure(?: thing)?|of course|totally|absolutely|definitely|exactly|anyway|by the way|btw|please"
    r"|good (?:morning|afternoon|evening)|(?:thank you|thanks)(?: so much| very much| a lot| again)?|congrats"
    r"|congratulations|you know|i see|got it|sounds (?:good|great|awesome)|no problem|no worries|all? ?right|right)"
    r"(?:,? (?P<name>[^\W\d_]{2,20}))?(?:[,!.…~]+|\s[—–-]+)(?:\s+|$)",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"^(?P<name>[^\W\d_]{2,20}),\s+(?=\S)(?![A-Z](?!['’ ]))")
_VOCATIVE_END = re.compile(r",\s+(?P<name>[^\W\d_]{2,20})(?=\s*[.!?]+$)")
_WIDE_OPENING = re.compile(
    r"^(?:你好|您好|好的|好吧|好|哦+|噢|嗯+|恩+|哈+|啊|行|可以|收到|明白了?|知道了?|了解了?|没问题|不客气|不用谢|再见|拜拜"
    r"|(?:非常|十分)?(?:谢谢|感谢)(?:你|您)?(?:的帮助|了|啦)?|麻烦(?:你|您)?了?|请问|那)[呀啊啦哦呢的]?[,，。!！~～;；、\s]+"
)
_WIDE_CLOSING = re.compile(
    r"[,，。;；\s]+(?:(?:非常|十分)?(?:谢谢|感谢)(?:你|您)?(?:的帮助|了|啦)?"
    r"|(?:您看)?(?:可以吗|好吗|行吗)|怎么样|麻烦(?:你|您)?了?)(?P<end>[。!！?？~～]*)$"
)


def clean(text: str) -> str:
    """Return ``text`` without control characters, lone surrogates, invisible characters and directional marks.

    Line feeds stay. Other line breaks become line feeds.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _LINE_ENDS.sub("\n", text).translate(_UNWANTED)
    return text if text.isascii() else _INVISIBLE.sub("", _SURROGATES.sub("\ufffd", text))


def one_line(text: str) -> str:
    """Return ``text``, cleaned, with each run of white space replaced by one space."""
    return " ".join(clean(text).split())


def split(text: str) -> Iterator[str]:
    """Yield the sentences of ``text`` in order, each on one line, without bullets and emphasis marks.

    A sentence has a letter or a digit, and at most :data:`MAX_LENGTH` characters. If a line repeats a sentence, the
    sentence is yielded once.
    """
    for line in clean(text).split("\n"):
        if line:
            bullet = _BULLET.match(line)
            line = _MARKUP.sub("", line[bullet.end() :] if bullet else line)
            for sentence in dict.fromkeys(_sentences(line)):
                if _LETTER.search(sentence):
                    yield from _pieces(" ".join(sentence.split()))


def _sentences(line: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(line):
        if end.group() == "." and _ABBREVIATION.search(line[max(start, end.start() - 12) : end.end()]):
            continue
        yield line[start : end.end()]
        start = end.end()
    yield line[start:]


def _pieces(sentence: str) -> Iterator[str]:
    """Yield ``sentence`` in pieces that are not too long, cut after a clause if possible, else after a word."""
    start = 0
    while len(sentence) - start > MAX_LENGTH:
        end = start + MAX_LENGTH
        for marks in (",;:，；：、", " "):
            last_mark = max(sentence.rfind(mark, start + MAX_LENGTH // 2, end) for mark in marks)
            if last_mark > 0:
                end = last_mark + 1
                break
        yield sentence[start:end].strip()
        start = end
    if last_piece := sentence[start:].strip():
        yield last_piece


def without_filler(sentence: str, names: frozenset[str] = frozenset()) -> str:
    """Return ``sentence`` without greetings, thanks and interjections at its beginning and end.

    The result may be "". ``names`` are the lower-case names by which the speakers may be addressed. Words that may be
    an answer, such as yes and no, stay.
    """
    rest = sentence
    while (shorter := _strip_once(rest, names)) != rest:
        rest = shorter
    return sentence if rest == sentence else rest[:1].upper() + rest[1:]


def _strip_once(sentence: str, names: frozenset[str]) -> str:
    opening = _OPENING.match(sentence)
    if opening and (opening["name"] is None or opening["name"][0].isupper() or _is_name(opening["name"], names)):
        return sentence[opening.end() :]
    opening = _WIDE_OPENING.match(sentence)
    if opening:
        return sentence[opening.end() :]
    address = _ADDRESS.match(sentence)
    if address and _is_name(address["name"], names):
        return sentence[address.end() :]
    closing = None if sentence.isascii() else _WIDE_CLOSING.search(sentence[-24:])
    if closing:
        return sentence[: len(sentence) - len(closing.group())] + (closing["end"] or "。")
    vocative = _VOCATIVE_END.search(sentence[-40:])
    if vocative and _is_name(vocative["name"], names):
        return sentence[: len(sentence) - len(sentence[-40:]) + vocative.start()] + sentence[-40:][vocative.end() :]
    return sentence


def _is_name(word: str, names: frozenset[str]) -> bool:
    """Whether ``word`` is one of ``names``, or a short form of one (Mel for Melanie)."""
    return word.lower() in _with_short_forms(names)


@functools.lru_cache(maxsize=1)
def _with_short_forms(names: frozenset[str]) -> frozenset[str]:
    """Return ``names`` with their beginnings of three letters or more. They are made once for a fold."""
    return names.union(name[:end] for name in names for end in range(3, len(name)))


def is_chinese(text: str) -> bool:
    """Whether the beginning of ``text`` has more than a third Chinese characters, and no kana."""
    if text.isascii():
        return False
    sample = text[:2000].replace(" ", "")
    return 3 * len(_HAN.findall(sample)) > len(sample) and not _KANA.search(sample)
