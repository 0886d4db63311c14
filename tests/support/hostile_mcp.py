"""What servers of MCP may send instead of tools and results, generated: wrong types, references, depth, sizes."""

# a line is a kind of thing
from __future__ import annotations

from random import Random
from typing import Any

KEYWORDS = [
    "type",
    "properties",
    "required",
    "items",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "enum",
    "const",
    "default",
    "description",
    "title",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "multipleOf",
    "additionalProperties",
    "patternProperties",
    "$ref",
    "$defs",
    "definitions",
    "$id",
    "$schema",
    "prefixItems",
    "if",
    "then",
    "else",
    "uniqueItems",
    "contains",
    "propertyNames",
    "nullable",
    "examples",
    "dependentSchemas",
    "readOnly",
]
NAMES = (
    "x",
    "y",
    "name",
    "required",
    "runtime",
    "a b",
    "größe",
    "",
    "$ref",
    "type",
    "self",
    "x" * 80,
    "a.b",
    "\ud800",
    "🦊",
)
REFERENCES = (
    "#",
    "#/$defs/A",
    "#/$defs/B",
    "#/$defs/Missing",
    "#/properties/x",
    "#/definitions/A",
    "other.json",
    "#/",
    "#A",
    "https://e.x/s",
)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    10**30,
    float("inf"),
    float("nan"),
    "",
    "text",
    "\ud83d",
    "\0",
    [],
    {},
    [None],
    {"a": None},
)


def json(random: Random, depth: int = 0) -> Any:
    """Any JSON, also what no encoder should have written."""
    if depth > 3 or random.random() < 0.6:
        return random.choice(ODD)
    if random.random() < 0.5:
        return [json(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice((*NAMES, *KEYWORDS)): json(random, depth + 1) for _ in range(random.randrange(4))}


def schema(random: Random, depth: int = 0) -> Any:
    """Mostly a schema: its keywords have mostly values of their types."""
    if depth > 4 or random.random() < 0.08:
        return random.choice(ODD)
    made: dict[str, Any] = {}
    for keyword in random.sample(KEYWORDS, random.randrange(6)):
        made[keyword] = value_of(random, keyword, depth) if random.random() < 0.8 else json(random, depth)
    if depth == 0 and random.random() < 0.8:
        made["type"] = "object"
        made["$defs"] = {name: schema(random, 1) for name in "AB"}
        made["properties"] = value_of(random, "properties", 0)
    return made


def value_of(random: Random, keyword: str, depth: int) -> Any:
    match keyword:
        case "type":
            return random.choice(
                ("object", "array", "string", "integer", "any", ["string", "null"], ["object"], "file")
            )
        case "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas":
            return {random.choice(NAMES): schema(random, depth + 1) for _ in range(random.randrange(4))}
        case "anyOf" | "oneOf" | "allOf" | "prefixItems":
            return [schema(random, depth + 1) for _ in range(random.randrange(4))]
        case "items" | "not" | "additionalProperties" | "if" | "then" | "else" | "contains" | "propertyNames":
            return schema(random, depth + 1)
        case "required":
            return [random.choice(NAMES) for _ in range(random.randrange(3))]
        case "$ref":
            return random.choice(REFERENCES)
        case "enum" | "examples":
            return [json(random, 3) for _ in range(random.randrange(3))]
    return random.choice(("text", 3, 1.5, True, "^a(b"))


def deep(levels: int) -> Any:
    """A schema within a schema, very often."""
    made: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        made = {"type": "object", "properties": {"x": made}}
    return made


def tool(random: Random, number: int) -> Any:
    """A tool that may be anything."""
    if random.random() < 0.05:
        return random.choice(ODD)
    made: dict[str, Any] = {"name": f"bad_{number}", "description": "Does it.", "inputSchema": schema(random)}
    chance = random.random()
    if chance < 0.05:
        made["inputSchema"] = deep(random.choice((30, 200)))
    elif chance < 0.08:
        made["inputSchema"] = {"type": "object", "description": "x" * 300_000}
    elif chance < 0.12:
        made["inputSchema"] = bomb()
    for key in random.sample(
        ("name", "description", "inputSchema", "icons", "annotations", "title", "outputSchema", "_meta", "execution"), 2
    ):
        if random.random() < 0.4:
            made[key] = json(random)
    if random.random() < 0.05:
        made["name"] = random.choice(
            ("good", "a" * 300, "../x", "name with spaces", "ü", "functions.bash", "\ud800", " ")
        )
    return made


def bomb() -> Any:
    """References that double with each level."""
    levels = {
        f"L{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/L{n + 1}"} for side in "ab"}}
        for n in range(40)
    }
    return {"type": "object", "$defs": {**levels, "L40": {}}, "properties": {"x": {"$ref": "#/$defs/L0"}}}


GOOD: dict[str, Any] = {
    "name": "good",
    "description": "Works.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def listing(seed: int) -> list[Any]:
    """A list with one good tool among up to five that may be anything."""
    random = Random(seed)
    tools = [tool(random, number) for number in range(random.randrange(1, 6))]
    tools.insert(random.randrange(len(tools) + 1), GOOD)
    return tools


CONTENT: tuple[Any, ...] = (
    {"type": "text", "text": "MARK"},
    {"type": "text", "text": 3},
    {"type": "image", "data": "aGk="},
    {"type": "image", "data": "%%%", "mimeType": "image/png"},
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {"type": "video", "url": "x"},
    {"type": "resource", "resource": {"uri": "file:///a", "text": "R"}},
    {"type": "resource", "resource": {"uri": "no uri"}},
    {"type": "resource_link", "uri": "file:///a", "name": "a"},
    {"text": "no type"},
    "plain",
    None,
    7,
    ["nested"],
)


def result(seed: int) -> dict[str, Any]:
    """A result of a call with one good part, among others that may be anything."""
    random = Random(seed)
    content = [random.choice(CONTENT) if random.random() < 0.8 else json(random) for _ in range(random.randrange(4))]
    content.insert(random.randrange(len(content) + 1), CONTENT[0])
    made: dict[str, Any] = {"content": content}
    for key in ("structuredContent", "isError", "_meta", "extra"):
        if random.random() < 0.3:
            made[key] = json(random)
    return made
