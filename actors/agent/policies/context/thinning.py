"""Shows the model old results of tools as one line each, before a conversation is so long that it is summarised.

Only the request to the model changes. What is thinned follows from the messages alone, so a resumed run sends the same.
It changes in steps, each of a part of what fits, so that the provider's cache of earlier requests serves in between.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage

from actors.agent.messages.content import text_by_line, with_text
from actors.agent.messages.excerpt import size_of
from actors.agent.policies.safety.input_sanitising import Remembered
from actors.agent.run.attempt import Attempt, ModelHandler
from actors.agent.summary.record import PATHS, line_of_call
from core.config.windows import Window, window_of
from core.events import Json
from core.ports.sandbox import RESULTS
from core.runs.windows import Windows
from core.thread.earlier import SEARCH
from core.thread.usage import estimate

STEP = 0.25
"""The part of what fits after which more results are thinned. The newest results of at least so much stay whole."""
LEAST_STEPS = 3
"""The newest answers with calls whose results stay whole, whatever their length."""
LEAST_CHARACTERS = 1500
"""Shorter results stay whole."""
END_CHARACTERS = 200
"""The end of a result that stays: it says most often what came of the call."""
THINNED = "thinned"
"""The artifact of a result that is shown as a line."""
_FILE = re.compile(re.escape(RESULTS) + r"/[\w.-]+")


class Thinning(AgentMiddleware[Any, Attempt, Any]):
    """Lies inside of `Summarization`, which reads results in full."""

    name = "thinning"

    def __init__(self, windows: Windows | None = None) -> None:
        super().__init__()
        self._windows = windows
        self._sizes = Remembered[int]()
        self._lines = Remembered[BaseMessage]()

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        messages = request.messages
        sizes = [self._sizes.of(message, partial(_size, message)) for message in messages]
        thinned = self._thinned(messages, end_of_old(messages, sizes, await self._window(attempt)), attempt)
        return await handler(request.override(messages=cast(Any, thinned)) if thinned is not messages else request)

    async def _window(self, attempt: Attempt) -> Window:
        name = attempt.candidates[0].name
        if self._windows is None:
            return window_of(attempt.config, name)
        return await self._windows.of(attempt.config, name, attempt.state.seq)

    def _thinned(self, messages: Sequence[AnyMessage], end: int, attempt: Attempt) -> Sequence[BaseMessage]:
        """Returns the messages with the long results before `end` as one line each; the same list if there are none."""
        skills = posixpath.normpath(attempt.config.skills.container_path) + "/"
        calls: dict[str, Json] = {}
        lines: dict[int, BaseMessage] = {}
        for place, message in enumerate(messages[:end]):
            if isinstance(message, AIMessage):
                calls.update((str(call["id"]), cast(Json, call)) for call in message.tool_calls)
            elif isinstance(message, ToolMessage) and len(text_by_line(message.content)) >= LEAST_CHARACTERS:
                call = calls.get(message.tool_call_id)
                if call is not None and not _reads(call, skills):
                    lines[place] = self._lines.of(message, partial(_line, message, call))
        return [lines.get(place, message) for place, message in enumerate(messages)] if lines else messages


def end_of_old(messages: Sequence[BaseMessage], sizes: Sequence[int], window: Window) -> int:
    """Returns the place up to which results are old. It moves on when the conversation has grown by a step."""
    step = window.limit * STEP
    steps = int(sum(sizes) // step) - 1
    if steps < 1:
        return 0
    end = next((place for place, total in enumerate(accumulate(sizes)) if total > steps * step), len(messages))
    answers = [place for place, message in enumerate(messages) if isinstance(message, AIMessage) and message.tool_calls]
    return min(end, answers[-LEAST_STEPS]) if len(answers) >= LEAST_STEPS else 0


def _size(message: BaseMessage) -> int:
    calls = message.tool_calls if isinstance(message, AIMessage) else ()
    return estimate([{"content": message.content, **({"tool_calls": calls} if calls else {})}])


def _reads(call: Json, directory: str) -> bool:
    """Tells whether a call reads a file of a directory: how to use a skill is needed as long as it is in use."""
    paths = (call["args"].get(name) for name in PATHS)
    return any(isinstance(path, str) and posixpath.normpath(path).startswith(directory) for path in paths)


def _line(message: ToolMessage, call: Json) -> BaseMessage:
    """Returns a result as one line: what it was, how it ended, and how to get it again."""
    text = text_by_line(message.content)
    path = _FILE.search(text)
    again = f"All of it is in {path[0]}." if path else f"{SEARCH} finds it, or make the call again."
    end = " ".join(text[-END_CHARACTERS:].split())
    line = (
        f"[The result of {line_of_call(call)} is left out, as it is old: {size_of(text)}. {again} It ended with: {end}]"
    )
    return message.model_copy(update={"content": with_text(message.content, line), "artifact": THINNED})
