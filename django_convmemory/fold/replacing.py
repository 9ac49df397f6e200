"""Whether an answer has anything of what it would replace: the summary before it, and the turns that were folded.

A model, or a proxy before it, may answer with status 200 and say "Done.", or that it is busy. Such a text has the form
of a summary. What it lacks tells it: it is tiny, and has no name, number or other telling word of what it replaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from django_convmemory.chat_models.base import ChatRequest
from django_convmemory.exceptions import BadModelOutput
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.search import tokenizer

# What an answer replaces is long from so many bytes on: a summary, or a summary and turns. Bytes, because a summary in
# Chinese has a third of the characters of an English one.
_LONG_SUMMARY, _LONG = 100, 1000
# An answer is tiny if it is smaller than such a part of it. If it has no telling word at all, a larger part is tiny.
_TINY, _TINY_WITHOUT_TELLING_WORDS = (3, 50), (1, 20)
# So much of what is replaced is looked at, in characters.
_LOOKED_AT = 100_000
# So many telling words of the turns are no echo of a word that they ask for.
_MANY_WORDS = 4
# An answer with so many telling words is in another script if so much more or less of them is ASCII.
_WORDS_IN_ANOTHER_SCRIPT, _ANOTHER_SCRIPT = 7, 0.5
# Forms of a word begin alike.
_BEGINNING = 5
# A line or a sentence of so many characters is not written twice by chance.
_LONG_LINE, _LONG_SENTENCE = 60, 20
_SENTENCE_END = re.compile(r"(?<=[.!?。])\s+|\n")
# How the words begin that say something about answers, servers and requests, whatever the conversation was about. They
# are written as the tokenizer folds them: without accents. What the tokenizer takes for stop words is not among them.
_ABOUT_ANSWERS = re.compile(
    """
    access|again|answer|any|assist|attent|availab|browser|busy|capacit|certain|chang|clarif|complet|content|context
    |continu|conversation|could|course|current|denied|done|else|empty|error|exceed|fail|finish|following|gateway|generat|glad
    |got|great|happy|help|here|inform|instruct|internal|know|later|let|like|limit|memor|message|minute|model|moment|need
    |new|none|noted|nothing|null|okay|one|overload|please|proceed|process|prompt|provid|proxy|quota|reach|read|repl[iy]
    |request|requir|respon|retry|see|server|servic|share|should|soon|sorry|success|summar|sure|tempor|text|thank|timeout
    |today|todo|token|transcript|true|false|try|unavail|understood|updat|user|wait|want|welcom|would|write|yes
    |abgeschloss|anfrag|antwort|ausgelast|bereit|bitte|dank|dienst|entschuld|erledigt|erneut|erreich|fehl|fertig|frage
    |genau|gern|gesprach|heute|helf|hier|klar|konn|kontingent|leider|mocht|nachricht|natur|neue|sagen|schreib|soll
    |spater|uberlast|unterhalt|verfugbar|verstand|versuch|viele|vorubergeh|zusammenf
    |aclar|acuerdo|alcanz|aqui|ayud|claro|cuota|disponib|entend|escrib|favor|gracias|hecho|hoy|intent|list[oa]|mas|mensaj
    |necesit|nuev|ocupad|peticion|podr|pregunt|puede|quier|respuest|resum|servidor|solicit|supuest|tarde
    |accord|attein|aujourd|avec|avez|bien|cett|compri|dans|desol|dispon|doi[st]|ecri|erreur|etes|fait|instant|merci|nous
    |occup|plait|pour|precis|pret|question|reessay|repon|requet|serveur|souhait|suis|tard|termin|veuill|voici|voul
    |votre|vous|(?:des|elle|est|les|mais|plus|qui|que|son|sont|sur|une|pas|par)$
    """.replace("\n", "").replace(" ", "")
)
_HAN = re.compile("[\u4e00-\u9fff]")
_ABOUT_ANSWERS_IN_CHINESE = re.compile(
    "对话|内容|信息|消息|请求|错误|失败|服务器?|系统|模型|繁忙|配额|额度|超出|用户|回复|回答|问题|提供|帮助|完成|明白|理解|收到|当然|谢谢"
    "|抱歉|今[天日]|暂时|目前|当前|正在|处理|生成|总结|摘要|稍后|重试|以下|需要|什么|可以|无法|开始|已经?|没有?|我们?"
    "|[一上下不个也了以会再到发可吗吧呢和在太好就很您想把换新是更有来次每清用的能被要让试请说过还这那都问对]"
)


class TooLittle(BadModelOutput):
    """The answer ``text`` has nothing of what it would replace."""

    def __init__(self, text: str) -> None:
        super().__init__("The answer has no name, number or other word of what it is to summarize.")
        self.text = text


def check(text: str, previous: str, turns: Sequence[ChatMessage]) -> None:
    """Raise :class:`TooLittle` if ``text`` has nothing of what it replaces: the summary ``previous``, and ``turns``."""
    size = _size(text)
    said = [f"{turn.name or ''} {spoken(turn)}" for turn in turns]
    length = sum(map(_size, said), _size(previous))
    telling = _telling([text])
    of_summary, of_all = _TINY if telling else _TINY_WITHOUT_TELLING_WORDS
    replaces_summary = _size(previous) >= _LONG_SUMMARY and size < _size(previous) / of_summary
    if not replaces_summary and not (length >= _LONG and size < length / of_all):
        return
    known, new = _telling([previous]), _telling(said)
    expected = known | new
    # The turns alone may ask for one word, which a model then says.
    if replaces_summary and len(telling & new) < _MANY_WORDS:
        expected = known
    # A summary in another script shares few words with what it summarizes.
    difference = abs(_latin_share(telling) - _latin_share(expected))
    is_comparable = len(telling) < _WORDS_IN_ANOTHER_SCRIPT or difference < _ANOTHER_SCRIPT
    if expected and is_comparable and telling.isdisjoint(expected):
        raise TooLittle(text)


def check_is_no_echo(text: str, request: ChatRequest, instructions: str) -> None:
    """Raise :class:`~django_convmemory.exceptions.BadModelOutput` if ``text`` repeats what the request says.

    A site's ``instructions`` may tell what to write, and the prompts may have the summary before in any message.
    """
    own = "\n".join(message.text for message in request.messages if message.pinned)
    allowed = f"{instructions}\n{request.fold.previous if request.fold else ''}"
    lines = [line for line in own.splitlines() if len(line) >= _LONG_LINE and line not in allowed]
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if len(sentence) >= _LONG_SENTENCE]
    repeated = sum(len(sentence) for sentence in sentences if sentence in own and sentence not in allowed)
    fence = request.fold.fence if request.fold else ""
    if (fence and fence in text) or any(line in text for line in lines) or repeated > len(text) / 2:
        raise BadModelOutput("The answer repeats the request instead of summarizing.")


def _latin_share(words: set[str]) -> float:
    return sum(map(str.isascii, words)) / max(1, len(words))


def _size(text: str) -> int:
    # A word that is repeated does not make a text longer.
    return len(" ".join(dict.fromkeys(text.split())).encode())


def _telling(texts: Iterable[str]) -> set[str]:
    """Return the beginnings of the words of ``texts`` that tell one conversation from another."""
    read: set[tuple[int, str]] = set()
    left = _LOOKED_AT
    for text in texts:
        words = tokenizer.words(_ABOUT_ANSWERS_IN_CHINESE.sub(" ", text[:left]))
        read.update((kind, word) for kind, word, _, _ in words)
        left = max(0, left - len(text))
    found: set[str] = set()
    for kind, word in read:
        if kind in (tokenizer.BIGRAM, tokenizer.CHARACTER):
            found.update(_HAN.findall(word) or [word])
        elif kind == tokenizer.IDENTIFIER or _is_telling(word):
            found.add(word[:_BEGINNING].rstrip("s"))
    return found


def _is_telling(word: str) -> bool:
    if len(word) <= (2 if word.isascii() else 1) or _ABOUT_ANSWERS.match(word):
        return False
    return not any(word in language.stop_words for language in tokenizer.LANGUAGES)
