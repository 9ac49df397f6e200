"""``settings.CONVMEMORY``: read when used, checked at start, and turned into memories.

Checks and memories read the settings through the same code, so that what a check passes can be built.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, get_type_hints

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_convmemory.chat_models.base import ChatModel
from django_convmemory.conversation import ConversationMemory
from django_convmemory.core.compaction import Price
from django_convmemory.core.options import TYPES, check_type
from django_convmemory.core.values import MAX_ALIAS_LENGTH
from django_convmemory.schedulers import Scheduler
from django_convmemory.tokens import TokenCounter

DEFAULT_ALIAS = "default"
DEFAULTS: Mapping[str, Any] = {
    "MEMORY": "django_convmemory.memory.ConversationSummaryBufferMemory",
    "OPTIONS": {},
    "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel"},
    "FALLBACK_CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
    "TOKEN_COUNTER": {"BACKEND": "django_convmemory.tokens.Utf8TokenCounter"},
    "SCHEDULER": {"BACKEND": "django_convmemory.tasks.CeleryScheduler"},
}
# What the options of a strategy are when the settings say nothing.
STRATEGY_DEFAULTS = {"max_token_limit": 2000, "max_tokens": 2000, "buffer_size": 20, "window_size": 20}


class Problem(NamedTuple):
    """What is wrong with a setting: the id of the check, what and where, and how to repair it."""

    id: str
    message: str
    hint: str


@dataclasses.dataclass(slots=True)
class Config:
    """The parts of a memory as the settings describe it."""

    alias: str
    memory: type[ConversationMemory] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    chat_model: ChatModel | None = None
    fallback: ChatModel | None = None
    price: Price | None = None
    counter: TokenCounter | None = None
    scheduler: Scheduler | None = None
    problems: list[Problem] = dataclasses.field(default_factory=list)


def aliases() -> list[str]:
    """Return the aliases of the settings; without the setting, ``default`` alone. Raises ImproperlyConfigured."""
    if (problem := shape_problem()) is not None:
        raise ImproperlyConfigured(_formatted([problem]))
    return list(_configured())


def shape(value: object) -> str:
    """Return what kind of value this is, without what it says: there may be a key in it."""
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(map(repr, value))}" if value else "an empty dict"
    return "None" if value is None else f"a {type(value).__name__}"


def shape_problem() -> Problem | None:
    """Return what is wrong when the setting is no dict of aliases."""
    configured = _configured()
    if isinstance(configured, Mapping) and configured:
        if not set(configured) <= set(DEFAULTS):
            return None
        return Problem(
            "convmemory.E001",
            f"CONVMEMORY has the keys of a memory, {', '.join(configured)}, where its aliases should be.",
            'Write CONVMEMORY = {"default": {…}}, as with CACHES.',
        )
    return Problem(
        "convmemory.E001",
        f"CONVMEMORY must be a dict of aliases, not {shape(configured)}.",
        'Write CONVMEMORY = {"default": {…}}, as with CACHES.',
    )


def _formatted(found: list[Problem]) -> str:
    return " ".join(f"({one.id}) {one.message} {one.hint}" for one in found)


def _configured() -> Any:
    configured = getattr(settings, "CONVMEMORY", None)
    return {DEFAULT_ALIAS: {}} if configured is None else configured


def build(alias: str) -> ConversationMemory:
    """Return the memory of ``alias``. Raises ImproperlyConfigured with all that is wrong with its settings."""
    memory = _assembled(alias)
    if isinstance(memory, list):
        raise ImproperlyConfigured(_formatted(memory))
    return memory


def problems() -> list[Problem]:
    """Return all that is wrong with the settings."""
    if (problem := shape_problem()) is not None:
        return [problem]
    assembled = map(_assembled, aliases())
    return [problem for found in assembled if isinstance(found, list) for problem in found]


def _assembled(alias: str) -> ConversationMemory | list[Problem]:
    # The models need Django's apps, and memories that are built in code do not.
    from django_convmemory.stores.orm import ORMStore

    config = read(alias)
    if config.problems or config.memory is None:
        return config.problems
    arguments: dict[str, Any] = {
        **config.options,
        "alias": alias,
        "counter": config.counter,
        "scheduler": config.scheduler,
    }
    if config.memory.summarizes:
        arguments |= {"model": config.chat_model, "fallback": config.fallback, "price": config.price}
    try:
        return config.memory(ORMStore(), **arguments)
    except (TypeError, ValueError) as error:
        where = f'CONVMEMORY["{alias}"]["OPTIONS"]'
        return [Problem("convmemory.E004", f"{where}: {error}", "Correct the option, or remove it.")]


def read(alias: str) -> Config:
    """Read the settings of ``alias``, and note what is wrong with them."""
    config = Config(alias)
    configured = _configured()[alias]
    where = f'CONVMEMORY["{alias}"]'
    if not isinstance(configured, Mapping):
        config.problems.append(Problem("convmemory.E001", f"{where} must be a dict.", "Write {} for the defaults."))
        return config
    given: object = alias
    if not isinstance(given, str) or not 0 < len(given) <= MAX_ALIAS_LENGTH:
        config.problems.append(
            Problem(
                "convmemory.E001",
                f"CONVMEMORY has the alias {alias!r:.120}.",
                f"An alias is a text of 1 to {MAX_ALIAS_LENGTH} characters.",
            )
        )
    for key in configured:
        if key not in DEFAULTS:
            config.problems.append(
                Problem("convmemory.E002", f"{where} has the unknown key {key!r}.", f"There are {', '.join(DEFAULTS)}.")
            )
    chosen = {**DEFAULTS, **configured}
    _read_memory(config, chosen, where)
    if config.memory is not None and config.memory.summarizes:
        model = _Backend(config, f'{where}["CHAT_MODEL"]', "convmemory.E005", ("chat", "achat", "name", "deadline"))
        config.chat_model = model.build(chosen["CHAT_MODEL"], extra=("PRICE",))
        if isinstance(chosen["CHAT_MODEL"], Mapping) and chosen["CHAT_MODEL"].get("PRICE") is not None:
            config.price = _read_price(config, chosen["CHAT_MODEL"]["PRICE"], f'{where}["CHAT_MODEL"]["PRICE"]')
        if chosen["FALLBACK_CHAT_MODEL"] is not None:
            fallback = dataclasses.replace(model, where=f'{where}["FALLBACK_CHAT_MODEL"]', id="convmemory.E006")
            config.fallback = fallback.build(chosen["FALLBACK_CHAT_MODEL"])
    counter = _Backend(config, f'{where}["TOKEN_COUNTER"]', "convmemory.E007", ("name", "count", "count_text"))
    config.counter = counter.build(chosen["TOKEN_COUNTER"])
    scheduler = _Backend(
        config, f'{where}["SCHEDULER"]', "convmemory.E008", ("schedule", "request", "after_commit", "hints")
    )
    config.scheduler = scheduler.build(chosen["SCHEDULER"])
    return config


def _read_memory(config: Config, chosen: Mapping[str, Any], where: str) -> None:
    path = chosen["MEMORY"]
    try:
        memory: Any = import_string(path)
    except (ImportError, AttributeError, TypeError) as error:
        config.problems.append(
            Problem("convmemory.E003", f'{where}["MEMORY"] is {path!r}: {error}', "Give the dotted path of a memory.")
        )
        return
    if not (inspect.isclass(memory) and issubclass(memory, ConversationMemory) and hasattr(memory, "strategy_class")):
        config.problems.append(
            Problem(
                "convmemory.E003",
                f'{where}["MEMORY"] is {path!r}, which is not a memory with a strategy.',
                "Give the dotted path of a memory, like django_convmemory.memory.ConversationSummaryBufferMemory.",
            )
        )
        return
    config.memory = memory
    given = chosen["OPTIONS"]
    if not isinstance(given, Mapping):
        config.problems.append(
            Problem("convmemory.E004", f'{where}["OPTIONS"] must be a dict, not {shape(given)}.', "Write {} for none.")
        )
        return
    own = memory.strategy_options()
    for name in given:
        if name not in own and name not in TYPES:
            config.problems.append(
                Problem(
                    "convmemory.E004",
                    f'{where}["OPTIONS"] has the unknown option {name!r}.',
                    f"{memory.__name__} has {', '.join(sorted(own | set(TYPES)))}.",
                )
            )
    config.options = {**{name: STRATEGY_DEFAULTS[name] for name in own if name in STRATEGY_DEFAULTS}, **given}


def _read_price(config: Config, price: Any, where: str) -> Price | None:
    try:
        if not isinstance(price, Mapping) or set(price) != {"input", "output"}:
            raise ValueError("it is no dict with the keys input and output")
        read_price = Price(*(Decimal(str(price[key])) for key in ("input", "output")))
        if not all(one.is_finite() and one >= 0 for one in read_price):
            raise ValueError("a price is negative or infinite")
    except (TypeError, ValueError, ArithmeticError) as error:
        config.problems.append(
            Problem(
                "convmemory.E009",
                f"{where} is {price!r:.100}: {error}.",
                'Write {"input": 0.25, "output": 2.0}: the price of a million tokens.',
            )
        )
        return None
    return read_price


@dataclasses.dataclass(frozen=True, slots=True)
class _Backend:
    """Reads a setting of the form ``{"BACKEND": path, "OPTIONS": {…}}``."""

    config: Config
    where: str
    id: str
    interface: tuple[str, ...]

    def build(self, value: Any, extra: tuple[str, ...] = ()) -> Any:
        if not isinstance(value, Mapping) or not isinstance(value.get("BACKEND"), str):
            return self._problem(f"{self.where} must be a dict with a BACKEND, not {shape(value)}.", self._form())
        for key in value:
            if key not in ("BACKEND", "OPTIONS", *extra):
                return self._problem(f"{self.where} has the unknown key {key!r}.", self._form())
        options = value.get("OPTIONS") or {}
        path = value["BACKEND"]
        try:
            backend = import_string(path)
        except (ImportError, AttributeError) as error:
            return self._problem(f'{self.where}["BACKEND"] is {path!r}: {error}', "Give the dotted path of a class.")
        if not isinstance(options, Mapping):
            return self._problem(f'{self.where}["OPTIONS"] must be a dict, not {shape(options)}.', "Write {} for none.")
        try:
            _check_call(backend, options)
            made = backend(**options)
        except (TypeError, ValueError, ImproperlyConfigured) as error:
            return self._problem(f'{self.where}["OPTIONS"]: {error}', "Correct the option, or remove it.")
        missing = [name for name in self.interface if not hasattr(made, name)]
        if missing:
            return self._problem(
                f'{self.where}["BACKEND"] is {path!r}, which has no {missing[0]}.', "Give a class of the right kind."
            )
        return made

    def _problem(self, message: str, hint: str) -> None:
        self.config.problems.append(Problem(self.id, message, hint))

    def _form(self) -> str:
        return 'Write {"BACKEND": "dotted.path.of.a.Class", "OPTIONS": {…}}.'


def _check_call(backend: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError unless the constructor takes these options, as far as its annotations say."""
    signature = inspect.signature(backend)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    for name in options:
        if name not in signature.parameters and not takes_any:
            known = ", ".join(signature.parameters) or "none"
            raise TypeError(f"unknown option {name!r}; there are {known}")
    signature.bind(**options)
    try:
        hints = get_type_hints(backend.__init__) if inspect.isclass(backend) else {}
    except NameError:  # of a type that the backend's module imports for type checkers only
        return
    for name, value in options.items():
        if hints.get(name) in (int, float, str, bool, int | None, float | None, str | None):
            check_type(f"option {name}", value, hints[name], shown=False)  # It may be a key.
