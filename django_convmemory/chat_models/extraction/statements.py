"""What is said in a conversation, statement by statement: who, and one sentence.

Turns and earlier summaries become statements here; nothing is chosen yet.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django_convmemory import messages
from django_convmemory.chat_models.extraction import concepts, sentences

_ROLES = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_CHINESE_ROLES = {"system": "系统", "developer": "系统", "user": "用户", "assistant": "助手", "tool": "工具"}
_RESERVED = frozenset([*_ROLES.values(), *_CHINESE_ROLES.values()])

_LABEL = re.compile(r"(?P<label>[^\W_][^:：\n。！？!?]{0,39})(?:: |：)")
_PREFIX = re.compile(r"\s*(?P<label>[^\W\d_][\w.'’-]{0,19}(?: [^\W\d_][\w.'’-]{0,19}){0,2})(?::\s|：)\s*")
_CLAUSE = re.compile(r"[^，]*，|[^，]+$")
_WORD = re.compile(r"\w+(?:[.-]+\w+)*")

MOST = 5000
"""Statements of one fold, and of one summary, that are considered at most."""

_LONGEST_NAME = 40
_LONGEST_VALUE = 60
_LONGEST_FACTS = 160
_LONGEST_JSON = 200_000


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of one speaker.

    ``fold`` tells the folds of a summary apart, 0 for the oldest that can still be told; ``speaker`` is "" where the
    summary does not say who spoke.
    """

    fold: int
    speaker: str
    text: str


def of_turns(turns: Sequence[messages.ChatMessage], fold: int) -> list[Statement]:
    """Return what ``turns`` say, in order: their sentences, images and tool calls; :data:`MOST` of them at most."""
    roles = _CHINESE_ROLES if sentences.is_chinese("".join(turn.text[:100] for turn in turns[:20])) else _ROLES
    prefixes = _prefixes(turns)
    parted = [_speaker_and_text(turn, prefixes, roles) for turn in turns]
    names = frozenset(word.lower() for speaker, _ in parted for word in speaker.split() if speaker not in _RESERVED)
    spoken = _words(turn.text for turn in turns if turn.role != "tool")
    said: list[Statement | None] = []
    calls: dict[str, tuple[int, str]] = {}
    for turn, (speaker, text) in zip(turns, parted, strict=True):
        if turn.role == "tool":
            at, call = calls.get(turn.tool_call_id or "", (-1, sentences.one_line(turn.name or "")[:_LONGEST_NAME]))
            lines = list(_result(call, text, spoken))
            if lines and at >= 0:
                said[at] = None  # the result tells of its call
            said.extend(Statement(fold, speaker, line) for line in lines)
            continue
        images = _images(turn)
        for sentence in sentences.split(text):
            said.append(Statement(fold, speaker, f"{sentence} {images}".rstrip()))
            images = ""
        if images:
            said.append(Statement(fold, speaker, images))
        for made in turn.tool_calls:
            calls[made["id"]] = (len(said), _call(made))
            said.append(Statement(fold, speaker, _call(made)))
    kept = _thinned(one for one in said if one is not None)
    bare = (dataclasses.replace(one, text=_bare(one.text, names)) for one in kept)
    return [statement for statement in bare if statement.text]


def _bare(sentence: str, names: frozenset[str]) -> str:
    """Return ``sentence`` without pleasantries and, in Chinese, without clauses at its ends that say nothing."""
    sentence = sentences.without_filler(sentence, names)
    clauses = _CLAUSE.findall(sentence) if "，" in sentence else []
    telling = [index for index, clause in enumerate(clauses) if concepts.of(clause).all]
    if not telling:
        return sentence
    kept = "".join(clauses[telling[0] : telling[-1] + 1])
    return kept if telling[-1] + 1 == len(clauses) else f"{kept.removesuffix('，')}。"


def _thinned(said: Iterable[Statement]) -> list[Statement]:
    """Return ``said`` without repetitions; of more than :data:`MOST` statements, that many, evenly spread."""
    distinct = list(dict.fromkeys(said))
    if len(distinct) <= MOST:
        return distinct
    return [distinct[index * len(distinct) // MOST] for index in range(MOST)]


def _words(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(word for text in texts for word in _WORD.findall(text.lower()))


def of_summary(summary: str) -> list[Statement]:
    """Return what an earlier summary says, in order.

    Its paragraphs are the folds, where its lines say who spoke. In prose of another model each sentence condenses many
    turns, so each counts as a fold of its own.
    """
    said: list[Statement] = []
    fold = -1
    for paragraph in re.split(r"\n\s*\n", sentences.clean(summary)):
        begun = False
        for line in paragraph.split("\n"):
            label = _LABEL.match(line)
            speaker = label["label"].strip() if label else ""
            for sentence in sentences.split(line[label.end() :] if label else line):
                if not begun or not label:
                    fold += 1
                    begun = True
                said.append(Statement(fold, speaker, sentence))
    return _thinned(said)


def _speaker_and_text(
    turn: messages.ChatMessage, prefixes: Mapping[str, str], roles: Mapping[str, str]
) -> tuple[str, str]:
    """Return who speaks ``turn``, and its text without a prefix that says so again."""
    prefix = _PREFIX.match(turn.text) if turn.role != "tool" else None
    label = prefix["label"] if prefix else ""
    speaker = roles[turn.role]
    if turn.name and turn.role != "tool":
        # What would end a label, or a sentence, cannot be in one.
        name = re.sub("[:：。！？!?]", " ", turn.name)
        name = sentences.one_line(name)[:_LONGEST_NAME].strip()
        # Nor is it taken for another role.
        speaker = f"{speaker} {name}" if name in _RESERVED else name or speaker
    elif prefixes.get(label) == turn.role:
        speaker = label
    if prefix and label.lower() == speaker.lower():
        return speaker, turn.text[prefix.end() :]
    return speaker, turn.text


def _prefixes(turns: Sequence[messages.ChatMessage]) -> Mapping[str, str]:
    """Return the names in "Ann: …" that half or more of a role's turns begin with, and the role that each belongs to.

    A label of a role is never taken from a text, nor one that two roles use: a text must not pass for another speaker.
    """
    spoken = Counter(turn.role for turn in turns)
    counts: Counter[tuple[str, str]] = Counter()
    for turn in turns:
        prefix = _PREFIX.match(turn.text)
        if prefix and prefix["label"] not in _RESERVED:
            counts[prefix["label"], turn.role] += 1
    used = Counter(label for label, _ in counts)
    repeated = {key: count for key, count in counts.items() if count > 1 and used[key[0]] == 1}
    prefixed: Counter[str] = Counter()
    for (_, role), count in repeated.items():
        prefixed[role] += count
    return {label: role for label, role in repeated if 2 * prefixed[role] >= spoken[role]}


def _images(turn: messages.ChatMessage) -> str:
    if isinstance(turn.content, str):
        return ""
    count = sum("image" in part["type"] for part in turn.content or ())
    return "[image]" if count == 1 else f"[{count} images]" if count else ""


def _call(call: Mapping[str, Any]) -> str:
    """Return a tool call as one line, name(argument=value, …)."""
    called = call.get("function") or call.get("custom") or {}
    name = str(called.get("name", "")) if isinstance(called, Mapping) else ""
    arguments = called.get("arguments", called.get("input", "")) if isinstance(called, Mapping) else ""
    facts = list(_facts(_parsed(str(arguments))))
    return f"{sentences.one_line(name)[:_LONGEST_NAME] or 'tool'}({_joined(facts)})"


def _result(call: str, text: str, spoken: frozenset[str]) -> Iterator[str]:
    """Yield what a tool answered to ``call``: of data, first what the conversation speaks of; of text, its sentences.

    ``spoken`` are the words of the conversation, in lower case.
    """
    parsed = _parsed(text)
    if isinstance(parsed, str):
        for sentence in sentences.split(parsed):
            yield f"{call} → {sentence}" if call else sentence
            call = ""
        return
    facts = list(_facts(parsed))
    known = [fact for fact in facts if (words := _words([fact.partition("=")[2]])) and words <= spoken]
    line = _joined(known if len(known) > 2 else facts)
    if line:
        yield f"{call} → {line}" if call else line


def _parsed(text: str) -> Any:
    """Return ``text`` read as JSON, or as it is."""
    if len(text) <= _LONGEST_JSON and text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _facts(value: Any, key: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the leaves of JSON as key=value, in order; those that are nested too deep are left out."""
    if isinstance(value, dict):
        for name, item in value.items() if depth < messages.MAX_DEPTH else ():
            yield from _facts(item, name, depth + 1)
    elif isinstance(value, list):
        for item in value if depth < messages.MAX_DEPTH else ():
            yield from _facts(item, key, depth + 1)
    else:
        shown = sentences.one_line(value if isinstance(value, str) else json.dumps(value))
        if len(shown) > _LONGEST_VALUE:
            shown = f"{shown[:_LONGEST_VALUE]}…"
        if shown:
            yield f"{sentences.one_line(key)[:_LONGEST_NAME]}={shown}" if key else shown


def _joined(facts: Iterable[str]) -> str:
    """Return the first of ``facts``, each once, as far as they make one line of readable length."""
    line = ""
    for fact in dict.fromkeys(facts):
        if len(line) + len(fact) > _LONGEST_FACTS:
            return f"{line}, …" if line else f"{fact[:_LONGEST_FACTS]}…"
        line = f"{line}, {fact}" if line else fact
    return line
