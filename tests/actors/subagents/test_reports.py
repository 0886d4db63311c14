"""The end of a subagent reaches its caller's log also if nobody waits for it any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.agent.setup.delegates import GENERAL, Role
from actors.subagent_reports import Reports
from actors.subagents.delegation import Call, Task
from core.events import SubagentCompleted, SubagentProgressed
from core.thread.subagents import identity
from tests.actors.subagents.test_task import OWN, events
from tests.support.model_server import Turn
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

ROLE = Role(name="general-purpose", description="", prompt=GENERAL, model="sub", max_turns=9, seconds=60)
TASK = Task(description="count", prompt="Count to one.", name="general-purpose")


async def test_the_end_is_reported_where_all_who_waited_have_died(tmp_path: Path) -> None:
    scripts = {"lead": [Turn(text="Hello.", delay_ms=60_000)], "sub": [Turn(text="One.")]}
    others = (lambda running, _: Reports(running.threads, running.subagents),)
    async with site(tmp_path, scripts, others=others, subagents=OWN) as (client, _):
        call = await delegated(client)
        await client.until(call.caller, lambda _, record: isinstance(record.event, SubagentCompleted))
        [completed] = await events(client, SubagentCompleted)
        progressed = await events(client, SubagentProgressed)
    assert [event.message["content"] for event in progressed] == ["One."], "its answers come before its end"
    assert (completed.status, completed.result, completed.call_id) == ("completed", "One.", call.id)


async def delegated(client: Client) -> Call:
    """Begins a call that nobody attends, of a run that is at work."""
    system, thread = client.system, await client.thread()
    run = await client.ask(thread, "Go on.", "lead")
    await client.until(thread, lambda state, _: run in state.runs and state.runs[run].status == "running")
    subagent = identity(system.threads.aggregate(thread), run, "1-c")
    call = Call(
        callers=system.threads,
        caller=thread,
        thread=thread,
        user="ada",
        run=run,
        id="c",
        subagent=subagent,
        intake=system.subagents,
    )
    await call.begin(TASK, ROLE, depth=1, nested=False)
    return call
