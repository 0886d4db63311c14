"""When an agent that goes in circles is warned, and when it is stopped."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from actors.lead.loop.attempt import Attempt
from actors.lead.messages.convert import dump
from actors.lead.policies.loop_detection import LoopDetection, Step, Verdict, fingerprint, judged
from core.config.settings import Frequency
from core.config.settings import LoopDetection as Limits
from core.events import Decision, Event, Json, ModelCompleted, RunCompleted, RunRequested, RunStarted
from core.thread.fold import fold
from tests.actors.lead.turns import RUN, Asked, Kept, model_call, turn
from tests.support.records import record

pytestmark = pytest.mark.anyio

Calls = Sequence[tuple[str, Any]]


def called(*calls: tuple[str, Any]) -> list[Json]:
    return [{"name": name, "args": args, "id": f"c{n}"} for n, (name, args) in enumerate(calls)]


def bash(command: str = "ls") -> tuple[str, Json]:
    return "bash", {"description": "look", "command": command}


# ── which calls are the same ─────────────────────────────────────────────────────────────────────────────────────────

READ: Json = {"path": "/f", "start_line": 1, "end_line": 10}
SAME: dict[str, tuple[Calls, Calls]] = {
    "order of the calls": ([bash("ls"), bash("pwd")], [bash("pwd"), bash("ls")]),
    "order of the arguments": ([("t", {"x": 1, "y": 2})], [("t", {"y": 2, "x": 1})]),
    "what a call is for": ([bash("ls")], [("bash", {"description": "again", "command": "ls"})]),
    "arguments as text": ([bash("ls")], [("bash", json.dumps(bash("ls")[1]))]),
    "lines of one bucket": ([("read_file", READ)], [("read_file", {**READ, "start_line": 2, "end_line": 200})]),
    "lines the wrong way round": ([("read_file", READ)], [("read_file", {**READ, "start_line": 10, "end_line": 1})]),
    "lines as text": ([("read_file", READ)], [("read_file", {**READ, "start_line": "1", "end_line": "10"})]),
    "no lines, and the first": ([("read_file", {"path": "/f"})], [("read_file", {**READ, "end_line": None})]),
    "lines that are none": ([("read_file", {"path": "/f"})], [("read_file", {"path": "/f", "start_line": "x"})]),
    "a field of no value": ([("t", {"url": "u"})], [("t", {"url": "u", "path": None})]),
}
DIFFERENT: dict[str, tuple[Calls, Calls]] = {
    "a tool": ([("a", {"x": 1})], [("b", {"x": 1})]),
    "a command": ([bash("ls")], [bash("pwd")]),
    "how often": ([bash("ls")], [bash("ls"), bash("ls")]),
    "lines of another bucket": ([("read_file", READ)], [("read_file", {**READ, "end_line": 201})]),
    "the file": ([("read_file", READ)], [("read_file", {**READ, "path": "/g"})]),
    "what is written": (
        [("write_file", {"path": "/f", "content": "a"})],
        [("write_file", {"path": "/f", "content": "b"})],
    ),
    "what is replaced": (
        [("str_replace", {"path": "/f", "old_str": "a"})],
        [("str_replace", {"path": "/f", "old_str": "b"})],
    ),
    "arguments without a salient one": ([("t", {"x": 1})], [("t", {"x": 2})]),
    "text that is no JSON": ([("t", "{")], [("t", "[")]),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same(name: str) -> None:
    one, other = SAME[name]
    assert fingerprint(called(*one)) == fingerprint(called(*other))


@pytest.mark.parametrize("name", DIFFERENT)
def test_not_the_same(name: str) -> None:
    one, other = DIFFERENT[name]
    assert fingerprint(called(*one)) != fingerprint(called(*other))


def test_a_fingerprint_is_twelve_hex_digits() -> None:
    assert len(fingerprint(called(bash()))) == 12
    assert int(fingerprint(called(bash())), 16) >= 0


# ── the rules, against a detector that counts as it goes ─────────────────────────────────────────────────────────────


class Counting:
    """The rules as a machine with a memory: one answer after the other."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.window: deque[tuple[str, bool]] = deque(maxlen=limits.window_size)
        self.warned: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.told: set[str] = set()

    def takes(self, step: Step) -> str:
        mine = fingerprint(step.calls)
        dropped = {self.window[0][0]} if len(self.window) == self.window.maxlen else set()
        self.window.append((mine, step.own))
        self.warned -= {one for one in dropped if all(one != other for other, _ in self.window)}
        self.counts.update(call["name"] for call in step.calls if step.own)
        return self._same(mine) or self._often(step)

    def _same(self, mine: str) -> str:
        if self.window.count((mine, True)) >= self.limits.hard_limit:
            return "stop"
        if sum(one == mine for one, _ in self.window) >= self.limits.warn_threshold and mine not in self.warned:
            self.warned.add(mine)
            return "warn"
        return ""

    def _often(self, step: Step) -> str:
        names = {str(call["name"]) for call in step.calls if step.own}
        if any(self.counts[name] >= self.limits.tool_freq_hard_limit for name in names):
            return "stop"
        due = {name for name in names if self.counts[name] >= self.limits.tool_freq_warn} - self.told
        self.told |= due
        return "warn" if due else ""


STEP = st.lists(st.sampled_from([bash("a"), bash("b"), ("web_search", {"query": "q"})]), min_size=1, max_size=2)


@given(
    st.integers(0, 5),
    st.lists(STEP, min_size=1, max_size=40),
    st.builds(
        lambda window, warn, more, often, much: Limits(
            window_size=window,
            warn_threshold=warn,
            hard_limit=warn + more,
            tool_freq_warn=often,
            tool_freq_hard_limit=often + much,
        ),
        st.integers(1, 8),
        st.integers(2, 4),
        st.integers(0, 3),
        st.integers(1, 20),
        st.integers(0, 10),
    ),
)
def test_what_is_read_from_the_log_is_what_a_memory_would_say(before: int, steps: list[Calls], limits: Limits) -> None:
    """`before`: so many steps are of an earlier run. A step that was stopped has no calls: it is not part of what was.

    The two run side by side, so that every decision is compared.
    """
    memory, history = Counting(limits), list[Step]()
    for number, calls in enumerate(steps):
        step = Step(called(*calls), own=number >= min(before, limits.window_size))
        verdict = judged([step, *history], limits) if step.own else None
        expected = memory.takes(step)
        if step.own:
            assert ("" if verdict is None else "stop" if verdict.stop else "warn") == expected
        if expected == "stop":
            return
        history.insert(0, step)


def after(*steps: Calls, limits: Limits, own: int = 100) -> Verdict | None:
    """The verdict on the last of these answers; the last `own` are of the run."""
    newest = list(reversed(steps))
    return judged([Step(called(*calls), own=n < own) for n, calls in enumerate(newest)], limits)


def many(tool: str, count: int) -> list[Calls]:
    """Answers that call a tool, each with something new."""
    return [[(tool, {"query": f"{n}"})] for n in range(count)]


DEFAULT = Limits()
OVERRIDDEN = Limits(
    tool_freq_warn=2,
    tool_freq_hard_limit=3,
    tool_freq_overrides={"patient": Frequency(warn=5, hard_limit=7), "hasty": Frequency(warn=1, hard_limit=1)},
)
SAME_CALL: list[Calls] = [[bash()]]
VERDICTS: dict[str, tuple[list[Calls], Limits, int, str]] = {
    "twice the same": (SAME_CALL * 2, DEFAULT, 100, ""),
    "three times": (SAME_CALL * 3, DEFAULT, 100, "same tool calls 3 times"),
    "four times: once is enough": (SAME_CALL * 4, DEFAULT, 100, ""),
    "five times": (SAME_CALL * 5, DEFAULT, 100, "STOP same tool calls 5 times"),
    "out of the window": ([*SAME_CALL * 2, *many("t", 19), *SAME_CALL], DEFAULT, 100, ""),
    "in the window": ([*SAME_CALL * 2, *many("t", 17), *SAME_CALL], DEFAULT, 100, "same tool calls 3 times"),
    "back after the window": ([*SAME_CALL * 3, *many("t", 20), *SAME_CALL * 3], DEFAULT, 100, "same tool calls 3"),
    "never out of the window": ([*SAME_CALL * 3, *many("t", 19), *SAME_CALL * 3], DEFAULT, 100, ""),
    "begun in the run before": (SAME_CALL * 3, DEFAULT, 1, "same tool calls 3 times"),
    "the same in every run": (SAME_CALL * 9, DEFAULT, 1, ""),
    "often in every run": (SAME_CALL * 9, DEFAULT, 4, ""),
    "a tool 29 times": (many("t", 29), DEFAULT, 100, ""),
    "a tool 30 times": (many("t", 30), DEFAULT, 100, "used t 30 times"),
    "a tool 31 times": (many("t", 31), DEFAULT, 100, ""),
    "a tool 50 times": (many("t", 50), DEFAULT, 100, "STOP used t 50 times"),
    "a tool in a long thread": (many("t", 300), DEFAULT, 29, ""),
    "an override warns later": (many("patient", 4), OVERRIDDEN, 100, ""),
    "an override warns": (many("patient", 5), OVERRIDDEN, 100, "used patient 5 times"),
    "an override stops later": (many("patient", 6), OVERRIDDEN, 100, ""),
    "an override stops": (many("patient", 7), OVERRIDDEN, 100, "STOP used patient 7 times"),
    "an override stops sooner": (many("hasty", 1), OVERRIDDEN, 100, "STOP used hasty 1 times"),
    "another tool has the usual limits": (many("t", 3), OVERRIDDEN, 100, "STOP used t 3 times"),
    "the same calls come before the same tool": (
        SAME_CALL * 3,
        Limits(tool_freq_warn=3, tool_freq_hard_limit=3),
        100,
        "same tool calls 3 times",
    ),
    "the other warning comes next": (SAME_CALL * 4, Limits(tool_freq_warn=3), 100, "used bash 4 times"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict(name: str) -> None:
    steps, limits, own, expected = VERDICTS[name]
    verdict = after(*steps, limits=limits, own=own)
    if not expected:
        assert verdict is None
        return
    assert verdict is not None
    assert verdict.stop is expected.startswith("STOP ")
    assert expected.removeprefix("STOP ") in verdict.text


def test_warnings_of_several_tools_are_one_and_at_most_four() -> None:
    limits = Limits(tool_freq_warn=2)
    tools = [(f"t{n}", {"x": n}) for n in range(6)]
    verdict = after(tools, [(name, {"x": "other"}) for name, _ in tools], limits=limits)
    assert verdict is not None
    assert [name for name, _ in tools if name in verdict.text] == ["t0", "t1", "t2", "t3"]


# ── in a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def answer(number: int, content: Any = "", **more: Any) -> AIMessage:
    return AIMessage("", id=f"a{number}", tool_calls=called(bash()), **more).model_copy(update={"content": content})


NEXT: list[tuple[Event, str]] = [
    (RunCompleted(), RUN),
    (RunRequested(input={}), "next"),
    (RunStarted(attempt=1, worker="w", lease=2, model="m"), "next"),
]


def next_run(on: Attempt) -> None:
    """The run ends, and the turn is the first one of another."""
    records = [record(on.state.seq + 1 + n, event, run) for n, (event, run) in enumerate(NEXT)]
    journal = cast(Kept, on.journal)
    journal.state, journal.id = fold(records, on.state), "next"


async def repeat(on: Attempt, times: int, said: AIMessage | None = None) -> list[AIMessage]:
    """The model makes the same call so often; every answer is recorded."""
    answers = []
    for number in range(times):
        handler = Asked(said or answer(number))
        answers.append(await model_call(LoopDetection(Limits()), on, handler))
        recorded = {**dump(answers[-1]), "id": f"{on.state.seq}"}
        await on.journal.model_completed(ModelCompleted(message=recorded, decisions=on.decided()))
    return answers


async def test_a_warning_is_a_note_for_the_next_call_only() -> None:
    on = turn()
    before = await repeat(on, 2)
    assert on.notes() == []
    [warned] = await repeat(on, 1)
    [note] = on.notes()
    assert "same tool calls 3 times" in note.text
    assert note.name == "loop_warning"
    assert note.additional_kwargs["hide_from_ui"] is True
    assert [*before, warned] == [answer(0), answer(1), answer(0)]
    assert [message["type"] for message in on.state.messages] == ["ai"] * 3
    await repeat(on, 1)
    assert on.notes() == []


async def test_a_warning_does_not_outlive_its_run() -> None:
    on = turn()
    await repeat(on, 3)
    next_run(on)
    assert on.notes() == []


async def test_a_run_is_not_stopped_for_what_the_one_before_did() -> None:
    on = turn()
    await repeat(on, 4)
    next_run(on)
    message = answer(9)
    assert await model_call(LoopDetection(Limits()), on, Asked(message)) is message
    assert on.decided() == []


async def test_the_calls_of_one_tool_are_counted_over_the_whole_run() -> None:
    on = turn()
    for number in range(30):
        message = AIMessage("", tool_calls=called(bash(f"cat {number}")))
        await repeat(on, 1, message)
    [note] = on.notes()
    assert "used bash 30 times" in note.text


async def test_a_warning_is_decided_with_the_answer() -> None:
    on = turn()
    await repeat(on, 2)
    await model_call(LoopDetection(Limits()), on, Asked(answer(2)))
    [decision] = on.decided()
    assert (decision.policy, decision.action, decision.again) == ("loop_detection", "warned", False)


RAW: Mapping[str, Any] = {
    "additional_kwargs": {"tool_calls": [{"id": "c0"}], "function_call": {"name": "bash"}, "reasoning_content": "hm"},
    "response_metadata": {"finish_reason": "tool_calls", "model_name": "m"},
    "invalid_tool_calls": [{"type": "invalid_tool_call", "id": "x", "name": "bash", "args": "{", "error": None}],
}
STOPPED = "The agent made the same tool calls 5 times and was stopped."


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", STOPPED),
        (None, STOPPED),
        ("Let me look.", f"Let me look.\n\n{STOPPED}"),
        (
            [{"type": "text", "text": "Let me look."}],
            [{"type": "text", "text": "Let me look."}, {"type": "text", "text": STOPPED}],
        ),
    ],
    ids=["empty", "null", "string", "list"],
)
async def test_a_stopped_answer_calls_nothing_and_says_why(content: Any, expected: Any) -> None:
    on = turn()
    await repeat(on, 4)
    stopped = await model_call(LoopDetection(Limits()), on, Asked(answer(9, content, **RAW)))
    assert stopped.content == expected
    assert stopped.id == "a9"
    assert (stopped.tool_calls, stopped.invalid_tool_calls) == ([], [])
    assert stopped.additional_kwargs == {"reasoning_content": "hm"}
    assert stopped.response_metadata == {"finish_reason": "stop", "model_name": "m"}
    assert on.decided() == [Decision(policy="loop_detection", action="stopped", text=STOPPED)]


async def test_what_other_answers_said_is_not_counted() -> None:
    on = turn()
    await repeat(on, 2)
    await repeat(on, 3, AIMessage("still at it"))
    assert await repeat(on, 1) == [answer(0)]
    assert len(on.notes()) == 1


async def test_answers_before_a_compaction_count() -> None:
    """The conversation begins anew, the run does not."""
    on = turn()
    await repeat(on, 4)
    on.state.values["messages"].clear()
    [stopped] = await repeat(on, 1)
    assert stopped.tool_calls == []


async def test_an_answer_without_calls_is_not_touched() -> None:
    message = AIMessage("done", id="a")
    assert await model_call(LoopDetection(Limits(hard_limit=1, warn_threshold=1)), turn(), Asked(message)) is message
