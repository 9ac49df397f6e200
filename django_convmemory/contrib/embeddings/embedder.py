"""Embeds texts by a model at any address with OpenAI's ``/embeddings``."""

from __future__ import annotations

import contextlib
import math
import operator
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.exceptions import BadModelOutput
from django_convmemory.messages import loads

# A vector is stored as a signed byte for each number, the largest of which is 127. That is half of what 16 bits take,
# and as good: on LoCoMo and BEAM-100K, the recall at 10 is the same within 0.2 points.
_LARGEST = 127


class Embedder(OpenAIChatModel):
    """An embedding model. The options are those of :class:`.OpenAIChatModel`, and ``timeout`` is for a whole call.

    The time that the first call of a process takes to import the client does not count.
    """

    @property
    def checksum(self) -> int:
        """What tells vectors of this model from those of another one."""
        return zlib.crc32(f"{self.name} {self._parameters}".encode()) >> 1

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text: an empty one if the model gives zeros only, or what is no number.

        Raises a :class:`~django_convmemory.exceptions.ChatModelError`.
        """
        # Escapes in the JSON of a tool can be half of a pair, which UTF-8 does not have.
        encodable = [text.encode(errors="replace").decode() for text in texts]
        body = {"model": self.name, "input": encodable, "encoding_format": "float", "extra_body": self._parameters}
        with contextlib.suppress(Exception):  # The call meets the same error, and reports it.
            self._endpoint(self._client())  # Importing the client can take longer than a search waits.
        reply = self._accepted(self._within_deadline(body))
        try:
            rows = sorted(loads(reply.body)["data"], key=operator.itemgetter("index"))
            vectors = [_stored(row["embedding"]) for row in rows]
        except (TypeError, KeyError, ValueError, OverflowError):
            vectors = []
        if len(vectors) != len(texts) or len(set(map(len, filter(None, vectors)))) > 1:
            raise BadModelOutput("The model returned no vector for each text. Check the options model and base_url.")
        return vectors

    def _endpoint(self, client: Any) -> Any:
        return client.embeddings


def _stored(numbers: Sequence[float]) -> bytes:
    largest = max(map(abs, numbers))
    if not largest or not all(map(math.isfinite, numbers)):
        return b""
    return array("b", [round(_LARGEST * number / largest) for number in numbers]).tobytes()


def cosines(vector: bytes, others: Iterable[bytes]) -> list[float]:
    """Return the cosine of the angle between a vector and each other one, or 0.0 if the two cannot be compared."""
    numbers = memoryview(vector).cast("b").tolist()
    length = math.hypot(*numbers)
    results = []
    for other in others:
        compared = memoryview(other).cast("b").tolist() if len(other) == len(vector) else []
        product = sum(map(operator.mul, numbers, compared))
        results.append(product / (length * math.hypot(*compared)) if product else 0.0)
    return results
