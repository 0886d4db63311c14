"""Shows the model the images that it asked to look at: at its next call, and in no state."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from anyio import to_thread
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from actors.lead.loop.turn import ModelHandler, Turn
from core.errors import Invalid
from core.events import Json
from core.ports.images import MAX_BYTES, Image, Images, image_of, place_of

VIEW = "view_image"
NAME = "viewed_images"
"""Of the hidden message, and of the field in the thread's state (contract runtime §4)."""


class Vision(AgentMiddleware[Any, Turn, Any]):
    """For models that see. The images come from the disk as they are now; what changed since is said."""

    name = "vision"

    def __init__(self, images: Images) -> None:
        super().__init__()
        self._images = images

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        turn = request.runtime.context
        if viewed := viewed_last(request.messages, turn.state.values.get(NAME)):
            shown = await self._shown(turn, viewed)
            request = request.override(messages=[*request.messages, shown])
        return await handler(request)

    async def _shown(self, turn: Turn, viewed: Sequence[Image]) -> HumanMessage:
        content: list[str | Json] = [_text("Here are the images that you asked to look at:")]
        left = MAX_BYTES
        for image in viewed:
            if image.size > left:
                content.append(_text(f"- {image.path}: too much for one answer; look at it again, alone"))
                continue
            try:
                found = await self._images.load(turn.user, turn.thread, image.path)
                content += await to_thread.run_sync(_parts, image, found)
                left -= len(found)
            except Invalid as error:
                content.append(_text(f"- {image.path}: cannot be shown any more ({error})"))
        identity = f"images-{turn.state.said_seq()}"
        return HumanMessage(content, id=identity, name=NAME, additional_kwargs={"hide_from_ui": True})


def viewed_last(messages: Sequence[AnyMessage], known: Any) -> list[Image]:
    """The images that the latest assistant message asked for, if all its calls are done. `known`: what the state says
    of images.
    """
    done: dict[str, ToolMessage] = {}
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            done[message.tool_call_id] = message
        if isinstance(message, AIMessage):
            asked = [call for call in message.tool_calls if call["name"] == VIEW]
            if not asked or any(call["id"] not in done for call in message.tool_calls):
                return []
            paths = [call["args"].get("image_path") for call in asked if done[str(call["id"])].status == "success"]
            found = [image for path in paths if (image := _known(path, known))]
            return list({image.path: image for image in found}.values())
    return []


def _known(path: Any, known: Any) -> Image | None:
    """What the state says of an image; clients may have written something else."""
    try:
        place = place_of(str(path))
        about = known.get(place) if isinstance(known, Mapping) else None
        return msgspec.convert({**about, "path": place}, Image) if isinstance(about, Mapping) else None
    except (Invalid, msgspec.ValidationError):
        return None


def _parts(image: Image, content: bytes) -> list[Json]:
    """The label and the picture. Blocks. Raises `Invalid` if there is an image no more."""
    now = image_of(image.path, content)
    changed = "" if now.sha256 == image.sha256 else ", changed since you asked for it"
    data = base64.b64encode(content).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:{now.mime_type};base64,{data}"}}
    return [_text(f"- {image.path} ({now.mime_type}{changed}):"), picture]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
