"""Whatever became of a conversation, what goes to the provider obeys its rules; what obeys them goes as it is."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from actors.agent.policies.repair.dangling_calls import repaired
from adapters.models.openai_compatible import OpenAICompatible

MODEL = OpenAICompatible(model="m", api_key="none", base_url="http://nowhere")  # type: ignore[arg-type]

IDS = st.sampled_from(["a", "b", "c", "call_0_0", "call_1_1", ""])
NAMES = st.sampled_from(["bash", "read_file", "no such tool", "Ünknown", "", "x" * 65])
ARGUMENTS = st.sampled_from([{}, {"n": 1}, {"text": "ü"}])
TEXTS = st.sampled_from(["", "{}", '{"n": 1}', "{", "nonsense"])
ODD = st.one_of(st.none(), st.integers(0, 3), st.text(max_size=3), st.lists(st.integers(0, 3), max_size=2))
CONTENT = st.one_of(
    st.sampled_from(["", " ", "text"]),
    st.lists(
        st.sampled_from([{"type": "text", "text": "block"}, {"type": "thinking", "thinking": "hm"}]),
        max_size=2,
    ),
)


NAMED = frozenset(string.ascii_letters + string.digits + "_-")


def structured(args: st.SearchStrategy[Any] = ARGUMENTS) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"name": NAMES, "args": args, "id": st.one_of(IDS, st.none()), "type": st.just("tool_call")}
    )


def invalid() -> st.SearchStrategy[dict[str, Any]]:
    text = st.one_of(TEXTS, st.none())
    fields = {"name": st.one_of(NAMES, st.none()), "args": text, "id": st.one_of(IDS, st.none()), "error": text}
    return st.fixed_dictionaries({**fields, "type": st.just("invalid_tool_call")})


def raw() -> st.SearchStrategy[Any]:
    function = st.fixed_dictionaries({}, optional={"name": st.one_of(NAMES, ODD), "arguments": st.one_of(TEXTS, ODD)})
    fields = {
        "id": st.one_of(IDS, ODD),
        "type": st.sampled_from(["function", ""]),
        "function": st.one_of(function, ODD),
    }
    usual = st.builds(
        lambda identity: {"id": identity, "type": "function", "function": {"name": "bash", "arguments": "{}"}}, IDS
    )
    return st.one_of(usual, st.fixed_dictionaries({}, optional=fields), ODD)


@st.composite
def answers(draw: st.DrawFn) -> AIMessage:
    """Calls of all three forms, at once if it must be, good and bad: as no constructor would have them."""
    calls = st.one_of(structured(), structured(ODD)) if draw(st.integers(0, 3)) == 0 else structured()
    changes: dict[str, Any] = {"content": draw(CONTENT), "tool_calls": draw(st.lists(calls, max_size=3))}
    changes["invalid_tool_calls"] = draw(st.one_of(st.just([]), st.lists(invalid(), max_size=2)))
    if draw(st.integers(0, 2)) == 0:
        changes["additional_kwargs"] = {"tool_calls": draw(st.one_of(st.lists(raw(), max_size=2), ODD))}
    return AIMessage("").model_copy(update=changes)


RESULTS = st.builds(lambda identity, text: ToolMessage(text, tool_call_id=identity), IDS, st.sampled_from(["", "done"]))
OTHERS = st.sampled_from([HumanMessage("hi"), SystemMessage("s")])
HISTORIES = st.lists(st.one_of(answers(), RESULTS, RESULTS, OTHERS), max_size=8)


@st.composite
def orderly(draw: st.DrawFn) -> list[BaseMessage]:
    """Conversations as they should be: ids come again in other answers, results come in any order."""
    found: list[BaseMessage] = []
    for _ in range(draw(st.integers(0, 4))):
        found += draw(st.lists(OTHERS, max_size=2))
        ids = draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3))
        calls: list[dict[str, Any]] = [{"name": "bash", "args": draw(ARGUMENTS), "id": identity} for identity in ids]
        broken = [
            {"name": "bash", "args": draw(TEXTS), "id": identity, "error": None}
            for identity in draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=2))
        ]
        found.append(AIMessage("said", tool_calls=calls, invalid_tool_calls=broken))
        made = draw(st.permutations([str(one["id"]) for one in [*calls, *broken]]))
        found += [ToolMessage("done", tool_call_id=identity) for identity in made]
    return found


def wire(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """The messages as they go to the provider."""
    sent: list[dict[str, Any]] = MODEL._get_request_payload(list(messages))["messages"]
    return sent


def broken_rules(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What OpenAI would refuse: written from its API reference, not from our code."""
    found = []
    due: list[str] = []
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] not in due:
                found.append(f"{place}: 'tool' must answer a preceding 'tool_calls'")
            else:
                due.remove(message["tool_call_id"])
            continue
        found += [f"{place}: no result for {identity}" for identity in due]
        due = []
        if role == "assistant":
            if "tool_calls" in message:
                found += [f"{place}: {text}" for text in _broken_calls(message["tool_calls"])]
                due = [one["id"] for one in message["tool_calls"]]
            elif not message["content"]:
                found.append(f"{place}: neither content nor calls")
    return found + [f"end: no result for {identity}" for identity in due]


def _broken_calls(calls: Any) -> list[str]:
    if not isinstance(calls, list) or not calls:
        return ["'tool_calls' is empty"]
    found = []
    ids = [one.get("id") for one in calls]
    if not all(isinstance(one, str) and one for one in ids) or len(set(ids)) < len(ids):
        found.append(f"ids {ids}")
    for one in calls:
        function = one.get("function") or {}
        name, arguments = function.get("name"), function.get("arguments")
        if one.get("type") != "function":
            found.append(f"type {one.get('type')}")
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not set(name) <= NAMED:
            found.append(f"name {name!r}")
        if not isinstance(arguments, str):
            found.append(f"arguments {arguments!r}")
    return found


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    return [message.text for message in messages]


@given(HISTORIES)
def test_any_history_goes_to_the_provider_valid(history: list[BaseMessage]) -> None:
    assert broken_rules(wire(repaired(history))) == []


@given(orderly())
def test_a_valid_history_stays_the_same_object(history: list[BaseMessage]) -> None:
    assert broken_rules(wire(history)) == []
    assert repaired(history) is history


@given(HISTORIES)
def test_what_was_repaired_needs_no_repair(history: list[BaseMessage]) -> None:
    once = repaired(history)
    assert repaired(once) is once


@given(HISTORIES)
def test_nothing_that_was_said_or_found_out_is_lost(history: list[BaseMessage]) -> None:
    sent = texts(repaired(history))
    for message in history:
        assert any(text.endswith(message.text) for text in sent) or not message.text.strip()


@given(orderly(), st.data())
def test_results_find_their_calls_wherever_they_got_to(history: list[BaseMessage], data: st.DataObject) -> None:
    """With ids that come only once, the order of the results says nothing: the repaired conversation is the same."""
    history = _unique(history)
    scattered = [message for message in history if not isinstance(message, ToolMessage)]
    for result in (message for message in history if isinstance(message, ToolMessage)):
        scattered.insert(data.draw(st.integers(0, len(scattered))), result)
    assert _exchanges(repaired(scattered)) == _exchanges(history)


def _unique(history: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The same conversation, every id with the place of its answer."""
    found: list[BaseMessage] = []
    place = 0
    for message in history:
        if isinstance(message, AIMessage):
            place += 1
            calls = [{**one, "id": f"{one['id']}{place}"} for one in message.tool_calls]
            broken = [{**one, "id": f"{one['id']}{place}"} for one in message.invalid_tool_calls]
            message = message.model_copy(update={"tool_calls": calls, "invalid_tool_calls": broken})
        elif isinstance(message, ToolMessage):
            message = message.model_copy(update={"tool_call_id": f"{message.tool_call_id}{place}"})
        found.append(message)
    return found


def _exchanges(messages: Sequence[BaseMessage]) -> list[tuple[str, frozenset[str]]]:
    """Every message that is no result, and the ids of the results after it."""
    found: list[tuple[str, frozenset[str]]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            kind, ids = found.pop()
            found.append((kind, ids | {message.tool_call_id}))
        else:
            found.append((message.type, frozenset()))
    return found
