"""What a provider is asked before a tool call, and what its word, or its silence, does."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Any, cast

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.types import Command

from actors.agent.loop.ported import Ported
from actors.agent.policies.safety import guardrails as policy
from actors.agent.policies.safety.guardrails import Guardrails
from actors.agent.run.attempt import Attempt
from core.config import settings
from core.events import Json
from core.ports.guardrails import Decision, Provider, Reason, Request
from tests.actors.agent.turns import tool_call, turn

pytestmark = pytest.mark.anyio

YES = Decision(True, [Reason("oap.allowed")])


class Says:
    """A provider that says the same every time, or fails."""

    name = "says"

    def __init__(self, word: Any) -> None:
        self.word, self.asked = word, list[Request]()

    def evaluate(self, request: Request) -> Decision:
        raise AssertionError("aevaluate is there to be asked")

    async def aevaluate(self, request: Request) -> Decision:
        self.asked.append(request)
        if isinstance(self.word, BaseException):
            raise self.word
        return cast(Decision, self.word)


class OnlySync:
    name = "sync"

    def __init__(self, word: Decision | Exception) -> None:
        self.word, self.threads = word, list[int]()

    def evaluate(self, request: Request) -> Decision:
        self.threads.append(threading.get_ident())
        if isinstance(self.word, Exception):
            raise self.word
        return self.word


class Foreign:
    """A decision, or a reason, in classes of somebody else."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def made(provider: Any, *, fail_closed: bool = True, passport: str | None = None) -> Ported:
    config = settings.Guardrails(fail_closed=fail_closed, passport=passport)
    return Ported(Guardrails(config, cast(Provider, provider)))


async def denied(provider: Any, on: Attempt, name: str = "bash", **options: Any) -> tuple[str, str]:
    """The text of the refusal of a call, and of the decision; the call was not made."""
    result, calls = await tool_call(made(provider, **options), on, name, {"command": "ls"})
    assert calls == []
    assert isinstance(result, ToolMessage)
    assert (result.status, result.tool_call_id, result.name) == ("error", "c1", name)
    [decision] = on.decided("c1")
    assert (decision.policy, decision.action) == ("guardrails", "denied")
    return str(result.content), decision.text


async def test_what_a_provider_is_asked() -> None:
    provider = Says(YES)
    await tool_call(made(provider, passport="agent-7"), turn(), "bash", {"command": "ls"})
    [request] = provider.asked
    assert (request.tool_name, request.tool_input) == ("bash", {"command": "ls"})
    assert (request.agent_id, request.is_subagent) == ("agent-7", False)
    assert (request.thread_id, request.run_id, request.user_id, request.tool_call_id) == ("t", "r", "u", "c1")
    assert request.user_role is None
    assert datetime.fromisoformat(request.timestamp).utcoffset() == timedelta(0)


async def test_a_provider_is_asked_about_subagents() -> None:
    provider, on = Says(YES), turn()
    on.of_thread = "root"
    await tool_call(made(provider), on, "bash", {"command": "ls"})
    assert (provider.asked[0].is_subagent, provider.asked[0].thread_id) == (True, "root")


async def test_what_is_allowed_is_not_touched() -> None:
    on, message = turn(), ToolMessage("x", tool_call_id="c1", name="bash")
    result, calls = await tool_call(made(Says(YES)), on, "bash", {"command": "ls"}, result=message)
    assert result is message
    assert calls == [{"command": "ls"}]
    assert on.decided("c1") == []


async def test_a_provider_cannot_change_the_call() -> None:
    class Meddles(Says):
        async def aevaluate(self, request: Request) -> Decision:
            cast(Json, request.tool_input)["paths"].append("b")
            return YES

    _, calls = await tool_call(made(Meddles(YES)), turn(), "ls", {"paths": ["a"]})
    assert calls == [{"paths": ["a"]}]


@pytest.mark.parametrize(
    ("word", "text", "decided"),
    [
        (
            Decision(False, [Reason("oap.x", "no shells"), Reason("oap.y", "z")], policy_id="p1"),
            "Error: the tool 'bash' was denied (oap.x): no shells",
            "oap.x: no shells (policy p1)",
        ),
        (
            Decision(False),
            "Error: the tool 'bash' was denied (oap.denied): the policy does not allow it",
            "oap.denied: the policy does not allow it",
        ),
        (
            Foreign(allow=False, reasons=[Foreign(code="oap.x", message="no")], metadata={}),
            "Error: the tool 'bash' was denied (oap.x): no",
            "oap.x: no",
        ),
        (
            Foreign(allow=False, reasons=[{"code": "oap.x", "message": None}], policy_id=""),
            "Error: the tool 'bash' was denied (oap.x): the policy does not allow it",
            "oap.x: the policy does not allow it",
        ),
        (
            Foreign(allow=False, reasons=["odd"]),
            "Error: the tool 'bash' was denied (oap.denied): the policy does not allow it",
            "oap.denied: the policy does not allow it",
        ),
    ],
    ids=["reasons", "no reasons", "foreign", "mapping", "odd reasons"],
)
@pytest.mark.parametrize("fail_closed", [True, False])
async def test_a_refusal(word: Any, text: str, decided: str, fail_closed: bool) -> None:
    assert await denied(Says(word), turn(), fail_closed=fail_closed) == (text, decided)


async def test_a_tool_without_a_name_is_asked_about() -> None:
    provider = Says(Decision(False, [Reason("oap.x", "nameless")]))
    text, _ = await denied(provider, turn(), name="")
    assert provider.asked[0].tool_name == ""
    assert text == "Error: the tool '' was denied (oap.x): nameless"


async def test_a_sync_provider_runs_in_a_thread() -> None:
    provider = OnlySync(YES)
    _, calls = await tool_call(made(provider), turn(), "bash", {})
    assert calls == [{}]
    assert provider.threads != [threading.get_ident()]
    assert "oap.x" in (await denied(OnlySync(Decision(False, [Reason("oap.x")])), turn()))[0]


FAILURES = pytest.mark.parametrize(
    ("provider", "error"),
    [
        (Says(RuntimeError("secret address")), "RuntimeError"),
        (Says(TimeoutError()), "TimeoutError"),
        (OnlySync(KeyError("x")), "KeyError"),
        (Says(None), "AttributeError"),
        (Says(Foreign(allow="false")), "TypeError"),
        (Says(Foreign(allow=None)), "TypeError"),
    ],
    ids=["raises", "times out", "sync", "says nothing", "says a text", "says null"],
)


@FAILURES
async def test_no_answer_means_no(provider: Any, error: str) -> None:
    text, decided = await denied(provider, turn())
    assert text == f"Error: the tool 'bash' was denied (oap.evaluator_error): the guardrail did not answer ({error})"
    assert decided == f"oap.evaluator_error: the guardrail did not answer ({error})"


@FAILURES
async def test_no_answer_means_yes_where_that_is_wanted(provider: Any, error: str) -> None:
    on = turn()
    _, calls = await tool_call(made(provider, fail_closed=False), on, "bash", {})
    assert calls == [{}]
    [decision] = on.decided("c1")
    assert (decision.action, decision.text) == (
        "allowed",
        f"oap.evaluator_error: the guardrail did not answer ({error})",
    )


async def test_an_answer_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ponders(Says):
        async def aevaluate(self, request: Request) -> Decision:
            await anyio.sleep_forever()
            raise AssertionError

    class PondersInThread:
        name, end = "thread", threading.Event()

        def evaluate(self, request: Request) -> Decision:
            self.end.wait()
            return YES

    monkeypatch.setattr(policy, "DEADLINE_SECONDS", 0.01)
    try:
        for provider in (Ponders(YES), PondersInThread()):
            assert "oap.evaluator_error" in (await denied(provider, turn()))[0]
    finally:
        PondersInThread.end.set()


@pytest.mark.parametrize("fail_closed", [True, False])
@pytest.mark.parametrize("signal", [GraphInterrupt(()), asyncio.CancelledError()], ids=["interrupt", "cancel"])
async def test_signals_pass_through(signal: BaseException, fail_closed: bool) -> None:
    on = turn()
    with pytest.raises(type(signal)):
        await tool_call(made(Says(signal), fail_closed=fail_closed), on, "bash", {})
    assert on.decided("c1") == []


@pytest.mark.parametrize("result", [GraphInterrupt(()), LookupError("x")], ids=["interrupt", "error"])
async def test_what_the_tool_raises_is_not_the_providers(result: Exception) -> None:
    with pytest.raises(type(result)):
        await tool_call(made(Says(YES)), turn(), "bash", {}, result=result)


async def test_commands_pass_through() -> None:
    command: Command[None] = Command(update={})
    result, _ = await tool_call(made(Says(YES)), turn(), "bash", {}, result=command)
    assert result is command
