"""What a sentence says, as a set of weighted concepts: words, numbers, names, and pairs of characters in Chinese.

A concept counts once however often it is said, so a summary gains nothing by repeating itself: the concept coverage of
Gillick and Favre, "A Scalable Global Model for Summarization" (2009), with single words in place of bigrams.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from django_convmemory.chat_models.extraction import stop_words

_TOKEN = re.compile(
    r"(?P<number>[$€£¥]?\d+(?:[-.:/,%]\d+)*%?)"
    r"|(?P<wide>[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+)"
    r"|(?P<word>[^\W\d_](?:[\w]|['’-](?=\w))*)"
)
_LONGEST_WORD = 40
# Letters that tell words apart: "volunteer", "volunteered" and "volunteering" are one concept.
_STEM = 6
# How much more a number and a name weigh than another word.
_NUMBER = 2.5
_NAME = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class Concepts:
    """The concepts of one sentence; those in ``named`` are names, those in ``numbers`` have digits."""

    plain: frozenset[str]
    named: frozenset[str]
    numbers: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.plain | self.named | self.numbers


def of(sentence: str, speakers: frozenset[str] = frozenset()) -> Concepts:
    """Return the concepts of ``sentence``; the lower-case words in ``speakers`` are none, for labels say who speaks."""
    plain: set[str] = set()
    named: set[str] = set()
    numbers: set[str] = set()
    first = True
    for token in _TOKEN.finditer(sentence):
        text = token.group()
        if token.lastgroup == "number":
            numbers.add(text)
        elif token.lastgroup == "wide":
            pairs = (text[i : i + 2] for i in range(len(text) - 1)) if len(text) > 1 else (text,)
            plain.update(pair for pair in pairs if not _is_grammar(pair))
        elif len(text) <= _LONGEST_WORD:
            word = text.lower().replace("’", "'")
            word = word.removesuffix("'s")
            if any(character.isdigit() for character in word):
                numbers.add(word)
            elif len(word) > 1 and word not in stop_words.WORDS and word not in speakers:
                shown = text[0].isupper() and (not first or text[1:2].isupper())
                (named if shown else plain).add(word[:_STEM])
        first = False
    return Concepts(frozenset(plain - named), frozenset(named), frozenset(numbers))


def _is_grammar(pair: str) -> bool:
    return pair in stop_words.PAIRS or not stop_words.CHARACTERS.isdisjoint(pair)


def weights(sentences: Iterable[Concepts]) -> Mapping[str, float]:
    """Return the weight of every concept of ``sentences``.

    It grows with the logarithm of the number of sentences that say it, as what a conversation comes back to is what it
    is about; names and numbers weigh more, for they are what a reader cannot reconstruct.
    """
    said: Counter[str] = Counter()
    named: Counter[str] = Counter()
    numbers: set[str] = set()
    for concepts in sentences:
        said.update(concepts.all)
        named.update(concepts.named)
        numbers |= concepts.numbers
    return {
        concept: (1 + math.log2(count))
        * (_NUMBER if concept in numbers else _NAME if named[concept] * 2 > count else 1.0)
        for concept, count in said.items()
    }
