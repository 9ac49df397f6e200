"""The content of a sentence as weighted concepts: words, numbers, names, and pairs of Chinese characters.

A concept counts once in a summary, so a summary gains nothing by repeating itself. This is the concept coverage of
Gillick and Favre, "A Scalable Global Model for Summarization" (2009), with single words instead of bigrams.
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
# Words with the same first letters are one concept: "volunteer", "volunteered" and "volunteering".
_STEM_LENGTH = 6
# The weights of a number and of a name; another word weighs 1.
_NUMBER_WEIGHT = 2.5
_NAME_WEIGHT = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class Concepts:
    """The concepts of one sentence: names in ``named``, those with digits in ``numbers``, the rest in ``plain``."""

    plain: frozenset[str]
    named: frozenset[str]
    numbers: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.plain | self.named | self.numbers


def of(sentence: str, speakers: frozenset[str] = frozenset()) -> Concepts:
    """Return the concepts of ``sentence``.

    ``speakers`` are lower-case words of the speakers' names. They are not concepts, because labels name the speakers.
    """
    plain: set[str] = set()
    named: set[str] = set()
    numbers: set[str] = set()
    for index, token in enumerate(_TOKEN.finditer(sentence)):
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
                is_name = text[0].isupper() and (index > 0 or text[1:2].isupper())
                (named if is_name else plain).add(word[:_STEM_LENGTH])
    return Concepts(frozenset(plain - named), frozenset(named), frozenset(numbers))


def _is_grammar(pair: str) -> bool:
    """Whether a pair of Chinese characters carries no content."""
    return pair in stop_words.PAIRS or not stop_words.CHARACTERS.isdisjoint(pair)


def weights(sentences: Iterable[Concepts]) -> Mapping[str, float]:
    """Return the weight of each concept of ``sentences``.

    The weight grows with the logarithm of the number of sentences that contain the concept: a conversation returns to
    its subject. Names and numbers weigh more, because a reader cannot reconstruct them.
    """
    counts: Counter[str] = Counter()
    named: Counter[str] = Counter()
    numbers: set[str] = set()
    for concepts in sentences:
        counts.update(concepts.all)
        named.update(concepts.named)
        numbers |= concepts.numbers
    return {
        concept: (1 + math.log2(count))
        * (_NUMBER_WEIGHT if concept in numbers else _NAME_WEIGHT if named[concept] * 2 > count else 1.0)
        for concept, count in counts.items()
    }
