"""When an agent that goes in circles is warned, and when it gives its last answer. See also `test_loop_shapes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from actors.agent.messages.convert import dump
from actors.agent.model.last_answer import NO_TOOLS
from actors.agent.policies.limits.loop_detection import LoopDetection, Verdict, judged
from actors.agent.run.attempt import Attempt
from core.config import load as configuration
from core.config.settings import Frequency
from core.config.settings import LoopDetection as Limits
from core.errors import Invalid
from core.events import (
    ContextCompacted,
    Decision,
    Event,
    MessageAdded,
    ModelCompleted,
    RunCompleted,
    RunRequested,
    RunStarted,
    ToolCompleted,
)
from core.thread.fold import fold
from tests.actors.agent.policies.loop_shapes import FAIL, PASS, Round, edit, sh, use
from tests.actors.agent.policies.test_loop_shapes import as_round
from tests.actors.agent.turns import RUN, Asked, Kept, model_call, turn
from tests.support.records import human, record

pytestmark = pytest.mark.anyio

DEFAULT = Limits()
LS = sh("ls", "a.py")


def after(*rounds: Round, limits: Limits = DEFAULT) -> Verdict | None:
    return judged([as_round(number, calls) for number, calls in enumerate(rounds)][::-1], limits)


def many(tool: str, count: int) -> Sequence[Round]:
    return [use(tool, f"{n}", query=f"{n}") for n in range(count)]


OVERRIDDEN = Limits(
    tool_freq_warn=2,
    tool_freq_hard_limit=3,
    tool_freq_overrides={"patient": Frequency(warn=5, hard_limit=7), "hasty": Frequency(warn=1, hard_limit=1)},
)
SAME = "made the same calls"
VERDICTS: dict[str, tuple[Sequence[Round], Limits, str]] = {
    "nothing": ([], DEFAULT, ""),
    "twice the same": ([LS] * 2, DEFAULT, ""),
    "three times": ([LS] * 3, DEFAULT, f"You have {SAME} 3 times"),
    "four times: once is enough": ([LS] * 4, DEFAULT, ""),
    "seven times": ([LS] * 7, DEFAULT, f"Stopped: the agent {SAME} 7 times"),
    "more often, if a crash came between": ([LS] * 9, DEFAULT, f"Stopped: the agent {SAME} 7 times"),
    "another result": ([*[sh("pytest", FAIL, 1)] * 6, sh("pytest", PASS)], DEFAULT, ""),
    "another result between": ([*[LS] * 4, sh("ls", "a.py\nb.py"), *[LS] * 2], DEFAULT, ""),
    "an edit between": ([*[LS] * 4, edit("/a", "x", "y"), *[LS] * 2], DEFAULT, ""),
    "a wait between": ([*[LS] * 4, sh("sleep 9"), *[LS] * 2], DEFAULT, ""),
    "again after other work": ([*[LS] * 3, *many("t", 9), *[LS] * 3], DEFAULT, f"You have {SAME} 3 times"),
    "out of the window": ([LS] * 9, Limits(window_size=6), ""),
    "seven errors": ([sh(f"x{n}", "no", 1) for n in range(7)], DEFAULT, ""),
    "eight errors": ([sh(f"x{n}", "no", 1) for n in range(8)], DEFAULT, "Stopped: 8 calls in a row failed"),
    "four errors": ([sh(f"x{n}", "no", 1) for n in range(4)], DEFAULT, "4 calls in a row failed"),
    "a tool 300 times": (many("t", 300), DEFAULT, ""),
    "a limit warns": (many("t", 2), OVERRIDDEN, "used t 2 times"),
    "a limit stops": (many("t", 3), OVERRIDDEN, "Stopped: the agent used t 3 times"),
    "an override warns later": (many("patient", 4), OVERRIDDEN, ""),
    "an override warns": (many("patient", 5), OVERRIDDEN, "used patient 5 times"),
    "an override stops later": (many("patient", 6), OVERRIDDEN, ""),
    "an override stops": (many("patient", 7), OVERRIDDEN, "Stopped: the agent used patient 7 times"),
    "an override stops sooner": (many("hasty", 1), OVERRIDDEN, "Stopped: the agent used hasty 1 times"),
    "only a hard limit": (many("t", 5), Limits(tool_freq_hard_limit=5), "Stopped: the agent used t 5 times"),
    "the same calls come before the same tool": ([LS] * 3, Limits(tool_freq_warn=3), SAME),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict(name: str) -> None:
    rounds, limits, expected = VERDICTS[name]
    verdict = after(*rounds, limits=limits)
    if not expected:
        assert verdict is None
        return
    assert verdict is not None
    assert verdict.stop is expected.startswith("Stopped: ")
    assert expected in verdict.text


def test_warnings_of_several_tools_are_one_and_at_most_four() -> None:
    tools = [f"t{n}" for n in range(6)]
    rounds = [tuple(call for name in tools for call in use(name, "", x=n)) for n in range(2)]
    verdict = after(*rounds, limits=Limits(tool_freq_warn=2))
    assert verdict is not None
    assert [name for name in tools if name in verdict.text] == tools[:4]


@pytest.mark.parametrize("section", ["{warn_threshold: 8}", "{tool_freq_warn: 9, tool_freq_hard_limit: 8}"])
def test_a_hard_limit_below_its_warning_is_refused(section: str) -> None:
    with pytest.raises(Invalid, match="hard limit"):
        configuration.parse(f"loop_detection: {section}")


ROUND = st.sampled_from([LS, sh("ls", "b.py"), sh("pytest", FAIL, 1), sh("sleep 1"), edit("/a", "x", "y"), ()])


@given(st.lists(ROUND, max_size=40), st.integers(0, 40))
def test_a_verdict_needs_no_more_than_the_window(rounds: list[Round], more: int) -> None:
    """What was before the window changes nothing: long runs cost as much as short ones."""
    before = [use("t", f"{n}", x=n) for n in range(more)]
    limits = Limits(warn_threshold=2, hard_limit=3, window_size=12)
    near = rounds[-13:]
    assert after(*before, *rounds, limits=limits) == after(*before, *rounds[:-13], *near, limits=limits)
    assert len(near) < 13 or after(*rounds, limits=limits) == after(*before, *rounds, limits=limits)


# ── in a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def repeat(on: Attempt, times: int, result: str = "a.py") -> list[AIMessage]:
    """The model makes the same call so often, with the same result. Returns its answers."""
    answers = []
    for number in range(times):
        call = {"name": "bash", "args": {"command": "ls"}, "id": f"c{on.state.seq}"}
        handler = Asked(AIMessage("", id=f"a{on.state.seq}", tool_calls=[call]))
        answer = await model_call(LoopDetection(Limits()), on, handler)
        answers.append(answer)
        await on.journal.model_completed(ModelCompleted(message=dump(answer), decisions=on.decided()))
        for made in answer.tool_calls:
            identity = f"t{on.state.seq}-{number}"
            message = {"type": "tool", "id": identity, "tool_call_id": made["id"], "name": "bash", "content": result}
            await on.journal.tool_completed(ToolCompleted(call_id=str(made["id"]), message=message))
    return answers


def add(on: Attempt, *events: tuple[Event, str]) -> None:
    journal = cast(Kept, on.journal)
    journal.state = fold([record(on.state.seq + 1 + n, event, run) for n, (event, run) in enumerate(events)], on.state)


def next_run(on: Attempt) -> None:
    """The run ends, and the turn is the first one of another."""
    add(
        on,
        (RunCompleted(), RUN),
        (RunRequested(input={}), "next"),
        (RunStarted(attempt=1, worker="w", lease=2), "next"),
    )
    cast(Kept, on.journal).id = "next"


async def test_a_warning_is_a_note_for_one_call() -> None:
    on = turn([human("h")])
    await repeat(on, 3)
    policy, handler = LoopDetection(Limits()), Asked()
    await model_call(policy, on, handler)
    note = handler.messages[-1]
    assert f"{SAME} 3 times" in note.text
    assert (note.name, note.additional_kwargs["hide_from_ui"]) == ("loop_warning", True)
    [decision] = on.decided()
    assert (decision.policy, decision.action, decision.again) == ("loop_detection", "warned", False)
    await repeat(on, 1)
    await model_call(policy, on, handler)
    assert handler.messages[-1].type == "tool"


async def test_at_the_limit_the_model_answers_without_tools() -> None:
    on = turn([human("h")])
    await repeat(on, 7)
    handler = Asked(AIMessage("I listed the files; the rest is open.", id="last"))
    answer = await model_call(LoopDetection(Limits()), on, handler)
    [decision] = on.decided()
    text = "Stopped: the agent made the same calls 7 times, with the same results (`loop_detection`)."
    assert decision == Decision(policy="loop_detection", action="stopped", text=text)
    assert answer.content == f"I listed the files; the rest is open.\n\n{text}"
    assert handler.requests[-1].tool_choice == NO_TOOLS
    assert "Say what is done, what is not, and how to go on" in handler.messages[-1].text


@pytest.mark.parametrize("cut", ["the next run", "a message of the person"])
async def test_what_was_before_does_not_count(cut: str) -> None:
    on = turn([human("h")])
    await repeat(on, 6)
    if cut == "the next run":
        next_run(on)
    else:
        add(on, (MessageAdded(messages=[human("h2")]), RUN))
    answers = await repeat(on, 6)
    assert all(answer.tool_calls for answer in answers)


async def test_rounds_before_a_compaction_count() -> None:
    """The conversation begins anew, the run does not."""
    on = turn([human("h")])
    await repeat(on, 6)
    add(on, (ContextCompacted(summary=human("summary"), kept=[], messages=[], reason="messages"), RUN))
    [_, stopped] = await repeat(on, 2)
    assert stopped.tool_calls == []


async def test_the_decisions_of_a_loop_are_recorded() -> None:
    on = turn([human("h")])
    await repeat(on, 8)
    events = [event for event in cast(Kept, on.journal).events if isinstance(event, ModelCompleted)]
    actions = [[decision.action for decision in event.decisions] for event in events]
    assert actions == [[], [], [], ["warned"], [], [], [], ["stopped"]]
    run = on.state.runs[RUN]
    assert (run.calls, run.stopped_by, run.stopped[:8]) == (8, "loop_detection", "Stopped:")
