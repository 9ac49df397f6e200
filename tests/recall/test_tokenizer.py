"""The tokenizer: one for all languages, with ranges that refer to the text as it was given."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, strategies as st

from django_convmemory.search import tokenizer

# Letters and marks of many scripts, what joins words, and what stands between them.
CHARACTERS = "aZéßİ٤ 09-_.@/+,:'\n\t京ﾊﾞ한ㅎแมน้ำกिन्दी\u0301\u200d\ufe0f😀Ⅳ½ﷺＬ\u1112\u1161\u11ab"
WORDS = ("the", "Houses", "die", "Rechnungen", "las", "facturas", "x" * 90, "don't")
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=60),
    st.text(max_size=60),
    st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join),
)


def terms(text: str) -> list[str]:
    return tokenizer.tokenize(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # English: stop words are left out, and words are stemmed.
        ("The cats were painting in my houses", ["cat", "paint", "hous"]),
        # German and Spanish stems have a tag.
        ("Die Rechnungen sind bezahlt", ["de:rechnung", "de:bezahlt"]),
        ("Las facturas están pagadas", ["es:factur", "es:pag"]),
        # Nothing tells the language of one word.
        ("Rechnungen", ["rechnungen", "de:rechnung", "es:rechnung"]),
        ("Ｏｒｄｅｒ　１２３４ for you", ["order", "1234"]),
        ("the cafe\u0301, the café", ["cafe", "cafe"]),
        ("the naïve Øresund", ["naiv", "oresund"]),
        # Bigrams of scripts without spaces.
        ("我家的猫", ["我家", "家的", "的猫"]),
        ("猫", ["猫"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("ﾊﾞｽ", ["バス"]),
        ("고양이가 좋아요", ["고양", "양이", "이가", "좋아", "아요"]),
        (unicodedata.normalize("NFD", "고양이"), ["고양", "양이"]),
        ("แมว", ["แม", "มว"]),
        ("for iPhone手机", ["iphon", "手机"]),
        # A mark stays with its character.
        ("न\u0940ल हिन्दी", ["न\u0940ल", "हिन्दी"]),
        ("Москва́", ["москва\u0301"]),
        # Identifiers, in part and whole.
        ("is LC-204817", ["lc", "204817", "lc204817"]),
        ("is LC204817", ["lc", "204817", "lc204817"]),
        ("is 1,200 or 3.5", ["1200", "3", "5", "3.5"]),
        ("is 1,250.50 or 1,2,3", ["1250", "50", "1250.50", "1", "2", "3"]),
        ("is 1,200kg", ["1200", "kg", "1200kg"]),
        ("on 2026-11-24", ["2026", "11", "24", "20261124"]),
        ("this is to anna.müller@firma-gmbh.de", ["anna", "muller", "firma", "gmbh", "de", "annamullerfirmagmbhde"]),
        ("a well-known and max_token_limit", ["well", "known", "max", "token", "limit"]),
        ("it's Anna's", ["anna"]),
        # Nothing to find.
        ("", []),
        ("the and you", []),
        ("😀 👩‍👩‍👧 !? … --", []),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_ranges_are_those_of_the_text() -> None:
    text = "An Müller: ＬＣ-204817, 東京ﾀﾜｰ cafe\u0301!"

    assert [(term, text[start:end]) for term, start, end in tokenizer.spans(text)] == [
        ("de:mull", "Müller"),
        ("de:lc", "ＬＣ"),
        ("204817", "204817"),
        ("lc204817", "ＬＣ-204817"),
        ("東京", "東京"),
        ("京タ", "京ﾀ"),
        ("タワ", "ﾀﾜ"),
        ("ワー", "ﾜｰ"),
        ("de:caf", "cafe\u0301"),
    ]


@given(TEXTS)
def test_any_text_gives_terms_with_ranges_in_it(text: str) -> None:
    found = list(tokenizer.spans(text))

    assert terms(text) == [term for term, _, _ in found]
    for term, start, end in found:
        assert 0 <= start < end <= len(text)
        assert term
        assert len(term) <= tokenizer.MAX_LENGTH + len("de:")
        assert term.encode()
        assert not any(character.isspace() or unicodedata.category(character) in {"Cc", "Cs"} for character in term)


@given(TEXTS)
def test_a_text_with_other_forms_of_its_characters_has_the_same_terms(text: str) -> None:
    assert terms(unicodedata.normalize("NFD", text)) == terms(unicodedata.normalize("NFC", text))


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_case_changes_nothing(text: str) -> None:
    assert terms(text.upper()) == terms(text.lower())


def test_a_message_has_two_thousand_terms_at_most() -> None:
    assert len(terms("word " * 3000)) == tokenizer.MAX_TERMS


# A megabyte of anything.
MEGABYTES = [
    *(character * 1_000_000 for character in ("a", "猫", "é", "\u0301", "😀", "🇩", "\0", "\ud800", " ")),
    *(words * 250_000 for words in ("a-", "1,", "a\u0301", "?!", "lc-", "cat ", "ﷺ")),
    "a cat and a dog " * 60_000,
    " ".join(f"{number:x}é" for number in range(150_000)),
    " ".join(f"w{number:06}ing" for number in range(100_000)).translate({48 + n: 97 + n for n in range(10)}),
]


@pytest.mark.parametrize("text", MEGABYTES, ids=lambda text: repr(text[:4]))
def test_a_megabyte_of_anything_takes_a_bounded_time(text: str) -> None:
    start = time.process_time()

    assert len(terms(text)) <= tokenizer.MAX_TERMS
    assert time.process_time() - start < 5


# Languages.


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("When is the meeting?", {""}),
        ("The world war was long", {""}),
        ("Wann kommt meine Bestellung?", {"de:"}),
        ("¿Dónde está mi pedido?", {"es:"}),
        ("Größe XL", {"de:"}),
        ("mañana", {"es:"}),
        ("Thanks!", {""}),
        ("Danke!", {"de:"}),
        ("¡Gracias!", {"es:"}),
        ("Lisbon", {"", "de:", "es:"}),
        ("Привет", {"", "de:", "es:"}),
    ],
)
def test_common_words_and_letters_tell_the_language(text: str, tags: set[str]) -> None:
    assert {language.tag for language in tokenizer.languages_of(text, list(tokenizer.words(text)))} == tags


def test_stop_words_are_written_as_text_is_folded() -> None:
    for language in tokenizer.LANGUAGES:
        for word in language.stop_words | language.telling:
            assert tokenizer.folded(word)[0] == word
            assert word.isascii()
            assert word.isalpha()


def test_a_stop_word_of_one_language_is_indexed_in_another() -> None:
    assert "war" in terms("They were in the war")
    assert "de:war" not in terms("Das war es nicht")
