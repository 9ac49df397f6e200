"""Splits turns and earlier summaries into statements: a speaker and one sentence each.

Nothing is chosen here.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from django_convmemory import messages
from django_convmemory.chat_models.extraction import concepts, labels, sentences

_LABEL = re.compile(r"(?P<label>[^\W_][^:：\n。！？!?\"“”]{0,44})(?:: |：)")
_CLAUSE = re.compile(r"[^，]*，|[^，]+$")
_DAY = re.compile(r"\W*(?:(?P<day>\d{4}-\d{2}-\d{2})|\?{4}-\?\?-\?\?)\W*")
# Stands for the day of statements of no known day that follow others of a known day.
UNKNOWN_DAY = "????-??-??"
# At most so many statements of a fold, and of a summary, are considered.
MAX_STATEMENTS = 2500


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of one speaker.

    - ``fold`` numbers the folds of a summary from 0, the oldest.
    - ``speaker`` is "" if the summary does not name it.
    - ``quoted``: the text has the label of a speaker, or belongs to one that has, and stands in quotes.
    - ``day`` is the day on which it was said, or None if it is not known.
    - ``repeated``: the speaker said it more than once in this fold.
    """

    fold: int
    speaker: str
    text: str
    quoted: bool = False
    day: dt.date | None = None
    repeated: bool = False


def of_turns(
    turns: Sequence[messages.ChatMessage],
    fold: int,
    days: Sequence[dt.date | None] = (),
    known: Collection[str] = (),
) -> list[Statement]:
    """Return the sentences, images and tool calls of ``turns``, in order; at most :data:`MAX_STATEMENTS`.

    ``days`` are the days of the turns, or empty. ``known`` are the speakers of the summary so far.
    """
    labelled = labels.speakers(turns, known)
    spoken_names = {speaker for speaker, _ in labelled if speaker not in labels.RESERVED}
    names = frozenset(word.lower() for speaker in spoken_names for word in speaker.split())
    label_keys = frozenset(labels.key(speaker) for speaker in spoken_names.union(known))
    has_results = any(turn.role == "tool" for turn in turns)
    words = _words_of(turn.text for turn in turns if has_results and turn.role != "tool")
    spoken: list[Statement | None] = []
    calls: dict[str, tuple[int, str]] = {}
    for turn, (speaker, text), day in zip(turns, labelled, days or [None] * len(turns), strict=True):
        if turn.role == "tool":
            name = sentences.one_line(turn.name or "")[:_LONGEST_TOOL_NAME]
            index, call = calls.get(turn.tool_call_id or "", (-1, name))
            lines = list(_lines_of_result(call, text, words))
            if lines and index >= 0:
                spoken[index] = None  # The line of the result repeats its call.
        else:
            lines = list(sentences.split(text)) or [""]
            lines[0] = f"{lines[0]} {_images(turn)}".strip()
        call_lines = [_line_of_call(call) for call in turn.tool_calls]
        quoted = any(labels.begins_with_label(line, label_keys) for line in (*lines, *call_lines))
        spoken.extend(Statement(fold, speaker, line, quoted, day) for line in lines if line)
        for tool_call, line in zip(turn.tool_calls, call_lines, strict=True):
            calls[tool_call["id"]] = (len(spoken), line)
            spoken.append(Statement(fold, speaker, line, quoted, day))
    thinned = _thinned(statement for statement in spoken if statement is not None)
    bare = (dataclasses.replace(statement, text=_bare(statement.text, names)) for statement in thinned)
    return _in_quotes((statement for statement in bare if statement.text), label_keys)


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
    """Return the statements without repetitions, and if they are too many, a part of them that is evenly spread."""
    counts = Counter(spoken)
    distinct = [dataclasses.replace(one, repeated=True) if count > 1 else one for one, count in counts.items()]
    number = min(len(distinct), MAX_STATEMENTS)
    return [distinct[place * len(distinct) // number] for place in range(number)]


def of_summary(summary: str) -> list[Statement]:
    """Return the statements of an earlier summary, in order.

    If its lines name the speakers, its paragraphs are the folds. Otherwise another model wrote it. Each of its
    sentences then condenses many turns, so each counts as a separate fold.
    """
    spoken: list[Statement] = []
    fold = -1
    day: dt.date | None = None
    for paragraph in re.split(r"\n\s*\n", sentences.clean(summary)):
        begun = False
        for line in paragraph.split("\n"):
            if day_line := _DAY.fullmatch(line):
                day = _date(day_line["day"])
                continue
            line = line.removeprefix(f"{labels.OF_A_SHORT_SUMMARY}: ")
            label = _LABEL.match(line)
            speaker = label["label"].strip() if label else ""
            body = line[label.end() :] if label else line
            in_quotes = labels.unquoted(body)
            if in_quotes is not None and label:
                speaker = labels.speaker_of(speaker) or speaker
            for text in [body] if in_quotes is None else in_quotes:
                for sentence in sentences.split(text):
                    if not begun or not label:
                        fold += 1
                        begun = True
                    spoken.append(Statement(fold, speaker, sentence, in_quotes is not None, day))
    return _in_quotes(_thinned(spoken), frozenset(labels.key(statement.speaker) for statement in spoken))


def _in_quotes(spoken: Iterable[Statement], names: frozenset[str]) -> list[Statement]:
    """Return the statements, with those marked as quoted that could pass for another speaker's, or for a day."""

    def marked(statement: Statement) -> Statement:
        could_pass = not statement.speaker and could_be_read_as_labelled(statement.text)
        is_new = not statement.quoted and (could_pass or labels.begins_with_label(statement.text, names))
        return dataclasses.replace(statement, quoted=True) if is_new else statement

    return list(map(marked, spoken))


def could_be_read_as_labelled(line: str) -> bool:
    """Whether :func:`of_summary` would take a line of text for the line of a day, or of a speaker."""
    return labels.could_be_label(line) or bool(_LABEL.match(line) or _DAY.fullmatch(line))


def _date(text: str | None) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text or "")
    except ValueError:
        return None


def _images(turn: messages.ChatMessage) -> str:
    """Return a mark for the images of ``turn``, or ""."""
    if isinstance(turn.content, str):
        return ""
    count = sum("image" in part["type"] for part in turn.content or ())
    return "[image]" if count == 1 else f"[{count} images]" if count else ""


# Tool calls and their results as single lines: name(argument=value, …) → result.


# In characters.
_LONGEST_TOOL_NAME = 40
_LONGEST_VALUE = 60
_LONGEST_FACTS = 160
_LONGEST_JSON = 200_000
_WORD = re.compile(r"\w+(?:[.-]+\w+)*")


def _words_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the words of ``texts``, in lower case."""
    return frozenset(word for text in texts for word in _WORD.findall(text.lower()))


def _line_of_call(call: Mapping[str, Any]) -> str:
    """Return a tool call as one line, name(argument=value, …)."""
    name, arguments = messages.called(call)
    facts = list(_facts(_parsed(arguments)))
    return f"{sentences.one_line(name)[:_LONGEST_TOOL_NAME] or 'tool'}({_joined(facts)})"


def _lines_of_result(call: str, text: str, spoken_words: frozenset[str]) -> Iterator[str]:
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
    mentioned = [fact for fact in facts if (value := _words_of([fact.partition("=")[2]])) and value <= spoken_words]
    line = _joined(mentioned if len(mentioned) > 2 else facts)
    if line:
        yield f"{call} → {line}" if call else line


def _parsed(text: str) -> Any:
    """Return the value of ``text`` if it is a JSON object or list, else ``text``."""
    may_be = len(text) <= _LONGEST_JSON and text.lstrip()[:1] in ("{", "[")
    value = messages.loads(text) if may_be else None
    return text if value is None else value


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
            yield f"{sentences.one_line(key)[:_LONGEST_TOOL_NAME]}={text}" if key else text


def _joined(facts: Iterable[str]) -> str:
    """Return the first of ``facts``, each once, as one line of readable length."""
    line = ""
    for fact in dict.fromkeys(facts):
        if len(line) + len(fact) > _LONGEST_FACTS:
            return f"{line}, …" if line else f"{fact[:_LONGEST_FACTS]}…"
        line = f"{line}, {fact}" if line else fact
    return line
