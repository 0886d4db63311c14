"""Records `tests/golden/debugged/story.jsonl`: python -m tests.golden.make_story

A run of a whole server in a process of its own: a refused model call, parallel commands of which one fails, a subagent,
`kill -9` while a command runs, a steering message, and a command that waits for a person. The file has the events of
the thread, of the subagent and of what their models got, each with its sequence.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.wiring import compose
from core.events import Event, RunCompleted, RunPaused, RunRequested, SubagentCompleted, ToolRequested, thread
from core.runtime.system import System
from core.thread import approvals
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.workers import configure

STORY = Path(__file__).parent / "debugged" / "story.jsonl"
NAME = "story"
SECONDS = 120.0
KINDS = ("thread", "subagent", "setup")


def _bash(command: str) -> ToolCall:
    return ToolCall("bash", {"description": "try", "command": command})


def _task() -> ToolCall:
    return ToolCall("task", {"description": "count", "prompt": "Count to one.", "subagent_type": "general-purpose"})


LEAD = (
    Turn(
        text="I look first.",
        tool_calls=(_bash("printf 'a\\nb\\nc\\n' > x.txt; wc -l x.txt"), _bash("exit 3")),
        error=Failure(status=429),
        times=1,
    ),
    Turn(text="I ask another.", tool_calls=(_task(),)),
    Turn(text="It takes long.", tool_calls=(_bash("sleep 4; echo out"),)),
    Turn(text="I clean up.", tool_calls=(_bash("rm x.txt"),)),
    Turn(text="There were 3 lines."),
)
SUB = (Turn(text="Looking.", tool_calls=(_bash("echo one"),)), Turn(text="One."))


RULE = {"tool": "bash", "match": {"command": "rm "}, "text": "It deletes.", "deadline_seconds": 86400}
SECTIONS: Mapping[str, Any] = {
    "approvals": [RULE],
    "subagents": {"agents": {"general-purpose": {"model": "sub"}}},
    "sandbox": {"provider": "host", "allow_host_bash": True},
}
"""Sections of the configuration besides the models."""


@asynccontextmanager
async def _server(options: compose.Options, end: int = signal.SIGTERM) -> AsyncIterator[System]:
    command = [sys.executable, "-m", "channels.cli", "serve", "--home", str(options.home)]
    command += ["--config", str(options.config), "--port", "0"]
    process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        assert b"ready" in line, line
        async with compose.attach(options) as running:
            yield running
    finally:
        process.send_signal(end)
        await asyncio.to_thread(process.wait, SECONDS)


async def _until(running: System, kind: type[Event], count: int = 1) -> None:
    async with asyncio.timeout(SECONDS):
        async for record in running.log.follow(thread(NAME)):
            count -= isinstance(record.event, kind)
            if not count:
                return


async def record(home: Path) -> bytes:
    """Returns the recorded events, one a line."""
    async with ModelServer({"lead": Script(LEAD, count="total"), "sub": Script(SUB, count="total")}) as models:
        path = configure(home / "config.yaml", models, **SECTIONS)
        options = compose.Options(home / "home", path, port=0)
        async with _server(options, signal.SIGKILL) as running:
            await running.intake.create_thread(NAME, user="ada")
            message = {"type": "human", "id": "human-1", "content": "Count the lines."}
            context = {"subagent_enabled": True, "model_name": "lead"}
            await running.intake.request_run(
                NAME, "run-1", RunRequested(input={"messages": [message]}, context=context)
            )
            await _until(running, SubagentCompleted)
            await _until(running, ToolRequested, 4)
            steer = {"type": "human", "id": "human-2", "content": "Clean up afterwards."}
            await running.intake.steer(NAME, "run-1", steer)
        async with _server(options) as running:
            await _until(running, RunPaused)
            state = await running.threads.load(NAME)
            answers = {name: {"decision": "approve"} for name in state.approvals}
            await running.intake.request_run(NAME, "run-2", approvals.resuming(state, answers))
            await _until(running, RunCompleted)
            log = running.log
            events = [event async for event in log.between(0, await log.last()) if event.head.kind in KINDS]
    host = b'"worker":"' + socket.gethostname().encode()
    return b"".join(
        b'{"seq":%d,' % event.seq + event.raw.removeprefix(b"{").replace(host, b'"worker":"host') + b"\n"
        for event in events
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        content = asyncio.run(record(Path(folder)))
    STORY.parent.mkdir(exist_ok=True)
    STORY.write_bytes(content)
    print(f"{STORY.name}: {len(content.splitlines())} events")


if __name__ == "__main__":
    main()
