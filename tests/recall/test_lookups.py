"""A query in one form finds a message in another form."""

from __future__ import annotations

import pytest

from django_convmemory.messages import ChatMessage
from django_convmemory.rules import segments
from django_convmemory.search import indexing, ranking, tokenizer

MESSAGES = {
    "hindi": "मुझे हिन्दी पसंद है",
    "thai": "ผมชอบแมวดำมาก",
    "chinese": "我家的猫很可爱，叫云岚",
    "japanese": "昨日東京タワーへ行きました",
    "korean": "kalb 고양이가 좋아요",
    "german": "Die Rechnungen sind bezahlt",
    "german, short": "Mahnungen",
    "umlaut": "Frau Müller wohnt in der Straße 12",
    "spanish": "Mi teléfono no funciona, las facturas",
    "decomposed": "cafe\u0301 in Paris",
    "accents": "the naïve man from İstanbul",
    "code": "my order is LC-204817, thanks",
    "code, joined": "Is HX99812 the flight?",
    "address": "write to Anna.Schmidt@firma-gmbh.de please",
    "amount": "it was $1,250.00",
    "english": "We were painting the houses",
    "car": "I have a new car",
    "filler": "Nothing of interest is in here",
}


def found(query: str) -> list[str]:
    """The names of the messages that have a word of ``query`` themselves, the best first."""
    # Each message is a sitting, so that none is found because of its neighbours.
    indexed = [
        segments.Document(indexing.terms_of(ChatMessage.human(text)), begins_sitting=True) for text in MESSAGES.values()
    ]
    matches = ranking.rank([segments.extended(None, 0, indexed)], tokenizer.query(query), limit=100)
    return [list(MESSAGES)[match.position] for match in matches]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("हिन्दी", "hindi"),
        ("แมว", "thai"),
        ("云岚", "chinese"),
        ("岚", "chinese"),
        ("你还记得云岚吗？", "chinese"),
        ("ﾀﾜｰ", "japanese"),
        ("양", "korean"),
        ("Wo ist meine Rechnung?", "german"),
        ("Mahnung", "german, short"),
        ("STRASSE", "umlaut"),
        ("strasse", "umlaut"),
        ("Mueller", "umlaut"),
        ("¿Cuál es la factura?", "spanish"),
        ("café", "decomposed"),
        ("istanbul", "accents"),
        ("LC-204817", "code"),
        ("LC 204817", "code"),
        ("lc\u2011204817", "code"),
        ("HX-99812", "code, joined"),
        ("99812", "code, joined"),
        ("schmidt", "address"),
        ("1250", "amount"),
        ("Did they paint a house?", "english"),
    ],
)
def test_another_form_is_found(query: str, name: str) -> None:
    assert found(query)[:1] == [name]


def test_nothing_else_is_found() -> None:
    assert found("Rechnung") == ["german"]
    assert found("猫") == ["chinese"]
    # "car" is what the Spanish stemmer makes of "care".
    assert found("care") == []


@pytest.mark.parametrize("query", ["", "the and you", "der die das", "de la que", "?!", "😀", "\0", "\ud800", " \n"])
def test_a_query_without_words_finds_nothing(query: str) -> None:
    assert tokenizer.query(query).empty
    assert found(query) == []


def test_words_with_a_form_in_common_are_one() -> None:
    [(forms, count)] = tokenizer.query("they paint, painted and were painting").terms.items()

    assert {"paint", "de:paint", "de:painting", "es:paint"} <= set(forms)
    assert count == 3


def test_only_the_beginning_of_a_query_counts() -> None:
    query = tokenizer.query("x" * tokenizer.MAX_QUERY_LENGTH + " Lisbon")

    assert len(query.terms) == 1


def test_of_many_single_characters_some_are_looked_up() -> None:
    long = tokenizer.query(" ".join(chr(0x4E00 + number) for number in range(50)))
    assert len(long.characters) == tokenizer.MAX_SINGLE_CHARACTERS
