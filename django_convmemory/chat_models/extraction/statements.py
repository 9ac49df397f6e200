"""Splits turns and earlier summaries into statements: a speaker and one sentence each.

Nothing is chosen here.
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

MAX_STATEMENTS = 5000
"""At most so many statements of a fold, and of a summary, are considered."""

_LONGEST_NAME = 40
_LONGEST_VALUE = 60
_LONGEST_FACTS = 160
_LONGEST_JSON = 200_000


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of one speaker.

    ``fold`` numbers the folds of a summary from 0, the oldest. ``speaker`` is "" if the summary does not name it.
    """

    fold: int
    speaker: str
    text: str


def of_turns(turns: Sequence[messages.ChatMessage], fold: int) -> list[Statement]:
    """Return the sentences, images and tool calls of ``turns``, in order; at most :data:`MAX_STATEMENTS`."""
    roles = _CHINESE_ROLES if sentences.is_chinese("".join(turn.text[:100] for turn in turns[:20])) else _ROLES
    prefixes = _prefixes(turns)
    labelled = [_speaker_and_text(turn, prefixes, roles) for turn in turns]
    names = frozenset(word.lower() for speaker, _ in labelled for word in speaker.split() if speaker not in _RESERVED)
    words = _words(turn.text for turn in turns if turn.role != "tool")
    spoken: list[Statement | None] = []
    calls: dict[str, tuple[int, str]] = {}
    for turn, (speaker, text) in zip(turns, labelled, strict=True):
        if turn.role == "tool":
            index, call = calls.get(turn.tool_call_id or "", (-1, sentences.one_line(turn.name or "")[:_LONGEST_NAME]))
            lines = list(_result_lines(call, text, words))
            if lines and index >= 0:
                spoken[index] = None  # The line of the result repeats its call.
            spoken.extend(Statement(fold, speaker, line) for line in lines)
            continue
        lines = list(sentences.split(text)) or [""]
        lines[0] = f"{lines[0]} {_images(turn)}".strip()
        spoken.extend(Statement(fold, speaker, line) for line in lines if line)
        for tool_call in turn.tool_calls:
            calls[tool_call["id"]] = (len(spoken), _call_line(tool_call))
            spoken.append(Statement(fold, speaker, _call_line(tool_call)))
    distinct = _thinned(statement for statement in spoken if statement is not None)
    bare = (dataclasses.replace(statement, text=_bare(statement.text, names)) for statement in distinct)
    return [statement for statement in bare if statement.text]


def _bare(sentence: str, names: frozenset[str]) -> str:
    """Return ``sentence`` without pleasantries and, in Chinese, without outer clauses that have no concept."""
    sentence = sentences.without_filler(sentence, names)
    clauses = _CLAUSE.findall(sentence) if "，" in sentence else []
    with_content = [index for index, clause in enumerate(clauses) if concepts.of(clause).all]
    if not with_content:
        return sentence
    shorter = "".join(clauses[with_content[0] : with_content[-1] + 1])
    return shorter if with_content[-1] + 1 == len(clauses) else f"{shorter.removesuffix('，')}。"


def _thinned(spoken: Iterable[Statement]) -> list[Statement]:
    """Return the statements without repetitions, and if they are too many, an evenly spread part of them."""
    distinct = list(dict.fromkeys(spoken))
    if len(distinct) <= MAX_STATEMENTS:
        return distinct
    return [distinct[index * len(distinct) // MAX_STATEMENTS] for index in range(MAX_STATEMENTS)]


def _words(texts: Iterable[str]) -> frozenset[str]:
    """Return the words of ``texts``, in lower case."""
    return frozenset(word for text in texts for word in _WORD.findall(text.lower()))


def of_summary(summary: str) -> list[Statement]:
    """Return the statements of an earlier summary, in order.

    If its lines name the speakers, its paragraphs are the folds. Otherwise another model wrote it. Each of its
    sentences then condenses many turns, so each counts as a separate fold.
    """
    spoken: list[Statement] = []
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
                spoken.append(Statement(fold, speaker, sentence))
    return _thinned(spoken)


def _speaker_and_text(
    turn: messages.ChatMessage, prefixes: Mapping[str, str], roles: Mapping[str, str]
) -> tuple[str, str]:
    """Return the speaker of ``turn``, and its text without a prefix that repeats the speaker."""
    prefix = _PREFIX.match(turn.text) if turn.role != "tool" else None
    label = prefix["label"] if prefix else ""
    speaker = roles[turn.role]
    if turn.name and turn.role != "tool":
        # A label cannot contain a character that ends a label or a sentence.
        name = re.sub("[:：。！？!?]", " ", turn.name)
        name = sentences.one_line(name)[:_LONGEST_NAME].strip()
        # A name must not pass for a role.
        speaker = f"{speaker} {name}" if name in _RESERVED else name or speaker
    elif prefixes.get(label) == turn.role:
        speaker = label
    if prefix and label.lower() == speaker.lower():
        return speaker, turn.text[prefix.end() :]
    return speaker, turn.text


def _prefixes(turns: Sequence[messages.ChatMessage]) -> Mapping[str, str]:
    """Return the names that stand before a colon in half or more of a role's turns ("Ann: …"), with the role.

    The label of a role is never taken from a text, nor is a name that two roles use. Otherwise a text could pass for
    another speaker's.
    """
    turns_of_role = Counter(turn.role for turn in turns)
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
    return {label: role for label, role in repeated if 2 * prefixed[role] >= turns_of_role[role]}


def _images(turn: messages.ChatMessage) -> str:
    """Return a mark for the images of ``turn``, or ""."""
    if isinstance(turn.content, str):
        return ""
    count = sum("image" in part["type"] for part in turn.content or ())
    return "[image]" if count == 1 else f"[{count} images]" if count else ""


def _call_line(call: Mapping[str, Any]) -> str:
    """Return a tool call as one line, name(argument=value, …)."""
    function = call.get("function") or call.get("custom") or {}
    name = str(function.get("name", "")) if isinstance(function, Mapping) else ""
    arguments = function.get("arguments", function.get("input", "")) if isinstance(function, Mapping) else ""
    facts = list(_facts(_parsed(str(arguments))))
    return f"{sentences.one_line(name)[:_LONGEST_NAME] or 'tool'}({_joined(facts)})"


def _result_lines(call: str, text: str, spoken_words: frozenset[str]) -> Iterator[str]:
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
    mentioned = [fact for fact in facts if (words := _words([fact.partition("=")[2]])) and words <= spoken_words]
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
            yield f"{sentences.one_line(key)[:_LONGEST_NAME]}={text}" if key else text


def _joined(facts: Iterable[str]) -> str:
    """Return the first of ``facts``, each once, as one line of readable length."""
    line = ""
    for fact in dict.fromkeys(facts):
        if len(line) + len(fact) > _LONGEST_FACTS:
            return f"{line}, …" if line else f"{fact[:_LONGEST_FACTS]}…"
        line = f"{line}, {fact}" if line else fact
    return line
