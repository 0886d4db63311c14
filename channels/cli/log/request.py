"""`sika log request`: what a call of a model got."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import msgspec

from channels.cli.common import OK
from channels.cli.log.sources import THREAD, source_of
from channels.cli.verbs import Parser
from channels.terminal.text import Style, clean, style_of
from core.events import Message
from core.phrases import counted
from core.replay.moments.requests import Request, request_of
from core.replay.named import aggregate_of
from core.replay.source import Source, records_of
from core.thread.messages import text_of

REMARK = (
    "not recorded: the reminders (of todos, memories, the time) and the choice of tools that policies make at the call"
)


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", help=THREAD)
    parser.add_argument("place", metavar="EVENT", help="its answer or failure: a number, an event's id")
    parser.add_argument("--json", action="store_true")


async def run(arguments: argparse.Namespace) -> int:
    async with source_of(arguments) as (source, _):
        place, style = arguments.place, style_of(sys.stdout)
        await show(source, arguments.thread, place, print, raw=arguments.json, style=style)
    return OK


async def show(
    source: Source, thread: str, place: str, write: Callable[[str], None], *, raw: bool, style: Style
) -> None:
    """Writes the request of a call of a model. Raises `NotFound` and `Invalid`."""
    records = await records_of(source, await aggregate_of(source, thread))
    request = await request_of(source, records, place)
    if raw:
        write(msgspec.json.encode(request).decode())
        return
    for line in lines(request, style):
        write(line)


def lines(request: Request, style: Style) -> Iterator[str]:
    """Yields the parameters, the tools, the system prompt and the messages in full."""
    for part, reason in request.missing.items():
        yield style.yellow(f"{part}: {reason}")
    if request.model is not None:
        yield style.bold("model")
        yield from _indented(msgspec.json.format(msgspec.json.encode(request.model), indent=2).decode())
    if request.tools is not None:
        yield style.bold(f"{counted(len(request.tools), 'tool')} (--json has their schemas)")
        yield from _indented(", ".join(str(tool.get("name")) for tool in request.tools))
    if request.prompt is not None:
        yield style.bold("system")
        yield from _indented(request.prompt)
    for message in (*request.messages, *request.notes):
        yield style.bold(_heading(message))
        yield from _indented(text_of(message.get("content", "")))
        for call in message.get("tool_calls") or ():
            yield f"  → {call.get('name')} {clean(msgspec.json.encode(call.get('args')).decode())}"
    yield style.dim(REMARK)


def _heading(message: Message) -> str:
    names = {"human": "user", "ai": "assistant"}
    name = message.get("name")
    kind = str(message.get("type"))
    return clean(names.get(kind, kind) + (f" {name}" if name else ""))


def _indented(text: str) -> Iterator[str]:
    return (f"  {clean(line)}" for line in text.splitlines())
