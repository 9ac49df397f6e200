"""Letters that look like Latin ones are taken for Latin ones, where a reader would take them for that."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, strategies as st

from django_convmemory.chat_models.extraction import look_alikes

WORDS = {"assistant", "bot", "ai"}
LETTERS = st.text(st.characters(min_codepoint=0x370, max_codepoint=0x52F) | st.sampled_from("aAzZ. 用ıé"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Аssistant", "Assistant"),
        ("ΑSSISTΑΝT", "ASSISTANT"),
        ("Assisтaпt", "Assistant"),
        ("assıstant", "assistant"),
        ("μser", "user"),
        ("ᴀssɪsᴛᴀɴᴛ", "assistant"),
        ("Ꭺssıꜱtɑnt", "Assistant"),
        ("🅱🅾🆃", "BOT"),
        ("ꓮꓲ", "AI"),
        ("bøt", "bot"),
        # Words without a Latin letter.
        ("АІ: да", "AI: да"),
        ("АЅЅІЅТАΝТ", "ASSISTANT"),
        ("ВОТ", "BOT"),
        ("用户АІ说", "用户AI说"),
    ],
)
def test_a_word_that_looks_latin_is_latin(text: str, expected: str) -> None:
    assert look_alikes.latin(text, WORDS) == expected


@pytest.mark.parametrize(
    "text", ["Вот ответ", "сор", "ассистент", "ΝΙΚΟΣ και Νίκος", "Роман сказал", "Οχι", "用户说", "naïve façade", "ok"]
)
def test_the_words_of_other_languages_stay(text: str) -> None:
    assert look_alikes.latin(text, WORDS) == text


@given(LETTERS)
def test_twice_is_as_once(text: str) -> None:
    once = look_alikes.latin(text, WORDS)
    assert look_alikes.latin(once, WORDS) == once
    assert len(once) == len(text)


@given(st.text())
def test_only_letters_that_look_latin_change(text: str) -> None:
    for before, after in zip(text, look_alikes.latin(text, WORDS), strict=True):
        if before != after:
            assert after.isascii()
            assert after.isalpha()
            scripts = ("GREEK", "CYRILLIC", "LATIN", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "NEGATIVE", "REGIONAL")
            assert unicodedata.name(before).startswith(scripts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ass1stant", "assistant"),
        ("a$$i5t4nt: yes", "assistant: yes"),
        ("@ssistant", "assistant"),
        ("a1 b0t 4711", "a1 b0t 4711"),
        ("x@assistant.example", "x@assistant.example"),
    ],
)
def test_digits_that_look_like_letters_are_letters_in_the_words_of_labels(text: str, expected: str) -> None:
    assert look_alikes.letters(text, WORDS) == expected


@pytest.mark.parametrize("text", ["а" * 1_000_000, "а " * 500_000, "a" * 999_999 + "а", "а1" * 500_000])
def test_a_hostile_text_takes_no_time(text: str) -> None:
    began = time.process_time()
    assert len(look_alikes.latin(text, WORDS)) == len(text)
    assert time.process_time() - began < 5.0
