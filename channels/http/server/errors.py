"""Errors on the wire: one middleware turns every exception into a status and `{"detail", "code"}`."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from channels.http.server import guard, traces
from channels.http.server.parsing import plain
from channels.http.server.routes import Handler
from core.config.redaction import redactor
from core.errors import Conflict, Invalid, NotFound, Overloaded, Refused, SikaError, Unavailable

log = structlog.get_logger("sika.http")

RETRY_SECONDS = 2
"""`Retry-After` of a 503."""


class BadRequest(Invalid):
    """Wrong input for which DeerFlow answers 400 and not 422."""

    code = "bad_request"


class Forbidden(SikaError):
    """The request comes from where it may not come from."""

    code = "forbidden"


class HttpError(SikaError):
    """An answer of a status that no error of the core has."""

    def __init__(self, status: int, text: str, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.code, self.headers = status, code, headers


class SlowBody(TimeoutError):
    """The body did not arrive in time (HTTP 408). A `TimeoutError`: aiohttp expects one while it drains a body."""


_STATUS: Mapping[type[SikaError], int] = {
    BadRequest: 400,
    Forbidden: 403,
    NotFound: 404,
    Refused: 409,
    Conflict: 409,
    Invalid: 422,
    Unavailable: 503,
}
_CODES: Mapping[int, str] = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def answer(status: int, detail: str, code: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return plain({"detail": redactor.text(detail), "code": code}, status, headers)


def middleware(rules: guard.Rules, max_body_bytes: int) -> Middleware:
    """The only middleware: guard the door, call the handler, translate what it raises."""

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = None
        trace = request[traces.TRACE] = traces.name(request)
        structlog.contextvars.bind_contextvars(trace=trace)
        try:
            origin = rules.check(request)
            if origin:
                request[guard.ORIGIN] = origin
                if guard.is_preflight(request):
                    return guard.preflight(origin, request)
            response = _encoded(request) or await handler(request)
        except guard.Rejected as error:
            return answer(403, str(error), error.code)
        except SlowBody as error:
            response = answer(408, str(error), "slow_body")
            response.force_close()
        except SikaError as error:
            response = _known(error)
        except web.HTTPRequestEntityTooLarge:
            response = answer(413, f"the body is larger than {max_body_bytes} bytes (http.max_body_bytes)", "too_large")
        except web.HTTPException as error:
            response = _unrouted(request, error)
        except ConnectionError:
            raise  # the client is gone: nobody to answer to
        except Exception as error:
            log.exception("request failed", method=request.method, path=_route(request), error=str(error))
            response = answer(500, "Internal server error", "internal")
        if origin and not response.prepared:
            response.headers.update(guard.cors(origin))
        return response

    return handle


def _route(request: web.Request) -> str:
    """Returns the path of the route, without its variables: one of them may be a secret."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else request.path


def _encoded(request: web.Request) -> web.Response | None:
    """The answer to a body that would have to be inflated: a megabyte may be a gigabyte, and nobody needs it."""
    codings = {
        part.strip().lower() for value in request.headers.getall("Content-Encoding", []) for part in value.split(",")
    }
    if codings <= {"", "identity"}:
        return None
    response = answer(
        415, f"Content-Encoding: send the body as it is, got {', '.join(sorted(codings))[:80]!r}", "content_encoding"
    )
    response.force_close()
    return response


def _known(error: SikaError) -> web.Response:
    if isinstance(error, HttpError):
        return answer(error.status, str(error), error.code, error.headers)
    status = next((_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS), 500)
    if status == 500:
        log.error("request failed", error=str(error), kind=type(error).__name__)
        return answer(500, "Internal server error", "internal")
    seconds = error.seconds if isinstance(error, Overloaded) else RETRY_SECONDS
    return answer(status, str(error), error.code, {"Retry-After": str(seconds)} if status == 503 else None)


def _unrouted(request: web.Request, error: web.HTTPException) -> web.Response:
    if error.status == 404:
        return answer(404, f"no such route: {request.method} {request.path}", "not_found")
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    return answer(error.status, error.reason or "error", _CODES.get(error.status, "http"), headers)
