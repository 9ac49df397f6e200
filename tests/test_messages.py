from __future__ import annotations

import collections
import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from openai.types import chat

from django_convmemory import messages
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage, FrozenDict

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
ids = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
calls = st.fixed_dictionaries(
    {"id": ids}, optional={"type": texts, "function": json_values, "custom": json_values, "index": json_values}
)
parts = st.fixed_dictionaries(
    {"type": texts}, optional={"text": json_values, "image_url": json_values, "cache_control": json_values}
)
contents = texts | st.lists(parts, max_size=3)
unknown = st.dictionaries(
    st.sampled_from(["refusal", "audio", "function_call", "annotations", "reasoning_content", "kind", "metadata"])
    | texts.filter(lambda key: key not in ("role", "content", "name", "tool_calls", "tool_call_id")),
    json_values,
    max_size=3,
)


@st.composite
def wire_messages(draw: st.DrawFn) -> dict[str, Any]:
    """A message as in a chat-completions request or response, or as an unusual server sends it."""
    role = draw(st.sampled_from(messages.ROLES))
    required: dict[str, Any] = {"role": st.just(role), "content": contents}
    optional: dict[str, Any] = {"name": ids | st.none(), "tool_calls": st.none() | st.just([])}
    if role == "assistant":
        del required["content"]
        optional |= {"content": contents | st.none(), "tool_calls": st.lists(calls, max_size=3) | st.none()}
    if role == "tool":
        required["tool_call_id"] = ids
    else:
        optional["tool_call_id"] = st.none()
    wire = draw(unknown) | draw(st.fixed_dictionaries(required, optional=optional))
    return {key: wire[key] for key in draw(st.permutations(list(wire)))}


def exactly(value: Any) -> str:
    """JSON text that distinguishes 1, 1.0 and True, and ignores the order of keys."""
    return json.dumps(value, sort_keys=True)


@given(wire_messages())
def test_every_chat_completions_message_comes_back_without_loss(wire: dict[str, Any]) -> None:
    before = copy.deepcopy(wire)
    message = ChatMessage.from_openai(wire)
    assert exactly(message.to_openai()) == exactly(wire)
    assert wire == before
    assert ChatMessage.from_openai(message.to_openai()) == message


@given(wire_messages())
def test_a_message_is_restored_from_json_of_its_fields(wire: dict[str, Any]) -> None:
    message = ChatMessage.from_openai(wire, kind="plan", metadata={"a": [1]})
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    restored = ChatMessage.restore(
        **{name: messages.freeze(json.loads(messages.dumps(value)), name) for name, value in fields.items()}
    )
    assert restored == message
    assert hash(restored) == hash(message)


@given(wire_messages())
def test_equal_messages_have_equal_hashes_copies_and_pickles(wire: dict[str, Any]) -> None:
    message = ChatMessage.from_openai(wire, metadata={"nested": {"list": [1, {"a": None}]}})
    for other in (
        ChatMessage.from_openai(copy.deepcopy(wire), metadata={"nested": {"list": [1, {"a": None}]}}),
        pickle.loads(pickle.dumps(message)),  # noqa: S301
        copy.deepcopy(message),
        copy.copy(message),
        dataclasses.replace(message),
    ):
        assert other == message
        assert hash(other) == hash(message)
        assert exactly(other.to_openai()) == exactly(wire)
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(message)).metadata["x"] = 1  # noqa: S301


@given(wire_messages())
def test_what_to_openai_returns_is_plain_and_the_callers_own(wire: dict[str, Any]) -> None:
    message = ChatMessage.from_openai(wire)
    mine = message.to_openai()

    def spoil(value: Any) -> None:
        assert type(value) in (dict, list, str, int, float, bool, type(None))
        for inner in list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
            spoil(inner)
        if isinstance(value, (dict, list)):
            value.clear()

    spoil(mine)
    assert exactly(message.to_openai()) == exactly(wire)


FULL_REPLY = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "annotations": [],
    "audio": {"id": "a", "data": "UklGRg==", "expires_at": 1, "transcript": "Hi"},
    "function_call": {"name": "old", "arguments": "{}"},
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}],
    "reasoning_content": "Let me think.",
}


@pytest.mark.parametrize("make", [chat.ChatCompletionMessage.model_validate, chat.ChatCompletionMessage.construct])
def test_a_reply_of_the_openai_client_comes_back_with_all_that_it_holds(make: Any) -> None:
    reply = make(FULL_REPLY) if make.__name__ == "model_validate" else make(**FULL_REPLY)
    message = ChatMessage.from_openai(reply)
    assert message.to_openai() == FULL_REPLY
    assert message.call_ids == ("c",)
    assert messages.coerce(reply) == message


def test_fields_that_the_client_filled_in_are_not_stored() -> None:
    reply = chat.ChatCompletionMessage.model_validate({"role": "assistant", "content": "Hi."})
    assert reply.refusal is None
    assert ChatMessage.from_openai(reply).to_openai() == {"role": "assistant", "content": "Hi."}


def test_a_message_cannot_be_changed() -> None:
    message = ChatMessage.ai([{"type": "text", "text": "a"}], metadata={"a": {"b": [1]}}, tool_calls=[{"id": "c"}])
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.content = "b"  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        message.anything = 1  # type: ignore[attr-defined]
    assert isinstance(message.content, tuple)
    assert isinstance(message.metadata["a"]["b"], tuple)
    for changed in (message.metadata, message.metadata["a"], message.content[0], message.tool_calls[0]):
        changes: list[Callable[[Any], Any]] = [
            lambda mapping: mapping.update(x=1),
            lambda mapping: mapping.clear(),
            lambda mapping: mapping.pop("a", None),
            lambda mapping: mapping.popitem(),
            lambda mapping: mapping.setdefault("x", 1),
            lambda mapping: mapping.__setitem__("x", 1),
            lambda mapping: mapping.__delitem__("a"),
            lambda mapping: mapping.__ior__({"x": 1}),
        ]
        for change in changes:
            with pytest.raises(TypeError, match=r"dataclasses\.replace"):
                change(changed)


def test_a_message_does_not_change_with_what_it_was_made_of() -> None:
    wire: dict[str, Any] = {"role": "assistant", "tool_calls": [{"id": "a"}], "audio": {"data": ["x"]}}
    metadata = {"tags": ["a"]}
    message = ChatMessage.from_openai(wire, metadata=metadata)
    wire["tool_calls"][0]["id"] = "b"
    wire["audio"]["data"].append("y")
    metadata["tags"].append("b")
    assert message.to_openai() == {"role": "assistant", "tool_calls": [{"id": "a"}], "audio": {"data": ["x"]}}
    assert message.metadata == {"tags": ("a",)}


@pytest.mark.parametrize(
    ("wire", "changes"),
    [
        ({"role": "assistant", "content": None}, {"content": "Hi."}),
        ({"role": "assistant", "content": "Hi.", "tool_calls": []}, {"tool_calls": ({"id": "c"},)}),
        ({"role": "user", "content": "Hi.", "name": None}, {"name": "anna"}),
    ],
)
def test_a_field_that_was_null_can_be_given_a_value(wire: dict[str, Any], changes: dict[str, Any]) -> None:
    changed = dataclasses.replace(ChatMessage.from_openai(wire), **changes).to_openai()
    assert changed == wire | {name: messages.thaw(value) for name, value in changes.items()}


@pytest.mark.parametrize("field", ["role", "content", "name", "tool_calls", "tool_call_id"])
def test_extra_holds_no_second_value_of_a_field(field: str) -> None:
    with pytest.raises(InvalidMessage, match=field):
        ChatMessage.ai("Hi.", extra={field: "system"})


def test_constructors_say_who_speaks() -> None:
    assert ChatMessage.system("a") == ChatMessage("system", "a")
    assert ChatMessage.human("a", name="anna") == ChatMessage("user", "a", name="anna")
    assert ChatMessage.ai(tool_calls=[{"id": "c"}]).content is None
    assert ChatMessage.tool("a", "c") == ChatMessage("tool", "a", tool_call_id="c")
    assert [ChatMessage(role, "a", tool_call_id="c" if role == "tool" else None).pinned for role in messages.ROLES] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_kind_and_metadata_are_never_sent() -> None:
    assert ChatMessage.human("a", kind="plan", metadata={"seen": True}).to_openai() == {"role": "user", "content": "a"}


def test_text_is_all_of_the_text_parts() -> None:
    message = ChatMessage.human([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}])
    assert message.text == "a\nb"
    assert ChatMessage.ai().text == ""


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


INVALID = {
    "unknown role": ({"role": "function", "content": "a"}, "role 'function'.*assistant"),
    "no role": ({"content": "a"}, "Add 'role'"),
    "null role": ({"role": None, "content": "a"}, "role None.*assistant"),
    "list as role": ({"role": ["user"], "content": "a"}, "role.*assistant"),
    "number as content": ({"role": "user", "content": 1}, "content must be text.*int"),
    "bytes as content": ({"role": "user", "content": b"a"}, "content must be text.*bytes"),
    "dict as content": ({"role": "user", "content": {"type": "text"}}, "content must be text.*dict"),
    "text as a part": ({"role": "user", "content": ["a"]}, r"content\[0\].*'type'"),
    "part without a type": ({"role": "user", "content": [{"text": "a"}]}, r"content\[0\].*'type'"),
    "no content": ({"role": "user"}, "user message needs content"),
    "null content of a tool": ({"role": "tool", "content": None, "tool_call_id": "c"}, "needs content"),
    "tool with a number as id": ({"role": "tool", "content": "a", "tool_call_id": 1}, "tool_call_id.*string"),
    "user with a call's id": ({"role": "user", "content": "a", "tool_call_id": "c"}, "Only a tool message"),
    "calls of a user": ({"role": "user", "content": "a", "tool_calls": [{"id": "c"}]}, "Only an assistant"),
    "call with a number as id": ({"role": "assistant", "tool_calls": [{"id": 1}]}, r"tool_calls\[0\].*'id'"),
    "text as a call": ({"role": "assistant", "tool_calls": ["c"]}, r"tool_calls\[0\].*dict"),
    "dict as calls": ({"role": "assistant", "tool_calls": {"id": "c"}}, "tool_calls must be a list"),
    "empty dict as calls": ({"role": "assistant", "content": "a", "tool_calls": {}}, "tool_calls must be a list"),
    "empty text as calls": ({"role": "assistant", "content": "a", "tool_calls": ""}, "tool_calls must be a list"),
    "false as calls": ({"role": "assistant", "content": "a", "tool_calls": False}, "tool_calls must be a list"),
    "number as name": ({"role": "user", "content": "a", "name": 1}, "name must be a non-empty string"),
    "NaN": ({"role": "user", "content": "a", "score": float("nan")}, "score.*nan.*string or None"),
    "infinity, deep": ({"role": "user", "content": "a", "x": {"y": [float("-inf")]}}, r"x\.y\[0\].*inf"),
    "huge integer": ({"role": "user", "content": "a", "x": 10**400}, "integer.*Store it as a string"),
    "key that is no text": ({"role": "user", "content": "a", "x": {1: 2}}, "key 1.*are strings"),
    "key of the message that is no text": ({"role": "user", "content": "a", None: 2}, "None.*are strings"),
    "a set": ({"role": "user", "content": "a", "x": {"y": {1}}}, "set.*not JSON"),
    "bytes inside": ({"role": "user", "content": [{"type": "text", "text": b"a"}]}, "bytes.*not JSON"),
    "too deep": ({"role": "user", "content": "a", "x": deep(64)}, "deeper than 64.*Flatten"),
    "far too deep": ({"role": "user", "content": "a", "x": deep(5000)}, "deeper than 64.*Flatten"),
    "no message": ("Hi.", "Cannot read a message from a str.*ChatMessage"),
    "nothing": (None, "Cannot read a message from a NoneType.*ChatMessage"),
    "a list": (
        [{"role": "user", "content": "a"}],
        r"from a list.*ChatMessage.*append\(\*messages\)",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_messages_are_refused_with_the_repair(name: str) -> None:
    wire, expected = INVALID[name]
    with pytest.raises(InvalidMessage, match=expected) as refused:
        messages.coerce(wire)
    assert isinstance(refused.value, ValueError)


def test_the_deepest_nesting_that_is_allowed_is_stored() -> None:
    message = ChatMessage.human("a", extra={"x": deep(63)})
    assert ChatMessage.from_openai(message.to_openai()) == message


def with_text(bad: str) -> dict[str, dict[str, Any]]:
    """A message for each place that can hold a text."""
    return {
        "content": {"role": "user", "content": bad},
        "part": {"role": "user", "content": [{"type": "text", "text": bad}]},
        "type of a part": {"role": "user", "content": [{"type": bad}]},
        "key of a part": {"role": "user", "content": [{"type": "text", bad: 1}]},
        "name": {"role": "user", "content": "a", "name": bad},
        "id": {"role": "tool", "content": "a", "tool_call_id": bad},
        "id of a call": {"role": "assistant", "tool_calls": [{"id": bad}]},
        "arguments": {"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": bad}}]},
        "unknown field": {"role": "user", "content": "a", "x": [{"y": bad}]},
        "key of an unknown field": {"role": "user", "content": "a", "x": {bad: 1}},
        "unknown field's name": {"role": "user", "content": "a", bad: 1},
    }


@pytest.mark.parametrize("place", with_text(""))
def test_nul_is_refused_anywhere(place: str) -> None:
    with pytest.raises(InvalidMessage, match=r"NUL character.*Remove it"):
        ChatMessage.from_openai(with_text("a\0b")[place])


@pytest.mark.parametrize("place", with_text(""))
@pytest.mark.parametrize("surrogate", ["a\ud83d", "\udc00é", "\udcff"])
def test_lone_surrogates_are_refused_anywhere(place: str, surrogate: str) -> None:
    with pytest.raises(InvalidMessage, match=r"lone surrogate.*errors='replace'") as refused:
        ChatMessage.from_openai(with_text(surrogate)[place])
    str(refused.value).encode()


@pytest.mark.parametrize("bad", ["a\0b", "\ud800"])
def test_the_sites_own_fields_are_checked_too(bad: str) -> None:
    for fields in ({"kind": bad}, {"metadata": {"a": [bad]}}, {"metadata": {bad: 1}}, {"extra": {"a": bad}}):
        with pytest.raises(InvalidMessage):
            ChatMessage.human("a", **fields)


@pytest.mark.parametrize("bad", ["a\0b", "\ud800"])
def test_objects_of_the_openai_client_are_checked_too(bad: str) -> None:
    with pytest.raises(InvalidMessage):
        ChatMessage.from_openai(chat.ChatCompletionMessage.construct(role="assistant", content="a", x={"y": bad}))


@pytest.mark.parametrize("kind", ["", "x" * 33, None, 1])
def test_kind_is_a_short_text(kind: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"kind.*1 to 32"):
        ChatMessage.human("a", kind=kind)


@pytest.mark.parametrize("metadata", [None, [], "a", 1])
def test_metadata_is_a_dict(metadata: Any) -> None:
    with pytest.raises(InvalidMessage, match="metadata must be a dict"):
        ChatMessage.human("a", metadata=metadata)


def test_any_mapping_will_do() -> None:
    wire: collections.ChainMap[str, Any] = collections.ChainMap(
        {"role": "user"}, {"content": "a", "x": collections.OrderedDict(y=1)}
    )
    message = ChatMessage.from_openai(wire)
    assert message.to_openai() == {"role": "user", "content": "a", "x": {"y": 1}}
    assert type(message.extra["x"]) is FrozenDict
