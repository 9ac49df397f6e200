"""Texts of many kinds, to compare token counters on.

Nothing is downloaded. Prose in other languages comes from the translations of the installed packages, code and markup
from their files, and identifiers and tables are generated with a fixed seed. Real conversations come from the folder
``CONVMEMORY_DATA``; those kinds are left out if it is absent.
"""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import pathlib
import random
import re
import string
import sysconfig
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

import django
import rest_framework

from tests import dialogues

ROOT = pathlib.Path(__file__).resolve().parents[1]
DJANGO = pathlib.Path(django.__file__).parent
REST_FRAMEWORK = pathlib.Path(rest_framework.__file__).parent

# The folders of Django's translations.
LANGUAGES = {
    "German": "de",
    "French": "fr",
    "Spanish": "es",
    "Turkish": "tr",
    "Vietnamese": "vi",
    "Polish": "pl",
    "Czech": "cs",
    "Hungarian": "hu",
    "Finnish": "fi",
    "Greek": "el",
    "Russian": "ru",
    "Ukrainian": "uk",
    "Arabic": "ar",
    "Hebrew": "he",
    "Persian": "fa",
    "Hindi": "hi",
    "Bengali": "bn",
    "Tamil": "ta",
    "Thai": "th",
    "Korean": "ko",
    "Japanese": "ja",
    "Traditional Chinese": "zh_Hant",
}
SAMPLES = 200
MOST = 1200


def kinds() -> dict[str, list[str]]:
    """Return the texts of each kind, in random order. They are the same in each run on the same installed packages."""
    kinds = {}
    for kind, texts in _all_texts().items():
        unique = list(dict.fromkeys(text for text in texts if text.strip()))
        random.Random(kind).shuffle(unique)
        kinds[kind] = unique[:MOST]
    return kinds


def checked(texts: Sequence[str]) -> Sequence[str]:
    """Return the half of a kind's texts that the estimate was not fitted to."""
    return texts[1::2]


def _all_texts() -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    if (dialogues.FOLDER / "locomo").is_dir():
        texts |= _conversations()
    texts["English prose"] = _paragraphs(_messages("de", translated=False), 3)
    texts |= {language: _paragraphs(_messages(folder), 3) for language, folder in LANGUAGES.items()}
    texts["Upper case"] = [text.upper() for text in texts["English prose"]]
    texts["Python source"] = _pieces(sorted((ROOT / "django_convmemory").rglob("*.py")) + _stdlib())
    texts["HTML"] = _pieces(sorted((DJANGO / "contrib" / "admin" / "templates").rglob("*.html")))
    texts["SQL"] = _pieces(sorted((ROOT / "tests" / "golden").glob("*.sql")))
    texts["JavaScript"] = _pieces(sorted((DJANGO / "contrib" / "admin" / "static").rglob("admin/js/*.js")))
    texts["Markdown"] = _pieces(sorted((ROOT / "docs").rglob("*.md")))
    words = sorted({word.lower() for word in re.findall("[A-Za-z]{2,12}", " ".join(texts["English prose"]))})
    for name, sample in GENERATED.items():
        chance = random.Random(name)
        texts[name] = [sample(chance, words) for _ in range(SAMPLES)]
    return texts


def _conversations() -> dict[str, list[str]]:
    taubench = [turn for _, turns in dialogues.taubench() for turn in turns]
    return {
        "English chat": [turn["content"] for _, turns in dialogues.locomo() for turn in turns],
        "English tool chat": [
            turn["content"] for turn in taubench if turn["role"] in ("user", "assistant") and turn["content"]
        ],
        "Chinese chat": [turn["content"] for _, turns in dialogues.crosswoz() for turn in turns],
        "JSON tool results": [turn["content"] for turn in taubench if turn["role"] == "tool" and turn["content"]],
        "JSON arguments": [call["function"]["arguments"] for turn in taubench for call in turn.get("tool_calls") or ()],
    }


_PO_MESSAGE = re.compile(r'^(msgid|msgstr)(?:\[\d\])? ((?:".*"\n)+)', re.MULTILINE)
_PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}|</?\w[^>]*>")


def _messages(folder: str, *, translated: bool = True) -> Iterator[str]:
    """Yield the messages of Django and of Django REST framework in a language, without their placeholders."""
    for package in (DJANGO, REST_FRAMEWORK):
        for path in sorted(package.rglob(f"locale/{folder}/LC_MESSAGES/django.po")):
            for key, quoted in _PO_MESSAGE.findall(path.read_text(encoding="utf-8")):
                text = "".join(json.loads(line) for line in quoted.splitlines())
                if (key == "msgstr") == translated and len(text) > 12 and "Content-Type:" not in text:
                    yield " ".join(_PLACEHOLDER.sub("", text).split(" "))


def _paragraphs(messages: Iterable[str], number: int) -> list[str]:
    unique = list(dict.fromkeys(messages))
    return [" ".join(unique[start : start + number]) for start in range(0, len(unique), number)]


def _pieces(paths: Iterable[pathlib.Path], lines: int = 25) -> list[str]:
    """Return the files in pieces, as a chat or a tool would quote them."""
    pieces = []
    for path in paths:
        content = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        pieces += ["".join(content[start : start + lines]) for start in range(0, len(content), lines)]
    return [piece for piece in pieces if piece.strip()]


def _stdlib() -> list[pathlib.Path]:
    return sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py"))


# Generated samples. Each takes a source of chance and a list of English words.

Sample = Callable[[random.Random, Sequence[str]], str]


def _several(chance: random.Random, item: Callable[[], str], most: int = 8) -> str:
    return chance.choice((" ", "\n", ", ", '", "')).join(item() for _ in range(chance.randint(1, most)))


def _uuids(chance: random.Random, words: Sequence[str]) -> str:
    return _several(chance, lambda: str(uuid.UUID(int=chance.getrandbits(128))))


def _hex(chance: random.Random, words: Sequence[str]) -> str:
    style = chance.choice((str.lower, str.lower, str.upper))
    size = chance.choice((8, 16, 20, 32))
    return _several(chance, lambda: style(chance.randbytes(size).hex()))


_CODES = (
    "###-#######-#######",
    "@@-####-@@##",
    "@@@-#####",
    "$$$$$-$$$$$-$$$$$",
    "@##@#",
    "$$$$$$$$",
    "ord_*******",
    "@@##-$$$$-@@@",
)
_ALPHABETS = {
    "#": string.digits,
    "@": string.ascii_uppercase,
    "$": string.ascii_uppercase + string.digits,
    "*": string.ascii_lowercase + string.digits,
}


def _codes(chance: random.Random, words: Sequence[str]) -> str:
    form = chance.choice(_CODES)
    return _several(chance, lambda: "".join(chance.choice(_ALPHABETS.get(sign, sign)) for sign in form), 12)


def _base64(chance: random.Random, words: Sequence[str]) -> str:
    encode = chance.choice((base64.b64encode, base64.urlsafe_b64encode))
    return encode(chance.randbytes(chance.randint(24, 600))).decode()


def _url(chance: random.Random, words: Sequence[str]) -> str:
    host = chance.choice(("www.{}.com", "{}.example.org", "api.{}.io", "docs.{}.dev")).format(chance.choice(words))
    path = "/".join(chance.choices(words, k=chance.randint(1, 4)))
    query = chance.choice(("", "", f"?{chance.choice(words)}={chance.randint(1, 9999)}&page={chance.randint(1, 50)}"))
    end = chance.choice(("", "/", ".html", f"-{chance.choice(words)}", f"/{chance.randint(1, 10**6)}"))
    return f"https://{host}/{path}{end}{query}"


def _urls(chance: random.Random, words: Sequence[str]) -> str:
    return _several(chance, lambda: _url(chance, words))


_NAMES = [
    "anna",
    "jan",
    "peter",
    "maria",
    "kowalski",
    "smith",
    "garcia",
    "nguyen",
    "mueller",
    "rossi",
    "chen",
    "tanaka",
]


def _address(chance: random.Random, words: Sequence[str]) -> str:
    name = chance.choice((".", "_", "")).join(chance.choices(_NAMES, k=2)) + chance.choice(
        ("", str(chance.randint(1, 99)))
    )
    return f"{name}@{chance.choice(('gmail.com', 'example.com', f'{chance.choice(words)}.org'))}"


def _emails(chance: random.Random, words: Sequence[str]) -> str:
    return _several(chance, lambda: _address(chance, words))


_EMOJI = (
    *"😀😂🙏🔥🎉😍🤔👀🚀✅🍕🐍🌈💡📦🧠🥳🫠🪴🦊☀❤✨⚠",
    *(hand + tone for hand in "👍👋🙌💪👩" for tone in "🏻🏼🏽🏾🏿"),
    *(chr(0x1F1A5 + ord(first)) + chr(0x1F1A5 + ord(second)) for first, second in ("DE", "FR", "PL", "JP", "BR", "UA")),
    *("👨‍👩‍👧‍👦", "👩‍💻", "🏳️‍🌈", "🤷🏽‍♀️", "👨🏿‍🚒", "❤️‍🔥", "🧑🏼‍🤝‍🧑🏾", "🐻‍❄️"),
)


def _emoji(chance: random.Random, words: Sequence[str]) -> str:
    return chance.choice(("", "", " ")).join(chance.choices(_EMOJI, k=chance.randint(4, 30)))


def _number(chance: random.Random) -> str:
    return chance.choice(
        (
            str(chance.randint(0, 10 ** chance.randint(1, 12))),
            f"{chance.uniform(-1000, 1000):.{chance.randint(1, 6)}f}",
            f"{chance.randint(1000, 10**9):,}",
            f"{chance.uniform(0, 100):.1f}%",
            f"${chance.uniform(1, 9999):,.2f}",
        )
    )


def _numbers(chance: random.Random, words: Sequence[str]) -> str:
    return _several(chance, lambda: _number(chance), 20)


_DATES = (
    "%Y-%m-%d",
    "%d/%m/%Y",
    "%d.%m.%Y",
    "%B %d, %Y",
    "%Y-%m-%dT%H:%M:%SZ",
    "%a %d %b %Y %H:%M",
    "%Y-%m-%d %H:%M:%S.%f",
)


def _moment(chance: random.Random) -> dt.datetime:
    return dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=chance.uniform(0, 2e8))


def _dates(chance: random.Random, words: Sequence[str]) -> str:
    return _several(chance, lambda: _moment(chance).strftime(chance.choice(_DATES)), 12)


def _cell(chance: random.Random, words: Sequence[str]) -> str:
    return chance.choice(
        (chance.choice(words), " ".join(chance.choices(words, k=3)), _number(chance), str(_moment(chance).date()))
    )


def _table(chance: random.Random, words: Sequence[str]) -> list[list[str]]:
    width = chance.randint(3, 7)
    return [[_cell(chance, words) for _ in range(width)] for _ in range(chance.randint(3, 15))]


def _markdown_table(chance: random.Random, words: Sequence[str]) -> str:
    rows = _table(chance, words)
    widths = [max(len(row[column]) for row in rows) if chance.random() < 0.7 else 0 for column in range(len(rows[0]))]
    rows.insert(1, ["-" * max(3, width) for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows)


def _csv(chance: random.Random, words: Sequence[str]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows(_table(chance, words))
    return file.getvalue()


def _log_line(chance: random.Random, words: Sequence[str]) -> str:
    moment, place = _moment(chance), ".".join(chance.choices(words, k=2))
    level, said = chance.choice(("INFO", "WARNING", "ERROR", "DEBUG")), " ".join(chance.choices(words, k=6))
    address, task = ".".join(str(chance.randint(1, 254)) for _ in range(4)), uuid.UUID(int=chance.getrandbits(128))
    request, status = f'"GET /{place}/ HTTP/1.1"', chance.choice((200, 302, 404, 500))
    size, browser = chance.randint(100, 90_000), '"-" "Mozilla/5.0 (X11; Linux x86_64)"'
    return chance.choice(
        (
            f"{moment:%Y-%m-%d %H:%M:%S},{size % 1000:03} {level} [{place}] {said}",
            f"{moment.isoformat()} {level:8} {place}:{size} - {said} id={chance.randint(1, 10**6)}",
            f"{address} - - [{moment:%d/%b/%Y:%H:%M:%S +0000}] {request} {status} {size} {browser}",
            f"[{level}/MainProcess] Task {place}[{task}] succeeded in {chance.random()}s: None",
        )
    )


def _log_lines(chance: random.Random, words: Sequence[str]) -> str:
    return "\n".join(_log_line(chance, words) for _ in range(chance.randint(1, 10)))


def _stack_trace(chance: random.Random, words: Sequence[str]) -> str:
    path = chance.choice(_stdlib())
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    frames = [
        traceback.FrameSummary(
            chance.choice(
                (str(path), f"/app/{chance.choice(words)}/views.py", "/usr/lib/python3/dist-packages/" + path.name)
            ),
            number + 1,
            chance.choice(words) + "_" + chance.choice(words),
            line=lines[number].strip(),
        )
        for number in chance.sample(range(len(lines)), min(len(lines), chance.randint(2, 12)))
    ]
    error = chance.choice(("ValueError", "KeyError", "django.db.utils.OperationalError"))
    said = " ".join(chance.choices(words, k=5))
    return "Traceback (most recent call last):\n" + "".join(traceback.format_list(frames)) + f"{error}: {said}"


def _whitespace(chance: random.Random, words: Sequence[str]) -> str:
    gaps = ("    ", "        ", "\n\n", "\n\n\n", "\t", "\t\t", "  ", " \n", "\r\n", "\n            ", " " * 30)
    return "".join(chance.choice(words) + chance.choice(gaps) for _ in range(chance.randint(15, 80)))


GENERATED: dict[str, Sample] = {
    "UUIDs": _uuids,
    "Hex": _hex,
    "Codes": _codes,
    "Base64": _base64,
    "URLs": _urls,
    "E-mail addresses": _emails,
    "Emoji": _emoji,
    "Numbers": _numbers,
    "Dates": _dates,
    "Markdown tables": _markdown_table,
    "CSV": _csv,
    "Log lines": _log_lines,
    "Stack traces": _stack_trace,
    "Whitespace": _whitespace,
}
