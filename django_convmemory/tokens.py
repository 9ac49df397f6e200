"""Token counters: how many tokens of a prompt a message takes.

A message is counted once, when it is appended, and the count is stored with the message. Every count is at least 1,
so that each message has a running total of its own within the session.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import math
import os
import pathlib
import re
import string
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from django_convmemory import content_parts
from django_convmemory.messages import ChatMessage, dumps

logger = logging.getLogger(__name__)

PER_MESSAGE = 4
PER_CALL = 8
# Databases store the tokens of a message in 32 bits. The size of a file may be any number.
_MOST_TOKENS = 2**31 - 1

# What OpenAI's gpt-4o takes for an image with the detail "low", and for one of 1024 by 1024 pixels with any other
# detail. The image itself is not read. A long and narrow one takes up to 1445.
LOW_DETAIL_IMAGE = 85
IMAGE = 765
# A file is not read either. These are estimates by its bytes: a page of a PDF has some 75 kB and takes 1 500 tokens. A
# second of compressed sound has 16 kB and takes ten.
BYTES_PER_TOKEN = 50
BYTES_PER_TOKEN_OF_SOUND = 1600
# A file that the provider reads from an address, or has already.
UNKNOWN_FILE = 1500


@runtime_checkable
class TokenCounter(Protocol):
    """Counts tokens. The count of a text must never change."""

    @property
    def name(self) -> str:
        """The name of the counter. A session stores the name of the counter that counted its messages."""

    def count_text(self, text: str) -> int:
        """Return the tokens of ``text``, at least 1."""

    def count(self, message: ChatMessage) -> int:
        """Return the tokens of ``message`` in a request, at least 1."""


_EMPTY_VALUES: tuple[Any, ...] = (None, "", (), {})


class _MessageCounter:
    """Counts whole messages. Subclasses count a text."""

    def count_text(self, text: str) -> int:
        raise NotImplementedError

    def count(self, message: ChatMessage) -> int:
        content = message.content
        if isinstance(content, str):
            total = PER_MESSAGE + (self.count_text(content) if content else 0)
        else:
            total = PER_MESSAGE + sum(map(self._part, content or ()))
        for text in (message.name, message.tool_call_id):
            if text:
                total += self.count_text(text)
        if message.extra:
            total += self._extra(message.extra)
        for call in message.tool_calls:
            total += PER_CALL + self.count_text(dumps(call))
        return min(total, _MOST_TOKENS)

    def _extra(self, extra: Mapping[str, Any]) -> int:
        """Count the other fields. A provider's model does not see empty ones, and of its own speech only the words."""
        fields = {field: value for field, value in extra.items() if value not in _EMPTY_VALUES}
        if isinstance(fields.get("audio"), Mapping):
            fields["audio"] = fields["audio"].get("transcript") or ""
        blobs: list[int] = []
        text = dumps(_without_blobs(fields, blobs)) if fields else ""
        return (self.count_text(text) if text else 0) + sum(_by_size(size, BYTES_PER_TOKEN) for size in blobs)

    def _part(self, part: Mapping[str, Any]) -> int:
        is_what = content_parts.read(part)
        match is_what.kind:
            case "text":
                return self.count_text(is_what.text) if is_what.text else 0
            case "image":
                return LOW_DETAIL_IMAGE if is_what.detail == "low" else IMAGE
            case "file":
                return _by_size(is_what.size, BYTES_PER_TOKEN)
            case "sound":
                return _by_size(is_what.size, BYTES_PER_TOKEN_OF_SOUND)
        return self._extra(part) if is_what.size is None else _by_size(is_what.size, BYTES_PER_TOKEN)


def _by_size(size: int | None, bytes_per_token: int) -> int:
    return UNKNOWN_FILE if size is None else max(1, size // bytes_per_token)


# Longer texts without a space, of such characters only, are data: the words of no language are.
_LONGEST_WORD = 1000
_BLOB = re.compile(r"(?:data:[^,]{1,100},)?[A-Za-z0-9+/_=-]*")


def _without_blobs(value: Any, sizes: list[int]) -> Any:
    """Return JSON without the data in base64 that is in it. Add the size of each to ``sizes``, in bytes."""
    if isinstance(value, str):
        if len(value) <= _LONGEST_WORD or not _BLOB.fullmatch(value):
            return value
        sizes.append(len(value) * 3 // 4)
        return ""
    if isinstance(value, Mapping):
        return {name: _without_blobs(item, sizes) for name, item in value.items()}
    return [_without_blobs(item, sizes) for item in value] if isinstance(value, (list, tuple)) else value


# The characters of a text that measure() counts at once.
_PIECE = 8192


def measure(message: ChatMessage, counter: TokenCounter, limit: int) -> int:
    """Return the tokens of ``message``, to compare them with ``limit``. The time is limited, however long it is.

    A text of more than 8 192 characters is counted in pieces. Each may add a token, because a word is cut there. Once
    the pieces exceed ``limit``, the others are not counted: the result is an estimate by the length of the text.
    """
    content = message.content
    parts: Sequence[Mapping[str, Any]] = ({"text": content},) if isinstance(content, str) else content or ()
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str) and len(part["text"]) > _PIECE]
    if not texts:
        return counter.count(message)
    total, counted = counter.count(_with_short_texts(message)), len(texts) * _PIECE
    for piece in (text[start : start + _PIECE] for text in texts for start in range(_PIECE, len(text), _PIECE)):
        if total > limit:
            return round(total * sum(map(len, texts)) / counted)
        total, counted = total + counter.count_text(piece), counted + len(piece)
    return total


def _with_short_texts(message: ChatMessage) -> ChatMessage:
    """Return ``message`` with the first piece of each of its texts."""
    if isinstance(message.content, str):
        return dataclasses.replace(message, content=message.content[:_PIECE])
    parts: Any = [
        {**part, "text": part["text"][:_PIECE]} if isinstance(part.get("text"), str) else part
        for part in message.content or ()
    ]
    return dataclasses.replace(message, content=parts)


class Utf8TokenCounter(_MessageCounter):
    """The default counter: an estimate of o200k_base's tokens, without a vocabulary and without a dependency.

    It considers a text's scripts, its letters, and its runs of letters, digits, symbols and spaces.

    ``benchmarks/token_counters.py`` compares it with exact counts, on 48 kinds of text. The total of each kind is
    1.0 to 1.3 times the exact one. Few single texts are below 0.9 times, because a count that is too low can exceed a
    model's window. The documentation has the table, on the page "What it costs".
    """

    # Another estimate needs another name, because a session stores the name beside its counts.
    name = "utf8:2"

    def count_text(self, text: str) -> int:
        return estimate(text)


class TokenBufferEstimate:
    """The estimate of synaptic's ``ConversationTokenBufferMemory``: a quarter of the content's UTF-8 bytes, plus 1."""

    name = "token_buffer_estimate"

    def count_text(self, text: str) -> int:
        return len(text.encode()) // 4 + 1

    def count(self, message: ChatMessage) -> int:
        return self.count_text(message.text)


class SummaryBufferEstimate(TokenBufferEstimate):
    """The estimate of synaptic's ``ConversationSummaryBufferMemory``: a quarter of the UTF-8 bytes, at least 1."""

    name = "summary_buffer_estimate"

    def count_text(self, text: str) -> int:
        return max(len(text.encode()) // 4, 1)


# The vocabulary files of tiktoken. The name of a file is the SHA-1 of its download address.
_CL100K, _O200K = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "fb374d419588a4632f3f557e76b4b70aebbca790"
_FILES = {"cl100k_base": _CL100K, "o200k_base": _O200K, "o200k_harmony": _O200K}
# The SHA-256 of the content of each.
_CONTENTS = {
    _CL100K: "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    _O200K: "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}


class TiktokenCounter(_MessageCounter):
    """Counts with the vocabulary of OpenAI's models. Needs the ``tiktoken`` extra.

    ``encoding`` is one of ``o200k_base``, ``o200k_harmony`` and ``cl100k_base``. The environment variable
    ``TIKTOKEN_CACHE_DIR`` must name a folder that holds the vocabulary file. Without the file tiktoken would download
    it during a web request.

    If the file or tiktoken is missing, the counter logs one warning and counts as :class:`Utf8TokenCounter` does.

    Raises ValueError if ``encoding`` is unknown.
    """

    def __init__(self, encoding: str = "o200k_base") -> None:
        if encoding not in _FILES:
            raise ValueError(f"encoding must be one of {', '.join(_FILES)}, not {encoding!r}.")
        self.encoding = encoding

    @property
    def problem(self) -> str | None:
        """Why the counter can only estimate, and what to do about it; None if it counts exactly."""
        try:
            import tiktoken  # noqa: F401
        except ImportError:
            return "tiktoken is not installed. Install django-convmemory[tiktoken]"
        if not _is_on_disk(_FILES[self.encoding]):
            return (
                f"The vocabulary of {self.encoding} is missing or damaged. On a machine with network access, run "
                f"TIKTOKEN_CACHE_DIR=FOLDER python -c 'import tiktoken; tiktoken.get_encoding(\"{self.encoding}\")'. "
                "Copy that folder to this machine and set TIKTOKEN_CACHE_DIR to it"
            )
        return None

    @property
    def name(self) -> str:
        exact = _encoder(self.encoding) is not None
        return f"tiktoken:{self.encoding}" if exact else Utf8TokenCounter.name

    def count_text(self, text: str) -> int:
        encode = _encoder(self.encoding)
        return max(1, len(encode(text))) if encode else Utf8TokenCounter().count_text(text)


@functools.cache
def _encoder(encoding: str) -> Callable[[str], Sequence[int]] | None:
    """Return the function that encodes a text, or None if it is not available. The cache makes it warn only once."""
    if problem := TiktokenCounter(encoding).problem:
        logger.warning("Tokens are estimated: %s.", problem)
        return None
    import tiktoken

    return tiktoken.get_encoding(encoding).encode_ordinary


def _is_on_disk(file: str) -> bool:
    """Whether tiktoken will find the file in its own folder, undamaged. It downloads a damaged file again."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder == "":  # The empty string turns tiktoken's cache off.
        return False
    path = pathlib.Path(folder or pathlib.Path(tempfile.gettempdir()) / "data-gym-cache") / file
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _CONTENTS[file]
    except OSError:
        return False


# Estimates how many tokens of ``o200k_base`` a text takes, without its vocabulary.


# Longer texts are divided, so that the integers fit into a processor's cache.
_CHUNK = 8192

# The kinds of characters. A digit has two bits, for two costs.
_LETTER, _CAPITAL, _CONSONANT, _DIGIT, _DIGIT_AGAIN, _SYMBOL, _MARK, _SPACE = (1 << bit for bit in range(8))
# By how many bits they are apart.
_FROM_LETTER_TO_CAPITAL, _FROM_LETTER_TO_DIGIT, _FROM_LETTER_TO_SYMBOL, _FROM_DIGIT_TO_SPACE = 1, 3, 5, 4


def _kind(char: str) -> int:
    if char.isalpha():
        consonant = char.isascii() and char not in "aeiouAEIOUt"  # str, ght and nts are frequent in English.
        return _LETTER | _CAPITAL * char.isupper() | _CONSONANT * consonant
    if char in string.digits:
        return _DIGIT | _DIGIT_AGAIN
    if char in string.punctuation:
        return _SYMBOL | _MARK * (char not in "-=*#_.~+/")  # Rulers, as in tables, are made of these.
    return _SPACE if char in string.whitespace else 0


def _cost(char: str) -> int:
    """Return the cost of one of the first 256 characters, besides that of its runs. It is at most 8."""
    if char in "aiuAIU":  # English has them less often than other languages.
        return 3
    if char in "jkqvzJKQVZ":  # Frequent in other languages, and in random text.
        return 6
    if char == "\n":
        return 4
    if char == "@":  # A name follows, which is seldom a common word.
        return 6
    if char.isascii():
        return 0 if char.isprintable() or char in string.whitespace else 6
    return 8


class _Script(NamedTuple):
    """The cost of each character in blocks of 256 code points.

    Two scripts may share a block. ``cost`` is that of the places below ``_BORDER``, ``upper_cost`` of the others.
    """

    blocks: Iterable[int]
    cost: float
    upper_cost: float
    has_words: bool  # Spaces separate words.


_BORDER = 0x50  # This place separates the scripts of all shared blocks, but for a few characters.
_SCRIPTS = (
    _Script([0x00], 0, 0, has_words=False),  # see _cost()
    _Script([0x01, 0x02], 8, 8, has_words=True),  # Latin letters with other accents
    _Script([0x03], 16, 2.5, has_words=True),  # combining accents; Greek
    _Script([0x04], 1.5, 8, has_words=True),  # the letters of Russian; the other Cyrillic letters
    _Script([0x05], 3, 3, has_words=True),  # Armenian, Hebrew
    _Script([0x06], 2, 3, has_words=True),  # the letters of Arabic; more of them for Persian and Urdu
    _Script([0x07, 0x08], 16, 16, has_words=True),
    _Script([0x09], 2.25, 2.75, has_words=True),  # Hindi; Bengali
    _Script([0x0A], 5, 2.5, has_words=True),  # Punjabi; Gujarati
    _Script([0x0B], 8, 2.5, has_words=True),  # Oriya; Tamil
    _Script([0x0C], 3, 3, has_words=True),  # Telugu; Kannada
    _Script([0x0D], 2.5, 5, has_words=True),  # Malayalam; Sinhala
    _Script([0x0E], 4, 16, has_words=False),  # Thai; Lao
    _Script([0x0F], 13, 13, has_words=False),  # Tibetan
    _Script([0x10], 5, 2.5, has_words=True),  # Burmese; Georgian
    _Script([0x12, 0x13], 16, 16, has_words=True),  # Ethiopic
    _Script([0x17], 16, 6, has_words=False),  # Khmer
    _Script([0x1E], 2, 2, has_words=True),  # Vietnamese
    _Script([0x1F], 13, 13, has_words=True),  # Greek with several accents
    _Script([0x20], 8, 16, has_words=False),  # quotation marks, dashes, joiners; currencies
    _Script(range(0x21, 0x2C), 16, 16, has_words=False),  # symbols
    _Script([0x30], 5, 7, has_words=False),  # Japanese syllables, Chinese punctuation
    _Script(range(0x4E, 0xA0), 8.5, 8.5, has_words=False),  # Chinese characters
    _Script(range(0xAC, 0xD8), 5, 5, has_words=True),  # Korean
    _Script(range(0xD8, 0xDC), 16, 16, has_words=False),  # the first half of an emoji
    _Script(range(0xDC, 0xE0), 1, 1, has_words=False),  # its second half
    _Script([0xFE], 8, 8, has_words=False),  # variants of emoji
    _Script([0xFF], 4, 4, has_words=False),  # full width
)
_OTHER_SCRIPT = _Script([], 24, 24, has_words=False)


# Tables for bytes.translate(): first those of a character, or of its place in its block.


def _table(value: Callable[[int], int]) -> bytes:
    return bytes(map(value, range(256)))


_KINDS = _table(lambda code: _kind(chr(code)))
_CHAR_COSTS = _table(lambda code: (1 << _cost(chr(code))) - 1)  # as many bits as the cost
_IS_UPPER = _table(lambda place: 0xFF if place >= _BORDER else 0)

# And those of a block.
_SCRIPT_OF = {block: script for script in _SCRIPTS for block in script.blocks}
# All costs, from 0 on. The tables have indices of this list.
_COSTS = sorted({cost for script in (*_SCRIPTS, _OTHER_SCRIPT) for cost in (script.cost, script.upper_cost)})


def _of_script(value: Callable[[_Script], int]) -> bytes:
    return _table(lambda block: value(_SCRIPT_OF.get(block, _OTHER_SCRIPT)))


_IS_FIRST = _table(lambda block: 0xFF if block == 0 else 0)
_BLOCK_KINDS = _of_script(lambda script: _LETTER if script.has_words else 0)
_BLOCK_COSTS = _of_script(lambda script: _COSTS.index(script.cost))
_BLOCK_CHANGES = _of_script(lambda script: _COSTS.index(script.cost) ^ _COSTS.index(script.upper_cost))

# Integers with these bits in each byte.

_integer = int.from_bytes  # The first byte is the highest.


def _mask(kinds: int) -> int:
    return _integer(bytes([kinds]) * (2 * _CHUNK))  # A character has two units of UTF-16 at most.


_LETTERS, _CAPITALS, _SYMBOLS = _mask(_LETTER), _mask(_CAPITAL), _mask(_SYMBOL)
_DIGITS, _DIGITS_AGAIN, _SPACES = _mask(_DIGIT), _mask(_DIGIT_AGAIN), _mask(_SPACE)
_CLUSTERS = _mask(_CONSONANT | _MARK)
_STARTS = _mask(_LETTER | _SYMBOL | _DIGIT)
_WORDS = _mask(_LETTER | _DIGIT)
_REPEATED = _mask(_CAPITAL | _SYMBOL | _SPACE)


def estimate(text: str) -> int:
    """Return the estimated number of tokens of ``text``, at least 1. It takes time in proportion to the length."""
    if len(text) <= _CHUNK:
        eighths = _eighths(text)
    else:
        eighths = sum(_eighths(text[start : start + _CHUNK]) for start in range(0, len(text), _CHUNK))
    return max(1, math.ceil(eighths / 8))


def _eighths(text: str) -> float:
    """Return the cost of at most ``_CHUNK`` characters."""
    if text.isascii():
        data = text.encode("ascii")
        kinds = _integer(data.translate(_KINDS))
        costs: float = _integer(data.translate(_CHAR_COSTS)).bit_count()
    else:
        utf16 = text.encode("utf-16-be", "surrogatepass")
        blocks, places = utf16[::2], utf16[1::2]
        is_first = _integer(blocks.translate(_IS_FIRST))
        kinds = _integer(places.translate(_KINDS)) & is_first | _integer(blocks.translate(_BLOCK_KINDS))
        costs = (_integer(places.translate(_CHAR_COSTS)) & is_first).bit_count() + _cost_of_scripts(blocks, places)
    words = (kinds ^ kinds & kinds >> 8) & _WORDS  # Each word and each number is a token, or several.
    return max(costs + _cost_of_runs(kinds), 8 * words.bit_count())


def _cost_of_runs(kinds: int) -> int:
    """Return what runs of characters of one kind cost."""
    previous, following = kinds >> 8, kinds << 8
    repeated = kinds & previous
    starts = kinds ^ repeated
    third = repeated & repeated >> 8
    fourth = repeated & repeated >> 16
    digits = kinds & _DIGITS
    # A space belongs to the word that follows, but not to a number. Letters after a digit are seldom a word.
    spaces_before_digits = previous & _SPACES & digits << _FROM_DIGIT_TO_SPACE
    letters_after_digits = kinds & _LETTERS & digits >> 8 + _FROM_LETTER_TO_DIGIT
    inner_capitals = starts & _CAPITALS & (previous & _LETTERS) << _FROM_LETTER_TO_CAPITAL  # camelCase has two words.
    # Symbols often belong to the word that follows.
    symbols = kinds & _SYMBOLS
    ends = symbols ^ symbols & (following | (following & _LETTERS) << _FROM_LETTER_TO_SYMBOL)
    # What costs the same is added up together. Within a sum, each term has a bit or a place of its own.
    fives = starts & _STARTS | inner_capitals | third & _CLUSTERS | spaces_before_digits
    fives |= (fourth ^ fourth & fourth >> 8) & _DIGITS_AGAIN  # Digits are divided after three.
    threes = ends | starts & _DIGITS_AGAIN | fourth & _DIGITS | spaces_before_digits | letters_after_digits
    ones = fourth & kinds >> 32 & _LETTERS | repeated & _REPEATED | starts & _DIGITS
    return 5 * fives.bit_count() + 3 * threes.bit_count() + ones.bit_count()


def _cost_of_scripts(blocks: bytes, places: bytes) -> float:
    """Return what the characters beyond the first 256 cost for their scripts."""
    is_upper = _integer(places.translate(_IS_UPPER))
    changes = _integer(blocks.translate(_BLOCK_CHANGES)) & is_upper
    indices = (_integer(blocks.translate(_BLOCK_COSTS)) ^ changes).to_bytes(len(blocks))
    indices = indices.translate(None, b"\0")  # the first 256, which are most of many texts
    total = 0.0
    while indices:  # A text has few different costs.
        others = indices.translate(None, indices[:1])
        total += _COSTS[indices[0]] * (len(indices) - len(others))
        indices = others
    return total
