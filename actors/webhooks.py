"""Posts the outcome of a run to its webhook, with retries over about five hours.

Every attempt is in the log, so any process can make the next one. A crash between the response and its record repeats
a delivery. The receiver recognises it by the `webhook-id`, and forgeries by the signature, as in the Standard Webhooks
specification (https://www.standardwebhooks.com, version 1).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from core import traces
from core.actor import Actor, Context
from core.config.load import ConfigSource
from core.errors import Invalid, SikaError
from core.events import Aggregate, Json, WebhookDelivered, WebhookFailed
from core.identity.installation import Installation
from core.ids import now, stamp
from core.lifecycle import WEBHOOK, RunEnded
from core.thread.runs import end_of
from core.thread.state import Run, ThreadState

Outcome = Callable[[str, Run, ThreadState, Json, str | None], Json]
"""Returns the body of a webhook: thread id, run, thread, the values at the run's end, the time of its start."""
PAUSES = (5, 30, 120, 600, 3600, 14400)
"""Seconds between the attempts."""


class Poster(Protocol):
    """Sends HTTP requests; `adapters.egress` implements it."""

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, seconds: float, private: bool
    ) -> int: ...


class Webhooks(Actor[RunEnded]):
    """Delivers the outcome of each ended run that has a webhook."""

    only = (WEBHOOK,)

    def __init__(self, config: ConfigSource, home: Path, poster: Poster, outcome: Outcome) -> None:
        self._config = config
        self._home = home
        self._poster = poster
        self._outcome = outcome

    async def handle(self, event: RunEnded, ctx: Context) -> None:
        state = await ctx.load()
        run = state.runs.get(ctx.record.run or "")
        if run is not None and run.request.webhook and run.webhook is None:
            await self._try(run, state, ctx.record.aggregate, ctx)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        state = await ctx.load()
        for run in state.runs.values():
            last = run.webhook
            if isinstance(last, WebhookFailed) and last.again_at is not None and last.again_at <= now():
                await self._try(run, state, aggregate, ctx)

    async def _try(self, run: Run, state: ThreadState, aggregate: Aggregate, ctx: Context) -> None:
        attempt = 1 + (run.webhook.attempt if run.webhook else 0)
        result = await self._post(run, await self._body(run, state, aggregate, ctx), attempt)
        if isinstance(result, WebhookFailed) and result.again_at:  # before the fact that settles the event
            await ctx.wake_at(datetime.fromisoformat(result.again_at), f"{run.id}-{attempt}")
        await ctx.decide(
            lambda state: [result] if _open(state, run.id, attempt) else [],
            run=run.id,
            cause=run.last_id,
        )

    async def _body(self, run: Run, state: ThreadState, aggregate: Aggregate, ctx: Context) -> Json:
        """Returns the run with the values at its end, without later changes of the thread."""
        seq = run.started_seq
        started = await ctx.read(after=seq - 1, upto=seq) if seq is not None else []
        at = started[0].at if started else None
        return self._outcome(aggregate.id, run, state, state.values_at(end_of(state, run)), at)

    async def _post(self, run: Run, outcome: Json, attempt: int) -> WebhookDelivered | WebhookFailed:
        config = self._config.current().webhooks
        body = msgspec.json.encode({**outcome, "webhook_sent_at": now()})
        secret = config.secret.reveal() if config.secret else await anyio.to_thread.run_sync(_own, self._home)
        try:
            status = await self._poster.post(
                run.request.webhook or "",
                body,
                {**signed(run.last_id, body, secret, int(time.time())), **_trace(run)},
                seconds=config.timeout_seconds,
                private=config.allow_private,
            )
        except Invalid as error:
            return WebhookFailed(reason=str(error), attempt=attempt)
        except SikaError as error:
            return _failed(str(error), attempt)
        if 200 <= status < 300:
            return WebhookDelivered(status=status, attempt=attempt)
        if status == 410:
            return WebhookFailed(reason="the receiver wants no more (410)", attempt=attempt)
        return _failed(f"the receiver answered {status}", attempt)


def signed(identity: str, body: bytes, secret: str, moment: int) -> dict[str, str]:
    """Returns the headers of a body. Signs with base64 of HMAC-SHA256 over `<id>.<unix seconds>.<body>`."""
    content = f"{identity}.{moment}.".encode() + body
    signature = base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha256).digest()).decode()
    return {
        "Content-Type": "application/json",
        "User-Agent": "sika",
        "webhook-id": identity,
        "webhook-timestamp": str(moment),
        "webhook-signature": f"v1,{signature}",
    }


def _trace(run: Run) -> dict[str, str]:
    """Returns the header by which the receiver joins the run's trace."""
    header = traces.header(run.request)
    return {traces.TRACEPARENT: header} if header else {}


def _own(home: Path) -> str:
    """Returns the installation's secret. Blocks: call it in a thread."""
    return Installation(home).webhooks.reveal()


def _open(state: ThreadState, run_id: str, attempt: int) -> bool:
    run = state.runs.get(run_id)
    return run is not None and (run.webhook.attempt if run.webhook else 0) < attempt


def _failed(reason: str, attempt: int) -> WebhookFailed:
    if attempt > len(PAUSES):
        return WebhookFailed(reason=reason, attempt=attempt)
    again = datetime.now(UTC) + timedelta(seconds=PAUSES[attempt - 1])
    return WebhookFailed(reason=reason, attempt=attempt, again_at=stamp(again))
