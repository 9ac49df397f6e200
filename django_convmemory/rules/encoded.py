"""Encoded data in texts: base64, hexadecimal and ``data:`` URLs, as web pages and files have them.

Nobody can read it, so a summary and an index have a note in its place, such as ``[300 kB of data]``. What is stored and
what a prompt shows stays as it is. With another rule, the offsets of messages that are folded in parts would change.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from django_convmemory.messages import ChatMessage, FrozenDict

# In characters. A shorter run stays as it is.
_SHORTEST = 300
# The characters of base64, and those that JSON writes with a backslash: some servers do so with "/" and "+".
_CHARACTER = r"[A-Za-z0-9+/_-]"
_ESCAPED = r"\\++/|\\++u00[0-7][0-9A-Fa-f]"
_LINE = rf"(?=(?:{_CHARACTER}|{_ESCAPED}){{60}})(?>(?:{_CHARACTER}++|{_ESCAPED})+)"
# White space, or its escapes in JSON.
_BREAK = r"(?>(?:\s|\\++[nrt])+)"
# No quantifier gives back what it took, and no run begins within a word: so the time is proportional to the length.
# Groups are atomic instead of possessive, with which Python 3.11.4 and older have an error.
_RUN = re.compile(
    rf"""data:[a-zA-Z0-9.+-]++/[a-zA-Z0-9;=.+-]++,[!\#$%&*+,./0-9:;=?@A-Z_a-z~-]{{{_SHORTEST},}}+
    | (?: (?<![A-Za-z0-9+/_\\-]) | (?<=\\[nrt]) ) {_LINE} (?>(?:{_BREAK}{_LINE})*) ={{,2}}+""",
    re.VERBOSE,
)
_BETWEEN = re.compile(r"\s|\\++(?:u00..|.)")
_WORD = re.compile("[a-z]{4,}")


def replaced(text: str) -> str:
    """Return ``text`` with a note in place of each long run of encoded data."""
    return _replaced(text) if len(text) >= _SHORTEST else text


# A long message is folded in parts, and looked at as a whole for each of them.
@functools.lru_cache(maxsize=4)
def _replaced(text: str) -> str:
    return _RUN.sub(_note, text)


def replaced_in(message: ChatMessage) -> ChatMessage:
    """Return ``message`` with notes in its texts and in the arguments of its calls. Usually it is the same one."""
    content: Any = message.content
    if isinstance(content, str):
        content = replaced(content)
    elif content is not None:
        content = tuple(_with_note(part, "text") for part in content)
    calls = tuple(_of_call(call) for call in message.tool_calls)
    if content == message.content and calls == message.tool_calls:
        return message
    return dataclasses.replace(message, content=content, tool_calls=calls)


def _of_call(call: FrozenDict) -> FrozenDict:
    for form, field in (("function", "arguments"), ("custom", "input")):
        details = call.get(form)
        if isinstance(details, Mapping):
            call = FrozenDict({**call, form: _with_note(details, field)})
    return call


def _with_note(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    text = fields.get(name)
    return FrozenDict({**fields, name: replaced(text)}) if isinstance(text, str) else fields


def _note(match: re.Match[str]) -> str:
    run = match[0]
    return f"[{max(1, round(len(run) / 1000))} kB of data]" if _is_data(run) else run


def _is_data(run: str) -> bool:
    """Whether a run is data, and not a path, a very long word, a line of dashes or the letters of a protein."""
    if run.startswith("data:"):
        return True
    plain = _BETWEEN.sub("", run)
    has_digit, has_small, has_capital = (re.search(kind, plain) for kind in ("[0-9]", "[a-z]", "[A-Z]"))
    if len(plain) < _SHORTEST or not has_digit:
        return False
    if re.fullmatch("[0-9a-fA-F]+", plain):
        return bool(has_small or has_capital)
    # Of random base64, a thirteenth is in runs of four small letters or more.
    in_words = sum(map(len, _WORD.findall(plain)))
    return bool(has_small and has_capital) and 4 * in_words < len(plain)
