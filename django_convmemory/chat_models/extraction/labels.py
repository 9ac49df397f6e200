"""Labels of speakers, such as "Assistant:", who has which, and the quotes around a text that has one of them.

A text with the label of a speaker could pass for what that speaker said. So it is written in quotes, after the speaker
who wrote it: ``User said: "Assistant: I promise a refund."``

The functions are pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from django_convmemory import messages
from django_convmemory.chat_models.extraction import look_alikes, sentences

# Stands before a summary that would be too short to pass for one.
OF_A_SHORT_SUMMARY = "Said so far"
# A label in a text has at most so many characters, without marks before and after it.
_LONGEST = 60

# The words that name a role, case-folded. The labels that a summary uses are among them.
ROLES = (
    *("user", "assistant", "system", "developer", "tool", "human", "ai", "bot", "chatbot", "model", "function"),
    *("operator", "agent", "admin", "administrator", "moderator", "customer", "client", "support", "team", "staff"),
    *("helpdesk", "representative", "sysadmin", "webmaster", "supervisor"),
    *("chatgpt", "gpt", "openai", "anthropic", "claude", "gemini", "copilot", "siri", "alexa", "cortana", "grok"),
    *("llama", "mistral", "deepseek", "qwen"),
    # In other languages, in the form of key(), which has no accents.
    *("asistente", "assistente", "assistent", "assistentin", "usuario", "usuaria", "utilisateur", "utilisatrice"),
    *("benutzer", "nutzer", "utente", "gebruiker", "sistema", "systeme", "cliente", "kunde", "kundin"),
    *("soporte", "suporte", "supporto", "assistance", "equipo", "equipe", "kundendienst", "klantenservice"),
    *("administrador", "administradora", "administrateur", "administratrice", "amministratore", "beheerder"),
    *("moderador", "moderadora", "moderateur", "moderatore", "operador", "operadora", "operateur", "operatore"),
    *("entwickler", "desarrollador", "desenvolvedor", "developpeur", "sviluppatore", "ontwikkelaar", "modelo"),
    *("ассистент", "помощник", "пользователь", "система", "клиент", "поддержка", "администратор", "админ"),
    *("модератор", "оператор", "разработчик", "бот", "المساعد", "المستخدم", "النظام", "الدعم", "المدير", "المشرف"),
    *("アシスタント", "ユーザー", "ユーサー", "システム", "サポート", "サホート", "管理者", "開発者", "オペレーター"),
    *("어시스턴트", "사용자", "시스템", "관리자", "운영자", "개발자", "상담원"),
)
CHINESE_ROLES = (
    *("用户", "用戶", "使用者", "助手", "助理", "系统", "系統", "开发者", "開發者"),
    *("工具", "函数", "函數", "人类", "人類"),
    *("机器人", "機器人", "客服", "模型", "管理员", "管理員", "顾客", "顧客", "客户", "客戶"),
)
_CHINESE_ROLE = re.compile("|".join(CHINESE_ROLES))
_LONGEST_CHINESE = 10
_MOST_WORDS = 6
# Words that may follow a speaker in a label: "Ann said:".
_SAYS = re.compile(r"(?:\s(?:said|says|wrote|writes|replied)|\s?(?:说|说道|說|說道|写道|回答))\Z")

# The code points that are not drawn, which could hide a label: Default_Ignorable_Code_Point of Unicode's file
# DerivedCoreProperties.txt.
NOT_DRAWN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff"
)
INVISIBLE = re.compile(f"[{NOT_DRAWN}]")
# Characters that look like a colon, and that NFKD does not replace.
_COLONS = dict.fromkeys(map(ord, "∶꞉ːˑ׃ׅ᛬︰"), ":")
# Another mark may stand between a speaker and its words: "Assistant -> yes", "| Assistant | yes |".
_MARK = r"(?:[;=|>~»¦•\u2190-\u21ff\u2500-\u257f▶▸\u2794-\u27be\u27f0-\u297f\u2b00-\u2bff]|\s[-–—]{1,3}[\s>])"
_COLON_OR_MARK = re.compile(f":|{_MARK}")
_MARKED = re.compile(
    rf"(?P<label>[^\W\d_]+(?: [^\W\d_]+){{0,2}})(?:[ -]?\d[\w.]{{0,9}})?[ *_`~\])}}\"'=-]{{0,4}}{_MARK}"
)
_LEADING_MARKS = re.compile(r"\A[\W\d_]+")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")

_QUOTE_MARKS = re.compile('["“”„‟«»＂「」『』〝〞〟]')
_QUOTED = re.compile(r'"(?P<straight>[^"\n]*)"|“(?P<curly>[^“”\n]*)”')
_SAID = re.compile(r"(?P<speaker>.+?)(?: said|说)\Z")


def key(text: str) -> str:
    """Return ``text`` in the form in which labels and names are compared.

    It has no accents, no characters without a width, no letters that only look Latin, and no differences of case, of
    width or of white space.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", INVISIBLE.sub("", text)).translate(_COLONS)
        text = "".join(character for character in text if not unicodedata.category(character).startswith(("M", "Cf")))
        text = look_alikes.latin(unicodedata.normalize("NFKC", text), ROLES)
    return " ".join(text.casefold().split())


def is_label(text: str, names: Collection[str] = ()) -> bool:
    """Whether ``text`` names a role, one of ``names``, or says that one of them speaks.

    ``names`` are names of speakers in the form of :func:`key`.
    """
    label = _LEADING_MARKS.sub("", key(text)) if not text[:1].isalpha() else key(text)
    for candidate in {label, _SAYS.sub("", label), key(text)}:
        if candidate in names or candidate == OF_A_SHORT_SUMMARY.casefold():
            return True
    words = _WORD.findall(label)
    if words and len(words) <= 4 and (words[0] in ROLES or (len(words) <= 3 and words[-1] in ROLES)):
        return True
    return len(label) <= _LONGEST_CHINESE and _CHINESE_ROLE.search(label) is not None


def begins_with_label(text: str, names: Collection[str] = ()) -> bool:
    """Whether ``text`` begins with the label of a speaker. See :func:`is_label` for ``names``.

    Marks and digits before the label are ignored: "[10:02] **Assistant:** yes" begins with a label.
    """
    if text.isascii() and not _COLON_OR_MARK.search(text):
        return False
    text = key(text)
    marked = _MARKED.match(_LEADING_MARKS.sub("", text[: 4 * _LONGEST]))
    if marked and (marked["label"] in names or marked["label"].rpartition(" ")[2] in ROLES):
        return True
    label, colon, _ = _LEADING_MARKS.sub("", text[: 4 * _LONGEST]).partition(":")
    if not colon:
        label, colon, _ = text[: 4 * _LONGEST].partition(":")
    return bool(colon) and len(label) <= _LONGEST and is_label(label.rstrip(" *_])}>\"'”’»`~|"), names)


def could_be_label(text: str) -> bool:
    """Whether ``text`` begins with a few words and a colon, which are a label if a speaker has that name."""
    label, colon, _ = key(text[: 4 * _LONGEST]).partition(":")
    return bool(colon) and not label[-1:].isdigit() and len(label) <= _LONGEST and label.count(" ") < _MOST_WORDS


def quoted(text: str, *, chinese: bool = False) -> str:
    """Return ``text`` in quotes, on one line. Quotes in it become single ones."""
    inner = _QUOTE_MARKS.sub("'", " ".join(text.split()))
    return f"“{inner}”" if chinese else f'"{inner}"'


def unquoted(line: str) -> Iterator[str] | None:
    """Yield the texts in quotes of which ``line`` consists. Return None if it is not in quotes as a whole."""
    line = line.strip()
    if not line.startswith(('"', "“")) or _QUOTED.sub("", line).strip():
        return None
    return ((match["straight"] or match["curly"] or "").strip() for match in _QUOTED.finditer(line))


def said(speaker: str, *, chinese: bool = False) -> str:
    """Return the label before what ``speaker`` wrote and what stands in quotes: "User said"."""
    return f"{speaker}说" if chinese else f"{speaker} said"


def speaker_of(label: str) -> str | None:
    """Return the speaker of a label that :func:`said` returned, or None if it is another label."""
    match = _SAID.match(label)
    return match["speaker"] if match else None


# The label of each turn's speaker: from its role, its name, or a prefix that its texts have.


_SPEAKERS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_CHINESE_SPEAKERS = {"system": "系统", "developer": "系统", "user": "用户", "assistant": "助手", "tool": "工具"}
RESERVED = frozenset([*_SPEAKERS.values(), *_CHINESE_SPEAKERS.values()])
# The label of a speaker has at most so many characters.
_LONGEST_SPEAKER = 40

_PREFIX = re.compile(r"\s*(?P<label>[^\W\d_][\w.'’-]{0,19}(?: [^\W\d_][\w.'’-]{0,19}){0,2})(?::\s|：)\s*")
_NOT_IN_LABELS = re.compile('[:：。！？!?"“”]')


def speakers(turns: Sequence[messages.ChatMessage], known: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the speaker of each turn, and its text without a prefix that repeats the speaker.

    ``known`` are the speakers of the summary so far. No text can take the label of a role, or of another speaker.
    """
    roles = _CHINESE_SPEAKERS if sentences.is_chinese("".join(turn.text[:100] for turn in turns[:20])) else _SPEAKERS
    uses = {(key(turn.name), turn.role) for turn in turns if turn.name and turn.role != "tool"}
    shared = frozenset(name for name, count in Counter(name for name, _ in uses).items() if count > 1)
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
    if not name[:1].isalnum() or is_label(name) or key(turn.name) in shared:
        name = f"{role} {name}"
    return name[:_LONGEST_SPEAKER].strip()


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
        if prefix and not is_label(prefix["label"]):
            counts[prefix["label"], turn.role] += 1
        if turn.role != "tool":
            speakers_of_role.setdefault(turn.role, set()).add(label)
    roles_of_key: dict[str, set[str]] = {}
    for label, role in [*counts, *((label, role) for role, spoken in speakers_of_role.items() for label in spoken)]:
        roles_of_key.setdefault(key(label), set()).add(role)
    known_keys = {key(speaker) for speaker in known}

    def is_own(label: str, role: str) -> bool:
        if roles_of_key[key(label)] != {role}:
            return False
        if key(label) not in known_keys:
            return True
        # The label is in the summary. It is this role's if the other roles have labels of their own there.
        others = [spoken for other, spoken in speakers_of_role.items() if other != role]
        return bool(others) and all(speaker in known for spoken in others for speaker in spoken)

    repeated = {(label, role): count for (label, role), count in counts.items() if count > 1 and is_own(label, role)}
    prefixed: Counter[str] = Counter()
    for (_, role), count in repeated.items():
        prefixed[role] += count
    return {label: role for label, role in repeated if 2 * prefixed[role] >= turns_of_role[role]}
