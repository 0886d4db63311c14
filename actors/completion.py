"""Asks a model once, in time, without tools and thinking: for actors that need a text and no conversation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple

import structlog
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from actors.agent.messages.content import without_thoughts
from actors.agent.setup.plan import Models
from actors.agent.setup.prompt import short_hash
from core.config.load import Config
from core.control import sendable
from core.errors import Unavailable, sentence_of
from core.events import Json
from core.thread.messages import text_of

log = structlog.get_logger("sika.completion")

REASON_CHARACTERS = 500
"""Limit of a provider's text in an error."""


_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)


class NoCompletion(Unavailable):
    """No model answered in time, or none is configured."""

    code = "no_completion"


class Prompt(NamedTuple):
    """A request. `human` is material: quote foreign text in it, in tags."""

    system: str
    human: str

    @property
    def hash(self) -> str:
        """The short hash that events record of their input."""
        return short_hash(f"{self.system}\n\n{self.human}")


class Completion(NamedTuple):
    """An answer without thoughts; the configured name of its model, and the usage that the provider reported."""

    text: str
    model: str
    usage: Json | None = None


def candidates(config: Config, role: str, *preferred: str | None) -> list[str]:
    """Returns the configured models to ask, in order: the preferred, those of the role, else the first of all."""
    names = [model.name for model in config.models]
    known = [name for name in (*preferred, *config.model_roles.get(role, ())) if name in names]
    return list(dict.fromkeys(name for name in known or names[:1] if name is not None))


async def complete(models: Models, names: Sequence[str], prompt: Prompt, *, seconds: float, purpose: str) -> Completion:
    """Returns the answer of the first model that gives one. `seconds` bounds all attempts together; `purpose` names
    the call in traces. Raises `NoCompletion`.
    """
    reason = "no model is configured, and the demo model writes none"
    messages = [*([SystemMessage(prompt.system)] if prompt.system else []), HumanMessage(prompt.human)]
    try:
        async with asyncio.timeout(seconds):
            for name in names:
                try:
                    chat = models.get(name, thinking=False, reasoning_effort=None)
                    answer = await chat.ainvoke(
                        messages, config={"tags": [f"middleware:{purpose}"], "run_name": f"{purpose}_agent"}
                    )
                except Exception as error:  # each provider has errors of its own
                    reason = f"{name}: {sentence_of(error)[:REASON_CHARACTERS]}"
                    log.info("the model did not answer", purpose=purpose, model=name, reason=reason)
                    continue
                usage = answer.usage_metadata if isinstance(answer, AIMessage) else None
                text = sendable(without_thoughts(text_of(answer.content)).strip())
                return Completion(text, name, dict(usage) if usage else None)
    except TimeoutError:
        reason = f"{', '.join(names)}: no answer in {seconds:g} s"
        log.info("no model answered in time", purpose=purpose, models=list(names))
    raise NoCompletion(f"{purpose}: {reason}")


def bare(text: str) -> str:
    """Removes thoughts, and the fence around an answer that is a block of code."""
    text = without_thoughts(text).strip()
    fenced = _FENCED.fullmatch(text)
    return fenced[1] if fenced else text
