"""A chat model behind any endpoint with OpenAI's chat completions: OpenAI, vLLM, Ollama, llama.cpp, gateways.

The ``openai`` client builds and sends the request. :mod:`.openai_replies` interprets the reply. This module receives
the reply itself, because the client limits neither the total time of a reply (its ``timeout`` is for each read) nor
the size. It does so twice, with and without ``await``: if ``chat`` ran ``achat``, each call would need an event loop
and a client of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import threading
import urllib.parse
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from django_convmemory import exceptions
from django_convmemory.chat_models import base, openai_replies

if TYPE_CHECKING:
    import openai

_DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"
MAX_BODY_BYTES: Final = 10_000_000
MAX_ERROR_BODY_BYTES: Final = 100_000


class _Call(threading.Thread):
    """The thread of a synchronous call. ``abandoned`` is True when nobody waits for its result any more."""

    abandoned = False


def _is_abandoned() -> bool:
    # On an event loop the call is cancelled instead.
    return getattr(threading.current_thread(), "abandoned", False)


class OpenAIChatModel:
    """A model behind an OpenAI-compatible endpoint, called through the ``openai`` client.

    - ``model`` is the model's name. The default is the environment variable ``OPENAI_MODEL``.
    - ``api_key`` is the key. The default is ``OPENAI_API_KEY``. For a server without keys, set any text.
    - ``base_url`` is the address of the endpoint. The default is ``OPENAI_BASE_URL``, or else OpenAI's address.
    - ``timeout`` is the longest time of a whole call, in seconds. The attribute ``deadline`` has it too.
    - ``parameters`` are added to the body of each request, e.g. ``{"temperature": 0}``.

    An answer is returned unchanged, also if it is empty or was cut off by the length limit. ``finish_reason`` tells
    whether it was cut off, and the caller decides whether to use it. Redirects are not followed, and no request is
    repeated.

    Raises :class:`TypeError` or :class:`ValueError` if an option has a wrong type or value. The error names the option.
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
        self.deadline = _seconds_option(timeout)
        self._parameters = _parameters_option(parameters)
        # A client contains locks, so each process needs its own. No lock of ours guards the dicts, because a fork
        # could copy it while it is held. If two threads make a client at once, setdefault keeps one of the two.
        self._clients: dict[int, openai.OpenAI] = {}
        self._async_clients: MutableMapping[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def name(self) -> str:
        """The model's name, or "" if none is configured."""
        return self._model or os.environ.get("OPENAI_MODEL", "")

    @property
    def base_url(self) -> str:
        """The address of the endpoint that is called."""
        return self._base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_BASE_URL

    @property
    def problem(self) -> str | None:
        """Why no call is possible with the present configuration, and what to do about it; None if nothing is wrong."""
        try:
            self._arguments(base.ChatRequest([]))
            self._client_options()
        except exceptions.ModelMisconfigured as error:
            return str(error)
        return None

    def prepare(self) -> None:
        """Import the client, which takes most of a second. Otherwise the first call does that, within its deadline."""
        import openai  # noqa: F401

    def chat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Answer ``request`` within :attr:`deadline`.

        The request runs in a thread, which is abandoned at the deadline. The thread ends when the next bytes arrive,
        or when none arrive for as long as the deadline.

        Raises a :class:`~django_convmemory.exceptions.ChatModelError`.
        """
        outcome = self._within_deadline(self._arguments(request))
        return openai_replies.read(self._accepted(outcome), self._parameters)

    def _within_deadline(self, arguments: dict[str, Any]) -> openai_replies.Reply | exceptions.ChatModelError:
        outcome: list[openai_replies.Reply | exceptions.ChatModelError] = []
        context = contextvars.copy_context()  # so that tracing finds the caller's span
        call = _Call(
            target=lambda: outcome.append(context.run(self._fetch, arguments)),
            name="convmemory-chat-model",
            daemon=True,
        )
        try:
            call.start()
        except RuntimeError:
            raise exceptions.ModelUnavailable(
                "The model was not called: this process cannot start another thread. Check its limits."
            ) from None
        try:
            call.join(self.deadline)
        finally:  # A signal handler may have raised.
            call.abandoned = True
        return outcome[0] if outcome else self._late()

    async def achat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Answer ``request`` as :meth:`chat` does. The deadline, or cancelling the task, cancels the request."""
        arguments = self._arguments(request)
        try:
            async with asyncio.timeout(self.deadline):
                outcome = await self._afetch(arguments)
        except TimeoutError:
            outcome = self._late()
        return openai_replies.read(self._accepted(outcome), self._parameters)

    def _arguments(self, request: base.ChatRequest) -> dict[str, Any]:
        model = self.name
        if not model:
            raise exceptions.ModelMisconfigured(
                "No model is named. Set the option model, or the variable OPENAI_MODEL."
            )
        messages = [message.to_openai() for message in request.messages]
        return {"model": model, "messages": messages, "extra_body": self._parameters}

    def _fetch(self, arguments: dict[str, Any]) -> openai_replies.Reply | exceptions.ChatModelError:
        try:
            create = self._endpoint(self._client()).with_streaming_response.create
            if _is_abandoned():
                return self._late()
            with create(**arguments) as response:
                return _receive(response, response.iter_bytes(), MAX_BODY_BYTES)
        except Exception as error:  # noqa: BLE001  of the client, its HTTP library, or the libraries below
            return _failure(error)

    def _endpoint(self, client: openai.OpenAI) -> Any:
        return client.chat.completions

    async def _afetch(self, arguments: dict[str, Any]) -> openai_replies.Reply | exceptions.ChatModelError:
        try:
            create = self._async_client().chat.completions.with_streaming_response.create
            async with create(**arguments) as response:
                return await _areceive(response, response.iter_bytes(), MAX_BODY_BYTES)
        except Exception as error:  # noqa: BLE001  as above
            return _failure(error)

    def _client(self) -> openai.OpenAI:
        import openai

        process = os.getpid()
        if process not in self._clients:
            client = self._made(openai.OpenAI, openai.DefaultHttpxClient, _stop_at_rejection)
            self._clients.setdefault(process, client)
        return self._clients[process]

    def _async_client(self) -> openai.AsyncOpenAI:
        import openai

        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            client = self._made(openai.AsyncOpenAI, openai.DefaultAsyncHttpxClient, _astop_at_rejection)
            self._async_clients[loop] = client
        return self._async_clients[loop]

    def _made(self, kind: Callable[..., Any], http_client: Callable[..., Any], stop_at_rejection: Any) -> Any:
        """Return a new client of this kind."""
        hooks = {"response": [stop_at_rejection]}
        client = kind(http_client=http_client(event_hooks=hooks), **self._client_options())
        _check_url(str(client.base_url))
        return client

    def _client_options(self) -> dict[str, Any]:
        api_key = self._api_key or os.environ.get("OPENAI_API_KEY")
        if not api_key:
            raise exceptions.ModelMisconfigured(
                "There is no API key. Set the option api_key, or the variable OPENAI_API_KEY. "
                'For a server without keys, set "api_key": "none".'
            )
        if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            # The HTTP library would refuse the key too, but would quote it.
            raise exceptions.ModelMisconfigured(
                "The API key has a space, a line break or a non-ASCII character. "
                "Correct the option api_key, or the variable OPENAI_API_KEY."
            )
        return {
            "api_key": api_key,
            "base_url": self._base_url,
            "timeout": self.deadline,
            "max_retries": 0,
            # If a connection is kept and the server closes it, the next call fails, and nothing repeats it here. A kept
            # connection would also outlive its event loop. A new one costs little beside the seconds of a model call.
            "default_headers": {"Connection": "close"},
        }

    def _late(self) -> exceptions.ModelUnavailable:
        return exceptions.ModelUnavailable(
            f"The model gave no complete answer within {self.deadline:g} s. "
            "Check the provider's status, or raise the option timeout."
        )

    def _accepted(self, outcome: openai_replies.Reply | exceptions.ChatModelError) -> openai_replies.Reply:
        # Raised outside of any except clause, so that no exception of the client is chained: it may quote the request.
        if isinstance(outcome, exceptions.ChatModelError):
            raise outcome
        if not 200 <= outcome.status < 300:
            raise openai_replies.rejection(outcome.status, outcome, self._parameters)
        return outcome


def _text_option(option: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{option} must be a string or None, not {type(value).__name__}.")
    return value or None


def _seconds_option(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {type(value).__name__}.")
    if not 0 < value <= threading.TIMEOUT_MAX:
        raise ValueError(f"timeout must be a number of seconds above 0, not {value}.")
    return float(value)


def _parameters_option(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"parameters must be a dict, not {type(value).__name__}.")
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"parameters has the key {key!r}. The names of parameters must be strings.")
    if reserved := sorted({"messages", "model", "stream", "stream_options"} & set(value)):
        raise ValueError(f"parameters may not set {', '.join(reserved)}. The chat model sets them itself.")
    try:
        parameters: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("parameters must be JSON: strings, finite numbers, booleans, None, lists and dicts.") from None
    return parameters


def _check_url(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise exceptions.ModelMisconfigured(
            "The model's address is not a URL like https://host/v1. "
            "Correct the option base_url, or the variable OPENAI_BASE_URL."
        )


def _receive(response: Any, chunks: Iterable[bytes], limit: int) -> openai_replies.Reply:
    """Return the client's ``response`` with the body that comes in ``chunks``, or the beginning of a longer one."""
    body, cut = bytearray(), None
    try:
        for chunk in chunks:
            body += chunk
            if cut := _reason_to_stop(body, limit):
                break
    except Exception as error:  # noqa: BLE001  The HTTP library depends on the client's version.
        cut = _broken(error)
    return openai_replies.Reply(response.status_code, response.headers, bytes(body), cut)


async def _areceive(response: Any, chunks: AsyncIterable[bytes], limit: int) -> openai_replies.Reply:
    body, cut = bytearray(), None
    try:
        async for chunk in chunks:
            body += chunk
            if cut := _reason_to_stop(body, limit):
                break
    except Exception as error:  # noqa: BLE001  as above
        cut = _broken(error)
    return openai_replies.Reply(response.status_code, response.headers, bytes(body), cut)


def _reason_to_stop(body: bytearray, limit: int) -> exceptions.ChatModelError | None:
    if len(body) > limit:
        return exceptions.BadModelOutput(
            f"The model's answer is larger than {limit} bytes. Check the options model and base_url."
        )
    return exceptions.ModelUnavailable("The call was abandoned at its deadline.") if _is_abandoned() else None


def _broken(error: Exception) -> exceptions.ChatModelError:
    return exceptions.ModelUnavailable(
        f"The connection broke during the model's answer ({_reason(error)}). "
        "Check the network and the provider's status."
    )


class _Rejected(Exception):
    def __init__(self, reply: openai_replies.Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def _stop_at_rejection(response: Any) -> None:
    """Take every reply without success away from the client, which would read its body without a limit.

    This includes redirects. The client would follow them and send the transcript to an address that no setting names.
    """
    if not response.is_success:
        raise _Rejected(_receive(response, response.iter_bytes(), MAX_ERROR_BODY_BYTES))


async def _astop_at_rejection(response: Any) -> None:
    if not response.is_success:
        raise _Rejected(await _areceive(response, response.aiter_bytes(), MAX_ERROR_BODY_BYTES))


def _failure(error: Exception) -> openai_replies.Reply | exceptions.ChatModelError:
    for cause in _chain(error):
        if isinstance(cause, _Rejected):
            return cause.reply
        if isinstance(cause, exceptions.ChatModelError):
            return cause
    if isinstance(error, ImportError):
        return exceptions.ModelMisconfigured(
            f"The openai client cannot be imported ({type(error).__name__}). Install the package openai."
        )
    # These are raised before anything is sent. InvalidURL is a class of the HTTP library, which depends on the client's
    # version.
    if isinstance(error, (TypeError, ValueError)) or type(error).__name__ == "InvalidURL":
        return exceptions.ModelMisconfigured(
            f"The openai client refuses its configuration ({type(error).__name__}). "
            "Check the option base_url and the OPENAI_* variables."
        )
    return exceptions.ModelUnavailable(
        f"The model cannot be reached ({_reason(error)}). Check base_url, the network and the provider's status."
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    # Only causes, not contexts. On an event loop the context may be an error that the caller is handling.
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _reason(error: Exception) -> str:
    """Return the reason of a network failure: the operating system's words or a class name.

    Any other text may quote the request.
    """
    for cause in _chain(error):
        if isinstance(cause, OSError) and isinstance(cause.strerror, str):
            return " ".join(cause.strerror.split())[:100]
    return type(error.__cause__ or error).__name__
