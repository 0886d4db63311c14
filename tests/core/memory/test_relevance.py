"""Retrieval: the fact that a question needs is among those that the agent is told."""

from __future__ import annotations

import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from core.memory import words as module
from core.memory.facts import Fact, Memory
from core.memory.inject import Order, fitting
from core.memory.search import Searches
from core.memory.words import normal, tokens, words
from tests.core.memory.questions import facts, questions

pytestmark = pytest.mark.anyio

SEEDS = range(4)
BUDGET = 2000


async def recall(order: Order, budget: int = BUDGET, *, keywords: bool = True) -> dict[Any, float]:
    """The share of questions whose fact is told, by language and kind; None: of all."""
    hits = defaultdict[Any, list[bool]](list)
    for seed in SEEDS:
        known = [fact if keywords else msgspec.structs.replace(fact, keywords=[]) for fact in facts(seed)]
        memory, searches = Memory(facts={fact.id: fact for fact in known}), Searches()
        by_text = {fact.content: fact.ref for fact in known}
        for language, kind, question, needed in questions():
            hits_of = await searches.relevant("m", memory, question)
            refs = fitting(memory, hits_of, (), budget, order)
            for key in (None, language, kind, (language, kind)):
                hits[key].append(by_text[needed] in refs)
    return {key: sum(values) / len(values) for key, values in hits.items()}


async def test_the_needed_fact_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert (len(facts(0)), len(questions())) == (300, 60)
    plain, ours = await recall("confidence"), await recall("relevance")
    bare, small = await recall("relevance", keywords=False), await recall("relevance", 500)
    with capsys.disabled():
        print(f"\nneeded fact among those told within {BUDGET} tokens: {ours[None]:.0%}", end="")
        print(
            f" (confidence order {plain[None]:.0%}, without keywords {bare[None]:.0%}, in 500 tokens {small[None]:.0%})"
        )
        for language in ("en", "de", "zh"):
            kinds = ("same", "inflected", "synonym", "implied")
            print(language, *(f"{kind} {ours[language, kind]:.0%} ({plain[language, kind]:.0%})" for kind in kinds))
    assert ours[None] >= 0.9
    assert ours["same"] == ours["inflected"] == 1
    assert ours[None] > plain[None] + 0.3
    assert ours[None] > bare[None], "keywords are worth it"


async def test_the_newer_version_comes_first_when_words_tie() -> None:
    old = Fact(id="old", content="Lives in Hamburg", confidence=0.95, created_at="2020-01-01T00:00:00+00:00")
    new = Fact(id="new", content="Lives in Leipzig", confidence=0.9, created_at="2126-01-01T00:00:00+00:00")
    memory = Memory(facts={fact.id: fact for fact in (old, new)})
    hits = await Searches().relevant("m", memory, "Where do I live?")
    assert [hit.fact.id for hit in hits] == ["new", "old"]


@pytest.mark.parametrize(
    "question", ["", "???", '"', "a AND OR NOT", "(*", "NEAR(x", "\0", "👍", "x" * 100_000, "' OR 1"]
)
async def test_any_question_can_be_asked(question: str) -> None:
    memory = Memory(facts={"f": Fact(id="f", content="NEAR the sea, OR not")})
    assert isinstance(await Searches().relevant("m", memory, question), list)


async def test_a_changed_memory_is_searched_as_it_is() -> None:
    searches = Searches()
    before = Memory(facts={"f": Fact(id="f", content="Keeps otters")})
    after = Memory(facts={"f": Fact(id="f", content="Keeps bees")})
    assert await searches.relevant("m", before, "otters")
    assert await searches.relevant("m", after, "otters") == []
    assert await searches.relevant("m", after, "bee")


def test_words() -> None:
    assert set(words("the Running DOGS, 我的小狗")) >= {"run", "dog", "小狗"}
    assert not set(words("the Running DOGS, 我的小狗")) & {"the", "我的"}
    assert words("犬") == ["犬"]


def test_words_of_several_threads_do_not_mix() -> None:
    texts = [" ".join(f"{letter * length}ationen" for length in range(1, 60)) for letter in "abcdfghk"]
    expected = [words(text) for text in texts]
    module._parts.cache_clear()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(texts)) as threads:
            assert list(threads.map(words, texts)) == expected
    finally:
        sys.setswitchinterval(interval)
    assert normal("Hello,  WORLD!") == normal("hello world")
    assert tokens("花生 peanut") == 2 + 2
