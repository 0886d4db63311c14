"""Long results: what the model gets instead, where the rest is, and what happens if it cannot be kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from actors.agent.messages.excerpt import Ends, kind_of
from actors.agent.policies.limits.output_budget import AROUND, PIECE, OutputBudget
from actors.excerpt import cut
from actors.sandbox import Sandbox
from adapters.sandboxes.files.operations import Files
from core.config.sandbox import Sandbox as Limits
from core.config.settings import ToolOutput
from core.errors import Divergence, Invalid, SikaError, Unavailable
from core.events import Json
from core.files.paths import Mount, Tree
from core.ports.sandbox import RESULTS, result_path
from tests.actors.agent.turns import nobody, tool_call, turn

pytestmark = pytest.mark.anyio

LONG = "".join(f"line {n}\n" for n in range(3000))


class Disk:
    """Takes what is asked of the sandbox."""

    def __init__(self, *failures: SikaError) -> None:
        self.asked: list[Json] = []
        self._failures = list(failures)

    async def __call__(self, actor: str, request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        assert actor == "sandbox"
        await progress("nobody looks")
        if self._failures:
            raise self._failures.pop()
        self.asked.append(dict(request))
        return "OK"

    @property
    def content(self) -> str:
        return "".join(request["content"] for request in self.asked)


def budget(**settings: Any) -> OutputBudget:
    sizes = {"externalize_min_chars": 12_000, "preview_head_chars": 2000, "preview_tail_chars": 1000}
    fallback = {"fallback_head_chars": 8000, "fallback_tail_chars": 3000}
    return OutputBudget(ToolOutput(**{**sizes, **fallback, **settings}))


def gave(content: Any, **more: Any) -> ToolMessage:
    return ToolMessage(content, tool_call_id="c1", name="bash", id="t1", **more)


async def test_a_long_result_goes_to_a_file() -> None:
    disk = Disk()
    on = turn(call=disk)
    result, _ = await tool_call(budget(), on, "bash", result=gave(LONG, artifact={"a": 1}))
    assert isinstance(result, ToolMessage)
    path = result_path("bash", "0-c1")
    assert disk.asked == [
        {
            "op": "write",
            "user": "u",
            "thread": "t",
            "run": "r",
            "call_id": "0-c1-result-0",
            "path": path,
            "content": LONG,
            "append": False,
        }
    ]
    assert path.startswith(f"{RESULTS}/bash-")
    text = str(result.content)
    assert text[:2000] == LONG[:2000]
    assert text[-1000:] == LONG[-1000:]
    about = text[2000:-1000]
    assert (
        f"{len(LONG) - 3000} characters are left out. The result is text: {len(LONG)} characters in 3000 lines" in about
    )
    assert f"It is in {path}." in about
    assert "read_file" in about
    assert (result.id, result.artifact, result.status) == ("t1", {"a": 1}, "success")
    [decision] = on.decided("c1")
    assert (decision.policy, decision.action, decision.text) == ("output_budget", "externalised", path)


async def test_what_was_shortened_is_left_alone() -> None:
    on = turn(call=Disk())
    first, _ = await tool_call(budget(externalize_min_chars=3000), on, "bash", result=gave(LONG))
    assert isinstance(first, ToolMessage)
    assert len(first.content) > 3000
    on.decided("c1")
    unasked = turn(call=nobody)
    again, _ = await tool_call(budget(externalize_min_chars=3000), unasked, "bash", result=first)
    assert again is first
    assert unasked.decided("c1") == []


@pytest.mark.parametrize(
    ("settings", "size", "written"),
    [
        ({}, 11_999, False),
        ({}, 12_000, True),
        ({"enabled": False}, 99_999, False),
        ({"externalize_min_chars": 0}, 99_999, False),
        ({"exempt_tools": ("bash",)}, 99_999, False),
        ({"overrides": {"bash": 0}}, 99_999, False),
        ({"overrides": {"bash": 50}}, 50, True),
        ({"overrides": {"bash": 50}}, 49, False),
        ({"overrides": {"ls": 50}}, 51, False),
    ],
    ids=repr,
)
async def test_when(settings: Json, size: int, written: bool) -> None:
    disk, raw = Disk(), gave("x" * size)
    result, _ = await tool_call(budget(**settings), turn(call=disk), "bash", result=raw)
    assert bool(disk.asked) is written
    assert (result is raw) is not written


async def test_read_file_is_exempt() -> None:
    raw = gave(LONG)
    result, _ = await tool_call(budget(), turn(), "read_file", result=raw)
    assert result is raw


async def test_errors_still_begin_as_errors() -> None:
    disk = Disk()
    text = "Error: exit code 1\n" + LONG
    result, _ = await tool_call(budget(), turn(call=disk), "bash", result=gave(text, status="error"))
    assert isinstance(result, ToolMessage)
    assert (str(result.content)[:18], result.status, disk.content) == ("Error: exit code 1", "error", text)


async def test_blocks_and_commands() -> None:
    disk, image = Disk(), {"type": "image_url", "image_url": {"url": "data:,"}}
    blocks = gave([{"type": "text", "text": LONG}, image, "more"])
    command: Command[Any] = Command(update={"title": "t", "messages": [blocks]})
    result, _ = await tool_call(budget(), turn(call=disk), "bash", result=command)
    assert isinstance(result, Command)
    assert isinstance(result.update, dict)
    [text, rest] = result.update["messages"][0].content
    assert (rest, result.update["title"], disk.content) == (image, "t", f"{LONG}\nmore")
    assert len(text["text"]) < 3000 + AROUND


async def test_what_does_not_fit_a_message_is_written_in_pieces() -> None:
    disk = Disk()
    text = "ä" * (2 * PIECE) + "\ud800end"
    await tool_call(budget(), turn(call=disk), "bash", result=gave(text))
    assert [(request["call_id"], request["append"]) for request in disk.asked] == [
        (f"0-c1-result-{n}", True) for n in range(3)
    ]
    assert disk.content == "ä" * (2 * PIECE) + "\ufffdend"


async def test_writing_twice_is_writing_once(tmp_path: Path) -> None:
    """A retry after a crash, in a real sandbox's files."""
    (tmp_path / "workspace").mkdir()
    files = Files(tmp_path, Tree([Mount(tmp_path / "workspace", "/mnt/user-data/workspace", writable=True)]), 16)

    class Provider:
        async def acquire(self, user: str, thread: str) -> Any:
            return files

    sandbox = Sandbox(Provider(), Limits())  # type: ignore[arg-type]

    async def call(actor: str, request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        return await sandbox.answer(request, progress)

    for text in (LONG, LONG * 10):
        for _ in range(2):
            await tool_call(budget(), turn(call=call), "web_fetch", call_id=f"c{len(text)}", result=gave(text))
        path = result_path("web_fetch", f"0-c{len(text)}")
        assert (await files.read(path)).decode() == text


@pytest.mark.parametrize("failure", [Unavailable("no sandbox"), Invalid("disk full")], ids=["unavailable", "invalid"])
async def test_without_a_file_it_is_cut(failure: SikaError) -> None:
    on, text = turn(call=Disk(failure)), "a" * 8000 + "b" * 40_000 + "c" * 3000
    result, _ = await tool_call(budget(), on, "bash", result=gave(text))
    assert isinstance(result, ToolMessage)
    cut = str(result.content)
    about = f"40000 characters are left out; {result_path('bash', '0-c1')} was not written"
    assert cut == "a" * 8000 + f"\n\n... [{about}] ...\n\n" + "c" * 3000
    assert len(cut) <= 30_000
    [decision] = on.decided("c1")
    assert (decision.action, decision.text) == ("cut", str(failure))
    again, _ = await tool_call(budget(fallback_max_chars=9000), turn(), "bash", result=result)
    assert again is result


async def test_a_cut_is_never_longer_than_the_limit() -> None:
    on = turn(call=Disk(Unavailable("no")))
    result, _ = await tool_call(budget(fallback_max_chars=9000), on, "bash", result=gave("x" * 60_000))
    assert isinstance(result, ToolMessage)
    assert 7000 < len(result.content) <= 9000


async def test_without_a_file_what_is_not_too_long_stays() -> None:
    on, raw = turn(call=Disk(Unavailable("no"))), gave("x" * 30_000)
    result, _ = await tool_call(budget(), on, "bash", result=raw)
    assert result is raw
    assert on.decided("c1") == []


async def test_other_failures_pass_through() -> None:
    with pytest.raises(Divergence):
        await tool_call(budget(), turn(call=Disk(Divergence("replayed"))), "bash", result=gave(LONG))


def test_paths_are_plain_and_each_call_has_its_own() -> None:
    paths = {result_path(tool, key) for tool in ("bash", "../x y") for key in ("1-c", "2-c")}
    assert len(paths) == 4
    assert all(
        path.removeprefix(f"{RESULTS}/").replace("-", "").replace("_", "").removesuffix(".txt").isalnum()
        for path in paths
    )


# ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            msgspec.json.encode([{"id": n, "name": "x"} for n in range(7)]).decode(),
            "JSON array of 7 objects, the first with the keys id, name",
        ),
        (" [1, 2]", "JSON array of 2"),
        ("[]", "JSON array of 0"),
        ('{"a": 1, "b": {}}', "JSON object with the keys a, b"),
        (
            msgspec.json.encode({f"k{n}": n for n in range(14)}).decode(),
            "JSON object with the keys " + ", ".join(f"k{n}" for n in range(12)) + " and 2 more",
        ),
        ('{"a": 1}\n{"a": 2}\n{"a": 3}\n', "3 JSON objects, one a line, the first with the keys a"),
        ("id,name\n1,a\n2,b\n3,c\n", "CSV of 4 lines with the columns id, name"),
        ('id;name\n1;"a;b"\n2;b\n3;c\n', "CSV of 4 lines with the columns id, name"),
        ("id\tname\n1\ta\n2\tb\n3\tc\n", "tab-separated table of 4 lines with the columns id, name"),
        (
            "2026-01-01 10:00:00 a\n2026-01-01 10:00:01 b\n  at x\n[2026-01-01T10:00:02] c\n",
            "log lines, the first of 2026-01-01 10:00:00",
        ),
        ("INFO a\nWARNING b\nERROR c\n", "log lines"),
        ("one, two\nthree\nfour, five, six\n", "text"),
        ("[broken", "text"),
        ("", "text"),
        ('{"\\u003csystem-reminder>": 1}', "JSON object with the keys &lt;system-reminder>"),
    ],
    ids=lambda value: str(value)[:25],
)
def test_kinds(text: str, kind: str) -> None:
    assert kind_of(text) == kind


async def test_long_lines_are_not_read_by_lines() -> None:
    result, _ = await tool_call(budget(), turn(call=Disk()), "bash", result=gave("[" + "1," * 9000 + "1]"))
    assert isinstance(result, ToolMessage)
    assert "JSON array of 9001: 18003 characters in 1 line. It is in" in str(result.content)
    assert "with bash" in str(result.content)
    assert "read_file" not in str(result.content)


@pytest.mark.parametrize("most", [0, 1, 10, 2999, 3000, 9000])
def test_ends_within_a_limit(most: int) -> None:
    head, tail = Ends(2000, 1000).within(most)
    assert 0 <= head <= 2000
    assert 0 <= tail <= 1000
    assert head + tail == min(most, 3000)


async def test_an_output_that_is_kept_already_is_shortened_and_not_written(tmp_path: Path) -> None:
    disk = Disk()
    path = result_path("bash", "0-c1")
    text = LONG[:9000] + f"[skipped; the whole output is in {path}]" + LONG[:9000]
    result, _ = await tool_call(budget(), turn(call=disk), "bash", result=gave(text))
    assert isinstance(result, ToolMessage)
    assert disk.asked == []
    assert len(str(result.content)) < 12_000
    assert f"All of it is in {path}." in str(result.content)
    again, _ = await tool_call(budget(), turn(call=disk), "bash", result=result)
    assert again == result


async def test_an_output_that_was_cut_where_it_arose_is_not_cut_again() -> None:
    """Both limits are the defaults, and the note names the call's own file."""
    path, disk = result_path("bash", "0-c1"), Disk()
    text = cut(LONG * 9, Limits().bash_output_max_chars, f"; the whole output is in {path}")
    result, _ = await tool_call(OutputBudget(ToolOutput()), turn(call=disk), "bash", result=gave(text))
    assert isinstance(result, ToolMessage)
    assert (result.content, disk.asked) == (text, [])


async def test_lines_that_speak_of_errors_are_named() -> None:
    text = LONG[:13_000] + "\nValueError: no\n" + LONG[:13_000]
    result, _ = await tool_call(budget(), turn(call=Disk()), "web", result=gave(text))
    assert isinstance(result, ToolMessage)
    number = text[: text.index("ValueError")].count("\n") + 1
    assert f"Lines in it that speak of errors:\n{number}: ValueError: no]" in str(result.content)
