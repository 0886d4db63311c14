"""An MCP server over standard input and output, without packages. Replace the tools below."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

NAME, VERSION = "notes", "0.1.0"
PROTOCOLS = ("2025-06-18", "2025-03-26", "2024-11-05")
NOTES = {"1": "Buy flour", "2": "Call the mill"}


class Wrong(Exception):
    """What the model should read: what was wrong, where, and what to do."""


def find_notes(arguments: dict[str, Any]) -> str:
    words, limit = str(arguments["words"]).lower(), int(arguments.get("limit", 10))
    hits = {key: text for key, text in NOTES.items() if words in text.lower()}
    lines = [f"{key}: {text}" for key, text in list(hits.items())[:limit]]
    return "\n".join([f"{len(hits)} notes", *lines])


def delete_note(arguments: dict[str, Any]) -> str:
    key = str(arguments["id"])
    if key not in NOTES:
        raise Wrong(f"no note {key!r}; find_notes gives the ids, there are: {', '.join(NOTES) or 'none'}")
    return f"deleted: {NOTES.pop(key)}"


TOOLS: dict[str, tuple[Callable[[dict[str, Any]], str], dict[str, Any]]] = {
    "find_notes": (
        find_notes,
        {
            "description": "Find notes that contain some words. Gives the number of hits, and each with its id.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "words": {"type": "string", "description": "Words as they stand in the note, as 'flour'."},
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": 100,
                        "default": 10,
                        "description": "Most hits.",
                    },
                },
                "required": ["words"],
            },
            "annotations": {"readOnlyHint": True},
        },
    ),
    "delete_note": (
        delete_note,
        {
            "description": "Delete one note for ever. Use find_notes first, it gives the id.",
            "inputSchema": {
                "type": "object",
                "properties": {"id": {"type": "string", "description": "The id of the note, as '2'."}},
                "required": ["id"],
            },
            "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True},
        },
    ),
}


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        if name not in TOOLS:
            raise Wrong(f"no tool {name!r}; there are: {', '.join(TOOLS)}")
        function, about = TOOLS[name]
        schema = about["inputSchema"]
        if missing := [key for key in schema.get("required", ()) if key not in arguments]:
            raise Wrong(f"{', '.join(missing)}: missing; {name} takes {', '.join(schema['properties'])}")
        if unknown := arguments.keys() - schema["properties"].keys():
            raise Wrong(f"{', '.join(sorted(unknown))}: unknown; {name} takes {', '.join(schema['properties'])}")
        return {"content": [{"type": "text", "text": function(arguments)}]}
    except (Wrong, ValueError, TypeError) as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}


def answer(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            wanted = parameters.get("protocolVersion")
            protocol = wanted if wanted in PROTOCOLS else PROTOCOLS[0]
            info = {"name": NAME, "version": VERSION}
            return {"protocolVersion": protocol, "capabilities": {"tools": {}}, "serverInfo": info}
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [{"name": name, **about} for name, (_, about) in TOOLS.items()]}
        case "tools/call":
            return called(str(parameters.get("name")), parameters.get("arguments") or {})
    raise LookupError(method)


def main() -> None:
    for line in sys.stdin:
        try:
            request = json.loads(line)
        except ValueError:
            reply = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "not JSON"}}
        else:
            if "id" not in request:
                continue  # a notification
            reply = {"jsonrpc": "2.0", "id": request["id"]}
            try:
                reply["result"] = answer(str(request.get("method")), request.get("params") or {})
            except LookupError as error:
                reply["error"] = {"code": -32601, "message": f"no method {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
