"""One plug-in of each kind."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from msgspec.structs import replace

from sika import Actor, Context, Event, Policy, Refuse, ToolCall, ToolContext, View, tool
from sika.events import RunCompleted
from sika.sandboxes import Host, Job, ShellCommand, Tree


class TallyKept(Event, frozen=True):
    """The thread has had so many runs."""

    runs: int

    def patch(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"tally": self.runs}


class Tally(Actor[RunCompleted]):
    name = "tally"

    async def handle(self, event: RunCompleted, ctx: Context) -> None:
        await ctx.append(TallyKept(runs=len((await ctx.load()).runs)))


class Parrot(BaseChatModel):
    """Calls the tool that a message names, as in `shout: hello`, and repeats its result."""

    model: str = "parrot"

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        last = messages[-1]
        text = last.text if isinstance(last, ToolMessage) else _asked(messages)
        name, colon, argument = text.partition(": ")
        call = bool(colon) and not isinstance(last, ToolMessage)
        args: dict[str, Any] = {"text": argument}
        if name == "bash":
            args = {"command": argument, "description": "as told"}
        elif name == "my_tool":
            args = {"paths": [argument]}
        calls = [{"id": f"call-{len(messages)}", "name": name, "args": args}] if call else []
        answer = AIMessage("" if call else f"Parrot says {text}", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _asked(messages: Sequence[BaseMessage]) -> str:
    """The line that a person wrote; the server may put lines around it."""
    lines = [line for message in messages if message.type == "human" for line in message.text.splitlines()]
    return next(line for line in reversed(lines) if ": " in line and "<" not in line)


class Hush(Policy):
    """Keeps a word from tools."""

    async def before_tool(self, view: View, call: ToolCall) -> Refuse | None:
        return Refuse("Hush.") if "secret" in str(call.args) else None


class Careful(Host):
    """The host's sandbox, with a word in the environment of commands."""

    name = "careful"

    def job(self, command: ShellCommand, tree: Tree, root: Path) -> Job:
        return super().job(replace(command, text=f"CARE=taken; {command.text}"), tree, root)


@tool(effect="pure")
async def shout(ctx: ToolContext, text: str) -> str:
    """Shout a text.

    Args:
        text: The text.
    """
    return text.upper()


@tool(effect="idempotent")
async def survey(ctx: ToolContext, text: str) -> str:
    """Use what tools of strangers have.

    Args:
        text: What is surveyed; `fail` and `block` do that.
    """
    if text == "fail":
        raise LookupError("no bridge")
    if text == "block":
        time.sleep(3)  # noqa: ASYNC251 - on purpose
    await ctx.stage(f"surveying {text}")
    place = await ctx.files.write("outputs/survey.txt", text.encode())
    [listed] = await ctx.files.list("outputs")
    return f"{listed} has {(await ctx.files.read(place)).decode()}"
