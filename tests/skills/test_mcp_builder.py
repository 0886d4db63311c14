"""The check of MCP servers: the template passes, and each planted fault is named."""

from __future__ import annotations

import pytest

from tests.skills.conftest import PUBLIC, Desk

pytestmark = pytest.mark.anyio
CHECK = "python3 $S/mcp-builder/scripts/check_server.py"
TEMPLATE = (PUBLIC / "mcp-builder/templates/server.py").read_text()
FAULTS = {
    ("Find notes that contain some words. Gives the number of hits, and each with its id.", "Finds."): (
        "find_notes: description: 6 characters"
    ),
    ('"words": {"type": "string", ', '"words": {'): "find_notes: words: has no type",
    ('"required": ["id"]', '"required": ["key"]'): "delete_note: key: is required, and not described",
    ('"annotations": {"readOnlyHint": True},', ""): "find_notes: annotations: say whether it only reads",
    ('"find_notes": (', '"find notes": ('): "find notes: name: letters, digits",
    (
        "if name not in TOOLS:\n            raise Wrong",
        "if name not in TOOLS:\n            return {}\n            raise Wrong",
    ): ("a call of an unknown tool does not fail with a text"),
    ('text": str(error)}], "isError": True}', 'text": "Invalid input"}], "isError": True}'): (
        "find_notes: the error names no missing parameter: 'Invalid input'"
    ),
    ('case "ping":', 'case "pong":'): "ping: is not answered",
}
DEAD = {
    ("def main() -> None:\n", 'def main() -> None:\n    print("ready")\n'): "something else than the protocol: 'ready'",
    (
        "for line in sys.stdin:",
        "raise SystemExit('no key: set API_KEY')\n    for line in sys.stdin:",
    ): "no key: set API_KEY",
    ('"serverInfo": info', '"server": info'): "expected serverInfo",
}


async def test_the_template_passes_with_its_calls(desk: Desk) -> None:
    calls = "$S/mcp-builder/examples/calls.json"
    text = await desk.run(f"{CHECK} --calls {calls} -- python3 $S/mcp-builder/templates/server.py")
    assert text == "notes 0.1.0: 2 tools (find_notes, delete_note)\n4 calls tried\n"


async def test_each_fault_is_named(desk: Desk) -> None:
    faults = {**FAULTS, **DEAD}
    for number, (old, new) in enumerate(faults):
        assert TEMPLATE.count(old) == 1, old
        desk.write(f"s{number}.py", TEMPLATE.replace(old, new))
    for number, reason in enumerate(faults.values()):
        assert reason in await desk.run(f"{CHECK} -- python3 s{number}.py", 1)


async def test_calls_are_held_to_what_they_should_give(desk: Desk) -> None:
    desk.write("server.py", TEMPLATE)
    desk.write(
        "calls.json",
        '[{"tool": "find_notes", "arguments": {"words": "flour"}, "expect": "sugar"},'
        ' {"tool": "find_notes", "arguments": {"words": "x"}, "fails": "none"}]',
    )
    text = await desk.run(f"{CHECK} --calls calls.json -- python3 server.py", 1)
    assert "call 1 (find_notes): expected 'sugar' in '1 notes" in text
    assert "call 2 (find_notes): did not fail" in text
    assert "not tried: delete_note" in text
