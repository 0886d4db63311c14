"""Images that the model asked to look at, at its next call."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from actors.agent.policies.context.vision import Vision
from core.errors import Invalid
from core.events import Json, Message
from core.ports.images import MAX_BYTES
from tests.actors.agent.turns import Asked, model_call, turn

pytestmark = pytest.mark.anyio

PNG, JPEG = b"\x89PNG\r\n\x1a\n one", b"\xff\xd8\xff two"
A, B = "/mnt/user-data/outputs/a.png", "/mnt/user-data/workspace/b.jpg"
HUMAN: Message = {"type": "human", "id": "h", "content": "look"}


class Disk:
    """Files in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    async def load(self, user: str, thread: str, path: str) -> bytes:
        assert (user, thread) == ("u", "t")
        if path not in self.files:
            raise Invalid(f"{path}: not found")
        return self.files[path]


def about(content: bytes, mime_type: str) -> Json:
    return {"mime_type": mime_type, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


VIEWED = {A: about(PNG, "image/png"), B: about(JPEG, "image/jpeg")}


def asked(*paths: Any, name: str = "view_image") -> Message:
    calls = [{"name": name, "args": {"image_path": path}, "id": f"c{number}"} for number, path in enumerate(paths)]
    return {"type": "ai", "id": "a", "content": "", "tool_calls": calls}


def result(number: int = 0, **more: Any) -> Message:
    return {"type": "tool", "id": f"t{number}", "content": "ok", "tool_call_id": f"c{number}", **more}


async def content(messages: list[Message], files: dict[str, bytes], viewed: Any = VIEWED) -> Any:
    """Of the message that is added, None if there is none."""
    on = turn(messages, values={"viewed_images": viewed})
    handler = Asked()
    await model_call(Vision(Disk(files)), on, handler)
    assert on.state.messages == messages
    more = handler.messages[len(messages) :]
    if not more:
        return None
    [message] = more
    assert isinstance(message, HumanMessage)
    assert message.additional_kwargs == {"hide_from_ui": True}
    return message.content


def picture(data: bytes, mime_type: str) -> Json:
    url = f"data:{mime_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


async def test_each_image_has_its_label() -> None:
    blocks = await content([HUMAN, asked(A, "b.jpg"), result(1), result(0)], {A: PNG, B: JPEG})
    assert blocks[0]["type"] == "text"
    assert blocks[1:] == [
        {"type": "text", "text": f"- {A} (image/png):"},
        picture(PNG, "image/png"),
        {"type": "text", "text": f"- {B} (image/jpeg):"},
        picture(JPEG, "image/jpeg"),
    ]


async def test_one_image_once() -> None:
    blocks = await content([HUMAN, asked(B, "b.jpg"), result(0), result(1)], {B: JPEG})
    assert blocks[2:] == [picture(JPEG, "image/jpeg")]


async def test_what_people_say_meanwhile_comes_before() -> None:
    steered = HUMAN | {"id": "h2"}
    blocks = await content([HUMAN, asked(A), result(), steered], {A: PNG})
    assert blocks[2:] == [picture(PNG, "image/png")]


@pytest.mark.parametrize(
    ("messages", "viewed"),
    [
        ([HUMAN], VIEWED),
        ([HUMAN, asked(A)], VIEWED),
        ([HUMAN, asked(A, B), result(0)], VIEWED),
        ([HUMAN, asked(A, name="read_file"), result()], VIEWED),
        ([HUMAN, asked(A), result(), {"type": "ai", "id": "b", "content": "nice"}], VIEWED),
        ([HUMAN, asked(A), result(status="error")], VIEWED),
        ([HUMAN, asked("/etc/a.png"), result()], VIEWED),
        ([HUMAN, asked(None), result()], VIEWED),
        ([HUMAN, asked([A]), result()], VIEWED),
        ([HUMAN, asked(A), result()], {}),
        ([HUMAN, asked(A), result()], None),
        ([HUMAN, asked(A), result()], {A: {"mime_type": "image/png"}}),
        ([HUMAN, asked(A), result()], {A: "png"}),
    ],
    ids=[
        "nobody asked", "no result", "one result of two", "another tool", "seen already", "failed", "elsewhere",
        "no path", "a list", "none in the state", "no state", "half a state", "odd state",
    ],
)  # fmt: skip
async def test_when_nothing_is_shown(messages: list[Message], viewed: Any) -> None:
    assert await content(messages, {A: PNG, B: JPEG}, viewed) is None


async def test_a_failed_call_beside_one_that_was_made() -> None:
    blocks = await content([HUMAN, asked(A, B), result(0, status="error"), result(1)], {A: PNG, B: JPEG})
    assert blocks[2:] == [picture(JPEG, "image/jpeg")]


@pytest.mark.parametrize(
    ("file", "label", "pictures"),
    [
        (PNG + b"more", "image/png, changed since you asked for it", [picture(PNG + b"more", "image/png")]),
        (JPEG, "the content is image/jpeg", []),
        (b"text", "not a JPEG, PNG or WebP image", []),
        (None, "not found", []),
    ],
    ids=["changed", "of another kind", "no image", "gone"],
)
async def test_what_became_of_it_is_said(file: bytes | None, label: str, pictures: list[Json]) -> None:
    blocks = await content([HUMAN, asked(A), result()], {} if file is None else {A: file})
    assert A in blocks[1]["text"]
    assert label in blocks[1]["text"]
    assert blocks[2:] == pictures


async def test_too_much_at_once() -> None:
    large = PNG + bytes(MAX_BYTES - len(PNG))
    viewed = {A: about(large, "image/png"), B: about(JPEG, "image/jpeg")}
    blocks = await content([HUMAN, asked(A, B), result(0), result(1)], {A: large, B: JPEG}, viewed)
    assert [part["type"] for part in blocks] == ["text", "text", "image_url", "text"]
    assert blocks[3]["text"] == f"- {B}: too much for one answer; look at it again, alone"
