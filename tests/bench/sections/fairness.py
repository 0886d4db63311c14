"""One has three hundred runs, and others ask once a second: what they wait for the first token, over alone.

All on the defaults. The answers of the one take 10 s (100 tokens), the others' one. Each kind of one is measured on a
server of its own, the others first without it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from core.bus import embedded
from tests.bench import processes
from tests.bench.laboratory import Laboratory
from tests.bench.load import Sample
from tests.bench.measure import Row, at_most, percentile
from tests.bench.processes import ROOT, Broken, Sika
from tests.bench.sections.many import ANSWER, SHORT, asked, settings
from tests.channels.telegram.server import BOT_NAME, TelegramServer
from tests.chaos import lagging
from tests.support.model_server import run

_LIMIT = 1.2
_AHEAD_SECONDS = 3.0
"""Between the runs of the one and the first of the others."""
_BATCHES = 5
"""Runs of the one that start subagents: a batch has at most 64 at a time."""
_WRITTEN = 30
"""Messages a second of one person: more than platforms let people write."""
_POLL_SECONDS = 0.02
_SHOWN_SECONDS = 120.0
WARM = 20


class Sizes(NamedTuple):
    one: int
    """Runs of the one."""
    others: int
    """Runs of others, one a second."""


class Crowd(NamedTuple):
    """People at a server. `many` has the one ask for all its runs, and returns at their end; `other` asks for one run
    of somebody else, by number, and returns the seconds to its first token.
    """

    many: Callable[[], Awaitable[None]]
    other: Callable[[int], Awaitable[float]]


Opened = Callable[[Laboratory, str, Sizes], AbstractAsyncContextManager[Crowd]]
"""Starts what a crowd needs, with the models at a URL."""


def fairness(lab: Laboratory) -> Iterator[Row]:
    sizes = Sizes(40, 4) if lab.quick else Sizes(300, 10)
    scripts = lab.folder / "fairness.json"
    scripts.write_text(json.dumps({"lead": {"turns": _batch(sizes.one // _BATCHES)}}))
    with ExitStack() as stack:
        url = stack.enter_context(processes.models(scripts=scripts))
        for what, opened in CROWDS.items():
            if lab.crowd in what:
                lab.say(f"{sizes.one} {what}")
                yield run(_compared(what, partial(opened, lab, url), sizes))
    if lab.crowd:
        return
    lab.say("two processes, of which one lags")
    yield run(_beside_a_late_one(lab, sizes))


async def _compared(what: str, opened: Callable[[Sizes], AbstractAsyncContextManager[Crowd]], sizes: Sizes) -> Row:
    async with opened(sizes) as crowd:
        await asyncio.gather(*map(crowd.other, range(WARM)))
        alone = await _once_a_second(crowd, sizes.others)
        many = asyncio.ensure_future(crowd.many())
        await asyncio.sleep(_AHEAD_SECONDS)
        behind = await _once_a_second(crowd, sizes.others)
        await many
    return Row(
        f"first token of others behind {sizes.one} {what}",
        percentile(behind, 50) / percentile(alone, 50),
        at_most(_LIMIT),
        "ms",
        1000 * percentile(behind, 50),
        1000 * percentile(alone, 50),
        note=f"p95 {1000 * percentile(behind, 95):.0f} ms, alone {1000 * percentile(alone, 95):.0f} ms",
    )


async def _once_a_second(crowd: Crowd, others: int) -> Sequence[float]:
    asking = []
    for number in range(others):
        asking.append(asyncio.ensure_future(crowd.other(number)))
        await asyncio.sleep(1)
    return await asyncio.gather(*asking)


async def _beside_a_late_one(lab: Laboratory, sizes: Sizes) -> Row:
    async with lagging.two(lab.new_home()) as two:
        await lagging.settled(two)
        seconds = [await lagging.seconds_to_begin(two.client, f"one-{n}") for n in range(sizes.others)]
        workers = await lagging.begun(two.client, [f"t{n}" for n in range(sizes.others)])
    return Row(
        f"begun by a process that lags, of {len(workers)} beside one that does not",
        sum(worker != two.free.pid for worker in workers.values()),
        at_most(0),
        note=f"a run is begun by the other after {1000 * percentile(seconds, 95):.0f} ms (p95)",
    )


# ── crowds ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _addresses(lab: Laboratory, url: str, sizes: Sizes) -> AsyncIterator[Crowd]:
    """Without accounts: addresses behind a proxy, which this machine is taken for."""
    async with _server(lab, url, http={"trusted_proxies": ["127.0.0.1"]}) as server:
        yield _asking([server], sizes, _from(1), lambda number: _from(number + 2))


@asynccontextmanager
async def _accounts(lab: Laboratory, url: str, sizes: Sizes) -> AsyncIterator[Crowd]:
    """Two users with keys."""
    async with _server(lab, url, auth={"enabled": True}) as server:
        one, other = [{"x-api-key": await _account(server, name)} for name in ("ada", "bob")]
        yield _asking([server], sizes, one, lambda _: other)


@asynccontextmanager
async def _processes(lab: Laboratory, url: str, sizes: Sizes) -> AsyncIterator[Crowd]:
    """Two servers on one nats-server: everybody asks both in turn."""
    async with embedded.start(lab.new_home()) as nats, AsyncExitStack() as stack:
        home, sections = lab.new_home(), {"http": {"trusted_proxies": ["127.0.0.1"]}}
        own = {"nats": {"url": nats.url, "token": nats.token}, **sections}
        servers = [await stack.enter_async_context(_server(lab, url, home, **own)) for _ in range(2)]
        yield _asking(servers, sizes, _from(1), lambda number: _from(number + 2))


@asynccontextmanager
async def _subagents(lab: Laboratory, url: str, sizes: Sizes) -> AsyncIterator[Crowd]:
    """A few runs of the one, each with a batch of subagents."""
    own = {"subagents": {"batch": {"pool": 64}, "agents": {"general-purpose": {"model": f"{ANSWER}@0"}}}}
    async with _server(lab, url, http={"trusted_proxies": ["127.0.0.1"]}, **own) as server:

        async def many() -> None:
            batches = (asked(server, "lead", _from(1)) for _ in range(_BATCHES))
            for sample in await asyncio.gather(*batches):
                _first(sample)

        yield _asking([server], sizes, _from(1), lambda number: _from(number + 2))._replace(many=many)


@asynccontextmanager
async def _bots(lab: Laboratory, url: str, sizes: Sizes) -> AsyncIterator[Crowd]:
    """One person writes to a bot in groups, one message in each; others privately, each once."""
    async with TelegramServer() as telegram:
        account = {"bot_token": telegram.token, "base_url": telegram.url, "gather_seconds": 0, "allow_everyone": True}
        async with _server(lab, url, channels={"telegram": {"enabled": True, **account}}):
            people = count()

            async def new_person(_: int) -> float:
                """Returns the seconds to the first words of the answer."""
                person = telegram.person(f"p{next(people)}")
                began = time.perf_counter()
                person.says("Hello?")
                await telegram.wake()
                await _until(lambda: any(seen.by_bot and seen.text for seen in telegram.seen(person.chat)))
                return time.perf_counter() - began

            async def many() -> None:
                one, groups = telegram.person("one"), [telegram.group(f"g{n}") for n in range(sizes.one)]
                for group in groups:
                    one.says(f"@{BOT_NAME} Hello?", group)
                    await telegram.wake()
                    await asyncio.sleep(1 / _WRITTEN)
                await _until(lambda: all(telegram.answers(group) for group in groups))

            yield Crowd(many, new_person)


async def _until(condition: Callable[[], bool]) -> None:
    """For what people see on a platform, which tells nobody."""
    async with asyncio.timeout(_SHOWN_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)


CROWDS: Mapping[str, Opened] = {
    "runs of a client": _addresses,
    "runs of an account": _accounts,
    "messages of a person to a bot": _bots,
    "subagents of a few runs": _subagents,
    "runs of a client, on two processes": _processes,
}


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _server(lab: Laboratory, url: str, home: Any = None, **sections: Any) -> AsyncIterator[Sika]:
    home = home or lab.new_home()
    config = lab.folder / f"{home.name}.yaml"
    values = settings([url], **sections)
    values["models"].append({"name": "lead", "model": "lead", "base_url": url, "api_key": "none"})
    config.write_text(json.dumps(values))
    with ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, processes.sika(home, config))


def _asking(
    servers: Sequence[Sika], sizes: Sizes, one: Mapping[str, str], other: Callable[[int], Mapping[str, str]]
) -> Crowd:
    """The one and others by the headers of their requests; the servers take turns."""

    async def many() -> None:
        runs = (asked(servers[n % len(servers)], f"{ANSWER}@0", one) for n in range(sizes.one))
        for sample in await asyncio.gather(*runs):
            _first(sample)

    async def ask(number: int) -> float:
        return _first(await asked(servers[number % len(servers)], f"{SHORT}@0", other(number)))

    return Crowd(many, ask)


def _from(number: int) -> Mapping[str, str]:
    """The header of a proxy that speaks for a client."""
    return {"x-forwarded-for": f"192.0.2.{number}"}


def _first(sample: Sample) -> float:
    """The seconds to the first token. The run must have succeeded."""
    if sample.error or sample.first_token is None or not sample.ended:
        raise Broken(f"a run failed: {sample.error or 'no token'} (status {sample.status})")
    return sample.first_token


def _batch(prompts: int) -> list[Any]:
    """The turns of a run that hands so many prompts over."""
    asking = {"description": "d", "subagent_type": "general-purpose", "prompts": [f"Say {n}." for n in range(prompts)]}
    return [{"tool_calls": [{"name": "tasks", "args": asking}]}, {"text": "Done."}]


async def _account(server: Sika, name: str) -> str:
    """A key of a new user, made by the command line."""
    await _cli(server, "user", "create", f"{name}@example.org", "--role", "admin")
    return await _cli(server, "key", "create", "--user", f"{name}@example.org")


async def _cli(server: Sika, *words: str) -> str:
    command = [sys.executable, "-m", "channels.cli", *words, "--home", str(server.home)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)
    out, problem = await process.communicate()
    if process.returncode:
        raise Broken(f"sika {words[0]} {words[1]}: {problem.decode()[-500:]}")
    return out.decode().strip()
