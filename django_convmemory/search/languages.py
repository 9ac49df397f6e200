"""The languages whose words are stemmed: their stop words, their stems, and which of them a text is in.

The stem of a word in a German or Spanish text has a tag, ``de:`` or ``es:``. Without the tag, "care" would find every
"car", because "car" is what the Spanish stemmer makes of "care".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Ends every tag, and is in nothing else that is indexed.
TAG_END = ":"

# Words as the tokenizer folds them: without accents, and "ss" for "ß".
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


class Language(NamedTuple):
    """A language whose words are stemmed."""

    tag: str
    stem: Callable[[str], str]
    # These words are not indexed.
    stop_words: frozenset[str]
    # These words and letters tell the language.
    telling: frozenset[str]
    letters: frozenset[str]

    def form(self, word: str) -> str:
        """Return the term under which ``word`` is indexed in a text in this language."""
        return self.tag + self.stem(word)


@functools.lru_cache(maxsize=32_768)
def _english_stem(word: str) -> str:
    # Imported here, so that what needs no stems runs without the package. A stemmer keeps the word in itself, so
    # threads may not share one.
    from snowballstemmer.english_stemmer import EnglishStemmer

    stem: str = EnglishStemmer().stemWord(word)
    return stem


@functools.lru_cache(maxsize=32_768)
def _german_stem(word: str) -> str:
    from snowballstemmer.german_stemmer import GermanStemmer

    stem: str = GermanStemmer().stemWord(word)
    return stem


@functools.lru_cache(maxsize=32_768)
def _spanish_stem(word: str) -> str:
    from snowballstemmer.spanish_stemmer import SpanishStemmer

    stem: str = SpanishStemmer().stemWord(word)
    return stem


def _language(tag: str, stem: Callable[[str], str], stop_words: str, others: str, letters: str) -> Language:
    telling = {*stop_words.split(), *others.split()} - set(_TELLS_NOTHING.split())
    return Language(tag, stem, frozenset(stop_words.split()), frozenset(telling), frozenset(letters))


ENGLISH = _language("", _english_stem, _ENGLISH, _ENGLISH_TOO, "")
GERMAN = _language(f"de{TAG_END}", _german_stem, _GERMAN, _GERMAN_TOO, "äöüß")
SPANISH = _language(f"es{TAG_END}", _spanish_stem, _SPANISH, _SPANISH_TOO, "ñáíóú¿¡")
ALL = (ENGLISH, GERMAN, SPANISH)


def told_by(words: Sequence[str], text: str) -> Sequence[Language]:
    """Return the languages of which ``text`` has the most common words: all of them if it has none.

    ``words`` are its folded words. A letter that only one language has counts as a word.
    """
    hits = [sum(map(language.telling.__contains__, words)) for language in ALL]
    if not text.isascii():
        letters = set(text.casefold())
        hits = [number + bool(letters & language.letters) for number, language in zip(hits, ALL, strict=True)]
    most = max(hits)
    return [language for number, language in zip(hits, ALL, strict=True) if number == most]
