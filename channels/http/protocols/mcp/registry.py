"""The registry of the tools that `/mcp` has of its own: each is a function, with a scope."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple, TypeVar

import structlog
from mcp.server.lowlevel import Server
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from channels.http.accounts.access import demand
from channels.http.endpoints.call import Call
from channels.http.protocols.mcp.arguments import problem_of
from channels.http.protocols.mcp.server import CALL
from core.config.redaction import redactor
from core.errors import SikaError
from core.events import Json

log = structlog.get_logger("sika.mcp")
Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])
ThreadId = Annotated[str, Field(description="Id of a thread")]

INSTRUCTIONS = """Sika is an agent with tools of its own. `chat` gives it a message and waits for its answer. Long
work goes on without a reader: read it later with `chat_read`, from the position of the last answer. If it asks a
question, answer with `chat_answer`. Files that it makes are listed by `artifacts_list`."""
SERVER: Server[Any, Any] = Server("sika", version("sika"), INSTRUCTIONS)

READS = ToolAnnotations(readOnlyHint=True, openWorldHint=False)
ACTS = ToolAnnotations(readOnlyHint=False, destructiveHint=False, openWorldHint=False)
STOPS = ToolAnnotations(readOnlyHint=False, destructiveHint=False, idempotentHint=True, openWorldHint=False)


class Declared(NamedTuple):
    """A tool. `function` answers with a model of its result, or with the protocol's own result."""

    scope: str
    listed: Tool
    arguments: type[BaseModel]
    function: Callable[..., Awaitable[BaseModel | CallToolResult]]


TOOLS: dict[str, Declared] = {}
"""By name."""


def tool(scope: str, hints: ToolAnnotations) -> Callable[[Function], Function]:
    """Declares a function as the tool of its name, for keys of a scope."""

    def declare(function: Function) -> Function:
        signature = inspect.signature(function, eval_str=True)
        fields: dict[str, Any] = {
            name: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in signature.parameters.items()
        }
        arguments = create_model(f"{function.__name__}Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        result = signature.return_annotation
        listed = Tool(
            name=function.__name__,
            description=inspect.getdoc(function),
            inputSchema=arguments.model_json_schema(),
            outputSchema=result.model_json_schema() if result is not CallToolResult else None,
            annotations=hints,
        )
        TOOLS[function.__name__] = Declared(scope, listed, arguments, function)
        return function

    return declare


def current_call() -> Call:
    """Returns the HTTP request behind the request of the protocol that is being answered."""
    request = SERVER.request_context.request
    assert request is not None  # the transport is HTTP
    call: Call = request.scope[CALL]
    return call


async def call_tool(declared: Declared, sent: Json) -> CallToolResult:
    """Calls a tool. What is wrong with the arguments is said in words; other errors without secrets."""
    try:
        demand(current_call().principal, declared.scope)
        try:
            arguments = declared.arguments.model_validate(sent)
        except ValidationError as error:
            return failure(problem_of(declared.listed, sent, error))
        result = await declared.function(**{name: getattr(arguments, name) for name in declared.arguments.model_fields})
    except SikaError as error:
        return failure(redactor.text(str(error)))
    except Exception as error:
        log.exception("tool failed", tool=declared.listed.name, error=str(error))
        return failure("a defect of the server; its log says more")
    if isinstance(result, CallToolResult):
        return result
    text = TextContent(type="text", text=result.model_dump_json(indent=2))
    return CallToolResult(content=[text], structuredContent=result.model_dump(mode="json"))


def failure(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], isError=True)
