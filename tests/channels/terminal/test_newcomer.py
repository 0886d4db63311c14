"""Twenty things that a newcomer does with `sika chat`, on a terminal and in scripts. The screens are kept as texts.

`SIKA_GOLDEN=1` writes them anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from channels.client import AsyncSikaClient
from channels.terminal.chat.chat import FAILED, OK, WAITING
from tests.channels.client.stage import Stage, serving, written
from tests.channels.terminal.emulator import CTRL_C, CTRL_D, ENTER, TAB, Emulated, emulated
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=8)]

SCREENS = Path(__file__).parent / "screens"
FORM = {
    "question": "What shall it be?",
    "clarification_type": "missing_info",
    "fields": [
        {"name": "name", "label": "Name", "type": "text", "required": True},
        {"name": "size", "label": "Size", "type": "select", "options": ["small", "large"]},
        {"name": "gift", "label": "Gift", "type": "checkbox"},
    ],
}
CHOICE = {"question": "Which colour?", "clarification_type": "approach_choice", "options": ["red", "blue"]}


def bash(command: str, text: str = "") -> Turn:
    return Turn(text=text, tool_calls=(ToolCall("bash", {"command": command}),))


def asks(question: dict[str, Any]) -> Turn:
    return Turn(tool_calls=(ToolCall("ask_clarification", question),))


SCRIPTS = {
    "first": Script((Turn(text="Hello from the first one."),)),
    "second": Script((Turn(text="Hello from the second one."),)),
    "working": Script((bash("echo one; echo two", "Let me look."), Turn(text="It has **two** lines.")), count="total"),
    "approving": Script((bash("touch made"), Turn(text="All done.")), count="total"),
    "choosing": Script((asks(CHOICE), Turn(text="Blue it is.")), count="total"),
    "filling": Script((asks(FORM), Turn(text="Ordered.")), count="total"),
    "steered": Script((Turn(text="Two.", gate="steered"), Turn(text="In French: deux.")), count="total"),
    "naming": Script((Turn(text="Two.", gate="naming"),)),
    "seeing": Script((Turn(text="I see it."),)),
    "stopped": Script((Turn(text="One two three", gate="stopped", gate_after=2),)),
    "failing": Script((Turn(error=Failure(status=400, message="no luck today")),)),
}


class Site(NamedTuple):
    stage: Stage
    models: ModelServer
    url: str
    folder: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, stage = tmp_path_factory.mktemp("newcomer"), Stage()
    models = stage.enter(ModelServer(SCRIPTS))
    rule = {"tool": "bash", "match": {"command": "touch*"}, "text": "It makes a file."}
    config = written(folder / "config", models, approvals=[rule])
    settings = json.loads(config.read_text())
    next(model for model in settings["models"] if model["name"] == "seeing")["supports_vision"] = True
    config.write_text(json.dumps(settings))
    yield Site(stage, models, stage.enter(serving(folder / "home", config)), folder)
    stage.close()


@pytest.fixture
async def client(site: Site) -> Any:
    async with AsyncSikaClient(url=site.url) as client:
        yield client


# ── on a terminal ───────────────────────────────────────────────────────────────────────────────────────────────────


async def release(site: Site, gate: str) -> None:
    async def opened() -> None:
        site.models.release(gate)

    await asyncio.to_thread(site.stage.call, opened)


Work = Callable[[Emulated, Site], Awaitable[None]]
TASKS: dict[str, tuple[list[str], Work]] = {}


def task(*arguments: str) -> Callable[[Work], Work]:
    def take(work: Work) -> Work:
        TASKS[work.__name__] = ([*arguments], work)
        return work

    return take


@task()
async def greets_and_helps(terminal: Emulated, _: Site) -> None:
    await terminal.say("/help")
    await terminal.until("takes that option")


@task()
async def answers_a_message(terminal: Emulated, _: Site) -> None:
    await terminal.say("Hi")
    await terminal.until("Hello from the first one.")


@task("--model", "second")
async def begins_with_a_model(terminal: Emulated, _: Site) -> None:
    await terminal.say("Hi")
    await terminal.until("Hello from the second one.")


@task()
async def lists_the_models_and_takes_another(terminal: Emulated, _: Site) -> None:
    await terminal.say("/model")
    await terminal.until("failing")
    await terminal.say("/model second")
    await terminal.say("Hi")
    await terminal.until("Hello from the second one.")
    await terminal.say("/model")


@task()
async def is_told_what_there_is(terminal: Emulated, _: Site) -> None:
    for line in ("/model gpt-9", "/mode slow", "/effort huge", "/agent nobody"):
        await terminal.say(line)


@task("--mode", "flash")
async def changes_the_mode_and_the_effort(terminal: Emulated, _: Site) -> None:
    await terminal.say("/mode")
    await terminal.say("/mode ultra")
    await terminal.say("/effort high")
    await terminal.say("/effort")


@task("--model", "working")
async def watches_a_command(terminal: Emulated, _: Site) -> None:
    await terminal.say("Count.")
    await terminal.until("lines.")


@task()
async def attaches_a_file(terminal: Emulated, _: Site) -> None:
    await terminal.say("Read @notes.md")
    await terminal.until("Hello from the first one.")


@task()
async def is_told_of_a_file_that_is_missing(terminal: Emulated, _: Site) -> None:
    await terminal.say("Read @nots.md")
    await terminal.until("> Read @nots.md\nerror:")
    await terminal.until("as it is)\n> Read @nots.md")
    terminal.type(4 * "\x7f" + "es.md" + ENTER)
    await terminal.until("Hello from the first one.")


@task()
async def sends_the_name_of_no_file_as_a_word(terminal: Emulated, _: Site) -> None:
    await terminal.say("What is @types/node?")
    await terminal.until("as it is)\n> What is @types/node?")
    terminal.type(ENTER)
    await terminal.until("Hello from the first one.")


@task()
async def is_told_that_a_model_does_not_see(terminal: Emulated, _: Site) -> None:
    await terminal.say("Look at @p.png")
    await terminal.until("Hello from the first one.")
    await terminal.say("/model seeing")
    await terminal.say("Look at @p.png")
    await terminal.until("I see it.")


@task()
async def is_told_what_was_perhaps_meant(terminal: Emulated, _: Site) -> None:
    for line in ("/modle second", "/compress", "/new please", "/threads zz"):
        await terminal.say(line)


@task("--thread", "a-thread-of-this-name")
async def names_a_thread_by_its_beginning(terminal: Emulated, _: Site) -> None:
    await terminal.say("Hi")
    await terminal.until("Hello from the first one.")
    await terminal.say("/new")
    await terminal.say("/threads a-thr")
    await terminal.until("thread a-thread-of-this-name\n")


@task("--model", "naming")
async def names_a_file_while_a_run_works(terminal: Emulated, site: Site) -> None:
    await terminal.say("Say two.")
    await asyncio.to_thread(site.stage.call, site.models.reached, "naming")
    terminal.type("And @notes.md" + ENTER)
    await terminal.until("it begins your next message")
    await release(site, "naming")
    await terminal.until("Two.\n> And @notes.md")
    terminal.type(CTRL_C)


@task("--model", "approving", "--thread", "open-thread")
async def answers_a_question_that_was_left_open(terminal: Emulated, _: Site) -> None:
    await terminal.say("Make it.")
    await terminal.asks("approve?")
    terminal.type(CTRL_C)
    await terminal.until("left open")
    await terminal.say("/new")
    await terminal.say("/threads open-thread")
    await terminal.until("thread open-thread\n▸ bash waits")
    await terminal.asks("approve?")
    terminal.type("y" + ENTER)
    await terminal.until("All done.")


@task()
async def completes_a_command_a_model_and_a_file(terminal: Emulated, _: Site) -> None:
    await terminal.prompt()
    terminal.type("/mod" + TAB)
    await terminal.until("> /mode")
    terminal.type("l sec" + TAB)
    await terminal.until("> /model second")
    terminal.type(ENTER)
    await terminal.prompt()
    terminal.type("Read @not" + TAB)
    await terminal.until("> Read @notes.md")
    terminal.type(CTRL_C)


@task()
async def completes_a_skill(terminal: Emulated, _: Site) -> None:
    await terminal.prompt()
    terminal.type("/data-a" + TAB)
    await terminal.until("> /data-analysis")
    terminal.type(CTRL_C)


@task("--model", "approving")
async def approves(terminal: Emulated, _: Site) -> None:
    await terminal.say("Make it.")
    await terminal.asks("approve?")
    terminal.type("y" + ENTER)
    await terminal.until("All done.")


@task("--model", "approving")
async def rejects_with_a_reason(terminal: Emulated, _: Site) -> None:
    await terminal.say("Make it.")
    await terminal.asks("approve?")
    terminal.type("n" + ENTER)
    await terminal.asks("reason")
    terminal.type("not now" + ENTER)
    await terminal.until("All done.")


@task("--model", "choosing")
async def takes_an_option_by_its_number(terminal: Emulated, _: Site) -> None:
    await terminal.say("Paint it.")
    await terminal.until("2. blue")
    await terminal.say("2")
    await terminal.until("Blue it is.")


@task("--model", "filling")
async def fills_in_a_form_field_by_field(terminal: Emulated, _: Site) -> None:
    await terminal.say("Order it.")
    for prompt, line, answer in (
        ("Name (text)", "", "(name: is required)"),
        ("Name (text)", "Ada", "Ada\nSize"),
        ("Size (one of", "huge", "(size: one of small, large is expected)"),
        ("Size (one of", "large", "large\nGift"),
        ("Gift (", "y", "Ordered."),
    ):
        await terminal.asks(prompt)
        terminal.type(line + ENTER)
        await terminal.until(answer)


@task("--model", "steered")
async def steers_a_run(terminal: Emulated, site: Site) -> None:
    await terminal.say("Say two.")
    await asyncio.to_thread(site.stage.call, site.models.reached, "steered")
    terminal.type("in Frem\x7fnch")
    await terminal.until("> in French▏")
    terminal.type(ENTER)
    await terminal.until("> in French")
    await release(site, "steered")
    await terminal.until("In French: deux.")


@task("--model", "stopped")
async def stops_a_run(terminal: Emulated, _: Site) -> None:
    await terminal.say("Count.")
    await terminal.until("One two")
    terminal.type(CTRL_C)
    await terminal.until("stopped")


@task("--model", "failing")
async def sees_what_the_provider_says(terminal: Emulated, _: Site) -> None:
    await terminal.say("Hi")
    await terminal.until("no luck today")


@task("--thread", "resumed-thread")
async def goes_on_with_an_older_thread(terminal: Emulated, _: Site) -> None:
    await terminal.say("Remember me")
    await terminal.until("Hello from the first one.")
    await terminal.say("/new")
    await terminal.say("/threads resumed-thread")
    await terminal.say("/cost")
    await terminal.until("tokens read")


@pytest.mark.parametrize("name", TASKS)
async def test_a_newcomer(site: Site, tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n")
    (tmp_path / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    arguments, work = TASKS[name]
    home = ("--home", str(tmp_path / "home"))
    async with emulated("chat", "--url", site.url, *home, *arguments, cwd=tmp_path) as terminal:
        await work(terminal, site)
        await terminal.prompt()
        terminal.type(CTRL_D)
        assert await terminal.ended() == OK
        await terminal.until("go on with" if "thread ID" in terminal.shown() or "Hello" in terminal.shown() else ">")
        shown = terminal.shown()
    golden = SCREENS / f"{name}.txt"
    if os.environ.get("SIKA_GOLDEN"):
        golden.write_text(shown)
    assert shown == golden.read_text()


def test_there_are_twenty() -> None:
    assert len(TASKS) >= 20
    assert {path.stem for path in SCREENS.glob("*.txt")} == set(TASKS)


# ── in a script ─────────────────────────────────────────────────────────────────────────────────────────────────────

REFUSED = "The model's provider refused the request. The run's error says why.\n"

SCRIPTED: dict[str, tuple[list[str], int, str]] = {
    "standard output is the answer": (["--model", "working", "Count."], OK, "It has **two** lines.\n"),
    "quiet": (["--quiet", "--model", "working", "Count."], OK, "It has **two** lines.\n"),
    "waits for an approval": (["--quiet", "--model", "approving", "Make it."], WAITING, ""),
    "waits for an answer": (["--quiet", "--model", "choosing", "Paint it."], WAITING, ""),
    "fails": (["--quiet", "--model", "failing", "Hi"], FAILED, REFUSED),
    "a command": (["/model second"], OK, ""),
    "an unknown model": (["--model", "gpt-9", "Hi"], 2, ""),
    "an unknown mode": (["--mode", "slow", "Hi"], 2, ""),
    "a file that is missing": (["--quiet", "Read @missing.md"], 2, ""),
    "a file that is missing, as JSON": (["--json", "Read @missing.md"], 2, ""),
    "a word in quotes": (["--quiet", "What is '@types/node'?"], OK, "Hello from the first one.\n"),
    "an unknown command": (["/modle second"], 2, ""),
    "a command with other words": (["/new please"], 2, ""),
    "a path": (["--quiet", "/etc/hosts: what is that?"], OK, "Hello from the first one.\n"),
    "quiet without a message": (["--quiet"], 2, ""),
}


async def script(site: Site, folder: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "channels.cli", "chat", "--url", site.url, "--home", str(folder), *arguments]
    done = await anyio.run_process(command, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()}, cwd=folder)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("name", SCRIPTED)
async def test_a_script(site: Site, tmp_path: Path, name: str) -> None:
    arguments, code, answer = SCRIPTED[name]
    status, out, err = await script(site, tmp_path, *arguments)
    assert (status, out) == (code, answer), err
    if "--quiet" in arguments and code in (OK, WAITING):
        assert err == ""
    elif name == "standard output is the answer":
        assert "▸ bash" in err
        assert "Let me look." in err
    elif code:
        assert err


@pytest.mark.parametrize(
    ("model", "status", "answer", "error"),
    [
        ("working", "success", "It has **two** lines.", None),
        ("approving", "waiting", "", None),
        ("failing", "error", REFUSED.strip(), "no luck today"),
    ],
)
async def test_an_answer_as_json(
    site: Site, tmp_path: Path, client: AsyncSikaClient, model: str, status: str, answer: str, error: str | None
) -> None:
    _, out, _ = await script(site, tmp_path, "--json", "--model", model, "Go.")
    report = json.loads(out)
    assert (report["status"], report["answer"]) == (status, answer)
    assert (report["error"] is None) if error is None else (error in report["error"])
    assert bool(report["questions"]) == (status == "waiting")
    run = await client.get_run(report["thread_id"], report["run_id"])
    assert report["usage"]["tokens"] == run["total_tokens"]


async def test_options_reach_the_run(site: Site, tmp_path: Path, client: AsyncSikaClient) -> None:
    options = ("--mode", "ultra", "--effort", "low", "--no-plan", "--no-subagents")
    _, out, _ = await script(site, tmp_path, "--json", "--model", "second", *options, "Hi")
    report = json.loads(out)
    context = (await client.get_run(report["thread_id"], report["run_id"]))["kwargs"]["context"]
    assert context == {
        "user_id": "default",
        "model_name": "second",
        "mode": "ultra",
        "reasoning_effort": "low",
        "is_plan_mode": False,
        "subagent_enabled": False,
    }
