"""Token counters: how many tokens of a prompt a message takes.

A message is counted once, when it is appended, and the count is stored with the message. Every count is at least 1,
so that each message has a running total of its own within the session.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import logging
import math
import os
import pathlib
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from django_convmemory import token_estimate
from django_convmemory.messages import ChatMessage, dumps

logger = logging.getLogger(__name__)

PER_MESSAGE = 4
PER_CALL = 8


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
        parts = ({"text": message.content},) if isinstance(message.content, str) else message.content or ()
        total = PER_MESSAGE + sum(self._part(part) for part in parts)
        # A provider's model does not see empty fields.
        extra = {field: value for field, value in message.extra.items() if value not in _EMPTY_VALUES}
        for text in (message.name, message.tool_call_id, dumps(extra) if extra else None):
            if text:
                total += self.count_text(text)
        for call in message.tool_calls:
            total += PER_CALL + self.count_text(dumps(call))
        return total

    def _part(self, part: Mapping[str, Any]) -> int:
        if isinstance(part.get("text"), str):
            return self.count_text(part["text"]) if part["text"] else 0
        image = part.get("image_url")
        if image is not None:
            source = image if isinstance(image, Mapping) else {"url": image}
            return image_tokens(str(source.get("url", "")), detail=str(source.get("detail", "auto")))
        return self.count_text(dumps(part))


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
    rests = [text[_PIECE:] for text in texts]
    total, counted = counter.count(_with_short_texts(message)), len(texts) * _PIECE
    for rest in rests:
        for start in range(0, len(rest), _PIECE):
            if total > limit:
                return round(total * sum(map(len, texts)) / counted)
            piece = rest[start : start + _PIECE]
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
        return token_estimate.estimate(text)


class TokenBufferEstimate:
    """The estimate of synaptic's ``ConversationTokenBufferMemory``: a quarter of the content's UTF-8 bytes, plus 1."""

    name = "token_buffer_estimate"

    def count_text(self, text: str) -> int:
        return len(text.encode()) // 4 + 1

    def count(self, message: ChatMessage) -> int:
        return self.count_text(message.text)


class SummaryBufferEstimate:
    """The estimate of synaptic's ``ConversationSummaryBufferMemory``: a quarter of the UTF-8 bytes, at least 1."""

    name = "summary_buffer_estimate"

    def count_text(self, text: str) -> int:
        return max(len(text.encode()) // 4, 1)

    def count(self, message: ChatMessage) -> int:
        return self.count_text(message.text)


class _Vocabulary(NamedTuple):
    """A vocabulary file of tiktoken. Its name is the SHA-1 of its download address; ``sha256`` is of its content."""

    file: str
    sha256: str


_O200K = _Vocabulary(
    "fb374d419588a4632f3f557e76b4b70aebbca790",
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
)
_CL100K = _Vocabulary(
    "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
)
_VOCABULARIES = {"cl100k_base": _CL100K, "o200k_base": _O200K, "o200k_harmony": _O200K}


class TiktokenCounter(_MessageCounter):
    """Counts with the vocabulary of OpenAI's models. Needs the ``tiktoken`` extra.

    ``encoding`` is one of ``o200k_base``, ``o200k_harmony`` and ``cl100k_base``. The environment variable
    ``TIKTOKEN_CACHE_DIR`` must name a folder that holds the vocabulary file. Without the file tiktoken would download
    it during a web request.

    If the file or tiktoken is missing, the counter logs one warning and counts as :class:`Utf8TokenCounter` does.

    Raises ValueError if ``encoding`` is unknown.
    """

    def __init__(self, encoding: str = "o200k_base") -> None:
        if encoding not in _VOCABULARIES:
            raise ValueError(f"encoding must be one of {', '.join(_VOCABULARIES)}, not {encoding!r}.")
        self.encoding = encoding

    @property
    def problem(self) -> str | None:
        """Why the counter can only estimate, and what to do about it; None if it counts exactly."""
        try:
            import tiktoken  # noqa: F401
        except ImportError:
            return "tiktoken is not installed. Install django-convmemory[tiktoken]"
        if not _is_on_disk(_VOCABULARIES[self.encoding]):
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


def _is_on_disk(vocabulary: _Vocabulary) -> bool:
    """Whether tiktoken will find the file in its own folder, undamaged. It downloads a damaged file again."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder == "":  # The empty string turns tiktoken's cache off.
        return False
    path = pathlib.Path(folder or pathlib.Path(tempfile.gettempdir()) / "data-gym-cache") / vocabulary.file
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == vocabulary.sha256
    except OSError:
        return False


# OpenAI's rule for images of the gpt-4o family: guide "Images and vision", section "Calculating costs".
_IMAGE_BASE, _IMAGE_TILE, _TILE = 85, 170, 512
_UNKNOWN_SIZE = (1024, 1024)


def image_tokens(url: str, *, detail: str = "auto") -> int:
    """Return the tokens of an image.

    They follow from the size in pixels, which only a data URL tells. Any other image counts as 1024 by 1024 pixels.
    ``detail`` is OpenAI's ``detail`` of an image; ``"low"`` always counts 85.
    """
    if detail == "low":
        return _IMAGE_BASE
    width, height = _data_url_size(url) or _UNKNOWN_SIZE
    for limit, side in ((2048, max), (768, min)):
        scale = min(1.0, limit / side(width, height))
        width, height = max(1, int(width * scale)), max(1, int(height * scale))
    return _IMAGE_BASE + _IMAGE_TILE * math.ceil(width / _TILE) * math.ceil(height / _TILE)


def _data_url_size(url: str) -> tuple[int, int] | None:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    try:
        return image_size(base64.b64decode(data[: _IMAGE_HEADER_BYTES * 4 // 3 // 4 * 4]))
    except ValueError:  # not base64
        return None


_IMAGE_HEADER_BYTES = 64 * 1024


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return (width, height) in pixels of a PNG, GIF, JPEG or WebP file, or None.

    ``data`` is the beginning of the file. None means another format, or a size that is not in ``data``.
    """
    size = None
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        size = struct.unpack(">II", data[16:24])
    elif data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        size = struct.unpack("<HH", data[6:10])
    elif data.startswith(b"\xff\xd8"):
        size = _jpeg_size(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        size = _webp_size(data)
    return (size[0], size[1]) if size and min(size) > 0 else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    offset = 2
    while offset + 9 <= len(data) and data[offset] == 0xFF:
        marker = data[offset + 1]
        if marker == 0xFF:  # fill byte
            offset += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # frame header
            height, width = struct.unpack(">HH", data[offset + 5 : offset + 9])
            return width, height
        else:
            offset += 2 + struct.unpack(">H", data[offset + 2 : offset + 4])[0]
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    if data[12:16] == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if data[12:16] == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":  # the start code of a key frame
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None
