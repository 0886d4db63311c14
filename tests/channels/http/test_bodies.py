"""Each field of each request body is read by the code of its route, or is said to have no effect."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from channels.http.endpoints.table import all_routes

ROOT = Path(__file__).parents[3]
HANDED_ON = {
    "channels.http.deerflow.agents.CreateBody": "becomes a `Definition`, field by field",
    "channels.http.deerflow.agents.ChangeBody": "changes a `Definition`, field by field",
    "channels.http.deerflow.memory.NewFact": "becomes a `Fact`, field by field",
    "channels.http.deerflow.memory.ChangeFact": "changes a `Fact`, field by field",
    "channels.http.protocols.langgraph.assistants.CreateBody": "becomes settings, field by field",
    "channels.http.protocols.langgraph.assistants.PatchBody": "changes settings, field by field",
    "channels.http.protocols.langgraph.assistants.SearchBody": "`listings` orders by it",
    "channels.http.protocols.langgraph.crons.SearchBody": "`listings` orders by it",
    "channels.http.protocols.langgraph.search.SearchBody": "`listings` orders by it",
    "channels.http.protocols.langgraph.crons.CreateBody": "`plans` reads `on_run_completed`",
    "channels.http.protocols.langgraph.crons.PatchBody": "`plans` reads `on_run_completed`",
    "channels.http.runs.run_request.Edit": "the routes of runs hand it to `branches`",
    "core.user.agent_bundles.Bundle": "becomes a `Definition`; `format` has one value",
}
"""Bodies with fields that are not read by name where the body is known, and who reads them."""


@functools.cache
def bodies() -> Mapping[str, type[msgspec.Struct]]:
    """Returns the structs of all request bodies, and those inside of them."""
    known: dict[str, type[msgspec.Struct]] = {}

    def walk(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            name = f"{kind.__module__}.{kind.__qualname__}"
            if name in known:
                return
            known[name] = kind
            for field in msgspec.structs.fields(kind):
                walk(field.type)
        for part in get_args(kind):
            walk(part)

    for route in all_routes():
        walk(route.body)
    return known


@functools.cache
def reads() -> tuple[Mapping[str, set[Path]], Mapping[Path, set[str]]]:
    """Returns the modules that know a name, and the attributes that a module reads."""
    knowing, attributes = defaultdict[str, set[Path]](set), dict[Path, set[str]]()
    for folder in ("channels/http", "core", "actors"):
        for path in (ROOT / folder).rglob("*.py"):
            nodes = [*ast.walk(ast.parse(path.read_text()))]
            attributes[path] = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            for name in _names(nodes):
                knowing[name].add(path)
    return knowing, attributes


def _names(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(names=imported):
                yield from (each.name for each in imported)


def is_read(kind: type[msgspec.Struct], field: str) -> bool:
    """Tells whether a module that knows the body, what it is made of, or what is made of it, reads the field."""
    knowing, attributes = reads()
    family = [c for c in kind.__mro__ if c not in (object, msgspec.Struct)]
    family += [other for other in bodies().values() if issubclass(other, kind)]
    return any(field in attributes[path] for member in family for path in knowing[member.__name__])


def without_effect(kind: type[msgspec.Struct]) -> set[str]:
    """Returns the fields of which the description says so."""
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__].get("properties", {})
    return {name for name, about in properties.items() if "without effect" in about.get("description", "").lower()}


@pytest.mark.parametrize("name", sorted(bodies()))
def test_each_field_is_read_or_said_to_have_no_effect(name: str) -> None:
    kind = bodies()[name]
    silent = without_effect(kind)
    unread = {field.name for field in msgspec.structs.fields(kind) if not is_read(kind, field.name)}
    assert silent <= unread, "has an effect after all"
    assert (unread - silent == set()) or name in HANDED_ON, f"accepted, and nothing comes of it: {unread - silent}"


def test_the_table_has_no_bodies_that_are_read() -> None:
    for name in HANDED_ON:
        kind = bodies()[name]
        unread = {field.name for field in msgspec.structs.fields(kind) if not is_read(kind, field.name)}
        assert unread - without_effect(kind), name


def test_the_walk_finds_bodies() -> None:
    assert len(bodies()) > 60
    assert without_effect(bodies()["channels.http.runs.run_request.RunBody"]) == {
        "durability", "checkpoint_during", "stream_resumable", "langsmith_tracer",
    }  # fmt: skip
