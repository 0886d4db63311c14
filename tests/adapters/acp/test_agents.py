"""Other agents as processes: what they answer, what they are refused, and what hostile ones cost."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from adapters.acp import agents as module
from adapters.acp import process, session
from adapters.acp.agents import LocalAgents
from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.host.sandbox import Host
from adapters.sandboxes.process import quota, usage
from core.config.acp import AcpAgent
from core.config.redaction import redactor
from core.config.sections import Secret
from core.errors import Invalid
from core.files.paths import thread_root
from core.ports.agents import Permission, Report, Work
from core.ports.sandbox import SandboxSetup

pytestmark = pytest.mark.anyio

CODE = (Path(__file__).parents[2] / "support" / "acp_agent.py").read_text()
numbers = iter(range(10_000))


def agent(*words: str, **more: Any) -> AcpAgent:
    settings = {"command": sys.executable, "args": ("-c", CODE, *words), "trusted": True, **more}
    return AcpAgent(**settings)


def sandboxed(*words: str, **more: Any) -> AcpAgent:
    return agent(*words, command="python3", trusted=False, **more)


class Desk:
    """The agents of a data directory, and what they showed."""

    def __init__(self, home: Path) -> None:
        self.home, self.shown = home, ""
        self.agents = LocalAgents(home, Bubblewrap(SandboxSetup(home=home)))

    async def advance(
        self, prompt: str, settings: AcpAgent, decisions: Mapping[str, bool] = {}, key: str = "", **more: Any
    ) -> Permission | Report:
        work = Work(user="ada", thread="t1", key=key or f"k{next(numbers)}", agent="helper", prompt=prompt, **more)
        return await self.agents.advance(work, settings, decisions, self._show)

    async def report(self, prompt: str, settings: AcpAgent | None = None, **more: Any) -> Report:
        answer = await self.advance(prompt, settings or agent(), **more)
        assert isinstance(answer, Report), answer
        return answer

    async def permission(self, prompt: str, settings: AcpAgent, key: str, **more: Any) -> Permission:
        answer = await self.advance(prompt, settings, key=key, **more)
        assert isinstance(answer, Permission), answer
        return answer

    @property
    def workspace(self) -> Path:
        return thread_root(self.home, "ada", "t1") / "acp-workspace"

    async def _show(self, text: str) -> None:
        self.shown += text


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    yield Desk(tmp_path)
    await module.close()


def alive(mark: str) -> list[int]:
    """The processes whose command line has a word."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                pids.append(int(name))
        except OSError:
            continue
    return pids


REPORTS: dict[str, tuple[str, AcpAgent, str, bool]] = {
    "text": ("say one |two", agent(), "one two", False),
    "sandboxed": ("say one |two", sandboxed(), "one two", False),
    "empty": ("nothing", agent(), "(no response)", False),
    "noise": ("noise", agent(), "still here", False),
    "refusal": ("stop refusal", agent(), "so far\n\nThe agent refused to do it.", True),
    "limit": ("stop max_tokens", agent(), "so far\n\nThe agent stopped at its limit of tokens.", False),
    "crash": ("crash", agent(), "its process ended with exit code 7.\n\nUntil then it said:\nhalf", True),
    "hang": ("hang", agent(timeout_seconds=0.2), "it was cancelled after 0.2 seconds of work", True),
    "deaf": ("deaf", agent(timeout_seconds=0.2), "it was cancelled after 0.2 seconds of work", True),
    "hang at start": ("say x", agent("hang-at-start", start_timeout_seconds=0.3), "not started a session", True),
    "version": ("say x", agent("other-version"), "it speaks version 7, and Sika 1 of the protocol", True),
    "login": ("say x", agent("needs-login"), "the error -32000: Authentication required", True),
    "flood": ("flood", agent(), "it sent a message of more than 8 MB", True),
    "flood, sandboxed": ("flood", sandboxed(), "it sent a message of more than 8 MB", True),
    "missing": ("say x", agent(command="no-such-agent"), "the program 'no-such-agent' of acp_agents.helper", True),
    "missing, sandboxed": ("say x", sandboxed().__class__(command="nope"), "the program 'nope'", True),
    "codex": ("say x", agent(command="codex-acp"), "install `@zed-industries/codex-acp`", True),
    "terminal": ("terminal", agent(), "Method not found", False),
    "nobody to ask": ("permission allow_once,reject_once", agent(), "id-reject_once", False),
}


@pytest.mark.long(keep=4)
@pytest.mark.parametrize(("prompt", "settings", "text", "failed"), REPORTS.values(), ids=REPORTS)
async def test_reports(desk: Desk, prompt: str, settings: AcpAgent, text: str, failed: bool) -> None:
    report = await desk.report(prompt, settings, asks=False)
    assert text in report.text
    assert report.failed == failed


async def test_text_is_shown_as_it_comes(desk: Desk) -> None:
    await desk.report("say one |two")
    assert desk.shown == "one two"


async def test_standard_error_is_drained_capped_and_redacted(desk: Desk) -> None:
    redactor.learn({"api_key": Secret("secret-of-mine")})
    with structlog.testing.capture_logs() as lines:
        assert (await desk.report("stderr")).text == "wrote it"
    said = [line["line"] for line in lines if line["event"] == "an agent says"]
    assert "secret-of-mine" not in "".join(said)
    assert sum(map(len, said)) <= process.STDERR_BYTES


async def test_lines_that_are_no_messages_are_logged_up_to_a_limit(desk: Desk) -> None:
    with structlog.testing.capture_logs() as lines:
        assert (await desk.report("chatter")).text == "said much"
    odd = [line["line"] for line in lines if line["event"] == "not a message"]
    assert 0 < sum(map(len, odd)) <= process.STDERR_BYTES


async def test_children_that_left_the_session_die_with_it(desk: Desk) -> None:
    await desk.report("fork")
    assert alive("left-behind") == []
    await desk.report("fork", sandboxed())
    assert alive("left-behind") == []


async def test_the_sandbox_shows_its_workspace_and_no_key_of_the_server(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hush")
    seen = json.loads((await desk.report("see", sandboxed(env={"OWN": Secret("x")}))).text)
    assert seen["cwd"] == seen["session"]["cwd"] == "/mnt/acp-workspace"
    assert {"OWN", "HOME"} <= {*seen["env"]}
    assert "OPENAI_API_KEY" not in seen["env"]
    assert "home" not in seen["root"]
    trusted = json.loads((await desk.report("see", agent(model="big"))).text)
    assert trusted["cwd"] == str(desk.workspace)
    assert "OPENAI_API_KEY" not in trusted["env"]
    assert trusted["session"]["_meta"] == {"model": "big"}
    assert trusted["session"]["mcpServers"] == []


async def test_what_cannot_be_confined_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.agents = LocalAgents(tmp_path, Host(SandboxSetup(home=tmp_path, allow_host_bash=True)))
    report = await desk.report("say x", sandboxed())
    assert "acp_agents.helper.trusted" in report.text
    assert report.failed


@pytest.mark.parametrize("make", [agent, sandboxed])
async def test_files_of_the_workspace_only(desk: Desk, make: Any, tmp_path: Path) -> None:
    await desk.report("say x")
    cwd = str(desk.workspace) if make is agent else "/mnt/acp-workspace"
    (tmp_path / "secret.txt").write_text("hush")
    (desk.workspace / "out").symlink_to(tmp_path)
    (desk.workspace / "direct").symlink_to(tmp_path / "secret.txt")
    file = {"path": f"{cwd}/a/b.txt"}
    calls: list[Any] = [["write", file | {"content": "hello\nyou"}], ["read", file], ["read", file | {"line": 2}]]
    outside = ["/etc/passwd", f"{tmp_path}/secret.txt", f"{cwd}/out/secret.txt", f"{cwd}/direct", f"{cwd}/../x"]
    for path in (*outside, f"{cwd}-other/x", "a/b.txt"):
        calls += [["read", {"path": path}], ["write", {"path": path, "content": "x"}]]
    wrote, whole, second, *refused = json.loads((await desk.report(f"files {json.dumps(calls)}", make())).text)
    assert (desk.workspace / "a" / "b.txt").read_text() == "hello\nyou"
    assert [answer["result"] for answer in (wrote, whole, second)] == [
        {},
        {"content": "hello\nyou"},
        {"content": "you"},
    ]
    assert [answer["error"]["code"] for answer in refused] == [-32602] * 14
    assert "hush" not in str(refused)
    assert (tmp_path / "secret.txt").read_text() == "hush"


LIMITS = {**quota.UNLIMITED, "thread_bytes": 1 << 20}


async def test_files_count_in_the_limits_of_the_thread(desk: Desk) -> None:
    """A write that exceeds them is refused; the tools of the sandbox count what the other agent wrote."""
    desk.agents = LocalAgents(desk.home, None, limits=LIMITS)
    files = [{"path": f"{desk.workspace}/{name}", "content": "x" * 600_000} for name in "abc"]
    calls = [["write", file] for file in files] + [["write", files[0] | {"content": "x"}], ["write", files[1]]]
    wrote, refused, again, smaller, second = json.loads((await desk.report(f"files {json.dumps(calls)}")).text)
    assert [answer.get("result") for answer in (wrote, smaller, second)] == [{}, {}, {}]
    assert "more than 1 MB (sandbox.max_thread_mb)" in str(refused["error"])
    assert "error" in again
    assert sorted(path.name for path in desk.workspace.iterdir()) == ["a", "b"]
    sandbox = await Host(SandboxSetup(home=desk.home, quota=LIMITS)).acquire("ada", "t1")
    with pytest.raises(Invalid, match="max_thread_mb"):
        await sandbox.write("/mnt/user-data/workspace/x", "x" * 600_000)


async def test_an_agent_that_writes_too_much_by_itself_is_ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "COUNT_EVERY", 0.05)
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.05)
    desk.agents = LocalAgents(desk.home, None, limits=LIMITS)
    report = await desk.report(f"fill {3 << 20}")
    assert report.failed
    assert "the files of this thread take more than 1 MB (sandbox.max_thread_mb)" in report.text
    last = quota.recorded(str(desk.workspace.parent))
    assert last is not None
    assert last[0][0] > 1 << 20


# ── permissions ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_person_decides(desk: Desk) -> None:
    prompt = "permission allow_always,allow_once,reject_once allow_once,reject_always,reject_once allow_always,x"
    first = await desk.permission(prompt, agent(), "k")
    assert first.step == {
        "agent": "helper",
        "request": 1,
        "title": "Delete all",
        "kind": "execute",
        "input": "{'command': 'rm -r x'}",
    }
    assert first.text == "The agent helper asks for permission: Delete all"
    assert await desk.permission(prompt, agent(), "k") == first
    second = await desk.permission(prompt, agent(), "k", decisions={"1": True})
    assert second.id == "2"


DECIDED: dict[str, tuple[str, bool, str]] = {
    "once before always": ("allow_always,allow_once,reject_once", True, "id-allow_once"),
    "always if there is no once": ("reject_once,allow_always", True, "id-allow_always"),
    "rejected once before always": ("allow_once,reject_always,reject_once", False, "id-reject_once"),
    "nothing to reject with": ("allow_once", False, "cancelled"),
}


@pytest.mark.parametrize(("kinds", "granted", "chosen"), DECIDED.values(), ids=DECIDED)
async def test_the_option_that_is_chosen(desk: Desk, kinds: str, granted: bool, chosen: str) -> None:
    await desk.permission(f"permission {kinds}", agent(), "k")
    assert (await desk.report(f"permission {kinds}", agent(), key="k", decisions={"1": granted})).text == chosen
    if granted:
        automatic = await desk.report(f"permission {kinds}", agent(auto_approve_permissions=True))
        assert automatic.text == chosen


async def test_an_open_request_is_rejected_in_the_end_and_the_work_goes_on(desk: Desk) -> None:
    settings = agent(permission_timeout_seconds=2, timeout_seconds=60)
    await desk.permission("permission allow_once,reject_once", settings, "k")
    while isinstance(report := await desk.advance("", settings, key="k"), Permission):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert report.text == "id-reject_once"


async def test_waiting_for_a_person_is_not_work(desk: Desk) -> None:
    settings = agent(timeout_seconds=10)
    await desk.permission("permission allow_once", settings, "k")
    await asyncio.sleep(10.1)
    assert (
        await desk.report("permission allow_once", settings, key="k", decisions={"1": True})
    ).text == "id-allow_once"


async def test_cancelling_answers_open_requests_with_cancelled(desk: Desk) -> None:
    await desk.permission("permission allow_once,reject_once", agent(), "k")
    await desk.agents.stop("ada", "t1", "k")
    report = await desk.report("permission allow_once,reject_once", agent(), key="k")
    assert report.text == "cancelled"


@pytest.mark.parametrize("word", ["hang", "deaf"])
async def test_stopping_is_bounded(desk: Desk, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.5)
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(desk.report(word, agent("stopping"), key="k"))
        while "begun" not in desk.shown:  # noqa: ASYNC110  it tells nobody else
            await asyncio.sleep(0.01)
        await desk.agents.stop("ada", "t1", "k")
    assert working.result().failed
    assert alive("stopping") == []


# ── crashes of the server ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("effect", "text"), [("once", "The outcome of this call is unknown"), ("pure", "again")])
async def test_work_that_the_server_lost(desk: Desk, effect: str, text: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        lost = tasks.create_task(desk.report("hang", agent(effect=effect), key="k"))
        while "begun" not in desk.shown:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await module.close()
    assert "it was stopped" in lost.result().text
    assert text in (await Desk(desk.home).report("say again", agent(effect=effect), key="k")).text


async def test_a_recorded_report_is_not_worked_for_twice(desk: Desk) -> None:
    first = await desk.report("say one", key="k")
    assert await Desk(desk.home).report("say two", key="k") == first


def test_a_step_is_redacted_and_cut() -> None:
    from acp.schema import ToolCallUpdate

    redactor.learn({"api_key": Secret("secret-of-mine")})
    call = ToolCallUpdate(tool_call_id="c", title="t" * 1000, raw_input={"x": "secret-of-mine" + "y" * 10_000})
    step = session.shown_step("a", 1, call)
    assert len(step["title"]) == 300
    assert len(step["input"]) == session.MOST_SHOWN
    assert "secret-of-mine" not in step["input"]
