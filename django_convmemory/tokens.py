"""Token counters: how many tokens of a prompt a message takes.

A message is counted once, when it is appended, and the count is stored with the message. Every count is at least 1,
so that each message has a running total of its own within the session.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from django_convmemory import token_estimate
from django_convmemory.messages import ChatMessage, dumps

logger = logging.getLogger(__name__)

PER_MESSAGE = 4
PER_CALL = 8

# What OpenAI's gpt-4o takes for an image with the detail "low", and for one of 1024 by 1024 pixels with any other
# detail. The image itself is not read. A long and narrow one takes up to 1445.
LOW_DETAIL_IMAGE = 85
IMAGE = 765


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
            low = isinstance(image, Mapping) and image.get("detail") == "low"
            return LOW_DETAIL_IMAGE if low else IMAGE
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
