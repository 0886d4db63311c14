"""Adds the images that the model called for to its next request; they are not part of the state."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from anyio import to_thread
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from actors.agent.run.attempt import Attempt, ModelHandler
from core.errors import Invalid
from core.events import Json
from core.files.paths import WORKSPACE
from core.ports.images import MAX_BYTES, Image, Images, image_of, place_of

VIEW = "view_image"
NAME = "viewed_images"
"""Name of the hidden message, and of the field in the thread's state (DeerFlow's thread state)."""


class Vision(AgentMiddleware[Any, Attempt, Any]):
    """Serves models with vision. Images are read from disk at the request; changed images are marked."""

    name = "vision"

    def __init__(self, images: Images) -> None:
        super().__init__()
        self._images = images

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        if viewed := viewed_last(request.messages, attempt.state.values.get(NAME), attempt.start):
            request = request.override(messages=[*request.messages, await self._message(attempt, viewed)])
        return await handler(request)

    async def _message(self, attempt: Attempt, viewed: Sequence[Image]) -> HumanMessage:
        content: list[str | Json] = [_text("Here are the images that you asked to look at:")]
        left = MAX_BYTES
        for image in viewed:
            if image.size > left:
                content.append(_text(f"- {image.path}: too much for one answer; look at it again, alone"))
                continue
            try:
                data = await self._images.load(attempt.user, attempt.thread, image.path)
                content += await to_thread.run_sync(_parts, image, data)
                left -= len(data)
            except Invalid as error:
                content.append(_text(f"- {image.path}: cannot be shown any more ({error})"))
        identity = f"images-{attempt.state.answer_seq()}"
        return HumanMessage(content, id=identity, name=NAME, additional_kwargs={"hide_from_ui": True})


def viewed_last(messages: Sequence[AnyMessage], images: Any, start: str = WORKSPACE) -> list[Image]:
    """Returns the images that the latest answer called for, if all its calls are done; `images` is the state's,
    `start` is where relative paths begin.
    """
    done: dict[str, ToolMessage] = {}
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            done[message.tool_call_id] = message
        if isinstance(message, AIMessage):
            calls = [call for call in message.tool_calls if call["name"] == VIEW]
            if not calls or any(call["id"] not in done for call in message.tool_calls):
                return []
            paths = [call["args"].get("image_path") for call in calls if done[str(call["id"])].status == "success"]
            valid = [image for path in paths if (image := _image(path, images, start))]
            return list({image.path: image for image in valid}.values())
    return []


def _image(path: Any, images: Any, start: str) -> Image | None:
    """Returns the state's entry of an image; None if it is invalid, because clients may write the state."""
    try:
        place = place_of(str(path), start)
        entry = images.get(place) if isinstance(images, Mapping) else None
        return msgspec.convert({**entry, "path": place}, Image) if isinstance(entry, Mapping) else None
    except (Invalid, msgspec.ValidationError):
        return None


def _parts(image: Image, content: bytes) -> list[Json]:
    """Returns the label and the picture of an image. Call it in a thread. Raises `Invalid` if it is no image."""
    now = image_of(image.path, content)
    changed = "" if now.sha256 == image.sha256 else ", changed since you asked for it"
    data = base64.b64encode(content).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:{now.mime_type};base64,{data}"}}
    return [_text(f"- {image.path} ({now.mime_type}{changed}):"), picture]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
