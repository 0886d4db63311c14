"""A trial of a model: one short question."""

from __future__ import annotations

from typing import Protocol

import anyio

from core.config.redaction import redactor
from core.config.settings import Model, Secret

CALL_SECONDS = 20.0
MOST_CHARACTERS = 300


class Answering(Protocol):
    """What can be asked: a LangChain model."""

    async def ainvoke(self, input: str) -> object: ...


async def tried(model: Model, instance: Answering) -> str | None:
    """Asks a model of an entry. Returns why it did not answer, without secrets; None if it did."""
    try:
        with anyio.fail_after(CALL_SECONDS):
            await instance.ainvoke("Answer with the one word: yes")
    except TimeoutError:
        return f"no answer within {CALL_SECONDS:g} s"
    except Exception as error:  # of the provider's library, whichever that is
        text = f"{type(error).__name__}: {error}"
        for secret in (value.reveal() for value in model.extra.values() if isinstance(value, Secret)):
            text = text.replace(secret, "…") if secret else text
        return redactor.text(" ".join(text.split()))[:MOST_CHARACTERS]
    return None
