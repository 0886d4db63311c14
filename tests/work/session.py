"""Scripted sessions: a test is the model, which reads what the tools answer, and decides on its next call.

    async def test_a_session(work: Work) -> None:
        session = await work.session("Mend the sum in calc.py.")   # a person asks
        text = await session.bash("python3 calc.py")               # the model calls a tool, and reads its result
        assert "4" in text
        await session.answers("It was a minus.")                   # the model answers, and the run ends

Between the two is a whole server with its default configuration, real HTTP, a real bus and a real sandbox. `answers`
checks the laws of every session: the run is a success with this answer, no call was made or answered twice, and nobody
told the model to stop. A session that comes to another end than its script fails with the end of its transcript.

Theory. One handler answers the requests of all models. Each tool call carries the name of its session and the number of
its turn, so that a request says which turn it wants: the one after the latest results in it, or the first one after the
latest question of a person in it. A repeated request, as after `kill -9`, wants a turn that is decided already.
Requests without tools are those of titles, summaries and the memory.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from tests.e2e.servers import Browser, Server, request
from tests.support.model_server import Failure, ModelServer, ToolCall, Turn
from tests.support.workers import wait_for

WORKSPACE = "/mnt/user-data/workspace"
UPLOADS = "/mnt/user-data/uploads"
OUTPUTS = "/mnt/user-data/outputs"
STEP_SECONDS = 120.0
"""Deadline of one step of a session."""
OPENING = 200
"""Characters by which a question of a person is known: what is longer may be thinned."""
CHARACTERS = 4
"""Characters of a token."""
TAIL = 8
"""Steps of the transcript that a failure shows."""
SHOWN = 1500
_ID = re.compile(r"call-(.+)-(\d+)-(\d+)")
_STOPPING = re.compile(
    r"will not tell you anything new|in a row failed with the same error|come to an end with it|\bStopped: the agent",
    re.IGNORECASE,
)
_SUMMARY = re.compile(r"[^.\n]*(?:\bmust\b|\bnever\b|\bdecided\b|FACT)[^.\n]*", re.IGNORECASE)


class Step(NamedTuple):
    """What the model did, and what it was told."""

    did: str
    results: list[str]


class Work:
    """A server, the handler of its models, and its sessions."""

    def __init__(self, home: Path, models: ModelServer, server: Server, client: Browser) -> None:
        self.home, self.models, self.server, self.client = home, models, server, client
        self.sessions: dict[str, Session] = {}
        self.memory: Callable[[str], list[str]] = lambda conversation: []
        """Returns the facts that the memory's model finds in a request."""
        self.summaries: list[str] = []
        self.windows: dict[str, int] = {"small": 24_000, "medium": 64_000}
        """Tokens of a request above which the provider of a model refuses it, as one that is too long."""
        self.refused = 0
        self.kills = 0
        self._numbers = itertools.count(1)

    async def session(self, text: str = "", *, model: str = "work", **context: Any) -> Session:
        """Opens a thread. With a text, a person asks there."""
        thread = await self.client.thread(self.server)
        session = Session(self, f"s{next(self._numbers)}", thread, model, context)
        self.sessions[session.name] = session
        if text:
            await session.asks(text)
        return session

    def subagent(self, caller: Session, prompt: str) -> Session:
        """Returns the session of a subagent that will be given this prompt."""
        session = Session(self, f"s{next(self._numbers)}", caller.thread, caller.model, {}, caller)
        session.questions.append((prompt[:OPENING], 0))
        self.sessions[session.name] = session
        return session

    async def restart(self) -> None:
        """Kills the server, and starts it again."""
        self.kills += 1
        await self.server.kill()
        await self.server.start()

    async def answer(self, body: dict[str, Any]) -> Turn:
        """Answers a request of any model."""
        size = len(json.dumps([body["messages"], body.get("tools")])) // CHARACTERS
        if size > (window := self.windows.get(body["model"], size)):
            self.refused += 1
            return too_long(size, window)
        session = self._of(body)
        if session is None:
            return self._beside(body)
        turn = await session.turn_for(body)
        return _counted(turn, size)

    def _of(self, body: dict[str, Any]) -> Session | None:
        for message in reversed(body["messages"]):
            if message["role"] == "tool" and (match := _ID.fullmatch(message["tool_call_id"])):
                return self.sessions[match[1]]
        if not body.get("tools"):
            return None
        texts = "\n".join(_text(m) for m in body["messages"] if m["role"] == "user")
        return next((s for s in reversed(self.sessions.values()) if any(q in texts for q, _ in s.questions)), None)

    def _beside(self, body: dict[str, Any]) -> Turn:
        """Answers for titles, the memory and summaries."""
        texts = [_text(message) for message in body["messages"]]
        whole = "\n".join(texts)
        if "newFacts" in whole:
            facts = [{"content": f, "category": "context", "confidence": 0.9, "turn": 1} for f in self.memory(whole)]
            return Turn(text=json.dumps({"newFacts": facts}))
        if "Write the title" in whole:
            return Turn(text="A title")
        summary = "\n".join(dict.fromkeys(line.strip() for line in _SUMMARY.findall(whole))) or "Nothing of note."
        self.summaries.append(summary)
        return _counted(Turn(text=summary), len(whole) // CHARACTERS)


class Session:
    """A conversation, of which a test is the model."""

    def __init__(
        self,
        work: Work,
        name: str,
        thread: str,
        model: str,
        context: Mapping[str, Any],
        caller: Session | None = None,
    ) -> None:
        self.work, self.name, self.thread, self.model, self.context = work, name, thread, model, context
        self.run = ""
        self.shown: list[dict[str, Any]] = []
        """The messages of the latest request."""
        self.tools: dict[str, dict[str, Any]] = {}
        """The schemas of the tools that the model is offered."""
        self.kills: dict[int, str] = {}
        """Turns at which the server is killed: `before` they are answered, or `after`."""
        self.questions: list[tuple[str, int]] = []
        self.steps: list[Step] = []
        self.repeats = 0
        self.problems: list[str] = []
        self._caller = caller
        self._arrivals: dict[int, asyncio.Event] = {}
        self._turns: dict[int, asyncio.Future[Turn]] = {}
        self._number = 0

    # ── the person ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def asks(self, text: str, *, name: str | None = None, **more: Any) -> None:
        """A person writes, and the model is asked."""
        self.questions.append((text[:OPENING], self._number))
        body = request(text, self.model, **more)
        body["context"] |= self.context
        if name is not None:
            body["input"]["messages"][0]["name"] = name
        made = await self.work.client.post(self.work.server, f"/threads/{self.thread}/runs", body)
        await self.follows(made["run_id"])

    async def follows(self, run: str) -> None:
        """The model is asked in a run that somebody else has begun."""
        self.run = run
        await self._asked()

    async def steers(self, text: str) -> None:
        """A person writes while the agent works."""
        path = f"/threads/{self.thread}/runs/{self.run}/steer"
        await self.work.client.post(self.work.server, path, {"message": {"role": "user", "content": text}})

    async def uploads(self, name: str, content: bytes) -> None:
        form = aiohttp.FormData()
        form.add_field("files", io.BytesIO(content), filename=name)
        url = f"{self.work.server.url}/api/threads/{self.thread}/uploads"
        async with self.work.client._session.post(url, data=form) as response:
            assert response.status == 200, await response.text()

    def file(self, path: str) -> Path:
        """Returns the place of a file of the thread on this machine."""
        home = self.work.server.home
        return home / f"users/default/threads/{self.thread}/user-data" / path.removeprefix("/mnt/user-data/")

    def puts(self, path: str, content: str | bytes) -> None:
        """A file that is there before the agent begins."""
        place = self.file(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)

    # ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def call(self, tool: str, **args: Any) -> str:
        """Calls a tool, and returns its result."""
        return (await self.calls((tool, args)))[0]

    async def calls(self, *calls: tuple[str, dict[str, Any]], text: str = "") -> list[str]:
        """Calls tools at once, and returns their results."""
        ids = await self.begins(*calls, text=text)
        await self._asked()
        return self.results(ids)

    async def begins(self, *calls: tuple[str, dict[str, Any]], text: str = "") -> list[str]:
        """Calls tools without waiting for their results; their ids."""
        made = [
            ToolCall(tool, self._complete(tool, args), f"call-{self.name}-{self._number}-{index}")
            for index, (tool, args) in enumerate(calls)
        ]
        await self._play(Turn(text=text, tool_calls=tuple(made), piece=2048))
        self.steps.append(Step("; ".join(f"{call.name} {json.dumps(call.args)[:SHOWN]}" for call in made), []))
        return [call.id for call in made]

    async def resumed(self, ids: list[str]) -> list[str]:
        """Waits for the results of calls that `begins` made."""
        await self._asked()
        return self.results(ids)

    def results(self, ids: Collection[str]) -> list[str]:
        """Returns the results of calls in the latest request."""
        texts = {m["tool_call_id"]: _text(m) for m in self.shown if m["role"] == "tool"}
        missing = [identity for identity in ids if identity not in texts]
        assert not missing, self._told(f"the model is not shown the results of {missing}")
        results = [texts[identity] for identity in ids]
        self.steps[-1].results.extend(results)
        return results

    async def bash(self, command: str, **more: Any) -> str:
        return await self.call("bash", command=command, **more)

    async def read(self, path: str, **more: Any) -> str:
        return await self.call("read_file", path=_whole(path), **more)

    async def write(self, path: str, content: str, **more: Any) -> str:
        return await self.call("write_file", path=_whole(path), content=content, **more)

    async def edit(self, path: str, old: str, new: str, **more: Any) -> str:
        return await self.call("str_replace", path=_whole(path), old_str=old, new_str=new, **more)

    async def grep(self, pattern: str, path: str = WORKSPACE, **more: Any) -> str:
        return await self.call("grep", pattern=pattern, path=_whole(path), **more)

    async def glob(self, pattern: str, path: str = WORKSPACE, **more: Any) -> str:
        return await self.call("glob", pattern=pattern, path=_whole(path), **more)

    async def answers(self, text: str) -> None:
        """Gives the last answer of a run, waits for its end, and checks the laws of sessions."""
        await self._play(Turn(text=text))
        self.steps.append(Step(f"answers {text}", []))
        if self._caller is None:
            await self._check(text)

    def sees(self, text: str) -> bool:
        """Tells whether a text is in anything that the model is shown."""
        return any(text in _text(message) for message in self.shown)

    # ── the handler ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def turn_for(self, body: dict[str, Any]) -> Turn:
        number = self._wanted(body)
        turn = self._turns.setdefault(number, asyncio.get_running_loop().create_future())
        if number < self._number or turn.done():
            self.repeats += 1
        else:
            self._look(body)
            self._arrivals.setdefault(number, asyncio.Event()).set()
        return await asyncio.shield(turn)

    def _wanted(self, body: dict[str, Any]) -> int:
        """Returns the number of the turn that a request wants."""
        matches = [_ID.fullmatch(m["tool_call_id"]) for m in body["messages"] if m["role"] == "tool"]
        after = [int(match[2]) + 1 for match in matches if match and match[1] == self.name]
        texts = "\n".join(_text(m) for m in body["messages"] if m["role"] == "user")
        return max([*after, *(number for text, number in self.questions if text in texts)], default=0)

    def _look(self, body: dict[str, Any]) -> None:
        self.shown = body["messages"]
        self.tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body.get("tools") or ()}
        if not self.tools:
            self.problems.append("the model is asked for its last answer: it is offered no tools")
        for message in self.shown:
            if message["role"] != "assistant" and (match := _STOPPING.search(_text(message))):
                self.problems.append(f"the model is told: {_text(message)[max(0, match.start() - 200) :][:400]}")

    async def _asked(self) -> None:
        """Waits for the request of the next turn. A run that has ended will not make it."""
        arrival = self._arrivals.setdefault(self._number, asyncio.Event())
        tasks = [asyncio.ensure_future(arrival.wait()), asyncio.ensure_future(self._ended())]
        try:
            done, _ = await asyncio.wait(tasks, timeout=STEP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0] not in done:
                end = tasks[1].result() if tasks[1] in done else f"nothing came in {STEP_SECONDS:g} s"
                raise AssertionError(self._told(f"the model is not asked any more: {end}"))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert not self.problems, self._told("; ".join(self.problems))

    async def _play(self, turn: Turn) -> None:
        number, kill = self._number, self.kills.get(self._number)
        future = self._turns.setdefault(number, asyncio.get_running_loop().create_future())
        if kill == "before":
            await self.work.restart()
        self._number += 1
        future.set_result(turn)
        if kill == "after":
            await self.work.restart()

    async def _ended(self) -> str:
        """Returns the status of the run when it has ended; of a subagent, when its caller goes on without it."""
        if self._caller is not None:
            await self._caller._arrivals.setdefault(self._caller._number, asyncio.Event()).wait()
            return f"its caller is told {_text(self._caller.shown[-1])[:SHOWN]}"
        path = f"/threads/{self.thread}/runs/{self.run}"
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, AssertionError):
                await self.work.client.get(self.work.server, f"{path}/join")
                found = await self.work.client.get(self.work.server, path)
                if found["status"] not in ("pending", "running"):
                    return str(found["status"])
            await asyncio.sleep(0.02)  # between the lives of a server

    async def ends(self) -> str:
        """Returns the status in which the run ended."""
        async with asyncio.timeout(STEP_SECONDS):
            return await self._ended()

    def _complete(self, tool: str, args: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments, with a description where the schema demands one: a model does what it says."""
        demands = self.tools.get(tool, {}).get("required", ())
        return {"description": "a step of the work", **args} if "description" in demands else args

    # ── the laws ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check(self, answer: str) -> None:
        status = await self.ends()
        assert status == "success", self._told(f"the run ended so: {status}")
        log = await self.work.client.log(self.work.server, self.thread)
        failed = [event for event in log if event["type"] in ("run.failed", "run.stopped")]
        assert not failed, self._told(f"the log has {failed}")
        last = [e["message"] for e in log if e["type"] == "model.completed"][-1]
        assert _text(last) == answer, self._told(f"the last answer is {_text(last)!r}, not {answer!r}")
        results = Counter(e["call_id"] for e in log if e["type"] == "tool.completed")
        twice = [call for call, count in results.items() if count > 1]
        assert not twice, self._told(f"answered twice: {twice}")
        calls = [c["id"] for e in log if e["type"] == "model.completed" for c in e["message"].get("tool_calls") or ()]
        assert len(calls) == len(set(calls)), self._told("a call was made twice")
        assert set(calls) == set(results), self._told(f"calls without a result: {set(calls) - set(results)}")
        assert self.repeats == 0 or self.work.kills, self._told(f"the model was asked {self.repeats} times again")
        assert not self.problems, self._told("; ".join(self.problems))

    def _told(self, problem: str) -> str:
        """Returns a problem with the end of the transcript and of the server's log."""
        lines = [f"{problem}", f"session {self.name}, turn {self._number}, thread {self.thread}, run {self.run}"]
        first = max(0, len(self.steps) - TAIL)
        for number, step in enumerate(self.steps[first:], first):
            lines.append(f"── {number}: {step.did[:SHOWN]}")
            lines += [f"   → {_short(result)}" for result in step.results]
        lines.append("── the server")
        lines += self.work.server.said().splitlines()[-TAIL:]
        return "\n".join(lines)


def seeded(steps: int, kills: int, seed: int) -> dict[int, str]:
    """Returns the turns of a session at which the server is killed."""
    choice = random.Random(seed)
    return {turn: choice.choice(("before", "after")) for turn in choice.sample(range(1, steps), kills)}


def too_long(tokens: int, limit: int) -> Turn:
    """Returns the refusal of OpenAI for a request that is too long."""
    text = f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens."
    return Turn(error=Failure(status=400, message=text, code="context_length_exceeded"))


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what tells nobody when it happens."""

    async def met() -> bool:
        return condition()

    await wait_for(met, STEP_SECONDS)


def _counted(turn: Turn, tokens: int) -> Turn:
    return msgspec.structs.replace(turn, prompt_tokens=tokens)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _whole(path: str) -> str:
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


def _short(text: str) -> str:
    half = SHOWN // 2
    return text if len(text) <= SHOWN else f"{text[:half]}\n   […]\n{text[-half:]}"
