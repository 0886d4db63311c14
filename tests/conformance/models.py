"""The models of these tests: scripts, on gates and faults of the asker's own.

The last word of what the user said may be a mark, `@` and letters: the gate `@` of a script is then the gate of that
name, and a fault strikes once for each mark. So many tests can share one server at the same time. What a script tells
a subagent may end with `@`, too: it gets the mark.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from tests.support.model_server import Failure, ModelServer, Record, Script, ToolCall, Turn, words

_MARK = re.compile(r"@(\w+)\W*$")


def note(text: str) -> ToolCall:
    return ToolCall("note", {"text": text})


def ask(question: str) -> ToolCall:
    return ToolCall("ask", {"question": question})


def task(prompt: str) -> ToolCall:
    return ToolCall("task", {"description": "look around", "prompt": prompt, "subagent_type": "general-purpose"})


SCRIPTS: Mapping[str, tuple[Turn, ...]] = {
    "hello": (Turn(text="Hello to you, too."),),
    "gated": (Turn(text="one two three four", gate="@", gate_after=2),),
    "fifty": (Turn(text=words(50), gate="@", gate_after=1, delay_ms=10),),
    "twice": (
        Turn(text="First a note.", tool_calls=(note("a"),)),
        Turn(text="Now it is noted.", gate="@"),
    ),
    "works": (
        Turn(text="I take two notes.", tool_calls=(note("a"), note("b"))),
        Turn(text="Both are taken."),
    ),
    "endless": tuple(Turn(tool_calls=(note(str(number)),)) for number in range(40)),
    "delegates": (
        Turn(text="I delegate.", tool_calls=(task("Look here!"), task("Look there!"))),
        Turn(text="Both are back."),
    ),
    "delegates-gated": (
        Turn(text="I delegate.", tool_calls=(task("Look here!"), task("Look there!"))),
        Turn(text="Both are back.", gate="@"),
    ),
    "delegates-held": (
        Turn(text="I delegate.", tool_calls=(task("Look here! @"), task("Look there! @"))),
        Turn(text="Both are back."),
    ),
    "looks": (
        Turn(text="I take a note.", tool_calls=(note("a"),)),
        Turn(text="All is well.", delay_ms=5, gate="@", gate_after=1),
    ),
    "holds": (Turn(text="Wait.", tool_calls=(ToolCall("hold"),)), Turn(text="Waited.")),
    "asks": (
        Turn(text="May I?", tool_calls=(ask("proceed?"),)),
        Turn(text="Understood."),
    ),
    "asks-two": (
        Turn(tool_calls=(ask("first?"), ask("second?"))),
        Turn(text="Both understood."),
    ),
    "breaks": (Turn(error=Failure(status=400, message="the script breaks")),),
    "breaks-late": (Turn(tool_calls=(note("a"),)), Turn(error=Failure(status=400, message="the script breaks"))),
    "stumbles": (
        Turn(
            text="Here I am.",
            error=Failure(status=503, message="overloaded", headers={"retry-after-ms": "10"}),
            times=1,
        ),
    ),
    "separators": (Turn(text="a\u2028b\u2029c\u0085d\r\ne 😀 f", delay_ms=1),),
    "thinks": (Turn(reasoning="I wonder about it.", text="It is so."),),
}


class Models(ModelServer):
    def __init__(self) -> None:
        super().__init__({name: Script(turns) for name, turns in SCRIPTS.items()})
        self._struck: Counter[tuple[str, int, str]] = Counter()

    def _strike(self, turn: Turn, record: Record) -> Turn:
        mark = _mark(record.body)
        if turn.times is not None:
            key = (record.model, record.position, mark)
            self._struck[key] += 1
            if self._struck[key] > turn.times:
                turn = msgspec.structs.replace(turn, error=None)
        calls = tuple(_marked(call, mark) for call in turn.tool_calls)
        return msgspec.structs.replace(turn, gate=mark if turn.gate == "@" else turn.gate, tool_calls=calls)


def _marked(call: ToolCall, mark: str) -> ToolCall:
    prompt = call.args.get("prompt", "")
    return ToolCall(call.name, {**call.args, "prompt": f"{prompt}{mark}"}) if prompt.endswith("@") else call


def _mark(body: dict[str, Any]) -> str:
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    text = said[-1] if said else ""
    if isinstance(text, list):
        text = " ".join(str(block.get("text", "")) for block in text)
    found = _MARK.search(text)
    return found[1] if found else ""


async def main() -> None:
    async with Models() as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
