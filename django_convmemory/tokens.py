"""Token counters: how much of a budget a message takes.

A counter is asked once, when a message is appended; its answer is stored with the message. Every count is at least 1,
so that the running total of a session tells messages apart.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import logging
import math
import os
import pathlib
import string
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from django_convmemory.messages import ChatMessage, dumps

logger = logging.getLogger(__name__)

PER_MESSAGE = 4
PER_CALL = 8


@runtime_checkable
class TokenCounter(Protocol):
    """Counts tokens; the same text always counts the same."""

    @property
    def name(self) -> str:
        """The name that a session stores, to tell which counter counted it."""

    def count_text(self, text: str) -> int:
        """Return how many tokens ``text`` is, at least 1."""

    def count(self, message: ChatMessage) -> int:
        """Return how many tokens ``message`` takes in a request, at least 1."""


class _WholeMessage:
    """Counting of whole messages, for counters that know how to count a text."""

    def count_text(self, text: str) -> int:
        raise NotImplementedError

    def count(self, message: ChatMessage) -> int:
        total = PER_MESSAGE
        if isinstance(message.content, str):
            total += self.count_text(message.content) if message.content else 0
        else:
            total += sum(self._part(part) for part in message.content or ())
        if message.name:
            total += self.count_text(message.name)
        if message.tool_call_id:
            total += self.count_text(message.tool_call_id)
        for call in message.tool_calls:
            total += PER_CALL + self.count_text(dumps(call))
        if message.extra:
            total += self.count_text(dumps(message.extra))
        return total

    def _part(self, part: Mapping[str, Any]) -> int:
        if isinstance(part.get("text"), str):
            return self.count_text(part["text"]) if part["text"] else 0
        image = part.get("image_url")
        if image is not None:
            source = image if isinstance(image, Mapping) else {"url": image}
            return image_tokens(str(source.get("url", "")), detail=str(source.get("detail", "auto")))
        return self.count_text(dumps(part))


_PROSE = (string.ascii_letters + " ").encode()
_DIGITS = string.digits.encode()
_ASCII = bytes(range(128))


class Utf8TokenCounter(_WholeMessage):
    """The default: an estimate from the UTF-8 bytes, without a vocabulary and without a dependency.

    Letters and spaces are cheap (4.6 bytes a token), digits (2) and punctuation (1.6) dear, everything outside ASCII in
    between (3.6 bytes, about one Chinese character and a fifth). ``benchmarks/token_counters.py`` compares it with
    tiktoken's o200k_base: within 1.0 and 1.2 of it on English chat, Chinese, JSON and source code. Runs of random
    letters (base64) are underestimated, and languages that o200k_base packs well are overestimated.
    """

    name = "utf8"

    def count_text(self, text: str) -> int:
        data = text.encode()
        rest = data.translate(None, _PROSE)
        if not rest:
            return max(1, math.ceil(len(data) / 4.6))
        undigited = rest.translate(None, _DIGITS)
        wide = len(undigited.translate(None, _ASCII))
        estimate = (
            (len(data) - len(rest)) / 4.6
            + (len(rest) - len(undigited)) / 2.0
            + (len(undigited) - wide) / 1.6
            + wide / 3.6
        )
        return max(1, math.ceil(estimate))


class TokenBufferEstimate:
    """What synaptic's token buffer estimates: a quarter of the UTF-8 bytes of the content, plus 1."""

    name = "token_buffer_estimate"

    def count_text(self, text: str) -> int:
        return len(text.encode()) // 4 + 1

    def count(self, message: ChatMessage) -> int:
        return self.count_text(message.text)


class SummaryBufferEstimate:
    """What synaptic's summary buffer estimates: a quarter of the UTF-8 bytes of the content, at least 1."""

    name = "summary_buffer_estimate"

    def count_text(self, text: str) -> int:
        return max(len(text.encode()) // 4, 1)

    def count(self, message: ChatMessage) -> int:
        return self.count_text(message.text)


class _Vocabulary(NamedTuple):
    """A file of tiktoken's: its name, which is the SHA-1 of where it would be downloaded from, and its SHA-256."""

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


class TiktokenCounter(_WholeMessage):
    """Counts with the vocabulary of OpenAI's models, by the ``tiktoken`` extra.

    ``encoding`` is one of ``o200k_base``, ``o200k_harmony`` and ``cl100k_base``. The vocabulary must be in the folder
    that ``TIKTOKEN_CACHE_DIR`` names: tiktoken would download it inside a request, so where it is missing, or tiktoken
    is not installed, this says so once in the log and counts as :class:`Utf8TokenCounter`.

    Raises ValueError for an encoding that it does not know.
    """

    def __init__(self, encoding: str = "o200k_base") -> None:
        if encoding not in _VOCABULARIES:
            raise ValueError(f"encoding must be one of {', '.join(_VOCABULARIES)}, not {encoding!r}.")
        self.encoding = encoding

    @property
    def problem(self) -> str | None:
        """Why it only estimates, or None."""
        if importlib.util.find_spec("tiktoken") is None:
            return "tiktoken is not installed: install django-convmemory[tiktoken]"
        if not _is_on_disk(_VOCABULARIES[self.encoding]):
            return (
                f"the vocabulary of {self.encoding} is not on disk: where there is a network, run "
                f"TIKTOKEN_CACHE_DIR=FOLDER python -c 'import tiktoken; tiktoken.get_encoding(\"{self.encoding}\")', "
                "and set TIKTOKEN_CACHE_DIR to that folder"
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
    """Return what turns a text into tokens, or None where it is not here; said once."""
    try:
        import tiktoken
    except ImportError:
        logger.warning("tiktoken is not installed: tokens are estimated. Install django-convmemory[tiktoken].")
        return None
    if not _is_on_disk(_VOCABULARIES[encoding]):
        logger.warning(
            "The vocabulary of %s is not on disk, or damaged: tokens are estimated. Put it into the folder that "
            "TIKTOKEN_CACHE_DIR names.",
            encoding,
        )
        return None
    return tiktoken.get_encoding(encoding).encode_ordinary


def _is_on_disk(vocabulary: _Vocabulary) -> bool:
    """Whether tiktoken will find the file: whole, for it downloads a damaged one again, and where it looks itself."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder == "":  # by which tiktoken is told to keep nothing on disk
        return False
    path = pathlib.Path(folder or pathlib.Path(tempfile.gettempdir()) / "data-gym-cache") / vocabulary.file
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == vocabulary.sha256
    except OSError:
        return False


# OpenAI's rule for images of its gpt-4o family (guide "Images and vision", "Calculating costs").
_IMAGE_BASE, _IMAGE_TILE, _TILE = 85, 170, 512
_UNKNOWN_SIZE = (1024, 1024)


def image_tokens(url: str, *, detail: str = "auto") -> int:
    """Return the tokens of an image, by its size in pixels; one that is not a data URL counts as 1024 by 1024."""
    if detail == "low":
        return _IMAGE_BASE
    width, height = _data_url_size(url) or _UNKNOWN_SIZE
    scale = min(1.0, 2048 / max(width, height))
    width, height = max(1, int(width * scale)), max(1, int(height * scale))
    scale = min(1.0, 768 / min(width, height))
    width, height = max(1, int(width * scale)), max(1, int(height * scale))
    return _IMAGE_BASE + _IMAGE_TILE * math.ceil(width / _TILE) * math.ceil(height / _TILE)


def _data_url_size(url: str) -> tuple[int, int] | None:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    try:
        return image_size(base64.b64decode(data[: _IMAGE_HEADER_BYTES * 4 // 3 // 4 * 4]))
    except ValueError:  # of wrong length, or with characters outside ASCII
        return None


_IMAGE_HEADER_BYTES = 64 * 1024


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return (width, height) in pixels of a PNG, GIF, JPEG or WebP file, or None where its beginning does not say."""
    found = None
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        found = struct.unpack(">II", data[16:24])
    elif data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        found = struct.unpack("<HH", data[6:10])
    elif data.startswith(b"\xff\xd8"):
        found = _jpeg(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        found = _webp(data)
    return (found[0], found[1]) if found and min(found) > 0 else None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame header
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        else:
            at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
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
