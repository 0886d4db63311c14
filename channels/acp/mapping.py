"""The translation between Sika's words and those of the Agent Client Protocol. Pure functions: this file knows both."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from acp import RequestError
from acp import helpers as say
from acp.schema import (
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    PermissionOption,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
    ToolCallLocation,
    ToolCallUpdate,
)

from channels.client.errors import RunFailed
from channels.client.events import StreamEvent, text_of
from core import forms
from core.files.paths import PROJECT
from core.phrases import counted, subject_of

Update = Any
"""An update of a session, as the SDK declares it."""
Json = Mapping[str, Any]
StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]

TODOS, CLARIFICATION = "write_todos", "ask_clarification"
NOTE = "<editor_context>"
MOST_RESULT = 20_000
"""Limit of the characters of a tool's result that an editor gets."""
MOST_ATTACHMENTS = 20
OTHERWISE = "answer-otherwise"
FOLDER = "work-in-this-folder"
_KINDS: Mapping[str, str] = {
    "bash": "execute",
    "glob": "search",
    "grep": "search",
    "image_search": "fetch",
    "ls": "read",
    "read_file": "read",
    "str_replace": "edit",
    "view_image": "read",
    "web_fetch": "fetch",
    "web_search": "search",
    "write_file": "edit",
}
_STEPS = ("TooManySteps", "GraphRecursionError")
_LIMITS: Mapping[str, StopReason] = {"budgets": "max_tokens", "call_limit": "max_turn_requests"}
"""Stop reasons by the policy whose limit was met."""
_FINISHED: Mapping[str, StopReason] = {
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "content_filter": "refusal",
    "refusal": "refusal",
    "safety": "refusal",
}
"""Stop reasons by the provider's reason for the end of the last answer."""
_TODO_STATES = {"pending": "pending", "in_progress": "in_progress", "completed": "completed"}


# ── prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Attachment(NamedTuple):
    """A file that comes with a prompt."""

    name: str
    content: bytes


class Prompt(NamedTuple):
    text: str
    attachments: Sequence[Attachment]


def prompt_of(blocks: Sequence[Any]) -> Prompt:
    """Returns the text and the files of a prompt. Raises `RequestError`, naming the block that cannot be read."""
    texts: list[str] = []
    files: list[Attachment] = []
    for number, block in enumerate(blocks):
        match block:
            case TextContentBlock(text=text):
                texts.append(text)
            case ImageContentBlock(data=data, mime_type=kind) | AudioContentBlock(data=data, mime_type=kind):
                name = f"{block.type}-{len(files) + 1}{mimetypes.guess_extension(kind) or '.bin'}"
                files.append(Attachment(name, _decoded(data, number)))
            case ResourceContentBlock(uri=uri, name=name):
                texts.append(f"[{name}]({uri})")
            case EmbeddedResourceContentBlock(resource=TextResourceContents(uri=uri, text=text)):
                texts.append(f"Content of {uri}:\n\n```\n{text}\n```")
            case EmbeddedResourceContentBlock(resource=BlobResourceContents(uri=uri, blob=blob)):
                name = unquote(urlsplit(uri).path.rpartition("/")[2]) or f"resource-{len(files) + 1}"
                files.append(Attachment(name.replace("\0", "")[:100], _decoded(blob, number)))
            case _:
                raise RequestError.invalid_params({f"prompt[{number}]": f"{block.type} is not supported"})
    if len(files) > MOST_ATTACHMENTS:
        raise RequestError.invalid_params({"prompt": f"more than {MOST_ATTACHMENTS} files"})
    if not files and not "".join(texts).strip():
        raise RequestError.invalid_params({"prompt": "is empty"})
    return Prompt("\n\n".join(texts), files)


def _decoded(data: str, number: int) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError.invalid_params({f"prompt[{number}]": "is not base64"}) from None


def note(cwd: str, mounted: str | None = None) -> str:
    """Returns the note to the agent about the editor, which comes after the first prompt of a session. `mounted`: where
    the agent sees the directory, if it does.
    """
    if mounted is not None:
        return (
            f"{NOTE}The person writes from an editor, in the directory {cwd} of their machine, which is {mounted} for "
            "you. Links to files in it lead there.</editor_context>"
        )
    return (
        f"{NOTE}The person writes from an editor, in the directory {cwd} of their machine. You do not see that "
        "directory: you have the text they send, the files they attach (in /mnt/user-data/uploads), and your own "
        "workspace. Show them changes to their files in your answer.</editor_context>"
    )


# ── updates ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Turn:
    """The updates of a turn, also if it takes several runs. Each thing is said once. `folder`: that of the person on
    which the agent works.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self.values: Json = {}
        """The last state."""
        self._plan: Any = None
        self._known: set[str] | None = None
        self._open: set[str] = set()
        self._output: dict[str, str] = {}
        """The output so far of calls that have not ended, by their ids."""

    def take(self, event: StreamEvent) -> Iterator[Update]:
        """Yields the updates of an event."""
        data = event.data
        match event.type:
            case "messages-tuple" if data["type"] == "ai":
                yield from answered(data, self._folder)
                self._open |= {str(call["id"]) for call in data.get("tool_calls") or ()}
            case "messages-tuple":
                self._open.discard(call := str(data.get("tool_call_id")))
                self._output.pop(call, None)
                yield from result(data)
            case "values":
                yield from self._state(data)
            case "custom":
                yield from self._progress(data)

    def _progress(self, data: Json) -> Iterator[Update]:
        """Yields all output that a call has so far, or its end: an update replaces the one before it."""
        match data:
            case {"type": "tool_progress", "tool_call_id": str(call), "text": str(text)} if text:
                output = self._output.get(call, "") + text
                self._output[call] = output = output[-MOST_RESULT:]
                yield say.update_tool_call(
                    call, status="in_progress", content=[say.tool_content(say.text_block(output))]
                )

    def unfinished(self) -> Iterator[Update]:
        """Yields the end of the calls that have none, as of a cancelled run."""
        for call in sorted(self._open):
            yield say.update_tool_call(call, status="failed")
        self._open = set()

    def _state(self, values: Json) -> Iterator[Update]:
        """Yields what only states show: the plan, and questions to the person."""
        messages = [message for message in values.get("messages") or () if isinstance(message, Mapping)]
        if self._known is not None:
            for message in messages:
                if str(message.get("id")) not in self._known and is_question(message):
                    yield say.update_agent_message_text(text_of(message.get("content")))
        self._known = {str(message.get("id")) for message in messages}
        if (todos := values.get("todos")) and todos != self._plan:
            self._plan = todos
            yield plan(todos)
        self.values = values


def answered(message: Json, folder: str | None = None) -> Iterator[Update]:
    """Yields the updates of an answer, or a piece of it."""
    if thought := (message.get("additional_kwargs") or {}).get("reasoning_content"):
        yield say.update_agent_thought_text(str(thought))
    if text := text_of(message.get("content")):
        yield say.update_agent_message_text(text)
    for call in message.get("tool_calls") or ():
        if call["name"] not in (TODOS, CLARIFICATION):
            yield started(call, folder)


def started(call: Json, folder: str | None = None) -> Update:
    """Returns the update of a tool call that begins."""
    args = call.get("args") or {}
    return say.start_tool_call(
        str(call["id"]),
        title_of(str(call["name"]), args),
        kind=_KINDS.get(str(call["name"]), "other"),  # type: ignore[arg-type]  # one of them
        status="in_progress",
        locations=[ToolCallLocation(path=place_of(path, folder)) for path in _paths(args)],
        raw_input=args,
    )


def result(message: Json) -> Iterator[Update]:
    """Yields the update of a tool call that has ended."""
    if message.get("name") in (TODOS, CLARIFICATION):
        return
    text = text_of(message.get("content"))
    if len(text) > MOST_RESULT:
        text = f"{text[:MOST_RESULT]}\n[… {counted(len(text) - MOST_RESULT, 'character')} left out]"
    yield say.update_tool_call(
        str(message.get("tool_call_id")),
        status="failed" if message.get("status") == "error" else "completed",
        content=[say.tool_content(say.text_block(text))],
    )


def plan(todos: Iterable[Json]) -> Update:
    """Returns the update of the agent's list of steps."""
    return say.update_plan(
        [
            say.plan_entry(str(todo.get("content")), status=_TODO_STATES.get(str(todo.get("status")), "pending"))  # type: ignore[arg-type]
            for todo in todos
            if isinstance(todo, Mapping)
        ]
    )


def history(values: Json, folder: str | None = None) -> Iterator[Update]:
    """Yields the updates that tell a conversation from its beginning."""
    for message in values.get("messages") or ():
        kind, text = message.get("type"), text_of(message.get("content"))
        if (message.get("additional_kwargs") or {}).get("hide_from_ui"):
            continue
        if kind == "human" and (shown := without_note(text)):
            yield say.update_user_message_text(shown)
        elif kind == "ai":
            yield from answered(message, folder)
        elif kind == "tool" and is_question(message):
            yield say.update_agent_message_text(text)
        elif kind == "tool":
            yield from result(message)
    if todos := values.get("todos"):
        yield plan(todos)


def without_note(text: str) -> str:
    """Returns a person's message without the note about the editor."""
    return text.partition(NOTE)[0].rstrip()


def title_of(name: str, args: Json, *, described: bool = True) -> str:
    """Returns a tool call on one line. `described`: by the model's own description, if there is one: not of a call that
    a person is to allow.
    """
    subject = subject_of(args, described=described)
    return " ".join((f"{name}: {subject}" if subject else name).split())[:120]


def place_of(path: str, folder: str | None) -> str:
    """Returns where the editor finds a file: in the person's folder, if it is there."""
    if folder is not None and not path.startswith("/"):
        return f"{folder}/{path}"
    inside = path == PROJECT or path.startswith(f"{PROJECT}/")
    return f"{folder}{path.removeprefix(PROJECT)}" if folder is not None and inside else path


def _paths(args: Json) -> list[str]:
    return [path for path in (args.get("path"),) if isinstance(path, str)]


# ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Question(NamedTuple):
    """An interrupt of a paused run. `options` is empty if it is to be answered by a text."""

    id: str
    text: str
    call: ToolCallUpdate
    options: Sequence[PermissionOption]


def questions(values: Json) -> list[Question]:
    """Returns the questions that a state waits for."""
    return [_question(item, values) for item in values.get("interrupts") or () if isinstance(item, Mapping)]


def _question(item: Json, values: Json) -> Question:
    identity, value = str(item.get("id")), item.get("value")
    match value:
        case {"form": Mapping() as form, "question": str(asked), **rest}:
            error = f"\n\n(The last answer did not count: {rest['error']})" if "error" in rest else ""
            text = f"{asked}{error}\n\n{forms.described(form)}"
            return Question(identity, text, ToolCallUpdate(tool_call_id=identity, title=text[:300]), ())
        case {
            "type": "approval",
            "action_requests": [{"name": str(name), "args": Mapping() as args} as action, *_],
            "review_configs": [{"allowed_decisions": allowed}, *_],
        }:
            text = str(action.get("description") or f"May {name} be called?")
            call = ToolCallUpdate(
                tool_call_id=_call_of(values, name, args) or identity,
                title=f"{text} {title_of(name, args, described=False)}"[:300],
                kind=_KINDS.get(name, "other"),  # type: ignore[arg-type]  # one of them
                status="pending",
                content=[say.tool_content(say.text_block(_whole(args)))],
                raw_input=args,
            )
            return Question(identity, text, call, _decisions(allowed))
    text = value if isinstance(value, str) else str(value)
    return Question(identity, text, ToolCallUpdate(tool_call_id=identity, title=text[:300]), ())


def _whole(args: Mapping[str, Any]) -> str:
    """Returns all arguments of a call as a person reads them, a command first."""
    command = args.get("command")
    rest = {name: value for name, value in args.items() if name != "command"}
    return "\n\n".join([*([str(command)] if command else []), *([json.dumps(rest, indent=2)] if rest else [])])


def _decisions(allowed: Any) -> list[PermissionOption]:
    options = [
        PermissionOption(option_id="approve", name="Allow", kind="allow_once"),
        PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
    ]
    return [option for option in options if not isinstance(allowed, list) or option.option_id in allowed]


def _call_of(values: Json, name: str, args: Json) -> str | None:
    """Returns the id of the open call that an approval is about."""
    messages = [message for message in values.get("messages") or () if isinstance(message, Mapping)]
    ended = {message.get("tool_call_id") for message in messages}
    for message in reversed(messages):
        for call in message.get("tool_calls") or ():
            if call.get("id") not in ended and call.get("name") == name and call.get("args") == args:
                return str(call["id"])
    return None


def is_question(message: Json) -> bool:
    """Tells whether a message is a clarification, whose answer is the person's next message."""
    return message.get("type") == "tool" and message.get("name") == CLARIFICATION


def choices(values: Json) -> Question | None:
    """Returns the clarification with options at the end of a state, None if there is none."""
    last: Json = next(iter(reversed(values.get("messages") or [])), {})
    artifact = last.get("artifact")
    card = artifact.get("human_input") if isinstance(artifact, Mapping) else None
    offered = card.get("options") if isinstance(card, Mapping) else None
    labels = [str(o["label"]) for o in offered or () if isinstance(o, Mapping) and "label" in o]
    if not is_question(last) or not labels:
        return None
    options = [PermissionOption(option_id=label, name=label, kind="allow_once") for label in labels[:20]]
    options.append(PermissionOption(option_id=OTHERWISE, name="Answer otherwise", kind="reject_once"))
    text = text_of(last.get("content"))
    call = ToolCallUpdate(tool_call_id=str(last.get("tool_call_id")), title=text[:300], kind="other", status="pending")
    return Question(str(last.get("id")), text, call, options)


def may_work_at(cwd: str) -> Question:
    """Returns the question whether the agent may work on the directory of the editor."""
    text = f"May the agent work in {cwd}? Files that look like secrets (.env, keys) stay hidden. You are asked once."
    options = [
        PermissionOption(option_id="read-write", name="Yes, read and write", kind="allow_always"),
        PermissionOption(option_id="read-only", name="Yes, but only read", kind="allow_always"),
        PermissionOption(option_id="no", name="No, not in this session", kind="reject_once"),
    ]
    call = ToolCallUpdate(tool_call_id=FOLDER, title=text[:300], kind="other", status="pending")
    return Question(FOLDER, text, call, options)


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def stop_reason(values: Json) -> StopReason:
    """Returns the reason why a turn without failure has ended."""
    for message in reversed(values.get("messages") or []):
        if message.get("type") == "ai":
            if limit := _LIMITS.get(str((message.get("additional_kwargs") or {}).get("stopped_by"))):
                return limit
            reason = str((message.get("response_metadata") or {}).get("finish_reason") or "").lower()
            return _FINISHED.get(reason, "end_turn")
    return "end_turn"


def failure(error: RunFailed) -> StopReason:
    """Returns the stop reason of a failed run. Raises `RequestError` if none fits."""
    if error.code in _STEPS:
        return "max_turn_requests"
    raise RequestError.internal_error({"error": error.code, "details": str(error)})
