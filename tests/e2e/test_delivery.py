"""A run that writes files for the person and shows none is told so, once, before it ends. Through a whole server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.agent.policies.interaction.delivery import undelivered
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.events import Event, Message, ModelCompleted, RunRequested, RunStarted, ToolCompleted
from core.thread.fold import fold
from core.thread.messages import text_of
from tests.e2e.servers import Browser, Server, browser, serving
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.records import human, log_of
from tests.support.workers import Client, configure, reaching, worker

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

OUT = "/mnt/user-data/outputs"
WRITE = Turn(tool_calls=(ToolCall("write_file", {"description": "x", "path": f"{OUT}/a.md", "content": "# A"}),))
SHOW = Turn(tool_calls=(ToolCall("present_files", {"filepaths": [f"{OUT}/a.md"]}),))
DRAFT = Turn(
    tool_calls=(ToolCall("write_file", {"description": "x", "path": "/mnt/user-data/workspace/a.md", "content": "A"}),)
)
COMMAND = Turn(tool_calls=(ToolCall("bash", {"description": "x", "command": f"echo 1 > {OUT}/b.csv"}),))
LOOK = Turn(tool_calls=(ToolCall("bash", {"description": "x", "command": f"ls {OUT}; cat {OUT}/a.md || true"}),))
TASK = Turn(tool_calls=(ToolCall("task", {"description": "x", "prompt": "Write it.", "subagent_type": "helper"}),))
DONE, END = Turn(text="Done."), Turn(text="Here it is.")
SCRIPTS = {
    "shows_then": [WRITE, DONE, SHOW, END],
    "shows_none": [WRITE, DONE, END],
    "shows": [WRITE, SHOW, DONE],
    "drafts": [DRAFT, DONE],
    "commands": [COMMAND, DONE, END],
    "looks": [LOOK, DONE],
    "delegates": [TASK, DONE, END],
    "helper": [WRITE, Turn(text="It is in outputs/a.md.")],
}
CALLS = {"shows_then": 4, "shows_none": 3, "shows": 3, "drafts": 2, "commands": 3, "looks": 2, "delegates": 3}
"""Model calls of each run."""
HELPER = {"description": "Writes.", "system_prompt": "Write.", "model": "helper"}


@pytest.mark.parametrize("enabled", [True, False])
async def test_files_that_nobody_is_shown(tmp_path: Path, enabled: bool) -> None:
    scripts = {name: Script(tuple(turns), count="total") for name, turns in SCRIPTS.items()}
    async with ModelServer(scripts) as models, browser() as client:
        config = configure(
            tmp_path / "config.yaml",
            models,
            delivery_check={"enabled": enabled},
            subagents={"custom_agents": {"helper": HELPER}},
        )
        async with serving(tmp_path / "home", config) as server:
            runs = {name: await ended(client, server, name) for name in CALLS}
    calls = {name: sum(record.model == name for record in models.requests) for name in [*CALLS, "helper"]}
    assert {status for status, _ in runs.values()} == {"success"}
    once = {name: len([turn for turn in turns if turn not in (END, SHOW)]) for name, turns in SCRIPTS.items()}
    assert calls == ({**CALLS, "helper": 2} if enabled else {**once, "shows": 3})
    notes = [_notes(record.body) for record in models.requests]
    assert max(map(len, notes)) == int(enabled)
    assert all(f"- {OUT}/" in note for note, *_ in filter(None, notes))
    assert runs["shows_then"][1].get("artifacts") == ([f"{OUT}/a.md"] if enabled else None)
    assert not runs["shows_none"][1].get("artifacts")


async def test_the_demo_model_shows_what_a_command_wrote(tmp_path: Path) -> None:
    async with embedded.start(tmp_path) as nats, ModelServer({}) as models:
        config = configure(tmp_path / "config.yaml", models)
        async with worker(Endpoint(nats.url, token=nats.token), tmp_path, config) as running:
            client = Client(running)
            await client.thread("t1")
            run = await client.ask("t1", f"run: echo 1 > {OUT}/b.csv; cat {OUT}/b.csv")
            assert (await client.ended("t1", run)).status == "success"
            state = await client.state("t1")
    spoken = [text_of(message["content"]) for message in state.messages if message["type"] == "ai"]
    assert state.values["artifacts"] == [f"{OUT}/b.csv"]
    assert ["printed" in text for text in spoken] == [False, True, False, False]
    assert spoken[-1].startswith("Here it is.")


def _notes(body: dict[str, Any]) -> list[str]:
    return [str(m["content"]) for m in body["messages"] if "showed none to the person" in str(m["content"])]


async def ended(client: Browser, server: Server, model: str) -> tuple[str, Any]:
    """Returns how a run of a model ended, and the values of its thread."""
    thread = await client.thread(server)
    run = await client.run(server, thread, "Go", model, context={"model_name": model, "subagent_enabled": True})
    await reaching(lambda: client.status(server, thread, run), lambda status: status in ("success", "error"))
    return await client.status(server, thread, run), (await client.get(server, f"/threads/{thread}/state"))["values"]


def answer(name: str, calls: list[tuple[str, dict[str, Any]]] = []) -> ModelCompleted:  # noqa: B006
    message: Message = {"type": "ai", "id": name, "content": name}
    message["tool_calls"] = [{"name": tool, "args": args, "id": f"{name}{n}"} for n, (tool, args) in enumerate(calls)]
    return ModelCompleted(message=message)


def result(call: str, text: str = "OK", **more: Any) -> ToolCompleted:
    return ToolCompleted(
        call_id=call, message={"type": "tool", "id": f"t{call}", "tool_call_id": call, "content": text, **more}
    )


def bash(command: str) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": command}


@pytest.mark.parametrize(
    ("events", "paths"),
    [
        ([answer("a", [("write_file", {"path": f"{OUT}/a b.md"})]), result("a0")], ["a b.md"]),
        ([answer("a", [("write_file", {"path": f"{OUT}/a.md"})]), result("a0", status="error")], []),
        ([answer("a", [("edit_files", {"edits": [{"path": f"{OUT}/x.md"}, {"path": "y"}]})]), result("a0")], ["x.md"]),
        ([answer("a", [bash(f"python3 make.py --out {OUT}/p/q.pdf")]), result("a0")], ["p/q.pdf"]),
        ([answer("a", [bash("python3 make.py")]), result("a0", f"saved to {OUT}/q.pdf")], ["q.pdf"]),
        ([answer("a", [bash("cp r.md ../outputs/r.md")]), result("a0")], ["r.md"]),
        ([answer("a", [bash(f"wc -l {OUT}/r.md")]), result("a0", f"3 {OUT}/r.md")], []),
        ([answer("a", [("read_file", {"path": f"{OUT}/a.md"})]), result("a0")], []),
        ([answer("a", [("task", {"prompt": "x"})]), result("a0", "See outputs/g.md and my-outputs/h.md.")], ["g.md"]),
        ([answer("a", [bash(f"cp x {OUT}/x.md")]), result("a0"), answer("b")], []),
        ([answer("a", [bash(f"cp x {OUT}/x.md")]), result("a0"), answer("b"), answer("c", [bash(f"cp y {OUT}/y.md")]),
          result("c0")], ["y.md"]),
        ([answer("a", [bash(f"cp x {OUT}/x.md")]), result("a0"),
          answer("b", [("present_files", {})]), result("b0")], []),
        ([answer("a", [bash(f"cp x {OUT}/x.md")]), result("a0"),
          answer("b", [("present_files", {})]), result("b0", status="error")], ["x.md"]),
    ],
)  # fmt: skip
def test_what_a_run_wrote(events: list[Event], paths: list[str]) -> None:
    begin: list[Any] = [(RunRequested(input={"messages": [human("h")]}), "r")]
    begin.append((RunStarted(attempt=1, worker="w", lease=1), "r"))
    state = fold(log_of(*begin, *((event, "r") for event in events)))
    assert undelivered(state, "r") == [f"{OUT}/{path}" for path in paths]
