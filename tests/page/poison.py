"""An actor that fails on some events, until somebody has mended what it needs."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from core.actor import Actor, Context, Retries
from core.events import ThreadAnnotated


class Taster(Actor[ThreadAnnotated]):
    """Notes what it could swallow, a thing at a time; on what is tough it chews until there is an antidote."""

    name = "taster"
    concurrency = 1
    retries = Retries(attempts=1)

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        poison = event.metadata.get("poison")
        if poison is None:
            return
        ledger = Path(os.environ["SIKA_TEST_LEDGER"])
        while poison == "tough" and not ledger.with_name("antidote").exists():  # noqa: ASYNC110  a file tells nobody
            await anyio.sleep(0.05)
        if not ledger.with_name("antidote").exists():
            raise ValueError(f"cannot swallow {poison}")
        _note(ledger, ctx.record.aggregate.id)


def _note(ledger: Path, line: str) -> None:
    with ledger.open("a") as file:
        file.write(f"{line}\n")
