"""Tool calls and their results as single lines: name(argument=value, …) → result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django_convmemory import messages
from django_convmemory.chat_models.extraction import sentences

LONGEST_NAME = 40
"""At most so many characters of a tool's name are used."""

_LONGEST_VALUE = 60
_LONGEST_FACTS = 160
_LONGEST_JSON = 200_000
_WORD = re.compile(r"\w+(?:[.-]+\w+)*")


def words(texts: Iterable[str]) -> frozenset[str]:
    """Return the words of ``texts``, in lower case."""
    return frozenset(word for text in texts for word in _WORD.findall(text.lower()))


def of_call(call: Mapping[str, Any]) -> str:
    """Return a tool call as one line, name(argument=value, …)."""
    function = call.get("function") or call.get("custom") or {}
    name = str(function.get("name", "")) if isinstance(function, Mapping) else ""
    arguments = function.get("arguments", function.get("input", "")) if isinstance(function, Mapping) else ""
    facts = list(_facts(_parsed(str(arguments))))
    return f"{sentences.one_line(name)[:LONGEST_NAME] or 'tool'}({_joined(facts)})"


def of_result(call: str, text: str, spoken_words: frozenset[str]) -> Iterator[str]:
    """Yield the lines of a tool's result: the sentences of text, or one line of facts from JSON.

    ``call`` is the line of the call. ``spoken_words`` are the words of the conversation, in lower case. If the
    conversation speaks of more than two of the facts, only those are used.
    """
    parsed = _parsed(text)
    if isinstance(parsed, str):
        for sentence in sentences.split(parsed):
            yield f"{call} → {sentence}" if call else sentence
            call = ""
        return
    facts = list(_facts(parsed))
    mentioned = [fact for fact in facts if (value := words([fact.partition("=")[2]])) and value <= spoken_words]
    line = _joined(mentioned if len(mentioned) > 2 else facts)
    if line:
        yield f"{call} → {line}" if call else line


def _parsed(text: str) -> Any:
    """Return the value of ``text`` if it is a JSON object or list, else ``text``."""
    if len(text) <= _LONGEST_JSON and text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _facts(value: Any, key: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the leaves of a JSON value as key=value, in order. Leaves that are nested too deep are left out."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else ((key, item) for item in value)
        for name, item in items if depth < messages.MAX_DEPTH else ():
            yield from _facts(item, name, depth + 1)
    else:
        text = sentences.one_line(value if isinstance(value, str) else json.dumps(value))
        if len(text) > _LONGEST_VALUE:
            text = f"{text[:_LONGEST_VALUE]}…"
        if text:
            yield f"{sentences.one_line(key)[:LONGEST_NAME]}={text}" if key else text


def _joined(facts: Iterable[str]) -> str:
    """Return the first of ``facts``, each once, as one line of readable length."""
    line = ""
    for fact in dict.fromkeys(facts):
        if len(line) + len(fact) > _LONGEST_FACTS:
            return f"{line}, …" if line else f"{fact[:_LONGEST_FACTS]}…"
        line = f"{line}, {fact}" if line else fact
    return line
