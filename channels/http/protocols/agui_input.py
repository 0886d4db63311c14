"""What an AG-UI client sends (`RunAgentInput`), as a request for a run of a thread.

The server holds the conversation. Of the client's messages those count that the thread does not know, and where they
stand: after the newest one they go on, before an older question they take its place (an edit), and without new ones an
answer is made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from channels.http.runs.run_request import OPTIONS, check_options
from channels.http.server.errors import BadRequest
from core.errors import Invalid, Refused
from core.events import Json, Message, Resume, RunRequested
from core.thread import turns
from core.thread.state import ThreadState
from core.thread.values import CLIENT_TOOL

ROLES: Mapping[str, str] = {"user": "human", "developer": "system", "system": "system"}
MOST_TOOLS = 64


class InputMessage(msgspec.Struct, rename="camel"):
    id: str
    role: Literal["user", "developer", "system", "assistant", "tool", "reasoning", "activity"]
    content: Any = None
    tool_call_id: str | None = None


class ClientTool(msgspec.Struct):
    """A tool of the application. A call of it ends the run; its result comes as a message of the next request."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: str = ""
    parameters: Json = {}


class ResumeEntry(msgspec.Struct, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None
    """The answer to the tool that asked; null if it is cancelled."""


class RunAgentInput(msgspec.Struct, rename="camel", kw_only=True):
    """`state` and `context` have no effect: the state is the server's."""

    thread_id: str
    """It is made if there is none."""
    run_id: str
    messages: list[InputMessage]
    """New messages of users, developers and systems, and results of the application's tools, are taken. It has the
    agent's own."""
    tools: Annotated[list[ClientTool], msgspec.Meta(max_length=MOST_TOOLS)] | None = None
    """Tools that the agent may call besides its own."""
    resume: list[ResumeEntry] | None = None
    """Answers to the interrupts that the thread waits on."""
    forwarded_props: Json | None = None
    """Options of the run, as in the `context` of other requests; `onDisconnect` (`cancel`, the default, or `continue`);
    `command.resume`, an answer to the interrupts. Others have no effect."""


class Asked(NamedTuple):
    """A request for a run. None: the client only wants to see the run that is at work."""

    request: RunRequested | None


def requested(body: RunAgentInput, state: ThreadState, user: str, models: Sequence[str], taken: Sequence[str]) -> Asked:
    """Returns what a client asks for. `models`: names to choose from; `taken`: names of the agent's own tools.

    Raises `Invalid`, `BadRequest`, and `Refused` for an edit while a run is at work.
    """
    props = body.forwarded_props or {}
    context = {name: value for name, value in props.items() if name in OPTIONS}
    check_options(None, context, None, models)
    for index, tool in enumerate(body.tools or ()):
        if tool.name in taken:
            raise Invalid(f"tools[{index}].name: the agent has a tool {tool.name!r} of its own")
    resume, (base, given) = _resume(body, props, state), _input(body.messages, state)
    if given is None and resume is None and any(state.runs.open()):
        return Asked(None)
    request = RunRequested(
        input=given,
        base=base,
        context={**context, "user_id": user, "client_tools": msgspec.to_builtins(body.tools or [])},
        on_disconnect=_on_disconnect(props),
        resume=resume,
    )
    return Asked(request)


def _on_disconnect(props: Json) -> Literal["cancel", "continue"]:
    chosen = props.get("onDisconnect", "cancel")
    if chosen not in ("cancel", "continue"):
        raise Invalid("forwardedProps.onDisconnect: cancel or continue is expected")
    return chosen  # type: ignore[no-any-return]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _resume(body: RunAgentInput, props: Json, state: ThreadState) -> Resume | None:
    if body.resume:
        return Resume(value={entry.interrupt_id: entry.payload for entry in body.resume})
    if isinstance(command := props.get("command"), dict) and "resume" in command:
        return Resume(value=command["resume"])
    results = {message.tool_call_id: message.content for message in body.messages if message.role == "tool"}
    pending = state.paused.interrupts if state.paused is not None else ()
    calls = {
        each.id: results[each.call_id]
        for each in pending
        if each.call_id in results and isinstance(each.value, dict) and CLIENT_TOOL in each.value
    }
    return Resume(value=calls) if calls else None


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _input(messages: Sequence[InputMessage], state: ThreadState) -> tuple[int | None, Json | None]:
    """Returns the checkpoint from which the messages go on (None: the newest), and the input."""
    new = [_to_log(message) for message in messages if message.role in ROLES and message.id not in state.places]
    known = [state.places[message.id] for message in messages if message.id in state.places]
    question = _replaced(state, max(known), again=not new) if known else None
    if question is None:
        return None, {"messages": new} if new else None
    if state.status == "busy":
        if not new:
            return None, None
        raise Refused("messages: an earlier one cannot be changed while a run is at work")
    first, *rest = new or [question]
    base, given = turns.before(state, question, first)
    return base, {**given, "messages": [*given["messages"], *rest]}


def _replaced(state: ThreadState, last: int, *, again: bool) -> Message | None:
    """Returns the question whose place is taken: the next one after the last message that the client has. If an answer
    is to be made again, the one that is the last. None if the conversation goes on.
    """
    later = [message for message in state.messages[last + 1 :] if message["type"] == "human"]
    if again:
        shown = state.messages[last]
        return shown if shown["type"] == "human" and len(state.messages) > last + 1 else None
    return later[0] if later else None


def _to_log(message: InputMessage) -> Message:
    """A client's message in the form of the log. Raises `BadRequest`."""
    content = message.content
    if isinstance(content, list):
        content = [_part(part) for part in content]
    elif not isinstance(content, str):
        raise BadRequest(f"messages: the content of {message.id[:80]!r} must be text or a list of parts")
    return {"type": ROLES[message.role], "id": message.id, "content": content}


def _part(part: Any) -> Json:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "source": {"type": "url", "value": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image", "source": {"type": "data", "value": str(data), "mimeType": str(kind)}}:
            return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
        case {"type": "binary", "mimeType": str(kind)} if kind.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": _source(part, kind)}}
        case {"type": str(name)}:
            raise BadRequest(f"messages: a part of type {name[:40]!r} is no text or image; upload it as a file")
    raise BadRequest("messages: only parts of text and images are understood")


def _source(part: Json, kind: str) -> str:
    """Returns where the image of a `binary` part is. Raises `BadRequest` if it names one that it does not bring."""
    match part:
        case {"url": str(url)} if url:
            return url
        case {"data": str(data)} if data:
            return f"data:{kind};base64,{data}"
    raise BadRequest("messages: a binary part has neither `url` nor `data`")
