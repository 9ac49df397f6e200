"""docs/reference/operations.md describes every operation, its parameters, results and errors. Its examples run."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import pathlib
import re
from typing import Any

import pytest

from django_convmemory import exceptions
from django_convmemory.context import assembly
from django_convmemory.fold.run import Outcome
from django_convmemory.memory import ConversationMemory, Receipt, SessionHandle
from django_convmemory.rules.values import StoredMessage

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "reference" / "operations.md").read_text(encoding="utf-8")
OF_A_MEMORY = ("session", "erase", "adopt")
NOT_GIVEN = inspect.signature(ConversationMemory.session).parameters["owner"].default


@dataclasses.dataclass(frozen=True)
class Section:
    """An operation's section: its name and its text."""

    name: str
    text: str

    @property
    def signature(self) -> str:
        """The line of the signature."""
        [line] = re.findall(r"^`((?:session|memory)\.\w+\(.*\))`$", self.text, re.MULTILINE)
        return str(line)

    @property
    def operation(self) -> Any:
        return getattr(ConversationMemory if self.name in OF_A_MEMORY else SessionHandle, self.name)

    def names(self, introduction: str) -> list[str]:
        """Return what the list describes that follows the line that begins with ``introduction``."""
        items = re.search(rf"^{re.escape(introduction)}.*\n\n((?:(?:- |  ).*\n)+)", self.text, re.MULTILINE)
        heads = [] if items is None else re.findall(r"^- (`[^:]*):", items[1], re.MULTILINE)
        return [name for head in heads for name in re.findall(r"`\"?(\w+)[^`]*`", head)]

    @property
    def parameters(self) -> list[str]:
        """The parameters that the section describes: in a list, or as those of other sections, "without" some."""
        line = re.search(r"^The parameters are those of (.*)\.$", self.text, re.MULTILINE)
        if line is None:
            return self.names("Parameters:")
        others, _, without = line[1].partition(", without ")
        names = [name for other in re.findall(r"\[`(\w+)`\]", others) for name in BY_NAME[other].parameters]
        return [name for name in names if f"`{name}`" not in without]


COMMON, *REST = re.split(r"^## (?=[a-z_]+$)", PAGE, flags=re.MULTILINE)
SECTIONS = [Section(*text.split("\n", 1)) for text in REST]
BY_NAME = {section.name: section for section in SECTIONS}
OPERATIONS = pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)


def examples(text: str) -> str:
    return "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))


def test_every_operation_has_a_section() -> None:
    named = [section.name for section in SECTIONS]
    public = {
        name
        for name, _ in inspect.getmembers(SessionHandle, inspect.isfunction)
        if not name.startswith("_") and f"a{name}" in dir(SessionHandle)
    }
    assert sorted(named) == sorted(public | set(OF_A_MEMORY))
    index = COMMON.partition("\n## ")[0]
    assert re.findall(r"\[`(\w+)`\]\(#\1\)", index) == named


@pytest.mark.parametrize("cls", [ConversationMemory, SessionHandle])
def test_every_asynchronous_twin_is_that_of_its_method(cls: type) -> None:
    twins = [name for name in dir(cls) if name.startswith("a") and name[1:] in dir(cls)]
    assert len(twins) > 20
    assert [getattr(cls, name).__name__ for name in twins] == twins


@OPERATIONS
def test_the_signature_is_that_of_the_code(section: Section) -> None:
    signature = inspect.signature(section.operation)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    plain = str(inspect.Signature(parameters)).replace(repr(NOT_GIVEN), "NOT_GIVEN")
    assert section.signature.partition(".")[2] == f"{section.name}{plain}"


@OPERATIONS
def test_every_parameter_is_described(section: Section) -> None:
    parameters = [name for name in inspect.signature(section.operation).parameters if name != "self"]
    assert section.parameters == parameters


@OPERATIONS
def test_results_and_errors_are_described(section: Section) -> None:
    assert "**Returns** " in section.text
    errors = section.text.partition("**Raises**")[2].partition("```")[0]
    assert errors.strip()
    for name in re.findall(r"^- `(\w+)`", errors, re.MULTILINE):
        assert issubclass(getattr(exceptions, name), exceptions.ConvMemoryError)


def test_the_parts_of_results_are_those_of_the_code() -> None:
    assert BY_NAME["append"].names("**Returns**") == list(Receipt._fields)
    own = {name for name in vars(assembly.Context()) if not name.startswith("_")}
    own |= {name for name in vars(assembly.Context) if not name.startswith("_")}
    assert set(BY_NAME["load"].names("**Returns**")) == own
    assert set(re.findall(r"`(\w+)`", BY_NAME["history"].text)) >= set(StoredMessage._fields)
    assert BY_NAME["compact"].names("**Returns**") == [outcome.value for outcome in Outcome]


# A day or an id, instead of which any other may come: a summary begins with the day of its messages.
ANY = r"2\d{3}-\d\d-\d\d|[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}"


class AnyDay(doctest.OutputChecker):
    """Accepts any day and any id instead of those that the page shows."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        want, got = (re.sub(ANY, "ANY", text) for text in (want, got))
        return super().check_output(want, got, optionflags)


@OPERATIONS
@pytest.mark.django_db(transaction=True, reset_sequences=True)
def test_the_example_gives_what_it_shows(section: Section, settings: Any) -> None:
    namespace: dict[str, Any] = {}
    [code] = re.findall(r"```python\n(.*?)```", COMMON, re.DOTALL)
    exec(code, namespace)  # noqa: S102
    settings.CONVMEMORY = namespace["CONVMEMORY"]

    example = examples(section.text)
    assert example
    test = doctest.DocTestParser().get_doctest(examples(COMMON) + example, {}, section.name, "operations.md", 0)
    report: list[str] = []
    result = doctest.DocTestRunner(AnyDay(), verbose=False).run(test, out=report.append)
    assert result.attempted > 6
    assert not result.failed, "".join(report)
