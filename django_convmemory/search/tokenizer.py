"""Divides text into the terms that are indexed, and queries into the terms that are looked up.

Text is *folded*, so that different forms of a word are equal: NFKC, without case, without accents on Latin letters.
Words are stemmed. Scripts without spaces between words give every two neighbouring characters (*bigrams*). Identifiers
give their parts, and the whole without its separators: ``LC-204817`` gives ``lc``, ``204817`` and ``lc204817``.

The stem of a word in a German or Spanish text has a tag, ``de:`` or ``es:``. Without the tag, "care" would find every
"car", because "car" is what the Spanish stemmer makes of "care".
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from django_convmemory.exceptions import InvalidArgument
from django_convmemory.rules.segments import SPEAKER, USER
from django_convmemory.search import dates

# So many terms of a text are indexed.
MAX_TERMS = 2_000
# A longer term is cut.
MAX_LENGTH = 64
# So many characters of a query are looked at.
MAX_QUERY_LENGTH = 20_000
# So many different single characters of a query are looked up, because each is looked for in the whole text of a
# segment.
MAX_SINGLE_CHARACTERS = 16
# The language of a text is told by so many words and characters from its beginning.
_TELLING_WORDS = 400
_TELLING_CHARACTERS = 4_000
# A longer run of characters without a space is divided, and so is an identifier of more parts.
_MAX_RUN = 10_000
_MAX_PARTS = 32
_EPOCH = dt.date(1970, 1, 1).toordinal()


# Folding. Text is folded character by character, each with the marks that belong to it. So it is known where in the
# text each folded character comes from.


# Latin letters that Unicode does not decompose, and what they are without their accents.
_WITHOUT_ACCENTS = {
    "æ": "ae",
    "ð": "d",
    "ø": "o",
    "þ": "th",
    "đ": "d",
    "ħ": "h",
    "ı": "i",
    "ł": "l",
    "œ": "oe",
    "ŧ": "t",
}
# What continues a character and is no mark: the other letters of a decomposed Korean syllable, and the marks of
# half-width Kana.
_JOINING = "\u1160-\u11ff\uff9e\uff9f"
# What nobody sees inside a word: soft hyphens, joiners, directions, the choice of a glyph, and the Arabic stretching.
_INVISIBLE = "\u00ad\u034f\u061c\u0640\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
_INVISIBLE_CHARACTER = re.compile(f"[{_INVISIBLE}]")


@functools.cache
def _continuing() -> str:
    """Return the inside of a character class of regular expressions: what belongs to the character before it."""
    # No other marks are in other ranges.
    return _ranges(code for code in range(0x300, 0x20000) if _is_mark(chr(code))) + _JOINING + _INVISIBLE


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _ranges(codes: Iterable[int]) -> str:
    """Return ascending code points as the ranges of a character class."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


@functools.cache
def _continuing_character() -> re.Pattern[str]:
    return re.compile(f"[{_continuing()}]")


def continues(character: str) -> bool:
    """Whether ``character`` belongs to the character before it."""
    return _continuing_character().match(character) is not None


@functools.cache
def _cluster() -> re.Pattern[str]:
    return re.compile(f".[{_continuing()}]*", re.DOTALL)


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Return the range of each character of ``text`` with what continues it."""
    return (match.span() for match in _cluster().finditer(text))


def folded(text: str, offset: int = 0) -> tuple[str, Sequence[int], Sequence[int]]:
    """Return ``text`` folded. Return also where each folded character begins and ends in the text, plus ``offset``."""
    if not _continuing_character().search(text):
        folded = "".join(map(_folded_cluster, text))
        if len(folded) == len(text):
            return folded, range(offset, offset + len(text)), range(offset + 1, offset + len(text) + 1)
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for first, last in _clusters(text):
        piece = _folded_cluster(text[first:last])
        pieces.append(piece)
        starts += [offset + first] * len(piece)
        ends += [offset + last] * len(piece)
    return "".join(pieces), starts, ends


@functools.lru_cache(maxsize=16_384)
def _folded_cluster(cluster: str) -> str:
    cluster = _INVISIBLE_CHARACTER.sub("", cluster)
    cluster = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", cluster).casefold())
    kept: list[str] = []
    latin = False
    for character in unicodedata.normalize("NFD", cluster):
        if not _is_mark(character):
            latin = character.isascii() or character in _WITHOUT_ACCENTS
            kept.append(_WITHOUT_ACCENTS.get(character, character))
        elif not latin:
            kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


# Languages.


# Ends every tag, and is in nothing else that is indexed.
TAG_END = ":"
# The stop words, as text is folded: without accents, and "ss" for "ß".
_ENGLISH = """
    a about after again all also am an and any are as at be because been before being both but by can could d did
    didn do does doesn doing don down during each few for from further had has have having he her here hers herself him
    himself his how i if in into is isn it its itself just ll m me more most my myself no nor not now of off on once
    only or other our ours out over own re s same she should so some such t than that the their theirs them then there
    these they this those through to too under until up ve very was wasn we were what when where which while who whom
    why will with would you your yours
"""
_GERMAN = """
    aber alle allem allen aller alles als also am an ander andere anderem anderen anderer anderes auch auf aus bei
    bin bis bist da damit dann das dass dein deine deinem deinen deiner dem den denn der des dich die dies diese diesem
    diesen dieser dieses dir doch dort du durch ein eine einem einen einer eines er es etwas euch euer eure fur gegen
    hab habe haben hat hatte hatten hier hin hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ins ist ja jede
    jedem jeden jeder jedes jene jenem jenen jener jenes jetzt kann kannst kein keine keinem keinen keiner konnen konnte
    machen man manche mein meine meinem meinen meiner mich mir mit muss musste nach nicht nichts noch nun nur ob oder
    ohne sehr sein seine seinem seinen seiner selbst sich sie sind so solche soll sollte sondern sonst uber um und uns
    unser unsere unserem unseren unter viel vom von vor wann war waren warum warst was weil welche welchem welchen
    welcher welches wenn werde werden wie wieder will wir wird wirst wo wollen wollte wurde wurden zu zum zur zwar
    zwischen
"""
_SPANISH = """
    a al algo algunas algunos ante antes aqui asi aunque cada como con contra cual cuales cuando de del desde donde
    dos durante e el ella ellas ellos en entre era eran eres es esa esas ese eso esos esta estaba estado estamos estan
    estar estas este esto estos estoy fue fueron ha habia hace han has hasta hay he la las le les lo los mas me mi mis
    mucho muchos muy nada ni no nos nosotros nuestra nuestro o os otra otras otro otros para pero poco por porque pues
    que quien quienes se sea ser si sido sin sobre sois solo somos son soy su sus tambien tan tanto te tengo ti tiene
    tienen todo todos tu tus un una unas uno unos usted ustedes vosotros y ya yo
"""
# Words that tell the language as well. They are indexed.
_ENGLISH_TOO = """
    awesome bye cool get glad go good great hello hey hi hope let like love make nice okay one please really say see
    sorry sounds sure take thank thanks think want wow yeah yes
"""
_GERMAN_TOO = "bitte danke gerne geht gut guten hallo heute ja leider mal mehr morgen nein neue neuen tag viele vielen"
_SPANISH_TOO = (
    "ahora bien buenas buenos cuando dia dias gracias gusta hola hoy favor llama puede puedo quiero saber vale"
)
# Words of several languages, and names, tell nothing.
_TELLS_NOTHING = """
    a am an bin bien d da dale de den des du e es favor gut hat he her hin i im in ins la las le los m man mal me mi no
    nun o os re s se sin so son t tag te ti tu un uns vale war was will y ya
"""


# Who says one of these asks about what they said themselves.
_SELF = "i me my mine myself ich mich mir mein meine meinem meinen meiner meines yo mi mis mio mia conmigo"
_FIRST_PERSON = frozenset(_SELF.split())


class Language(NamedTuple):
    """A language whose words are stemmed."""

    tag: str
    stem: Callable[[str], str]
    # These words are not indexed.
    stop_words: frozenset[str]
    # These words and letters tell the language.
    telling: frozenset[str]
    letters: frozenset[str]


def _language(name: str, tag: str, stop_words: str, others: str, letters: str) -> Language:
    @functools.lru_cache(maxsize=32_768)
    def stem(word: str) -> str:
        # Imported here, so that what needs no stems runs without the package. A stemmer keeps the word in itself, so
        # threads may not share one.
        module = importlib.import_module(f"snowballstemmer.{name.lower()}_stemmer")
        stemmed: str = getattr(module, f"{name}Stemmer")().stemWord(word)
        return stemmed

    telling = {*stop_words.split(), *others.split()} - set(_TELLS_NOTHING.split())
    return Language(tag, stem, frozenset(stop_words.split()), frozenset(telling), frozenset(letters))


LANGUAGES = (
    _language("English", "", _ENGLISH, _ENGLISH_TOO, ""),
    _language("German", f"de{TAG_END}", _GERMAN, _GERMAN_TOO, "äöüß"),
    _language("Spanish", f"es{TAG_END}", _SPANISH, _SPANISH_TOO, "ñáíóú¿¡"),
)


def languages_of(text: str, words: Sequence[Word]) -> Sequence[Language]:
    """Return the languages of which ``text`` has the most common words: all of them if it has none.

    ``words`` are its first words. A letter that only one language has counts as a word.
    """
    telling = [word for _, word, _, _ in words[:_TELLING_WORDS]]
    text = unicodedata.normalize("NFC", text[:_TELLING_CHARACTERS])
    letters: set[str] = set() if text.isascii() else set(text.casefold())
    hits = [
        sum(map(language.telling.__contains__, telling)) + bool(letters & language.letters) for language in LANGUAGES
    ]
    most = max(hits)
    return [language for number, language in zip(hits, LANGUAGES, strict=True) if number == most]


# Words.


# The kinds of words: stems are made of words, and nothing is made of the others.
WORD, IDENTIFIER, BIGRAM, CHARACTER = range(4)
# A kind, the folded text, and its range in the text that was given.
Word = tuple[int, str, int, int]

_SEPARATORS = r"\-_.@/+\u2010-\u2013\u2212"
# A comma before three digits is part of a number, as in 1,200.
_COMMA = r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))"
# Thai, Lao, Burmese, Khmer, Hangul, Kana, Han.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_ASCII_RUN = re.compile(f"[a-z0-9]+(?:(?:[{_SEPARATORS}]|{_COMMA})[a-z0-9]+){{0,{_MAX_PARTS}}}")
_PART = re.compile(f"[^{_SEPARATORS}]+")
# Letters and then digits, or the other way round.
_PIECES = re.compile(r"([a-z]+)([0-9,]+)|([0-9,]+)([a-z]+)")
_IN_NUMBER = frozenset("0123456789.")


def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    return _UNSPACED_CHARACTER.match(character) is not None


def words(text: str) -> Iterator[Word]:
    """Return the folded words of ``text``, stop words included. An identifier comes after its parts."""
    return _ascii_words(text, 0) if text.isascii() else _other_words(text)


def _other_words(text: str) -> Iterator[Word]:
    for match in _unfolded_run().finditer(text):
        run = match[0]
        if run.isascii():
            yield from _ascii_words(run, match.start())
            continue
        run, starts, ends = folded(run, match.start())
        for piece in _run().finditer(run):
            first, last = piece.span()
            divide = _bigrams if piece.lastgroup == "unspaced" else _parts
            yield from divide(piece[0], starts[first:last], ends[first:last])


def _ascii_words(text: str, offset: int) -> Iterator[Word]:
    for match in _ASCII_RUN.finditer(text.lower()):
        run = match[0]
        start, end = offset + match.start(), offset + match.end()
        if run.isalpha():
            yield WORD, run[:MAX_LENGTH], start, end
        else:
            yield from _parts(run, range(start, end), range(start + 1, end + 1))


@functools.cache
def _unfolded_run() -> re.Pattern[str]:
    """What can be one run when it is folded."""
    continuing = _continuing()
    return re.compile(rf"[^\W_](?:[^\W_]|[{continuing}]|[{_SEPARATORS},](?=[^\W_])){{0,{_MAX_RUN}}}")


@functools.cache
def _run() -> re.Pattern[str]:
    """A run of a script without spaces, or words with separators between them."""
    continuing = _continuing()
    letters = rf"(?:(?![{_UNSPACED}])[^\W_][{continuing}]*)+"
    parts = rf"{letters}(?:(?:[{_SEPARATORS}]|{_COMMA}){letters}){{0,{_MAX_PARTS}}}"
    return re.compile(rf"(?P<unspaced>(?:[{_UNSPACED}][{continuing}]*)+)|(?P<spaced>{parts})")


def _parts(run: str, starts: Sequence[int], ends: Sequence[int]) -> Iterator[Word]:
    """Return the words of a run, and the whole of it if it is an identifier."""
    parts = list(_PART.finditer(run))
    for part in parts:
        first, last = part.span()
        yield from _part(part[0], starts[first:last], ends[first:last])
    if len(parts) > 1 and ("@" in run or any(map(str.isdigit, run))):
        whole = run.replace(",", "")
        if not _IN_NUMBER.issuperset(whole):  # 3.5 is not 35.
            whole = "".join(_PART.findall(whole))
        yield IDENTIFIER, whole[:MAX_LENGTH], starts[0], ends[-1]


def _part(part: str, starts: Sequence[int], ends: Sequence[int]) -> Iterator[Word]:
    if part.isascii() and part.isalpha():
        yield WORD, part[:MAX_LENGTH], starts[0], ends[-1]
        return
    if pieces := _PIECES.fullmatch(part):
        for number in range(1, 5):
            if pieces[number]:
                first, last = pieces.span(number)
                yield from _part(pieces[number], starts[first:last], ends[first:last])
    yield IDENTIFIER, part.replace(",", "")[:MAX_LENGTH], starts[0], ends[-1]


def _bigrams(run: str, starts: Sequence[int], ends: Sequence[int]) -> Iterator[Word]:
    clusters = list(_clusters(run))
    if len(clusters) == 1:
        yield CHARACTER, run[:MAX_LENGTH], starts[0], ends[-1]
        return
    for (first, _), (_, last) in itertools.pairwise(clusters):
        yield BIGRAM, run[first:last][:MAX_LENGTH], starts[first], ends[last - 1]


# Terms.


def spans(text: str) -> list[tuple[str, int, int]]:
    """Return the first ``MAX_TERMS`` terms of ``text``, each with the range of the text that it stands for."""
    stream = words(text)
    head = list(itertools.islice(stream, _TELLING_WORDS))
    told = languages_of(text, head)
    found: list[tuple[str, int, int]] = []
    for kind, word, start, end in itertools.chain(head, stream):
        if len(found) >= MAX_TERMS:
            break
        if kind != WORD:
            found.append((word, start, end))
            continue
        for language in told:
            if word not in language.stop_words:
                found.append((language.tag + language.stem(word), start, end))  # noqa: PERF401  slower for each word
    return found[:MAX_TERMS]


def speakers(name: str | None, *, user: bool) -> frozenset[str]:
    """Return whose message it is, as it is indexed: each word of the ``name`` of the speaker, and ``USER``."""
    named = {SPEAKER + word for kind, word, _, _ in words(name or "") if kind != CHARACTER}
    return frozenset(named | {USER} if user else named)


def tokenize(text: str) -> list[str]:
    """Return the terms of ``text`` that are indexed, repeated ones included."""
    return [term for term, _, _ in spans(text)]


class Query(NamedTuple):
    """The words of a query.

    - ``terms`` has the forms of each word, and how often the query has the word. A message has the word if it has one
      of its forms. A single word does not tell its language, so it has a form for each of them.
    - ``characters`` are single characters of scripts without spaces. Each term that contains one matches.
    - ``speakers`` are whom it may ask about, as they are indexed: names, and the user if it says "I", "me" or "my".
    - ``days`` are the days that it names, counted from 1970. The words that name them are no words of the query.
    - ``ahead`` are the hours by which the time zone of the days is ahead of UTC.
    """

    terms: Mapping[tuple[str, ...], int]
    characters: frozenset[str]
    speakers: frozenset[str] = frozenset()
    days: frozenset[int] = frozenset()
    ahead: int = 0

    @property
    def empty(self) -> bool:
        """Whether the query finds nothing, because it has stop words only or no words at all."""
        return not self.terms and not self.characters and not self.days


def query(text: object, asked_at: dt.datetime | None = None) -> Query:
    """Return the query that ``text`` stands for. Any text is one; there is no syntax. Raises InvalidArgument.

    Messages count more if they are of a time that the text names. ``asked_at`` is when it is asked, in the time zone of
    whoever asks. Without it, times do not count.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"The query must be a string, not {type(text).__name__}.")
    text = text[:MAX_QUERY_LENGTH]
    found = list(words(text))
    told = languages_of(text, found)
    # Words that have a form in common are one, as "paint" and "painting".
    forms_of: dict[str, dict[str, None]] = {}
    repeated: dict[str, int] = {}
    characters: set[str] = set()
    speakers = {USER for _, word, _, _ in found if word in _FIRST_PERSON or "我" in word}
    periods = dates.periods(text, asked_at.date()) if asked_at else []
    dated = {place for _, places in periods for place in places}
    for kind, word in [(kind, word) for kind, word, *place in found if dated.isdisjoint(range(*place))]:
        if kind == CHARACTER:
            characters.add(word)
            continue
        forms = _forms(word, told) if kind == WORD else [word]
        if forms:
            forms_of.setdefault(forms[0], {}).update(dict.fromkeys(forms))
            repeated[forms[0]] = repeated.get(forms[0], 0) + 1
            speakers.add(SPEAKER + word)
    terms = {tuple(forms): repeated[first] for first, forms in forms_of.items()}
    days = frozenset(day - _EPOCH for days, _ in periods for day in days)
    ahead = ((asked_at and asked_at.utcoffset()) or dt.timedelta()) // dt.timedelta(hours=1)
    return Query(terms, frozenset(sorted(characters)[:MAX_SINGLE_CHARACTERS]), frozenset(speakers), days, ahead)


def _forms(word: str, told: Sequence[Language]) -> list[str]:
    """Return the terms under which ``word`` is indexed, language by language. ``told`` are those of the query."""
    if len(told) < len(LANGUAGES) and any(word in language.stop_words for language in told):
        return []
    return [language.tag + language.stem(word) for language in LANGUAGES if word not in language.stop_words]
