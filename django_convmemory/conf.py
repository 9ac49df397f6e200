"""``settings.CONVMEMORY``: read when it is used, checked when the site starts, and turned into memories.

Checks and memories read the settings with the same code. If the checks pass, the memories can be built.

Each reader raises :class:`InvalidSettings`, and :func:`build` collects what they raise: a site learns every problem at
once. Much of this module is their messages, which say what is wrong, where, and how to repair it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, get_type_hints

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.module_loading import import_string

from django_convmemory.chat_models.base import Price
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules.options import MAX_CONTEXT_TOKENS, TYPES, Fields, check_type, from_setting
from django_convmemory.rules.values import MAX_ALIAS_LENGTH

DEFAULT_ALIAS = "default"
DEFAULTS: Mapping[str, Any] = {
    "MEMORY": "django_convmemory.memory.ConversationSummaryBufferMemory",
    "OPTIONS": {},
    "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel"},
    "FALLBACK_CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
    "PROMPTS": {"BACKEND": "django_convmemory.prompts.DefaultPrompts"},
    "TOKEN_COUNTER": {"BACKEND": "django_convmemory.tokens.Utf8TokenCounter"},
    "SCHEDULER": {"BACKEND": "django_convmemory.tasks.CeleryScheduler"},
    "RERANKER": None,
}
# Those that may be None.
_OPTIONAL = ("FALLBACK_CHAT_MODEL", "RERANKER")
# The options of a strategy that the settings leave out. The limit of the summary buffer is a third of the prompt.
STRATEGY_DEFAULTS = {
    "max_token_limit": MAX_CONTEXT_TOKENS // 3,
    "max_tokens": 2000,
    "buffer_size": 20,
    "window_size": 20,
}
# The kinds of parameters that take one option.
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

# The setting with the currency of all prices.
CURRENCY = "CONVMEMORY_CURRENCY"
MAX_CURRENCY_LENGTH = 10


class Problem(NamedTuple):
    """One thing that is wrong in the settings: the id of its check, what is wrong and where, and how to repair it."""

    id: str
    message: str
    hint: str


class InvalidSettings(ImproperlyConfigured):
    """``CONVMEMORY`` has these problems, all of which the text names."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(" ".join(f"({problem.id}) {problem.message} {problem.hint}" for problem in problems))
        self.problems = problems


def from_settings(kind: type[Fields], name: str) -> Fields:
    """Return the dataclass ``kind`` with what the setting ``name`` says.

    Raises ImproperlyConfigured, which says what to correct.
    """
    try:
        return from_setting(kind, getattr(settings, name, {}))
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{name}: {error}") from None


class _Backend(NamedTuple):
    """A kind of backend: its check, the argument of the memory that takes it, and the attributes that it must have."""

    check_id: str
    argument: str
    interface: tuple[str, ...]


_MODEL_INTERFACE = ("chat", "achat", "name", "deadline")
_SUMMARIZING_BACKENDS = {
    "CHAT_MODEL": _Backend("convmemory.E005", "model", _MODEL_INTERFACE),
    "FALLBACK_CHAT_MODEL": _Backend("convmemory.E006", "fallback", _MODEL_INTERFACE),
    "PROMPTS": _Backend("convmemory.E012", "prompts", ("fold", "shorten")),
}
_OTHER_BACKENDS = {
    "TOKEN_COUNTER": _Backend("convmemory.E007", "counter", ("name", "count", "count_text")),
    "SCHEDULER": _Backend("convmemory.E008", "scheduler", ("schedule", "request", "after_commit", "queues")),
    "RERANKER": _Backend("convmemory.E015", "reranker", ("rerank", "prepare")),
}


def aliases() -> list[str]:
    """Return the aliases of the settings, or ``default`` alone without the setting. Raises ImproperlyConfigured."""
    return list(_by_alias())


def build(alias: str) -> ConversationMemory:
    """Build the memory of ``alias``. Raises ImproperlyConfigured with everything that is wrong with its settings."""
    # The ORM store imports the models, which need Django's apps. A memory built in code needs neither.
    from django_convmemory.store.orm import ORMStore

    memory_class, arguments = _read(alias)
    try:
        memory = memory_class(ORMStore(), **arguments, zone=timezone.get_default_timezone())
    except (TypeError, ValueError) as error:
        where = f'CONVMEMORY["{alias}"]["OPTIONS"]'
        raise _invalid("convmemory.E004", f"{where}: {error}", "Correct the option, or remove it.") from error
    try:
        # Made of the requests for a sample. A part of a long message is only continued if the hash is the same.
        if memory.requests.prompt_hash != dataclasses.replace(memory.requests).prompt_hash:
            raise ValueError("Two requests for the same sample differ, so no summary would be continued.")
    except Exception as error:
        where = f'CONVMEMORY["{alias}"]["PROMPTS"]'
        message = f"{where} wrote no usable request for a sample conversation: {type(error).__name__}: {error}"
        raise _invalid("convmemory.E012", message, "Correct its methods fold and shorten.") from error
    return memory


def currency() -> str:
    """Return the currency in which ``PRICE`` is written, or "" if the site does not name one."""
    value = getattr(settings, CURRENCY, "")
    if isinstance(value, str) and len(value) <= MAX_CURRENCY_LENGTH and value.isprintable():
        return value.strip()
    what = f"a string of at most {MAX_CURRENCY_LENGTH} printable characters"
    message = f"{CURRENCY} is {value!r:.100}, which is not {what}."
    raise _invalid("convmemory.E013", message, 'Write a code or a symbol, such as "USD" or "€".')


def problems() -> list[Problem]:
    """Return everything that is wrong with the settings."""
    problems: list[Problem] = []
    with _collecting(problems):
        currency()
    with _collecting(problems):
        for alias in aliases():
            with _collecting(problems):
                build(alias)
    return problems


def _read(alias: Any) -> tuple[type[ConversationMemory], dict[str, Any]]:
    """Return the class of the memory of ``alias``, and its arguments. Raises InvalidSettings with every problem."""
    memory_class: type[ConversationMemory] | None = None
    arguments: dict[str, Any] = {"alias": alias}
    problems: list[Problem] = []
    where = f'CONVMEMORY["{alias}"]'
    configured = _by_alias()[alias]
    if not isinstance(configured, Mapping):
        message = f"{where} must be a dict, not {_shape(configured)}."
        raise _invalid("convmemory.E001", message, "Write {} for the defaults.")
    if not isinstance(alias, str) or not 0 < len(alias) <= MAX_ALIAS_LENGTH:
        hint = f"Use a string of 1 to {MAX_ALIAS_LENGTH} characters."
        problems.append(Problem("convmemory.E001", f"CONVMEMORY has the invalid alias {alias!r:.120}.", hint))
    with _collecting(problems):
        _check_known("convmemory.E002", where, "key", configured, DEFAULTS)
    chosen = {**DEFAULTS, **configured}
    backends = _OTHER_BACKENDS
    with _collecting(problems):
        memory_class = _memory_class(chosen["MEMORY"], f'{where}["MEMORY"]')
        if memory_class.summarizes:
            backends = _SUMMARIZING_BACKENDS | _OTHER_BACKENDS
        arguments |= _options(chosen["OPTIONS"], f'{where}["OPTIONS"]', memory_class)
    for key, backend in backends.items():
        with _collecting(problems):
            arguments[backend.argument] = _build_backend(key, chosen[key], f'{where}["{key}"]', backend)
    if "CHAT_MODEL" in backends:
        with _collecting(problems):
            arguments["price"] = _price(chosen["CHAT_MODEL"], f'{where}["CHAT_MODEL"]["PRICE"]')
    if problems or memory_class is None:
        raise InvalidSettings(*problems)
    return memory_class, arguments


@contextlib.contextmanager
def _collecting(problems: list[Problem]) -> Iterator[None]:
    """Append the problems that the block raises to ``problems``. The caller continues after the block."""
    try:
        yield
    except InvalidSettings as error:
        problems.extend(error.problems)


def _invalid(check_id: str, message: str, hint: str) -> InvalidSettings:
    # The message of another library's error may end without a full stop.
    return InvalidSettings(Problem(check_id, f"{message.rstrip('.')}.", hint))


def _shape(value: object) -> str:
    """Return what kind of value this is, without its content, which may be a secret."""
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(map(repr, value))}" if value else "an empty dict"
    return "None" if value is None else f"a {type(value).__name__}"


def _by_alias() -> Mapping[str, Any]:
    """Return the settings by alias. Raises InvalidSettings unless they are a dict of aliases."""
    configured = getattr(settings, "CONVMEMORY", None)
    if configured is None:
        return {DEFAULT_ALIAS: {}}
    if not isinstance(configured, Mapping) or not configured:
        message = f"CONVMEMORY must be a dict of aliases, not {_shape(configured)}."
    elif set(configured) <= set(DEFAULTS):
        message = f"CONVMEMORY has the keys of a memory, {', '.join(configured)}, where its aliases should be."
    else:
        return configured
    raise _invalid("convmemory.E001", message, 'Write CONVMEMORY = {"default": {…}}, as for CACHES.')


def _check_known(check_id: str, where: str, noun: str, names: Iterable[object], known: Collection[str]) -> None:
    hint = f"Choose one of: {', '.join(known)}." if known else f"Remove it: there are no {noun}s."
    unknown = [f"{where} has the unknown {noun} {name!r}." for name in names if name not in known]
    if unknown:
        raise InvalidSettings(*(Problem(check_id, message, hint) for message in unknown))


def _memory_class(path: Any, where: str) -> type[ConversationMemory]:
    hint = f"Write the dotted path of a memory class, such as {DEFAULTS['MEMORY']}."
    try:
        value: Any = import_string(path)
    except (ImportError, AttributeError, TypeError) as error:
        raise _invalid("convmemory.E003", f"{where} is {path!r}: {error}", hint) from error
    if inspect.isclass(value) and issubclass(value, ConversationMemory) and hasattr(value, "strategy_class"):
        return value
    raise _invalid("convmemory.E003", f"{where} is {path!r}, which is not a memory class with a strategy.", hint)


def _options(options: Any, where: str, memory_class: type[ConversationMemory]) -> dict[str, Any]:
    _check_options_form("convmemory.E004", options, where)
    own = {field.name for field in dataclasses.fields(memory_class.strategy_class)}
    _check_known("convmemory.E004", where, "option", options, sorted(own | set(TYPES)))
    defaults = dict(STRATEGY_DEFAULTS)
    if isinstance(most := options.get("max_context_tokens"), int):
        defaults["max_token_limit"] = max(1, most // 3)
    return {**{name: defaults[name] for name in own if name in defaults}, **options}


def _check_options_form(check_id: str, options: object, where: str) -> None:
    if not isinstance(options, Mapping):
        raise _invalid(check_id, f"{where} must be a dict, not {_shape(options)}.", "Write {} for no options.")


def _price(chat_model: Any, where: str) -> Price | None:
    value = chat_model.get("PRICE") if isinstance(chat_model, Mapping) else None
    if value is None:
        return None
    try:
        if not isinstance(value, Mapping) or not {"input", "output"} <= set(value) <= set(Price._fields):
            raise ValueError("it is not a dict with the keys input and output, and cached_input if you like")
        price = Price(**{key: Decimal(str(amount)) for key, amount in value.items()})
        if not all(amount.is_finite() and amount >= 0 for amount in price if amount is not None):
            raise ValueError("a price is negative or infinite")
    except (TypeError, ValueError, ArithmeticError) as error:
        hint = 'Write {"input": 0.25, "output": 2.0}: the price of a million tokens.'
        raise _invalid("convmemory.E009", f"{where} is {value!r:.100}: {error}.", hint) from error
    return price


def _build_backend(key: str, value: Any, where: str, backend: _Backend) -> Any:
    """Build what a setting of the form ``{"BACKEND": path, "OPTIONS": {…}}`` describes."""
    if value is None and key in _OPTIONAL:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("BACKEND"), str):
        message = f"{where} must be a dict with a BACKEND, not {_shape(value)}."
        raise _invalid(backend.check_id, message, 'Write {"BACKEND": "dotted.path.of.a.Class", "OPTIONS": {…}}.')
    keys = ("BACKEND", "OPTIONS", "PRICE") if key == "CHAT_MODEL" else ("BACKEND", "OPTIONS")
    _check_known(backend.check_id, where, "key", value, keys)
    path, options = value["BACKEND"], value.get("OPTIONS") or {}
    try:
        factory = import_string(path)
        parameters = inspect.signature(factory).parameters
    # RuntimeError: an app with models is not in INSTALLED_APPS.
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        message = f'{where}["BACKEND"] is {path!r}: {error}'
        raise _invalid(backend.check_id, message, "Write the dotted path of a class.") from error
    except ImproperlyConfigured as error:  # It says what the site has to do.
        message = f'{where}["BACKEND"] is {path!r}, which cannot be imported.'
        raise _invalid(backend.check_id, message, str(error)) from error
    _check_options_form(backend.check_id, options, f'{where}["OPTIONS"]')
    _check_option_names(backend.check_id, f'{where}["OPTIONS"]', options, parameters)
    try:
        _check_types(factory, options)
        built = factory(**options)
    except (TypeError, ValueError, ImproperlyConfigured) as error:
        message = f'{where}["OPTIONS"]: {error}'
        raise _invalid(backend.check_id, message, "Correct the option, or remove it.") from error
    for name in backend.interface:
        if not hasattr(built, name):
            message = f'{where}["BACKEND"] is {path!r}, which has no {name}.'
            raise _invalid(backend.check_id, message, f"Write the path of a class that can be a {key}.")
    return built


def _check_option_names(
    check_id: str, where: str, options: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        _check_known(check_id, where, "option", options, parameters)
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind in _NAMED and name not in options:
            raise _invalid(check_id, f"{where} lacks the option {name!r}.", f'Add the option "{name}".')


def _check_types(factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise ValueError unless the options have the types of the annotations of ``factory``, if these are plain."""
    try:
        hints = get_type_hints(factory.__init__) if inspect.isclass(factory) else {}
    except NameError:  # The annotation is a type that the backend's module imports for type checkers only.
        return
    for name, value in options.items():
        if hints.get(name) in (int, float, str, bool, int | None, float | None, str | None):
            check_type(f"option {name}", value, hints[name], shown=False)  # The value may be a secret.
