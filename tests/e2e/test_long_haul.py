"""One long piece of work with everything that happens to such: summaries, outages, another model, a person who has to
agree while the server is away, and the end of the budget.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.actors.agent.test_tools import assert_well_formed
from tests.e2e.servers import Browser, Server, browser, serving
from tests.support import warm
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.workers import configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long]

SECONDS = 280.0
SCREEN = 50
CALLS = 150
"""Model calls of the run; the last one asks for what a person has to approve."""
LAST = 164
"""The answer to the person. What comes after it is asked for when there is a budget."""
BUSY, CUT_OFF, DOWN = range(20, 24), range(60, 62), 100
MESSAGES = 50
"""So many are summarised."""
NOTES = "/mnt/user-data/workspace/notes"
SOON = {"retry-after-ms": "5"}

SETTINGS: dict[str, Any] = {
    "runs": {"lease_seconds": 2, "recursion_limit": 1000},
    "model_roles": {"lead": ["main", "backup"]},
    "summarization": {"enabled": True, "trigger": [{"type": "messages", "value": MESSAGES}], "model_name": "writer"},
    "loop_detection": {"tool_freq_warn": 1000, "tool_freq_hard_limit": 1000},
    "approvals": [{"tool": "bash", "match": {"command": "release"}}],
}


# ── the script ──────────────────────────────────────────────────────────────────────────────────────────────────────


def calls(n: int) -> tuple[ToolCall, ...]:
    """What the agent does in a step."""
    about = {"description": f"step-{n}"}
    if n == CALLS - 1:
        return (ToolCall("bash", {**about, "command": f"echo release step-{n} | tee -a count.txt"}),)
    match n % 6:
        case 1:
            args = {"path": f"{NOTES}/{n}.md", "content": f"Note number {n}."}
            return (ToolCall("write_file", about | args),)
        case 2:
            return (ToolCall("read_file", {**about, "path": f"{NOTES}/{n - 1}.md"}),)
        case 4:
            return (ToolCall("sign", {"note": f"step-{n}"}),)
        case 5:
            look = ToolCall("grep", {**about, "pattern": f"number {n - 4}\\.", "path": NOTES})
            return (look, ToolCall("glob", {**about, "pattern": f"{n - 4}*.md", "path": NOTES}))
    return (ToolCall("bash", {**about, "command": f"echo did step-{n} | tee -a count.txt"}),)


def main_turn(n: int) -> Turn:
    """A step, and what goes wrong in it."""
    if n in BUSY:
        busy = Failure(status=429, message="slow down", headers=SOON)
        return Turn(text=f"Now step-{n}.", tool_calls=calls(n), error=busy, times=2)
    if n in CUT_OFF:
        return Turn(text=f"Now step-{n}.", tool_calls=calls(n), disconnect_after=2, times=1)
    if n == DOWN:
        return Turn(error=Failure(status=503, message="out of order", headers=SOON))
    return backup_turn(n)


def backup_turn(n: int) -> Turn:
    if n == LAST:
        return Turn(text=f"All is done: step-{n}.")
    return Turn(text=f"Now step-{n}.", tool_calls=calls(n))


STEPS = range(LAST + 20)
SCRIPTS: dict[str, Script | list[Turn]] = {
    "main": Script(tuple(map(main_turn, STEPS)), count="marker"),
    "backup": Script(tuple(map(backup_turn, STEPS)), count="marker"),
    "writer": [Turn(text="The agent does one step after another, and all went well so far.")],
}


# ── what is looked at ───────────────────────────────────────────────────────────────────────────────────────────────


async def until_ended(server: Server, client: Browser, thread_id: str, run_id: str) -> str:
    async def ended() -> bool:
        return await client.status(server, thread_id, run_id) not in ("pending", "running", "503")

    await wait_for(ended, SECONDS, every=0.2)
    return await client.status(server, thread_id, run_id)


async def told(server: Server, config: Path, *command: str) -> tuple[int, str]:
    """What the command line says; its exit code."""
    arguments = (*command, "--home", str(server.home), "--config", str(config))
    done = await asyncio.to_thread(warm.run, "tests.e2e.sika", *arguments, timeout=SECONDS)
    return done.returncode, done.stdout


async def history(server: Server, client: Browser, thread_id: str) -> list[Any]:
    """The messages of a thread, page by page, oldest first."""
    found: list[Any] = []
    before = ""
    while True:
        page = await client.get(server, f"/threads/{thread_id}/messages/page?limit=200{before}")
        found = [row["content"] for row in page["data"]] + found
        if not page["has_more"]:
            return found
        before = f"&before_seq={page['next_before_seq']}"


def phases(lines: Sequence[str], marks: Sequence[str]) -> Iterator[list[str]]:
    """The lines from each mark to the next one. Every mark is found, in this order."""
    rest = list(lines)
    for mark in marks:
        place = next((n for n, line in enumerate(rest) if re.search(mark, line)), None)
        assert place is not None, f"{mark!r} is not in\n" + "\n".join(rest)
        yield rest[:place]
        rest = rest[place:]
    yield rest


def check_requests(models: ModelServer, last: int) -> None:
    """Every answer was paid for once, what failed is what was scripted, and all that was sent is well-formed."""
    assert_well_formed(models)
    steps = [record for record in models.requests if record.model != "writer"]
    assert [record.turn for record in steps if record.outcome == "answered"] == list(range(last + 1))
    lost = Counter(record.turn for record in steps if record.outcome in ("failed", "disconnected"))
    assert lost == dict.fromkeys(BUSY, 2) | dict.fromkeys(CUT_OFF, 1) | {DOWN: 3}
    assert {record.turn for record in steps if record.model == "backup"} == {DOWN}
    assert {record.outcome for record in models.requests} == {"answered", "failed", "disconnected"}
    assert max(len(record.body["messages"]) for record in steps) <= MESSAGES + 5


def check_effects(server: Server, thread_id: str, last: int) -> None:
    """Every call had its effect once."""
    commands = [
        call.args["command"].split("echo ")[1].split(" |")[0]
        for n in range(last + 1)
        for call in backup_turn(n).tool_calls
        if call.name == "bash"
    ]
    workspace = server.home / f"users/default/threads/{thread_id}/user-data/workspace"
    assert (workspace / "count.txt").read_text().splitlines() == commands
    assert len(server.signed()) == len(set(server.signed())) == sum(n % 6 == 4 for n in range(last + 1))


def check_history(messages: Sequence[Any], last: int) -> None:
    """Everything is still there, in order."""
    assert messages[0]["content"].endswith("Do all of it.")
    said = [m["content"] for m in messages if m["type"] == "ai"]
    assert said[: LAST + 1] == [backup_turn(n).text for n in range(LAST + 1)]
    wanted = [f"call_{n}_{i}" for n in range(last + 1) for i, _ in enumerate(backup_turn(n).tool_calls)]
    assert sorted(m["tool_call_id"] for m in messages if m["type"] == "tool") == sorted(wanted)
    assert not any(m.get("status") == "error" for m in messages)


def check_story(story: str, events: Sequence[Any]) -> None:
    """Each phase is told, in order, on one screen; and no model call is left out."""
    lines = story.splitlines()
    marks = [
        r"run\.requested .*Do all of it",
        r"run\.started .*model main",
        r"model\.failed .*try 2 of 3.*Error code: 429",
        r"… .* model calls",
        r"context\.compacted",
        r"model\.failed .*try 1 of 3.*The connection broke before",
        r"model\.failed .*try 3 of 3.*another model.*out of order",
        r"failover switched: main → backup",
        r"context\.compacted",
        rf"approval\.requested .*bash .*step-{CALLS - 1} .*waits",
        r"run\.paused",
        r"run\.requested .*go on",
        r"approval\.resolved .*approved by default",
        r"model\.completed .*All is done",
        r"run\.completed",
        r"run\.requested .*And more",
        r"run\.failed .*Stopped: this run used",
    ]
    for phase in phases(lines, marks):
        assert len(phase) <= SCREEN, "\n".join(phase)
    collapsed = [int(number.replace(" ", "")) for number in re.findall(r"… ([\d ]+) model call", story)]
    alone = sum(" model.completed " in line for line in lines)
    assert sum(collapsed) + alone == sum(event["type"] == "model.completed" for event in events)


# ── the work ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_long_haul(tmp_path: Path) -> None:
    async with ModelServer(SCRIPTS) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models, **SETTINGS)
        async with serving(tmp_path / "home", config) as server:
            thread_id = await client.thread(server)
            first = await client.run(server, thread_id, "Do all of it.", "main")
            await wait_for_turn(models, CALLS - 1)
            assert await until_ended(server, client, thread_id, first) == "success"
            assert (await client.get(server, f"/threads/{thread_id}"))["status"] == "interrupted"
            [approval] = await client.get(server, f"/threads/{thread_id}/approvals?status=pending")
            assert await server.terminate() == 0
            await server.start()
            assert await client.get(server, f"/threads/{thread_id}/approvals?status=pending") == [approval]
            path = f"/threads/{thread_id}/approvals/{approval['approval_id']}"
            second = (await client.post(server, path, {"decision": "approve"}))["run_id"]
            assert await until_ended(server, client, thread_id, second) == "success"

            configure(tmp_path / "config.yaml", models, **SETTINGS, budgets={"run": {"tokens": 1}})

            async def in_force() -> bool:
                return "configuration read again" in server.said()

            await wait_for(in_force, SECONDS)
            third = await client.run(server, thread_id, "And more.", "main")
            assert await until_ended(server, client, thread_id, third) == "error"
            state = await client.messages(server, thread_id)
            messages = await history(server, client, thread_id)
            events = await client.log(server, thread_id)
            failed = await client.get(server, f"/threads/{thread_id}/runs/{third}")
            replayed = await told(server, config, "log", "replay", thread_id)
            code, story = await told(server, config, "log", "show", "--brief", thread_id)

    apology = state[-1]["content"]
    assert re.fullmatch(r"Stopped: this run used \d+ of 1 tokens \(budgets\.run\.tokens\)\.", apology)
    assert messages[-1]["content"] == apology
    last = max(record.turn for record in models.requests if record.model == "main")
    assert failed["llm_call_count"] == last - LAST > 0
    check_requests(models, last)
    check_effects(server, thread_id, last)
    check_history(messages[:-1], last)
    assert len(state) < MESSAGES + 10 < len(messages)
    assert sum(event["type"] == "context.compacted" for event in events) >= 5
    steps = sum(event["type"] in ("model.completed", "tool.completed") for event in events)
    assert replayed[0] == code == 0, replayed
    match = re.match(r"(?:identical|same decisions under another [a-z ]+): (\d+) steps in 3 runs\n", replayed[1])
    assert match, replayed
    assert int(match[1]) >= steps
    check_story(story, events)
    assert "Traceback" not in server.said()


async def wait_for_turn(models: ModelServer, turn: int) -> None:
    """Until a turn is asked for: cheaper than to ask the server again and again."""

    async def asked() -> bool:
        return bool(models.requests) and models.requests[-1].turn >= turn

    await wait_for(asked, SECONDS, every=0.2)
