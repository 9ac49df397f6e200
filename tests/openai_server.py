"""An OpenAI-compatible server that misbehaves on demand.

Each request to ``/v1/chat/completions`` takes the next behaviour of the queue, or the default one when the queue is
empty. So does one to the paths of the Responses API and of Anthropic's API, with behaviours of the kind ``raw``. In a
test::

    with OpenAIServer() as server:
        server.queue(Behaviour("rate_limited", retry_after="7"), Behaviour("answer", text="They spoke of Rust."))

Another process may ``GET`` the log, in JSON, from any path.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.server
import json
import re
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

PATHS = ("/chat/completions", "/responses", "/messages", "/embeddings")
MARKER = re.compile(r"\[\[[^\[\]]*\]\]")
TURN = re.compile(r"^\[(?:user|assistant)\] (.{1,80})", re.MULTILINE)

KINDS: dict[str, Callable[[_Handler, Behaviour, dict[str, Any]], None]] = {}


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """What the server does with one request.

    ``kind`` is a key of :data:`KINDS`. ``text`` is what the model says: a text, a function of the request's body, or
    None to repeat the ``[[markers]]`` of the prompt. ``latency`` is waited before anything is sent, ``pace``
    between the words of a stream; ``seconds`` is how
    long a hang or a drip lasts. ``status``, ``headers`` and ``body`` are those of the kind ``raw``, whose body is a
    text or JSON.
    """

    kind: str = "answer"
    text: str | Callable[[dict[str, Any]], str] | None = None
    latency: float = 0.0
    seconds: float = 30.0
    size: int = 20_000_000
    pace: float = 0.02
    retry_after: str = "1"
    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: Any = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Unknown behaviour {self.kind!r}. Use one of these: {', '.join(sorted(KINDS))}.")


@dataclasses.dataclass
class Exchange:
    """One request as the server saw it. Times are seconds since the epoch; ``finished`` is None while it runs."""

    behaviour: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    started: float
    finished: float | None = None
    aborted: bool = False


class OpenAIServer:
    """The server, run by a thread from ``__enter__`` to ``__exit__``, on a free port."""

    def __init__(self) -> None:
        self.default = Behaviour()
        # A prompt in which this stands is refused for its content.
        self.refused = ""
        # A prompt with more characters gets this behaviour instead.
        self.longest, self.too_long = sys.maxsize, Behaviour("context_length")
        self.log: list[Exchange] = []
        self.stopping = threading.Event()
        self._queue: collections.deque[Behaviour] = collections.deque()
        self._changed = threading.Condition()
        self._http = _HTTPServer(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="openai-server")

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop: what hangs or drips ends, and every thread of the server with it."""
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def queue(self, *behaviours: Behaviour) -> None:
        """Give the next requests ``behaviours``, one each."""
        with self._changed:
            self._queue.extend(behaviours)

    def wait_for(self, condition: Callable[[list[Exchange]], bool], timeout: float = 20.0) -> bool:
        """Wait until ``condition`` holds of the log, and return whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self.log), timeout)

    @property
    def queued(self) -> int:
        """How many behaviours are left in the queue."""
        return len(self._queue)

    def forget(self) -> None:
        """Empty the log and the queue."""
        with self._changed:
            self.log.clear()
            self._queue.clear()

    def forget_queue(self) -> None:
        """Empty the queue."""
        with self._changed:
            self._queue.clear()

    @contextlib.contextmanager
    def exchange(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Iterator[Behaviour]:
        """Choose the behaviour for a request and log the request, its end and whether the client went away."""
        with self._changed:
            behaviour = self._next(body)
            entry = Exchange(behaviour.kind, path, headers, body, time.time())
            self.log.append(entry)
            self._changed.notify_all()
        aborted = False
        try:
            yield behaviour
        except ConnectionError:
            aborted = True
        finally:
            with self._changed:
                entry.finished, entry.aborted = time.time(), aborted
                self._changed.notify_all()

    def _next(self, body: dict[str, Any]) -> Behaviour:
        if self.refused and self.refused in prompt(body):
            return Behaviour("content_filter")
        if len(prompt(body)) > self.longest:
            return self.too_long
        return self._queue.popleft() if self._queue else self.default


def prompt(body: dict[str, Any]) -> str:
    """Return the texts of a request's messages, a line each."""
    texts = []
    for message in body.get("messages", ()):
        content = message.get("content") or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        texts += [part.get("text", "") for part in parts]
    return "\n".join(texts)


def completion(behaviour: Behaviour, body: dict[str, Any], **message: Any) -> dict[str, Any]:
    """Return the chat completion that answers ``body``; ``message`` replaces fields of its message."""
    text = behaviour.text(body) if callable(behaviour.text) else behaviour.text
    if text is None:
        # Without markers, it says how some turns begin, so that it is a summary of them.
        said = dict.fromkeys(MARKER.findall(prompt(body))) or TURN.findall(prompt(body))[:9] or ["Nothing was marked."]
        text = " ".join(said)
    content = {"role": "assistant", "content": text, "refusal": None} | message
    # No tokenizer: about four characters a token is near enough for a count that only has to be there.
    tokens = {"prompt_tokens": len(prompt(body)) // 4 + 1, "completion_tokens": len(text) // 4 + 1}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model", ""),
        "choices": [{"index": 0, "message": content, "finish_reason": "stop", "logprobs": None}],
        "usage": tokens | {"total_tokens": sum(tokens.values())},
    }


# Words that mean the same are in one set.
WORDS = ({"doctor", "physician"}, {"dog", "hound"}, {"boat", "ship"})


def embedding(text: str) -> list[float]:
    words = set(re.findall(r"\w+", text.lower()))
    return [0.1, *(float(not words.isdisjoint(same)) for same in WORDS)]


class _HTTPServer(http.server.ThreadingHTTPServer):
    daemon_threads = False  # so that server_close() waits for them
    request_queue_size = 128

    def __init__(self, owner: OpenAIServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10.0
    server: _HTTPServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name in the standard library
        pass

    def handle_one_request(self) -> None:
        """Wait for the next request of a kept connection, which must not keep the server from stopping."""
        while not select.select([self.connection], [], [], 0.05)[0]:
            if self.server.owner.stopping.is_set():
                self.close_connection = True
                return
        super().handle_one_request()

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.path.endswith(PATHS):
            self.send_error_object(404, "not_found", "There is no such path.")
            return
        body = json.loads(content)
        headers = {key.lower(): value for key, value in self.headers.items()}
        with self.server.owner.exchange(self.path, headers, body) as behaviour:
            self.wait(behaviour.latency)
            KINDS[behaviour.kind](self, behaviour, body)

    def do_GET(self) -> None:
        self.send_json([dataclasses.asdict(entry) for entry in list(self.server.owner.log)])

    def wait(self, seconds: float) -> None:
        """Wait ``seconds``, or until the server stops. Raises :class:`ConnectionAbortedError` if the client goes."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.server.owner.stopping.is_set():
            readable, _, _ = select.select([self.connection], [], [], min(left, 0.05))
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionAbortedError

    def send_bytes(
        self,
        content: bytes,
        *,
        status: int = 200,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        """Send a reply; ``length`` is the length to promise where it is not that of ``content``."""
        fields = {"Content-Type": content_type, "Content-Length": str(len(content) if length is None else length)}
        self.send_response(status)
        for field, value in (fields | dict(headers or {})).items():
            self.send_header(field, value)
        self.end_headers()
        self.wfile.write(content)

    def send_json(self, document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_bytes(json.dumps(document).encode(), status=status, headers=headers)

    def send_error_object(
        self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        self.send_json({"error": error}, status=status, headers=headers)

    def drip(self, content: bytes, seconds: float, *, status: int = 200) -> None:
        """Send ``content`` after ``seconds`` of white space, a byte every 50 ms."""
        spaces = int(seconds / 0.05)
        self.send_bytes(b"", status=status, length=spaces + len(content))
        for _ in range(spaces):
            if self.server.owner.stopping.is_set():
                self.close_connection = True
                return
            self.wfile.write(b" ")
            self.wait(0.05)
        self.wfile.write(content)

    def stream(self, document: dict[str, Any], pace: float, *, part: float = 1.0) -> None:
        """Send a completion as events, a word each, ``pace`` seconds apart; or the first ``part`` of them."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        chunk = {**document, "object": "chat.completion.chunk", "usage": None}
        words = re.findall(r"\S+\s*", document["choices"][0]["message"]["content"])
        for word in words[: int(len(words) * part)]:
            delta = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}
            self._event({**chunk, "choices": [delta]})
            self.wait(pace)
        if part < 1:
            return
        self._event({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._event({**chunk, "choices": [], "usage": document["usage"]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: Any) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        self.wfile.flush()

    def reset(self) -> None:
        """Break the connection off, as a crashed server or a firewall does."""
        self.close_connection = True
        # A linger time of zero makes close() send RST, not FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


# What the server can do, by name.


# By the name of a kind: the status, the code and the message of an error object.
ERRORS = {
    "server_error": (500, "server_error", "The server had an error."),
    "unauthorized": (401, "invalid_api_key", "Incorrect API key provided."),
    "unknown_model": (404, "model_not_found", "The model does not exist."),
    "no_quota": (429, "insufficient_quota", "You exceeded your current quota."),
    "context_length": (400, "context_length_exceeded", "This model's maximum context length is 4096 tokens."),
    "content_filter": (400, "content_filter", "The response was filtered."),
}
# By the name of a kind: what is different in the message of its answer, and in the choice around it.
MESSAGES: dict[str, dict[str, Any]] = {
    "refusal": {"content": None, "refusal": "I can't help with that."},
    "empty": {"content": ""},
    "none": {"content": "NONE"},
    "apology": {"content": "I'm sorry, but I can't help with that request."},
}
CHOICES: dict[str, dict[str, Any]] = {
    "filtered": {"finish_reason": "content_filter"},
    "cut_off": {"finish_reason": "length"},
    "unfinished": {"finish_reason": None},
    "no_message": {"message": None},
}


def answer(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    if body.get("stream"):
        handler.stream(completion(behaviour, body), behaviour.pace)
    else:
        handler.send_json(completion(behaviour, body))


def embed(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    """Answer a request for embeddings: each has a number for each of the words of ``WORDS``, and a small one always."""
    data = [
        {"object": "embedding", "index": index, "embedding": embedding(text)}
        for index, text in enumerate(body["input"])
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    handler.send_json({"object": "list", "model": body["model"], "data": data, "usage": usage})


def breaks_off(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    """Stream half of what there is to say, and go."""
    handler.stream(completion(behaviour, body), behaviour.pace, part=0.5)
    handler.reset()


def raw(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    text = behaviour.body if isinstance(behaviour.body, str) else json.dumps(behaviour.body)
    handler.send_bytes(text.encode(), status=behaviour.status, headers=behaviour.headers)


def hang(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.wait(behaviour.seconds)
    handler.reset()


def drip(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.drip(json.dumps(completion(behaviour, body)).encode(), behaviour.seconds)


def drip_error(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.drip(b'{"error": {"message": "overloaded"}}', behaviour.seconds, status=500)


def reset_before_body(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.reset()


def reset_mid_body(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    content = json.dumps(completion(behaviour, body)).encode()
    handler.send_bytes(content[: len(content) // 2], length=len(content))
    handler.wait(0.1)
    handler.reset()


def rate_limited(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    headers = {"Retry-After": behaviour.retry_after}
    handler.send_error_object(429, "rate_limit_exceeded", "Rate limit reached.", headers=headers)


def no_choices(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.send_json(completion(behaviour, body) | {"choices": []})


def malformed(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.send_bytes(b'{"id": "chatcmpl-1", "choices": [{"index": 0, "mess')


def html(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.send_bytes(b"<html><body>We'll be back soon.</body></html>", content_type="text/html; charset=utf-8")


def huge(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    document = completion(behaviour, body, content="All work and no play. " * (behaviour.size // 22 + 1))
    handler.send_json(document)


def error_object(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.send_error_object(*ERRORS[behaviour.kind])


def another_message(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    handler.send_json(completion(behaviour, body, **MESSAGES[behaviour.kind]))


def another_choice(handler: _Handler, behaviour: Behaviour, body: dict[str, Any]) -> None:
    document = completion(behaviour, body)
    document["choices"][0] |= CHOICES[behaviour.kind]
    handler.send_json(document)


KINDS |= {
    function.__name__: function
    for function in (
        *(answer, embed, breaks_off, raw, hang, drip, drip_error, reset_before_body, reset_mid_body),
        *(rate_limited, no_choices, malformed, html, huge),
    )
}
KINDS |= dict.fromkeys(ERRORS, error_object)
KINDS |= dict.fromkeys(MESSAGES, another_message)
KINDS |= dict.fromkeys(CHOICES, another_choice)
