"""Tries an MCP server over standard input and output: python3 check_server.py [--calls calls.json] -- COMMAND …"""

from __future__ import annotations

import argparse
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROTOCOL = "2025-06-18"
MOST_DESCRIPTION, LEAST_DESCRIPTION, MOST_TOOLS, MOST_RESULT = 1500, 20, 25, 25_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
UNKNOWN = "no-such-tool-4711"


class Broken(Exception):
    """The server does not speak the protocol."""


class Server:
    def __init__(self, command: list[str], seconds: float) -> None:
        self._seconds, self._count = seconds, 0
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._drain, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _drain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors = [*self._errors[-20:], line.rstrip()]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def send(self, method: str, parameters: dict[str, Any] | None = None, *, notify: bool = False) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": parameters or {}}
        if not notify:
            self._count += 1
            message["id"] = self._count
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Broken(f"{method}: the server has ended{self._last_words()}") from None

    def ask(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the whole answer: `result` or `error`."""
        self.send(method, parameters)
        while True:
            try:
                line = self._lines.get(timeout=self._seconds)
            except queue.Empty:
                raise Broken(f"{method}: no answer in {self._seconds:g} s{self._last_words()}") from None
            if line is None:
                raise Broken(f"{method}: the server has ended{self._last_words()}")
            try:
                message = json.loads(line)
            except ValueError:
                raise Broken(f"standard output has something else than the protocol: {line.strip()[:120]!r}") from None
            if isinstance(message, dict) and message.get("id") == self._count and "method" not in message:
                return message

    def _last_words(self) -> str:
        return ". Its last words:\n  " + "\n  ".join(self._errors[-8:]) if self._errors else ""


def judged(tools: list[dict[str, Any]]) -> Iterator[str]:
    if not tools:
        yield "there are no tools"
    if len(tools) > MOST_TOOLS:
        yield f"{len(tools)} tools: models choose badly among more than {MOST_TOOLS}"
    names = [str(tool.get("name")) for tool in tools]
    yield from (f"{name}: is there twice" for name in sorted({name for name in names if names.count(name) > 1}))
    for tool in tools:
        yield from (f"{tool.get('name')}: {line}" for line in _of_tool(tool))


def _of_tool(tool: dict[str, Any]) -> Iterator[str]:
    text, schema = str(tool.get("description") or ""), tool.get("inputSchema")
    if not _NAME.fullmatch(str(tool.get("name"))):
        yield "name: letters, digits, _ and -, at most 64"
    if not LEAST_DESCRIPTION <= len(text) <= MOST_DESCRIPTION:
        yield f"description: {len(text)} characters; {LEAST_DESCRIPTION} to {MOST_DESCRIPTION} tell what it is for"
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield "inputSchema: an object with `type: object`"
        return
    properties = schema.get("properties") or {}
    for name, about in properties.items():
        if not isinstance(about, dict) or not ({"type", "enum", "anyOf", "$ref", "oneOf", "const"} & about.keys()):
            yield f"{name}: has no type"
        elif not about.get("description"):
            yield f"{name}: has no description"
    yield from (
        f"{name}: is required, and not described" for name in schema.get("required", ()) if name not in properties
    )
    if "annotations" not in tool:
        yield "annotations: say whether it only reads (readOnlyHint), destroys (destructiveHint)"


def text_of(answer: dict[str, Any]) -> tuple[str, bool]:
    """Returns the text of an answer to a call, and whether it failed."""
    if "error" in answer:
        return str(answer["error"].get("message")), True
    result = answer["result"]
    parts = [str(part.get("text", f"[{part.get('type')}]")) for part in result.get("content", ())]
    return "\n".join(parts), bool(result.get("isError"))


def refuses(server: Server, tools: list[dict[str, Any]]) -> Iterator[str]:
    """Tries what must fail, and whether the server lives on."""
    text, failed = text_of(server.ask("tools/call", {"name": UNKNOWN, "arguments": {}}))
    if not failed or not text:
        yield "a call of an unknown tool does not fail with a text"
    for tool in tools:
        if (tool.get("inputSchema") or {}).get("required"):
            text, failed = text_of(server.ask("tools/call", {"name": tool["name"], "arguments": {}}))
            if not failed:
                yield f"{tool['name']}: a call without its required parameters does not fail"
            elif not any(name in text for name in tool["inputSchema"]["required"]):
                yield f"{tool['name']}: the error names no missing parameter: {text[:100]!r}"
    if "error" in server.ask("ping"):
        yield "ping: is not answered"


def tried(server: Server, calls: list[dict[str, Any]]) -> Iterator[str]:
    for number, call in enumerate(calls, 1):
        text, failed = text_of(server.ask("tools/call", {"name": call["tool"], "arguments": call.get("arguments", {})}))
        where, wanted = f"call {number} ({call['tool']})", call.get("fails", call.get("expect", ""))
        if failed != ("fails" in call):
            yield f"{where}: {'failed' if failed else 'did not fail'}: {text[:200]!r}"
        elif str(wanted) not in text:
            yield f"{where}: expected {str(wanted)!r} in {text[:200]!r}"
        elif len(text) > MOST_RESULT:
            yield f"{where}: {len(text):,} characters fill a model's context: choose fields, or a limit"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each answer")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("the server's command is needed after --")
    try:
        calls = json.loads(options.calls.read_text(encoding="utf-8")) if options.calls else []
        server = Server(command, options.seconds)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        client = {"name": "check", "version": "1"}
        hello = server.ask("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client})
        if "result" not in hello or "serverInfo" not in hello["result"]:
            raise Broken(f"initialize: expected serverInfo, got {json.dumps(hello)[:200]}")
        server.send("notifications/initialized", notify=True)
        listed = server.ask("tools/list")
        if "result" not in listed:
            raise Broken(f"tools/list: {listed.get('error')}")
        tools = listed["result"].get("tools", [])
        problems = [*judged(tools), *refuses(server, tools), *tried(server, calls)]
    except (Broken, KeyError, TypeError, AttributeError) as error:
        print(f"does not speak the protocol: {error}", file=sys.stderr)
        return 1
    finally:
        server.close()
    info = hello["result"]["serverInfo"]
    print(f"{info.get('name')} {info.get('version')}: {len(tools)} tools ({', '.join(tool['name'] for tool in tools)})")
    untried = sorted({tool["name"] for tool in tools} - {call["tool"] for call in calls})
    print(
        "\n".join([*problems, f"{len(calls)} calls tried" + (f"; not tried: {', '.join(untried)}" if untried else "")])
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
