"""Who speaks: the label of each turn's speaker, from its role, its name, or a prefix that its texts have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from django_convmemory import messages
from django_convmemory.chat_models.extraction import labels, sentences

_ROLES = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_CHINESE_ROLES = {"system": "系统", "developer": "系统", "user": "用户", "assistant": "助手", "tool": "工具"}
RESERVED = frozenset([*_ROLES.values(), *_CHINESE_ROLES.values()])
"""The labels of roles."""

LONGEST = 40
"""A label has at most so many characters."""

_PREFIX = re.compile(r"\s*(?P<label>[^\W\d_][\w.'’-]{0,19}(?: [^\W\d_][\w.'’-]{0,19}){0,2})(?::\s|：)\s*")
_NOT_IN_LABELS = re.compile('[:：。！？!?"“”]')


def of_turns(turns: Sequence[messages.ChatMessage], known: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the speaker of each turn, and its text without a prefix that repeats the speaker.

    ``known`` are the speakers of the summary so far. No text can take the label of a role, or of another speaker.
    """
    roles = _CHINESE_ROLES if sentences.is_chinese("".join(turn.text[:100] for turn in turns[:20])) else _ROLES
    roles_of_name: dict[str, set[str]] = {}
    for turn in turns:
        if turn.name and turn.role != "tool":
            roles_of_name.setdefault(labels.key(turn.name), set()).add(turn.role)
    shared = frozenset(name for name, name_roles in roles_of_name.items() if len(name_roles) > 1)
    own = [_label(turn, roles, shared) for turn in turns]
    prefixes = _prefixes(turns, own, known)
    return [_speaker_and_text(turn, label, prefixes) for turn, label in zip(turns, own, strict=True)]


def _label(turn: messages.ChatMessage, roles: Mapping[str, str], shared: frozenset[str]) -> str:
    """Return the label of ``turn`` by its name and role. ``shared`` are the names that several roles use."""
    role = roles[turn.role]
    if not turn.name or turn.role == "tool":
        return role
    name = sentences.one_line(_NOT_IN_LABELS.sub(" ", turn.name))
    # A name must not pass for a role, nor for another role's name. A label that begins with a mark cannot be read back.
    if not name[:1].isalnum() or labels.is_label(name) or labels.key(turn.name) in shared:
        name = f"{role} {name}"
    return name[:LONGEST].strip()


def _speaker_and_text(turn: messages.ChatMessage, label: str, prefixes: Mapping[str, str]) -> tuple[str, str]:
    prefix = _PREFIX.match(turn.text) if turn.role != "tool" else None
    if not prefix:
        return label, turn.text
    if not turn.name and prefixes.get(prefix["label"]) == turn.role:
        label = prefix["label"]
    return label, turn.text[prefix.end() :] if prefix["label"].lower() == label.lower() else turn.text


def _prefixes(turns: Sequence[messages.ChatMessage], own: Sequence[str], known: Collection[str]) -> Mapping[str, str]:
    """Return the names that stand before a colon in half or more of a role's turns ("Ann: …"), with the role.

    The label of a role is never taken from a text, nor is a name that another role uses or may have used before.
    """
    turns_of_role = Counter(turn.role for turn in turns)
    speakers_of_role: dict[str, set[str]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for turn, label in zip(turns, own, strict=True):
        prefix = _PREFIX.match(turn.text)
        if prefix and not labels.is_label(prefix["label"]):
            counts[prefix["label"], turn.role] += 1
        if turn.role != "tool":
            speakers_of_role.setdefault(turn.role, set()).add(label)
    roles_of_key: dict[str, set[str]] = {}
    for label, role in [*counts, *((label, role) for role, spoken in speakers_of_role.items() for label in spoken)]:
        roles_of_key.setdefault(labels.key(label), set()).add(role)
    known_keys = {labels.key(speaker) for speaker in known}

    def is_own(label: str, role: str) -> bool:
        if roles_of_key[labels.key(label)] != {role}:
            return False
        if labels.key(label) not in known_keys:
            return True
        # The label is in the summary. It is this role's if the other roles have labels of their own there.
        others = [spoken for other, spoken in speakers_of_role.items() if other != role]
        return bool(others) and all(speaker in known for spoken in others for speaker in spoken)

    repeated = {(label, role): count for (label, role), count in counts.items() if count > 1 and is_own(label, role)}
    prefixed: Counter[str] = Counter()
    for (_, role), count in repeated.items():
        prefixed[role] += count
    return {label: role for label, role in repeated if 2 * prefixed[role] >= turns_of_role[role]}
