"""The power goes off while a call is made; when the run goes on, whoever would refuse it comes too late."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.ports.guardrails import Decision, Reason, Request
from core.runtime.system import System
from core.tools import Effect, Tool, ToolContext, tool
from tests.crash.place import place, settled
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import Client, Power

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

TURNS = [Turn(tool_calls=(ToolCall("mail", {"to": "ada"}),)), Turn(text="All is done.")]
BEGUN = 8
"""thread.created, run.requested, three parts of the setup, run.started, model.completed, tool.requested."""


class Moody:
    """A guardrail provider that allows everything until it is down."""

    name = "moody"
    down = False

    async def aevaluate(self, request: Request) -> Decision:
        if Moody.down:
            raise ConnectionError("the provider is down")
        return Decision(True, [Reason("fine")])

    def evaluate(self, request: Request) -> Decision:
        raise AssertionError("aevaluate is there to be asked")


def mail(effect: Effect) -> Tool:
    @tool(effect=effect)
    async def mail(ctx: ToolContext, to: str) -> str:
        """Send a mail."""
        return f"sent to {to}"

    return mail


async def begin(system: System) -> None:
    client = Client(system)
    await client.ask(await client.thread(), "Go on.")


@pytest.mark.parametrize(
    ("effect", "status", "text"),
    [("once", "error", "outcome of this mail call is unknown"), ("idempotent", None, "sent")],
)
async def test_a_call_that_was_begun_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: Effect, status: str | None, text: str
) -> None:
    """A policy that denies it now would have the log say that it was not made; it may have been."""
    monkeypatch.setattr(Moody, "down", False)
    guardrails = {"enabled": True, "provider": {"use": f"{__name__}:Moody"}}
    async with place(tmp_path, {"script": TURNS}, guardrails=guardrails) as here:
        await here.cut(Power(BEGUN, "heard"), begin, tools=[mail(effect)])
        Moody.down = True
        async with here.worker(tools=[mail(effect)]) as system:
            state = await settled(system)
    [outcome] = [message for message in state.messages if message["type"] == "tool"]
    assert text in outcome["content"]
    assert outcome.get("status") == status
    assert state.messages[-1]["content"] == "All is done."
