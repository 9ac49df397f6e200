"""Keeps the identifiers that were said, so that a model which forgets cannot make an order number vanish.

Identifiers are numbers of four digits or more, amounts, dates, e-mail addresses, URLs, and codes of letters and digits.
Each version of a summary has a list of them, the latest mention first. Those that the model's text lacks are shown in a
last line, in quotes and with who said them.

The line is a part of a message from the site, and anybody may write what looks like an identifier. So nothing is kept
that could be read as a sentence: an address ends after its host or a short path with a number, and has few words.
"""

from __future__ import annotations

import bisect
import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from django_convmemory.messages import ChatMessage

# A longer one is not kept, in characters.
MAX_LENGTH = 100
# So many are kept of one message, so that a pasted table does not displace those of the whole conversation.
MAX_OF_MESSAGE = 25
MAX_KEPT = 300
# The results of tools are not kept.
ROLES = ("user", "assistant")

_LABEL = "Also mentioned by the "
# Stands after an identifier that the assistant has said.
_BY_ASSISTANT = "\tassistant"

# Letters of scripts with spaces between words. Others would make a whole sentence one code.
_LETTERS = "A-Za-z\u00c0-\u024f\u0370-\u052f"
_IN_WORD = f"[{_LETTERS}0-9]"
_MONTH = (
    "(?:January|February|March|April|May|June|July|August|September|October|November|December"
    "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_CURRENCY = (
    r"(?:[€$£¥₹%‰]|[万亿]?[元块]|美元|欧元"
    r"|(?:euros?|dollars?|pounds?|francs?|yuan|yen|rmb|usd|eur|gbp|cny|chf|jpy|inr)\b)"
)
_HOST = r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,4}(?:[a-z]{2,10}|\d{1,3})(?![a-z0-9-])"
_KINDS = {
    "url": rf"\bhttps?://{_HOST}(?::\d{{2,5}})?(?:/[A-Za-z0-9._~-]+){{0,6}}",
    "email": rf"(?<![{_LETTERS}0-9_.+-])[{_LETTERS}0-9_.+-]{{1,64}}@{_HOST}",
    "date": (
        r"(?<!\d)(?:\d{4}-\d{1,2}-\d{1,2}|\d{4}/\d{1,2}/\d{1,2}"
        r"|\d{1,2}(?P<separator>[./])\d{1,2}(?P=separator)(?:\d{4}|\d{2})"
        rf"|(?:\d{{4}}年)?\d{{1,2}}月\d{{1,2}}[日号]|{_DAY}\.? (?:of )?{_MONTH}\b\.?(?:,? \d{{4}})?)(?!\d)"
        rf"|\b{_MONTH}\.? {_DAY}\b(?:,? \d{{4}}\b)?"
    ),
    "amount": (
        rf"(?<![{_LETTERS}0-9.,])"
        rf"(?:[€$£¥₹] ?\d[\d.,]*(?: ?(?:k|m|million|billion)\b)?|\d[\d.,]* ?{_CURRENCY})"
    ),
    # An atomic group: a number that goes on as a code is not cut short.
    "number": (rf"(?<![{_LETTERS}0-9.])(?>\+?\(?\d+\)?(?:[ .,/-]\(?\d{{2,}}\)?)*)(?![{_LETTERS}_]|[-/.]{_IN_WORD})"),
    "code": rf"#?{_IN_WORD}+(?:[-_./]{_IN_WORD}+)*",
}
# Each identifier has one of these. Most words have none, and looking for them is fast.
_SIGN = re.compile(r"\d|@|://")
_IDENTIFIER = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()), re.IGNORECASE)
# With more words, a code or a part of an address is a sentence in disguise.
_MAX_WORDS = 2
_WORD = re.compile(rf"[{_LETTERS}]{{2,}}")
# The first and the last label of a host are no words of it.
_HOST_WORDS = re.compile(r"(?:www\.)?(.*)\.[a-z0-9]+")
_LONGEST_PATH = 40
_END = ".,;:!?)]}'\"*_"
# "3rd", "20km" and "7pm" are no codes.
_QUANTITY = re.compile(rf"\d+(?:[.,:]\d+)*[{_LETTERS}]{{1,3}}")


def mentioned(text: str, day: dt.date | None = None) -> list[str]:
    """Return the identifiers in ``text``, in order, at most :data:`MAX_OF_MESSAGE`. ``day`` itself is no news."""
    found: dict[str, str] = {}
    for match in _near_signs(text):
        kind, identifier = match.lastgroup or "", match[0].rstrip(_END).strip()
        if ")" not in identifier:  # The whole of it is in parentheses.
            identifier = identifier.removeprefix("(")
        if kind == "url":
            identifier = _without_words(identifier)
        if kind == "date" and day is not None and _is_day(identifier, day):
            continue
        if len(identifier) <= MAX_LENGTH and _counts(kind, identifier):
            found.setdefault(identifier.casefold(), identifier)
            if len(found) == MAX_OF_MESSAGE:
                break
    return list(found.values())


def _without_words(url: str) -> str:
    """Return an address through the last part of its path that has a digit, if that is short, or else its host."""
    scheme, _, address = url.partition("://")
    host, *path = address.split("/")
    while path and not any(map(str.isdigit, path[-1])):
        path.pop()
    kept = "".join(f"/{part}" for part in path)
    is_long = len(kept) > _LONGEST_PATH or len(_WORD.findall(kept)) > _MAX_WORDS
    return f"{scheme}://{host}" + ("" if is_long else kept)


def _is_day(date: str, day: dt.date) -> bool:
    numbers = {int(number) for number in re.findall(r"\d+", date)}
    if not re.search(_MONTH, date, re.IGNORECASE):
        return {day.day, day.month} <= numbers <= {day.day, day.month, day.year, day.year % 100}
    return f"{day:%b}".casefold() in date.casefold() and {day.day} <= numbers <= {day.day, day.year}


def _near_signs(text: str) -> Iterator[re.Match[str]]:
    """Yield what may be an identifier, in order: what a search of the whole text would find, with few other words.

    Only a space can be within an identifier, and no other white space. At most one word without a sign comes before
    the first one that has a sign, as in "May 5". So each search begins with the word before that of the next sign.
    """
    end = 0
    while sign := _SIGN.search(text, end):
        before = text.rfind(" ", end, sign.start())
        end = max(end, text.rfind(" ", end, max(end, before)) + 1)
        while end <= sign.start():
            match = _IDENTIFIER.search(text, end)
            if match is None:
                return
            end = match.end()
            yield match


def _counts(kind: str, text: str) -> bool:
    if kind in {"url", "email"}:
        local, _, host = text.rpartition("@" if kind == "email" else "://")
        words = _HOST_WORDS.match(host.partition("/")[0].casefold())
        return words is not None and all(len(_WORD.findall(part)) <= _MAX_WORDS for part in (local, words[1]))
    if kind not in {"number", "code"}:
        return True
    digits = sum(map(str.isdigit, text))
    if kind == "number":
        # A run of one digit is a line or a filler.
        return digits >= 4 and len(set(text)) > 1 and not _is_card(text)
    if not digits or len(text) < 4:
        return False
    is_sentence = sum(map(str.isalpha, re.split(r"[-_./]", text))) > _MAX_WORDS
    return not is_sentence and (digits >= 4 or not _QUANTITY.fullmatch(text))


def _is_card(text: str) -> bool:
    """Whether the digits may be the number of a payment card, which nobody wants to see again.

    Source of the check digit: ISO/IEC 7812-1, annex B (the Luhn algorithm).
    """
    digits = [int(character) for character in text if character.isdigit()]
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


# Messages, each with the day on which it was written, or None.
Dated = Iterable[tuple[ChatMessage, dt.date | None]]


def updated(known: Sequence[str], messages: Dated) -> tuple[str, ...]:
    """Return the identifiers of ``messages`` and those ``known`` before, the latest mention first.

    Only what users and assistants said counts, and not the results of tools.
    """
    latest = {_plain(identifier).casefold(): identifier for identifier in reversed(known)}
    for message, day in messages:
        if message.role in ROLES:
            for identifier in mentioned(message.text, day):
                before = latest.pop(identifier.casefold(), None)
                # Who repeats it has not said it first.
                by_assistant = message.role == "assistant" if before is None else before != _plain(before)
                latest[identifier.casefold()] = identifier + (_BY_ASSISTANT if by_assistant else "")
    return tuple(reversed(latest.values()))[:MAX_KEPT]


def of_later_part(known: Sequence[str], messages: Dated) -> tuple[str, ...]:
    """Return the identifiers ``known`` before, and then those of a later part of a long exchange.

    A pasted table has many parts. What is new in them takes only the room that is left.
    """
    there = {_plain(identifier).casefold() for identifier in known}
    new = [identifier for identifier in updated((), messages) if _plain(identifier).casefold() not in there]
    return (*known, *new)[:MAX_KEPT]


def _plain(identifier: str) -> str:
    return identifier.removesuffix(_BY_ASSISTANT)


def line(identifiers: Sequence[str], text: str, fits: Callable[[str], bool]) -> str:
    """Return a line with those of ``identifiers`` that ``text`` lacks, as many as fit, or ""."""
    lacking = [identifier for identifier in identifiers if not contains(text, _plain(identifier))]
    # The first ones, as many as fit together.
    sizes = range(1, len(lacking) + 1)
    shown = lacking[: bisect.bisect_left(sizes, True, key=lambda size: not fits(_line(lacking[:size])))]
    # And those after them that are shorter than what did not fit.
    too_long = MAX_LENGTH + 1
    for identifier in lacking[len(shown) :]:
        if len(identifier) < too_long:
            if fits(_line([*shown, identifier])):
                shown.append(identifier)
            else:
                too_long = len(identifier)
    return _line(shown) if shown else ""


def _line(identifiers: Sequence[str]) -> str:
    by_user = [identifier for identifier in identifiers if identifier == _plain(identifier)]
    by_assistant = [_plain(identifier) for identifier in identifiers if identifier != _plain(identifier)]
    said = (("user", by_user), ("assistant", by_assistant))
    parts = [f"{speaker}: " + ", ".join(f'"{each}"' for each in those) for speaker, those in said if those]
    return _LABEL + "; by the ".join(parts)


def contains(text: str, identifier: str) -> bool:
    """Whether ``identifier`` is in ``text``, in upper or lower case, and not only as a part of a longer one."""
    plain, identifier = text.casefold(), identifier.casefold()
    if identifier not in plain:
        return False
    return re.search(rf"(?<![a-z0-9]){re.escape(identifier)}(?![a-z0-9])", plain) is not None
