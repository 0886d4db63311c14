"""How many of 40 facts that lie in a conversation of 100 000 tokens a model is still shown after summaries.

The summarising model is honest: it writes down the facts that it is shown, in as many words as it is allowed, and
refuses what is longer than its window.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from actors.agent.policies.context.summarization import Summarization
from actors.agent.summary.write import Writer
from core.config.settings import Summarization as Settings
from core.events import ContextCompacted, Message, StatePatched
from core.thread.usage import estimate
from tests.actors.agent.fakes import Fake
from tests.actors.agent.turns import Asked, Kept, model_call, turn
from tests.support.records import ai, call, human

pytestmark = pytest.mark.anyio

FACTS = [f"FACT-{n:02d} the port of service {n} is {8000 + n}" for n in range(40)]
FACT = re.compile(r"FACT-\d\d the port of service \d+ is \d+")
LIMIT = re.compile(r"at most (\d+) words")
TOKENS = 100_000
WORDS = ["system", "value", "the", "quick", "result", "of", "a", "long", "search", "in", "every", "other", "file"]


class Reader(Fake):
    """Writes down the facts that it is shown, the first that fit."""

    window: int
    sizes: list[int]

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        text = "\n".join(str(message.content) for message in messages)
        self.sizes.append(len(text) // 4)
        if len(text) // 4 > self.window:
            raise ValueError(f"This model's maximum context length is {self.window} tokens")
        limit = LIMIT.search(text)
        assert limit is not None
        words = " ".join(dict.fromkeys(FACT.findall(text))).split()[: int(limit[1])]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Known: " + " ".join(words)))])


def filler(numbers: random.Random, tokens: int) -> str:
    return " ".join(numbers.choice(WORDS) for _ in range(tokens))[: tokens * 4]


def talk(numbers: random.Random, facts: Sequence[str], tokens: int, name: str) -> list[Message]:
    """Turns of a person and an agent with tools. A fact lies in a message of the person, in an answer, in the arguments
    of a call, or in the middle of a result.
    """
    messages: list[Message] = []
    turns = max(len(facts), 1)
    each = tokens // turns
    for n in range(turns):
        fact = facts[n] if facts else ""
        where = n % 4
        identity = f"{name}-{n}"
        result = f"{filler(numbers, each // 2)} {fact * (where == 3)} {filler(numbers, each // 2)}"
        command = f"ls {fact * (where == 2)}"
        messages += [
            human(f"h{identity}", f"Go on {fact * (where == 0)}"),
            ai(
                f"a{identity}",
                f"I see {fact * (where == 1)}",
                [call(f"c{identity}", command=command)],
            ),
            {"type": "tool", "id": f"t{identity}", "tool_call_id": f"c{identity}", "name": "bash", "content": result},
            ai(f"b{identity}", "Done."),
        ]
    return messages


def shown(handler: Asked) -> set[str]:
    return set(FACT.findall("\n".join(str(message.content) for message in handler.messages)))


@pytest.mark.parametrize("window", [8000, 32_000, 200_000])
async def test_planted_facts(window: int) -> None:
    numbers = random.Random(7)
    reader = Reader(window=window, sizes=[])
    models = [{"name": "m", "model": "m", "context_window": TOKENS}]
    first = talk(numbers, FACTS, TOKENS, "first")
    assert estimate(first) > TOKENS * 0.9
    on, handler = turn(first, config={"models": models}), Asked()
    assert isinstance(on.journal, Kept)
    policy = Summarization(Settings(), lambda: [Writer("r", reader, window)])
    await model_call(policy, on, handler)
    [event] = [event for event in on.journal.events if isinstance(event, ContextCompacted)]
    assert len(set(FACT.findall(str(event.summary["content"])))) >= 33, "the others lie in the newest messages"
    assert len(shown(handler)) >= 38
    assert event.tokens_after < TOKENS * 0.4
    for n in range(2):
        on.journal._take(StatePatched(values={"messages": talk(numbers, (), TOKENS, f"more-{n}")}))
        await model_call(policy, on, handler)
    assert sum(isinstance(event, ContextCompacted) for event in on.journal.events) == 3
    assert len(shown(handler)) >= 35
    print(f"window {window}: {len(shown(handler))} of 40 after three summaries, {len(reader.sizes)} calls")


async def test_a_reader_whose_window_is_smaller_than_thought() -> None:
    """It refuses; the part is divided until it fits."""
    reader = Reader(window=5000, sizes=[])
    on, handler = turn(talk(random.Random(3), FACTS, 60_000, "x"), config={"models": [WINDOWED]}), Asked()
    await model_call(Summarization(Settings(), lambda: [Writer("r", reader, 100_000)]), on, handler)
    assert len(shown(handler)) >= 38
    assert max(reader.sizes) > 5000


WINDOWED = {"name": "m", "model": "m", "context_window": 50_000}
