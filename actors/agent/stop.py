"""The end of what a stopped run began: its commands, its subagents, and other agents."""

from __future__ import annotations

import asyncio

import structlog

from actors.agent.run.attempt import Call, no_progress
from actors.agent.setup import acp
from core.errors import SikaError
from core.events import Json, SubagentCompleted, ToolCompleted
from core.runs.journal import CallRef, tool_message
from core.runs.owned import OwnedRun
from core.thread.subagents import TOOLS, tool_message_of

log = structlog.get_logger("sika.agent")

STOP_SECONDS = 15.0
"""Time that a stopping run waits for its subagents."""


async def stop_calls(call: Call, run: OwnedRun, open_calls: list[Json], of_thread: str) -> None:
    """Kills the commands of a stopped run, and stops its subagents and other agents. `of_thread`: the thread that a
    subagent works for, or empty.
    """
    await _stop_subagents(call, run, open_calls, of_thread)
    for open_call in open_calls:
        if open_call["name"] in TOOLS:
            continue
        request = {
            "op": "kill",
            "thread": of_thread or run.thread_id,
            "user": run.state.user,
            "run": run.id,
            "call_id": CallRef.of(run, open_call["id"]).key,
        }
        try:
            await call("acp" if open_call["name"] == acp.TOOL else "sandbox", request, no_progress)
        except SikaError as error:
            log.warning("command not stopped", call=open_call["id"], error=str(error))


async def _stop_subagents(call: Call, run: OwnedRun, open_calls: list[Json], of_thread: str) -> None:
    """Stops the subagents that are at work, and closes their calls with what becomes of them."""
    working = {name: known.call_id for name, known in run.run.subagents.items() if not known.ended}
    try:
        async with asyncio.timeout(STOP_SECONDS), asyncio.TaskGroup() as tasks:
            for name, call_id in working.items():
                tasks.create_task(_stop_subagent(call, run, name, call_id, of_thread))
    except* (SikaError, TimeoutError) as errors:
        log.warning("subagents not stopped", run=run.id, error=str(errors.exceptions[0]) or "no answer in time")
    for open_call in open_calls:
        if open_call["name"] in TOOLS and open_call["id"] in working.values():
            text, fields = tool_message_of(SubagentCompleted(call_id=open_call["id"], status="cancelled"))
            message = tool_message(CallRef.of(run, open_call["id"]), open_call["name"], text, "error")
            message["additional_kwargs"] = fields
            await run.tool_completed(ToolCompleted(call_id=open_call["id"], message=message))


async def _stop_subagent(call: Call, run: OwnedRun, subagent: str, call_id: str, of_thread: str) -> None:
    request = {
        "op": "cancel",
        "thread": of_thread or run.thread_id,
        "caller": run.thread_id if of_thread else None,
        "user": run.state.user,
        "run": run.id,
        "subagent": subagent,
        "call_id": call_id,
    }
    await call("subagents", request, no_progress)
