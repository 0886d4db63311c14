"""Endpoints: typed functions. A function's signature is the contract of its route, and is written nowhere else.

    ROUTES = Routes(mounts=API)

    @ROUTES("POST", "/threads/{thread_id}/things", "threads:write", errors=(409,))
    async def add(call: Call, thread: OwnedThread, body: Thing, *, limit: Limit = 10) -> Created[Thing]:
        '''Add a thing.'''

Rules. A parameter is read from the request by its type, or else by its name:

* a class with `of_call` (`Call`, `OwnedThread`), or a type with `Depends`, is resolved from the call;
* `body` is the JSON body;
* a variable of the path is its text;
* any other is a parameter of the query string, or a `Header`. A text in its `Annotated` is its description. A sequence
  is sent as repeated keys, one JSON list, or a single value. An empty value counts as not sent, but for a header.

A value that does not fit its type is `Invalid` (422), with its place and the reason. The result is sent as JSON, None
without a body, a response as it is. In an `Annotated` result a number is the status, and types and media types describe
the answer where the function's own type does not.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web

from channels.http.endpoints.call import Call
from channels.http.server.parsing import decode, plain
from channels.http.server.routes import PAGING, Handler, Param, Route
from core.errors import Invalid

T = TypeVar("T")
E = TypeVar("E", bound=Callable[..., Awaitable[Any]])

Created = Annotated[T, 201]
Accepted = Annotated[T, 202]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**31)]

_VARIABLE = re.compile(r"\{(\w+)")
_FLAGS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""Booleans as clients send them besides `true`, `false`, `1` and `0`."""


class Header(NamedTuple):
    """Marks a parameter that is a header."""

    name: str


class Depends(NamedTuple):
    """Marks a parameter that is resolved from the call; `errors`: the statuses of what that may raise."""

    resolve: Callable[[Call], Awaitable[Any]]
    errors: Sequence[int] = (404,)


class Endless(NamedTuple):
    """Marks a parameter with which the answer may never end."""

    reason: str


class Changes(NamedTuple):
    """Marks a parameter with which a GET changes something: it is held to the rules of a POST."""


LastEventId = Annotated[str | None, Header("Last-Event-ID"), "Send what came after this frame; -1: everything"]


class Reply(Generic[T]):
    """A result with a status or headers of its own."""

    def __init__(self, value: T, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.value, self.status, self.headers = value, status, headers


class Page(Reply[Sequence[T]]):
    """A page of a list, with the headers that say what else there is."""

    def __init__(self, items: Sequence[T], total: int, offset: int, headers: Mapping[str, str] | None = None) -> None:
        following = offset + len(items)
        more = {"X-Pagination-Next": str(following)} if following < total else {}
        super().__init__(items, headers={"X-Pagination-Total": str(total), **more, **(headers or {})})


class Routes(list[Route]):
    """The routes of a module. `defaults`: fields that they have in common. `through`: wraps their handlers."""

    def __init__(self, *, through: Callable[[Handler], Handler] = lambda handler: handler, **defaults: Any) -> None:
        super().__init__()
        self._through, self._defaults = through, defaults

    def __call__(self, method: str, path: str, scope: str = "", **fields: Any) -> Callable[[E], E]:
        """Declares a function to be the endpoint of a route. `fields`: of `Route`, where types do not say them."""

        def declare(function: E) -> E:
            endpoint = _Endpoint(function, path)
            route = {"body": endpoint.body, "headers": endpoint.headers, **self._defaults, **fields}
            route["answers"] = {**endpoint.answers, **route.get("answers", {})}
            route["errors"] = (*endpoint.errors, *route.get("errors", ()))

            @functools.wraps(function)
            async def handle(request: web.Request) -> web.StreamResponse:
                return await endpoint.handle(request)

            query = tuple(endpoint.params.values())
            self.append(Route(method, path, self._through(handle), query=query, scope=scope, **route))
            return function

        return declare


class _Endpoint:
    """A function, and what its signature says."""

    def __init__(self, function: Callable[..., Awaitable[Any]], path: str) -> None:
        hints = get_type_hints(function, include_extras=True)
        defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
        self._function = function
        self.status, self.answers, self.headers = _result(hints.pop("return"))
        self.body = hints.pop("body", None)
        self._depends = {name: depends for name, kind in hints.items() if (depends := _depends(kind))}
        self._path = [name for name in _VARIABLE.findall(path) if name in hints]
        self.params = {
            name: _param(name, kind, defaults[name])
            for name, kind in hints.items()
            if name not in self._depends and name not in self._path
        }
        fields = [
            (name, param.type) if param.required else (name, param.type, param.default)
            for name, param in self.params.items()
        ]
        self._query = msgspec.defstruct("Query", fields, kw_only=True)
        self.errors = tuple({error for depends in self._depends.values() for error in depends.errors})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        arguments = {name: request.match_info[name] for name in self._path}
        if self.params:
            arguments |= msgspec.structs.asdict(self._read(request))
        if self.body is not None:
            arguments["body"] = decode(await request.read() or b"{}", self.body)
        for name, depends in self._depends.items():
            arguments[name] = await depends.resolve(Call(request))
        return self._answer(await self._function(**arguments))

    def _read(self, request: web.Request) -> msgspec.Struct:
        sent = {name: value for name, param in self.params.items() if (value := _sent(request, param)) is not None}
        try:
            return msgspec.convert(sent, self._query, strict=False)
        except msgspec.ValidationError as error:
            raise self._refusal(str(error).replace("`", ""), sent) from None

    def _refusal(self, text: str, sent: Mapping[str, Any]) -> Invalid:
        reason, _, place = text.partition(" - at $.")
        name = place.partition("[")[0]
        if name not in sent:
            return Invalid(f"query: {reason[:1].lower()}{reason[1:]}")
        param = self.params[name]
        values = _literals(param.type)
        reason = f"one of {', '.join(values)}" if values else reason.partition(", got ")[0].lower()
        return Invalid(f"{param.name}: {reason}, got {str(sent[name])[:40]!r}")

    def _answer(self, result: Any) -> web.StreamResponse:
        if isinstance(result, web.StreamResponse):
            return result
        reply = result if isinstance(result, Reply) else Reply(result)
        status = reply.status or self.status
        if self.answers.get(status) is None and reply.value is None:
            return web.Response(status=status, headers=reply.headers)
        return plain(reply.value, status, reply.headers)


def _result(hint: Any) -> tuple[int, dict[int, Any], Mapping[str, str]]:
    """The status, the answers and the headers that a function's result says."""
    kind, extras = _plain(hint)
    status = next((extra for extra in extras if isinstance(extra, int)), 204 if kind is NoneType else 200)
    shapes = [extra for extra in extras if not isinstance(extra, int)]
    origin = get_origin(kind) or kind
    if not shapes and isinstance(origin, type):
        if issubclass(origin, web.StreamResponse):
            return status, {}, {}
        if issubclass(origin, Reply):
            kind = list[get_args(kind)[0]] if origin is Page else get_args(kind)[0]  # type: ignore[misc]
    shapes = shapes or [None if kind is NoneType else kind]
    return status, {status: tuple(shapes) if len(shapes) > 1 else shapes[0]}, PAGING if origin is Page else {}


def _depends(hint: Any) -> Depends | None:
    """Returns how a parameter is resolved from the call; None if it is not."""
    if hasattr(hint, "of_call"):
        return Depends(hint.of_call, getattr(hint, "errors", ()))
    return next((extra for extra in _plain(hint)[1] if isinstance(extra, Depends)), None)


def _param(name: str, hint: Any, default: Any) -> Param:
    kind, extras = _plain(hint)
    if get_origin(kind) in (Union, UnionType):  # what is not sent is None
        kind, more = _plain(next(member for member in get_args(kind) if member is not NoneType))
        extras += more
    metas = [extra for extra in extras if isinstance(extra, msgspec.Meta)]
    header = next((extra.name for extra in extras if isinstance(extra, Header)), None)
    return Param(
        header or name,
        Annotated[(kind, *metas)] if metas else kind,
        next((extra for extra in extras if isinstance(extra, str)), ""),
        "header" if header else "query",
        required=default is inspect.Parameter.empty,
        endless=next((extra.reason for extra in extras if isinstance(extra, Endless)), ""),
        changes=any(isinstance(extra, Changes) for extra in extras),
        default=None if default is inspect.Parameter.empty else default,
    )


def _plain(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its annotations, and these."""
    return (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


def _sent(request: web.Request, param: Param) -> Any:
    """Returns the value of a parameter as it was sent, None if it was not."""
    if param.where == "header":
        return request.headers.get(param.name)
    if get_origin(param.type) is Sequence:
        return _names(request, param.name) or None
    text = request.query.get(param.name) or None
    return _FLAGS.get(text.lower(), text) if text and param.type is bool else text


def _names(request: web.Request, name: str) -> list[str]:
    names: list[str] = []
    for text in request.query.getall(name, []):
        names += decode(text.encode(), list[str]) if text.startswith("[") else [text]
    return [name for name in names if name]


def _literals(kind: Any) -> Sequence[str]:
    """The values of a `Literal`, or of a sequence of them."""
    if get_origin(kind) is Sequence:
        return _literals(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) is Literal else ()
