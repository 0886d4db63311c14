"""Reading an answer: CPU of this process for each token, from the socket to the message that is recorded."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator

from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from actors.agent.model.answer import completed
from actors.agent.model.assembly import Assembly
from adapters.models.openai_compatible import OpenAICompatible
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median
from tests.support.model_server import run

_TOKENS = 2000
_QUESTION = [HumanMessage("Hello?")]
Read = Callable[[], Awaitable[object]]


def tokens(lab: Laboratory) -> Iterator[Row]:
    """Ours, bare LangChain, and LangChain's way on our reader (which callbacks take), in turn."""
    times = run(_measured(lab))
    ours, bare = median(times["ours"]), median(times["bare"])
    ratio = median(a / b for a, b in zip(times["ours"], times["bare"], strict=True))
    beside = median(times["with callbacks"])
    note = f"with callbacks {beside:.1f} µs"
    yield Row("a token of an answer", ratio, at_most(0.3), "µs", ours, bare, note=note)


async def _measured(lab: Laboratory) -> dict[str, list[float]]:
    """Returns microseconds a token, of each repetition."""
    own, bare = (
        kind(model=f"tokens-{_TOKENS}", base_url=lab.models, api_key=SecretStr("none"), max_retries=0)
        for kind in (OpenAICompatible, ChatOpenAI)
    )
    assert isinstance(own, OpenAICompatible)

    async def in_pieces() -> object:
        answer = Assembly(None)
        async for piece in own.pieces(_QUESTION):
            await answer.add(piece)
        await answer.finish()
        return completed(answer, "lc_run--0", "key", 0, None)

    async def in_chunks(model: ChatOpenAI) -> AIMessageChunk:
        chunks = [chunk async for chunk in model.astream(_QUESTION)]
        return chunks[0] + chunks[1:]

    ways: dict[str, Read] = {
        "ours": in_pieces,
        "bare": lambda: in_chunks(bare),
        "with callbacks": lambda: in_chunks(own),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(2 + 3 * lab.repetitions):
        for name, read in ways.items():
            started = time.process_time()
            await read()
            if repetition > 1:  # the first ones warm up
                times[name].append(1e6 * (time.process_time() - started) / _TOKENS)
    await own.root_async_client._client._transport.aclose()
    return times
