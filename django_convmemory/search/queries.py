"""What is searched for: the words of a text, in all forms in which a message may have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django_convmemory.search import languages, tokenizer

# So many characters of a text are looked at.
MAX_CHARACTERS = 20_000
# So many different single characters are looked up, because each is looked for in the whole text of a segment.
MAX_SINGLE_CHARACTERS = 16


class Query(NamedTuple):
    """The words of a query.

    - ``terms`` has the forms of each word, and how often the query has the word. A message has the word if it has one
      of its forms. A single word does not tell its language, so it has a form for each of them.
    - ``characters`` are single characters of scripts without spaces. Each term that contains one matches.
    """

    terms: Mapping[tuple[str, ...], int]
    characters: frozenset[str]

    @property
    def empty(self) -> bool:
        """Whether the query finds nothing, because it has stop words only or no words at all."""
        return not self.terms and not self.characters


def query(text: str) -> Query:
    """Return the query that ``text`` stands for. Any text is one; there is no syntax."""
    text = text[:MAX_CHARACTERS]
    words = list(tokenizer.words(text))
    told = tokenizer.languages_of(text, words)
    # Words that have a form in common are one, as "paint" and "painting".
    forms_of: dict[str, dict[str, None]] = {}
    repeated: dict[str, int] = {}
    characters: set[str] = set()
    for kind, word, _, _ in words:
        if kind == tokenizer.CHARACTER:
            characters.add(word)
            continue
        forms = _forms(word, told) if kind == tokenizer.WORD else [word]
        if forms:
            forms_of.setdefault(forms[0], {}).update(dict.fromkeys(forms))
            repeated[forms[0]] = repeated.get(forms[0], 0) + 1
    terms = {tuple(forms): repeated[first] for first, forms in forms_of.items()}
    return Query(terms, frozenset(sorted(characters)[:MAX_SINGLE_CHARACTERS]))


def _forms(word: str, told: Sequence[languages.Language]) -> list[str]:
    """Return the terms under which ``word`` is indexed, language by language. ``told`` are those of the query."""
    if len(told) < len(languages.ALL) and any(word in language.stop_words for language in told):
        return []
    return [language.form(word) for language in languages.ALL if word not in language.stop_words]
