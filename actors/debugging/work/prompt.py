"""The system prompt of a cell of the evaluation: another one, or the one that the agent has without a part of it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage

from actors.agent.messages.content import text_by_line
from actors.agent.setup.prompt import MENTIONED, Parts, build
from core.errors import Invalid

EXAMPLE = Parts(
    tools=MENTIONED,
    unattended=True,
    delegates=(("", ""),),
    most_delegates=1,
    skills=(("", "", "", ""),),
)
"""The most that the prompt of a task has: no person is there, and nothing is of the person's own."""
_TAG = re.compile(r"\w+")
_SENTENCE = re.compile(r"[^\n]*?(?:[.:](?:[ \n]|$)|(?=\n)|$)")


class SystemPrompt(AgentMiddleware[Any, Any, Any]):
    """Replaces the whole system prompt of each model call by a text."""

    name = "system_prompt"

    def __init__(self, path: str) -> None:
        super().__init__()
        self._message = SystemMessage(Path(path).read_text())

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(request.override(system_message=self._message))


class Without(AgentMiddleware[Any, Any, Any]):
    """Takes a part out of the system prompt of each model call that has it."""

    name = "without"

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        text = text_by_line(request.system_message.content) if request.system_message else ""
        return await handler(request.override(system_message=SystemMessage(without(text, self._part))))


def without(prompt: str, part: str) -> str:
    """Returns a prompt without a part: a section by the name of its tag, a rule (`- …`) or a sentence by its beginning.
    The same text if it has no such part.
    """
    if _TAG.fullmatch(part) and (section := re.search(rf"(?:\n\n)?<{part}>\n.*?</{part}>", prompt, re.DOTALL)):
        return prompt[: section.start()] + prompt[section.end() :]
    if rule := re.search(rf"^- {re.escape(part)}[^\n]*\n", prompt, re.MULTILINE):
        return prompt[: rule.start()] + prompt[rule.end() :]
    if begin := re.search(rf"(?:(?<=[.:] )|^){re.escape(part)}", prompt, re.MULTILINE):
        rest = _SENTENCE.match(prompt, begin.end())
        assert rest is not None
        return prompt[: begin.start()] + prompt[rest.end() :]
    return prompt


def valid_part(part: str) -> str:
    """Returns a part that the agent's prompt has. Raises `Invalid`, naming the sections, for any other."""
    prompt = build(EXAMPLE)
    if not part.strip() or without(prompt, part) == prompt:
        sections = ", ".join(dict.fromkeys(re.findall(r"^<(\w+)>$", prompt, re.MULTILINE)))
        raise Invalid(f"part {part!r}: name a section ({sections}), or how a rule or a sentence begins")
    return part
