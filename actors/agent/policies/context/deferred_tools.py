"""Hides the schemas of many tools from the model until it searches for them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from anyio import to_thread
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_function
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from actors.agent.policies.context.tool_index import ranked
from actors.agent.run.attempt import Attempt, ModelHandler, ToolHandler, ToolResult, error_result, message_of
from core.errors import Invalid
from core.events import Json
from core.patterns import Pattern

SEARCH = "tool_search"
MOST_FOUND = 5
"""Limit of the schemas of one search (DeerFlow's tool `tool_search`)."""
QUERY_CHARACTERS = 500
DESCRIPTION_CHARACTERS = 2000
"""Length of each description that is searched."""
_NAME_HIT, _DESCRIPTION_HIT = 2, 1
_EXPRESSION = re.compile(r"[|^$*+()\[\]{}\\]")
"""Characters of expressions that are in no phrase."""


class Deferred(NamedTuple):
    """A tool that the model knows only by name until it is promoted."""

    name: str
    description: str
    schema: Json
    """The function in OpenAI's format."""


class DeferredTools(AgentMiddleware[Any, Attempt, Any]):
    """Hides deferred tools until they are promoted. They must be among the agent's tools, to be called then."""

    name = "deferred_tools"

    def __init__(self, deferred: Iterable[BaseTool]) -> None:
        super().__init__()
        tools = [Deferred(tool.name, tool.description, convert_to_openai_function(tool)) for tool in deferred]
        self._catalogue = sorted(tools, key=lambda tool: tool.name)
        self._names = frozenset(tool.name for tool in tools)
        self.catalog_hash = hash_of(self._catalogue)
        self.tools = [_search_tool(self._catalogue)]

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        hidden = self._names - self._promoted(request.runtime.context.state.values)
        visible = [tool for tool in request.tools if not isinstance(tool, BaseTool) or tool.name not in hidden]
        if len(visible) < len(request.tools):
            request = request.override(tools=visible)
        return await handler(request)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        attempt, call = cast(Attempt, request.runtime.context), request.tool_call
        name, call_id = call["name"], str(call["id"])
        if name == SEARCH:
            return await self._search(attempt, call)
        if name in self._names and name not in self._promoted_at(attempt, call_id) and not attempt.begun(call_id):
            text = f"you do not know the arguments of {name} yet. Call {SEARCH} with the query select:{name} first."
            attempt.decide(self.name, "denied", text, call_id=call_id)
            return error_result(call, text)
        return await handler(request)

    async def _search(self, attempt: Attempt, call: ToolCall) -> ToolResult:
        query, call_id = call["args"].get("query"), str(call["id"])
        if not isinstance(query, str) or not query.strip() or len(query) > QUERY_CHARACTERS:
            return error_result(call, f"query: 1 to {QUERY_CHARACTERS} characters")
        hits = await to_thread.run_sync(matching, query, self._catalogue)
        message = ToolMessage(schemas_of(hits), tool_call_id=call_id, name=SEARCH)
        if not hits:
            return message
        names = [tool.name for tool in hits]
        attempt.decide(self.name, "promoted", ", ".join(names), call_id=call_id)
        before = self._promoted(attempt.state.values)
        promoted = {"catalog_hash": self.catalog_hash, "names": sorted(before.union(names))}
        return Command(update={"promoted": promoted, "messages": [message]})

    def _promoted(self, values: Mapping[str, Any]) -> frozenset[str]:
        """Returns the promoted names; none if the catalogue has changed."""
        promoted = values.get("promoted")
        if not isinstance(promoted, dict) or promoted.get("catalog_hash") != self.catalog_hash:
            return frozenset()
        names = promoted.get("names")
        return self._names.intersection(name for name in names if isinstance(name, str)) if names else frozenset()

    def _promoted_at(self, attempt: Attempt, call_id: str) -> frozenset[str]:
        """Returns the names promoted before the answer with this call; searches of the same answer do not count."""
        state, message = attempt.state, message_of(attempt, call_id) or {}
        if any(call["name"] == SEARCH for call in message.get("tool_calls", ())):
            return self._promoted(state.values_at(state.commit_at(state.answer_seq())))
        return self._promoted(state.values)


def block(names: Iterable[str]) -> str:
    """Returns the system prompt's list of deferred tools, "" if there are none."""
    listed = "\n".join(sorted(names))
    return f"<available-deferred-tools>\n{listed}\n</available-deferred-tools>" if listed else ""


def hash_of(catalogue: Sequence[Deferred]) -> str:
    """Returns a short hash of the tools' schemas."""
    return hashlib.blake2b(msgspec.json.encode([tool.schema for tool in catalogue]), digest_size=8).hexdigest()


def matching(query: str, catalogue: Sequence[Deferred]) -> list[Deferred]:
    """Returns the tools that match a query, the best first.

    `select:a,b` selects by name. `+must rest` requires `must` in the name and ranks by `rest`. Any other query is a
    regular expression, or words: tools that it matches come first, then those that share words with it.
    """
    query = query.strip()
    if query.startswith("select:"):
        by_name = {tool.name: tool for tool in catalogue}
        names = dict.fromkeys(name.strip() for name in query.removeprefix("select:").split(","))
        return [by_name[name] for name in names if name in by_name][:MOST_FOUND]
    if query.startswith("+"):
        must, _, rest = query[1:].strip().partition(" ")
        candidates = [tool for tool in catalogue if must.lower() in tool.name.lower()]
        return _ranked(candidates, rest.strip(), least=-1)
    return _ranked(catalogue, query, least=0)


def schemas_of(hits: Sequence[Deferred]) -> str:
    """Returns the result of a search: a JSON array of function schemas."""
    if not hits:
        return "No tool was found. Try other words, or the names in <available-deferred-tools>."
    return msgspec.json.encode([tool.schema for tool in hits]).decode()


def _ranked(catalogue: Sequence[Deferred], query: str, *, least: float) -> list[Deferred]:
    """Returns the tools that score more than `least`: by the expression, and by words where that is equal. What can
    only be an expression is searched by words if it matches nothing.
    """
    matched = _scores(query, catalogue)
    is_expression = _EXPRESSION.search(query) is not None and any(matched)
    shared = {} if is_expression else ranked(query, tuple(_entry(tool) for tool in catalogue))
    scores = [(score, shared.get(number, 0.0)) for number, score in enumerate(matched)]
    hits = [(score, tool) for score, tool in zip(scores, catalogue, strict=True) if sum(score) > least]
    return [tool for _, tool in sorted(hits, key=lambda pair: (-pair[0][0], -pair[0][1]))][:MOST_FOUND]


def _entry(tool: Deferred) -> tuple[str, str, str]:
    parameters = tool.schema.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return tool.name, tool.description[:DESCRIPTION_CHARACTERS], " ".join(properties or ())


def _scores(query: str, catalogue: Sequence[Deferred]) -> list[int]:
    """Returns a score for each tool. A query that is not a valid expression is searched literally."""
    try:
        hit = Pattern(query, any_case=True).found_in
    except Invalid:
        return [_score(lambda text: query.lower() in text.lower(), tool) for tool in catalogue]
    return [_score(hit, tool) for tool in catalogue]


def _score(hit: Callable[[str], bool], tool: Deferred) -> int:
    if hit(tool.name):
        return _NAME_HIT
    return _DESCRIPTION_HIT if hit(f"{tool.name} {tool.description[:DESCRIPTION_CHARACTERS]}") else 0


def _search_tool(catalogue: Sequence[Deferred]) -> BaseTool:
    async def tool_search(query: str) -> str:
        """Get the arguments of tools that you know by name only (<available-deferred-tools>), to call them from then
        on. Gives the function schemas of at most 5 tools.

        Args:
            query: words for what you want to do, such as `read a web page`; `select:name,other_name` for tools by name;
                a regular expression for names and descriptions, such as `slack|mail`; or `+slack send`: tools with
                slack in the name, those about send first.
        """
        return schemas_of(matching(query, catalogue))

    return StructuredTool.from_function(coroutine=tool_search, name=SEARCH, parse_docstring=True)
