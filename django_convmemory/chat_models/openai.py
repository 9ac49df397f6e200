"""A chat model behind any endpoint that speaks OpenAI's chat completions: OpenAI, vLLM, Ollama, llama.cpp, gateways.

The client builds and sends the request. What comes back is received here, because the client bounds neither the time
that a reply takes nor its size, and read in :mod:`.openai_replies`.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import json
import os
import threading
import urllib.parse
import weakref
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from django_convmemory import exceptions
from django_convmemory.chat_models import base, openai_replies

if TYPE_CHECKING:
    import openai

MAX_BODY_BYTES: Final = 10_000_000
MAX_ERROR_BODY_BYTES: Final = 100_000


# Set by the caller of a thread that nobody waits for any more. Not there on an event loop, where a call is cancelled.
_abandoned: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("_abandoned")


def _is_abandoned() -> bool:
    abandoned = _abandoned.get(None)
    return abandoned is not None and abandoned.is_set()


class OpenAIChatModel:
    """A model behind an OpenAI-compatible endpoint, called through the ``openai`` client.

    ``model`` is the model's name (default: ``OPENAI_MODEL`` of the environment). ``api_key`` and ``base_url`` default
    to what the client reads of the environment (``OPENAI_API_KEY``, ``OPENAI_BASE_URL``); a server that wants no key
    needs any text as one. ``timeout`` is the deadline of a whole call in seconds. ``parameters`` are merged into the
    body of each request, e.g. ``{"temperature": 0}``.

    An answer is passed on as it is, empty or cut off by the length limit too: ``finish_reason`` says so, and whether
    the text serves is for the caller to decide. Redirects are not followed, and nothing is tried twice.

    Raises :class:`TypeError` or :class:`ValueError`, which name the option, for an option of the wrong form.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 60.0,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = _text_option("model", model)
        self._api_key = _text_option("api_key", api_key)
        self._base_url = _text_option("base_url", base_url)
        self._deadline = _seconds_option("timeout", timeout)
        self._parameters = _parameters_option("parameters", parameters)
        # Neither is guarded by a lock, which a fork could copy while it is held: two threads that race make two
        # clients, and setdefault keeps one. The locks inside a client are why a child needs its own.
        self._clients: dict[int, openai.OpenAI] = {}
        self._async_clients: MutableMapping[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def name(self) -> str:
        """The model's name, or "" where none is configured."""
        return self._model or os.environ.get("OPENAI_MODEL", "")

    @property
    def problem(self) -> str | None:
        """Why no call can be made as things are, or None."""
        try:
            self._arguments(base.ChatRequest([]))
            self._client_options()
        except exceptions.ModelMisconfigured as error:
            return str(error)
        return None

    @property
    def deadline(self) -> float:
        """The seconds within which a call returns or raises."""
        return self._deadline

    def chat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Answer ``request`` within :attr:`deadline`. Raises a :class:`~django_convmemory.exceptions.ChatModelError`.

        The request runs in a thread, which is left behind at the deadline: it stops at the next bytes that arrive,
        or when none arrive for as long as the deadline.
        """
        arguments = self._arguments(request)
        outcome: list[openai_replies.Reply | exceptions.ChatModelError] = []
        abandoned = threading.Event()

        def call() -> None:
            _abandoned.set(abandoned)
            outcome.append(self._fetch(arguments))

        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(call,), name="convmemory-chat-model", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # can't start new thread
            raise exceptions.ModelUnavailable("No thread could be started for the call of the model.") from None
        try:
            thread.join(self._deadline)
        finally:  # at the deadline, or where a signal's handler raises
            abandoned.set()
        return self._answer(outcome[0] if outcome else self._late())

    async def achat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Answer ``request`` as :meth:`chat` does; at the deadline, or when the task is cancelled, the request is."""
        arguments = self._arguments(request)
        try:
            async with asyncio.timeout(self._deadline):
                outcome = await self._afetch(arguments)
        except TimeoutError:
            outcome = self._late()
        return self._answer(outcome)

    def _arguments(self, request: base.ChatRequest) -> dict[str, Any]:
        model = self.name
        if not model:
            raise exceptions.ModelMisconfigured("No model is named: set the option model, or OPENAI_MODEL.")
        return {
            "model": model,
            "messages": [message.to_openai() for message in request.messages],
            "extra_body": self._parameters,
        }

    def _fetch(self, arguments: dict[str, Any]) -> openai_replies.Reply | exceptions.ChatModelError:
        try:
            create = self._client().chat.completions.with_streaming_response.create
            if _is_abandoned():
                return self._late()
            with create(**arguments) as response:
                return _receive(response.iter_bytes(), MAX_BODY_BYTES).reply(response)
        except Exception as error:  # noqa: BLE001  those of the client, of its HTTP library and of what that is built on
            return _failure(error)

    async def _afetch(self, arguments: dict[str, Any]) -> openai_replies.Reply | exceptions.ChatModelError:
        try:
            create = self._async_client().chat.completions.with_streaming_response.create
            async with create(**arguments) as response:
                received = await _areceive(response.iter_bytes(), MAX_BODY_BYTES)
                return received.reply(response)
        except Exception as error:  # noqa: BLE001  as above
            return _failure(error)

    def _client(self) -> openai.OpenAI:
        process = os.getpid()
        if process not in self._clients:
            options = self._client_options()

            import openai

            http_client = openai.DefaultHttpxClient(event_hooks={"response": [_stop_at_rejection]})
            client = openai.OpenAI(http_client=http_client, **options)
            _check_url(str(client.base_url))
            self._clients.setdefault(process, client)
        return self._clients[process]

    def _async_client(self) -> openai.AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            options = self._client_options()

            import openai

            http_client = openai.DefaultAsyncHttpxClient(event_hooks={"response": [_astop_at_rejection]})
            client = openai.AsyncOpenAI(http_client=http_client, **options)
            _check_url(str(client.base_url))
            self._async_clients[loop] = client
        return self._async_clients[loop]

    def _client_options(self) -> dict[str, Any]:
        api_key = self._api_key or os.environ.get("OPENAI_API_KEY")
        if not api_key:
            raise exceptions.ModelMisconfigured("There is no API key: set the option api_key, or OPENAI_API_KEY.")
        if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            # The HTTP library would refuse it too, and quote it.
            raise exceptions.ModelMisconfigured("The API key holds a space, a line end or a character beyond ASCII.")
        return {
            "api_key": api_key,
            "base_url": self._base_url,
            "timeout": self._deadline,
            "max_retries": 0,
            # A kept connection that the server has closed meanwhile fails the next call, which nobody retries here;
            # and it would outlive its event loop. Beside the seconds that a model takes, a new one costs nothing.
            "default_headers": {"Connection": "close"},
        }

    def _late(self) -> exceptions.ModelUnavailable:
        return exceptions.ModelUnavailable(f"The model gave no complete answer within {self._deadline:g} s.")

    def _answer(self, outcome: openai_replies.Reply | exceptions.ChatModelError) -> base.ChatResponse:
        # Raised here, outside of any handler: what the client raised may quote the request, and is not chained.
        if isinstance(outcome, exceptions.ChatModelError):
            raise outcome
        if not 200 <= outcome.status < 300:
            raise openai_replies.rejected(outcome, self._parameters)
        return openai_replies.read(outcome, self._parameters)


# Options.


def _text_option(option: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{option} must be a text or None, not {type(value).__name__}.")
    return value or None


def _seconds_option(option: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{option} must be a number of seconds, not {type(value).__name__}.")
    if not 0 < value <= threading.TIMEOUT_MAX:
        raise ValueError(f"{option} must be a number of seconds above 0, not {value}.")
    return float(value)


def _parameters_option(option: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{option} must be a dict, not {type(value).__name__}.")
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{option} has the key {key!r}; names of parameters are texts.")
    if taken := sorted({"messages", "model", "stream", "stream_options"} & set(value)):
        raise ValueError(f"{option} may not set {', '.join(taken)}; the chat model does.")
    try:
        parameters: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"{option} must be JSON: texts, finite numbers, booleans, None, lists and dicts.") from None
    return parameters


def _check_url(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise exceptions.ModelMisconfigured("base_url, or OPENAI_BASE_URL, must be like https://host/v1.")


# Receiving: bounded in size, and ended where nobody waits any more.


@dataclasses.dataclass(slots=True)
class _Received:
    """The bytes of a body, and in ``cut`` the error to raise where they are not all of it."""

    limit: int
    body: bytearray = dataclasses.field(default_factory=bytearray)
    cut: exceptions.ChatModelError | None = None

    def take(self, chunk: bytes) -> bool:
        """Add ``chunk`` and return whether to read on."""
        self.body += chunk
        if len(self.body) > self.limit:
            self.cut = exceptions.BadModelOutput(f"The model's answer is larger than {self.limit} bytes.")
        elif _is_abandoned():
            self.cut = exceptions.ModelUnavailable("Nobody waits for the model's answer any more.")
        return self.cut is None

    def reply(self, response: Any) -> openai_replies.Reply:
        """Return this body as the reply that the client's ``response`` is."""
        return openai_replies.Reply(response.status_code, response.headers, bytes(self.body), self.cut)

    def broke(self, error: Exception) -> None:
        self.cut = exceptions.ModelUnavailable(f"The connection broke in the middle of the answer ({_reason(error)}).")


def _receive(chunks: Iterable[bytes], limit: int) -> _Received:
    received = _Received(limit)
    try:
        for chunk in chunks:
            if not received.take(chunk):
                break
    except Exception as error:  # noqa: BLE001  the client passes on what its HTTP library raises, and that varies
        received.broke(error)
    return received


async def _areceive(chunks: AsyncIterable[bytes], limit: int) -> _Received:
    received = _Received(limit)
    try:
        async for chunk in chunks:
            if not received.take(chunk):
                break
    except Exception as error:  # noqa: BLE001  as above
        received.broke(error)
    return received


class _Rejected(Exception):
    def __init__(self, reply: openai_replies.Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def _stop_at_rejection(response: Any) -> None:
    """Take a reply that is no success away from the client, which would read its body without bound.

    A redirect is none either: followed, it would take the transcript to where no setting says.
    """
    if not response.is_success:
        received = _receive(response.iter_bytes(), MAX_ERROR_BODY_BYTES)
        raise _Rejected(received.reply(response))


async def _astop_at_rejection(response: Any) -> None:
    if not response.is_success:
        received = await _areceive(response.aiter_bytes(), MAX_ERROR_BODY_BYTES)
        raise _Rejected(received.reply(response))


# What was raised instead of a reply.


def _failure(error: Exception) -> openai_replies.Reply | exceptions.ChatModelError:
    for cause in _chain(error):
        if isinstance(cause, _Rejected):
            return cause.reply
        if isinstance(cause, exceptions.ChatModelError):
            return cause
    if isinstance(error, ImportError):
        return exceptions.ModelMisconfigured(f"The openai client cannot be imported ({type(error).__name__}).")
    # Raised before anything was sent. The HTTP library's own class is known by its name: which library it is depends
    # on the version of the client.
    if isinstance(error, (TypeError, ValueError)) or type(error).__name__ == "InvalidURL":
        return exceptions.ModelMisconfigured(
            f"The client refuses its configuration ({type(error).__name__}): check base_url and the OPENAI_* variables."
        )
    return exceptions.ModelUnavailable(f"The model cannot be reached ({_reason(error)}).")


def _chain(error: BaseException) -> Iterator[BaseException]:
    # Causes only: the context of an error on an event loop may be one that the caller is handling.
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _reason(error: Exception) -> str:
    """Return what went wrong in the network: the system's own words or a class, never a text that has other sources."""
    for cause in _chain(error):
        if isinstance(cause, OSError) and isinstance(cause.strerror, str):
            return " ".join(cause.strerror.split())[:100]
    return type(error.__cause__ or error).__name__
