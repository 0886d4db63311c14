"""The fold of a memory, its laws, and decisions on it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import Invalid, NotFound, Refused
from core.events import Event, Record
from core.memory import facts
from core.memory.document import document, parsed
from core.memory.facts import (
    NAMES,
    Fact,
    FactForgotten,
    FactReinforced,
    FactRemembered,
    FactReplaced,
    FactRetired,
    FactRevised,
    Memory,
    MemoryCleared,
    MemoryExtracted,
    MemoryFailed,
    MemoryGroupsSet,
    MemoryImported,
    MemoryKept,
    SummaryWritten,
    fold,
    memory_id,
)
from tests.support.records import AT, record

IDS = st.sampled_from(["fact_1", "fact_2", "fact_3"])
FACTS = st.builds(
    Fact,
    id=IDS,
    content=st.sampled_from(["Keeps otters", "Keeps bees", "海鲜过敏"]),
    confidence=st.floats(0, 1),
    version=st.integers(0, 3),
    replaces=st.lists(IDS, max_size=2),
)
SEQS = st.integers(1, 1000)
THREADS = st.sampled_from(["t1", "t2"])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(FactRemembered, fact=FACTS),
    st.builds(FactRevised, fact=FACTS),
    st.builds(FactReplaced, replaced=IDS, fact=FACTS),
    st.builds(FactReinforced, fact=IDS, confidence=st.floats(0, 1)),
    st.builds(FactRetired, fact=IDS, reason=st.just("evicted")),
    st.builds(FactForgotten, fact=IDS),
    st.builds(SummaryWritten, section=st.sampled_from([*NAMES, "other"]), text=st.text(max_size=5)),
    st.builds(MemoryExtracted, thread=THREADS, upto=SEQS),
    st.builds(MemoryFailed, thread=THREADS, upto=SEQS, attempt=st.just(1), reason=st.just("x")),
    st.builds(MemoryGroupsSet, in_groups=st.booleans(), by=st.just("ada")),
    st.just(MemoryCleared()),
    st.just(MemoryImported(facts=1)),
    st.builds(MemoryKept, facts=st.lists(FACTS, max_size=2), floor=SEQS),
)


PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
"""The machine may be busy."""


def log(*events: Event) -> list[Record]:
    return [record(number, event) for number, event in enumerate(events, 1)]


def folded(*events: Event) -> Memory:
    return fold(log(*events), Memory())


OTTERS, BEES = Fact(id="fact_1", content="Keeps otters"), Fact(id="fact_2", content="Keeps bees")


@PATIENT
@given(st.lists(EVENTS, max_size=12), st.integers(0, 12))
def test_the_fold_is_total_and_incremental(events: list[Event], cut: int) -> None:
    records = log(*events)
    whole = fold(records, Memory())
    assert fold(records[cut:], fold(records[:cut], Memory())) == whole
    assert document(whole)
    assert msgspec.json.decode(msgspec.json.encode(document(whole)))


@PATIENT
@given(st.lists(EVENTS, max_size=12))
def test_a_kept_memory_is_the_memory(events: list[Event]) -> None:
    """Nothing is lost when the events before are erased, but for failed attempts."""
    before = folded(*events)
    after = folded(facts.snapshot(before))
    for name in ("facts", "summaries", "former", "reads", "floor", "updated_at", "in_groups"):
        assert getattr(after, name) == getattr(before, name)


@PATIENT
@given(st.lists(EVENTS, max_size=12))
def test_what_is_forgotten_is_nowhere(events: list[Event]) -> None:
    memory = folded(*events, FactRemembered(fact=Fact(id="fact_1", content="Keeps zebras")))
    after = folded(*facts.forgotten(memory, "fact_1"))
    assert "fact_1" not in after.facts
    assert not any(ref.startswith("fact_1.") for ref in after.former)
    assert "zebras" not in str(after)


def test_former_versions_stay_for_replays() -> None:
    better = Fact(id="fact_3", content="Keeps seals", replaces=["fact_1"])
    memory = folded(
        FactRemembered(fact=OTTERS),
        FactRemembered(fact=BEES),
        FactReplaced(replaced="fact_1", fact=better),
        FactReinforced(fact="fact_2", confidence=0.9),
        FactReinforced(fact="fact_2", confidence=0.9),
        FactRevised(fact=Fact(id="fact_3", content="Keeps two seals", version=1)),
        SummaryWritten(section="topOfMind", text="a"),
        SummaryWritten(section="topOfMind", text="b"),
    )
    texts = {ref: memory.text(ref) for ref in ("fact_1.0", "fact_2.0", "fact_2.1", "fact_3.0", "fact_3.1", "fact_9.0")}
    assert texts == {
        "fact_1.0": "[context | 0.50] Keeps otters",
        "fact_2.0": "[context | 0.50] Keeps bees",
        "fact_2.1": "[context | 0.90] Keeps bees",
        "fact_3.0": "[context | 0.50] Keeps seals",
        "fact_3.1": "[context | 0.50] Keeps two seals",
        "fact_9.0": None,
    }
    assert (memory.text("topOfMind.0"), memory.text("topOfMind.1")) == ("a", "b")


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MOST_READS", 2)
    monkeypatch.setattr(facts, "MOST_FORMER", 1)
    reads = [MemoryExtracted(thread=f"t{n}", upto=10 * n) for n in (1, 2, 3)]
    memory = folded(*reads, *(SummaryWritten(section="topOfMind", text=text) for text in "abc"))
    assert (memory.reads, memory.floor) == ({"t2": 20, "t3": 30}, 10)
    assert (memory.upto("t1"), memory.upto("t3"), memory.upto("new")) == (10, 30, 10)
    assert memory.former == {"topOfMind.1": "b"}
    monkeypatch.setattr(facts, "MOST_FACTS", 1)
    with pytest.raises(Refused, match="at most 1 facts, got 2"):
        facts.imported(memory, [OTTERS, BEES], {}, AT)


def test_a_cleared_memory_does_not_read_old_conversations_again() -> None:
    groups = MemoryGroupsSet(in_groups=True, by="ada")
    before = folded(FactRemembered(fact=OTTERS), MemoryExtracted(thread="t1", upto=5), groups)
    for after in (folded(*facts.cleared(before)), folded(*facts.imported(before, [], {}, AT))):
        assert (after.facts, after.upto("t1"), after.in_groups) == ({}, 5, True)


def test_nothing_is_forgotten_that_is_not_there() -> None:
    with pytest.raises(NotFound, match="Fact x not found"):
        facts.forgotten(Memory(), "x")


@pytest.mark.parametrize(("user", "agent"), [("a.b", None), ("a", "b.c"), ("", None), ("a~b", None), ("a", "")])
def test_ids_that_would_lead_elsewhere(user: str, agent: str | None) -> None:
    with pytest.raises(Invalid):
        memory_id(user, agent)


def test_ids_do_not_meet() -> None:
    pairs = [("ada", None), ("ada", "nurse"), ("ada-nurse", None), ("ada_nurse", None)]
    assert len({memory_id(user, agent) for user, agent in pairs}) == len(pairs)
    assert memory_id("ada", "Nurse") == memory_id("ada", "nurse")


@pytest.mark.parametrize("raw", [[], None, 5, "x", {"facts": {"a": 1}}, {"facts": [None]}, {"user": "x"}])
def test_what_is_no_document(raw: Any) -> None:
    with pytest.raises(Invalid):
        parsed(raw, AT)


@pytest.mark.parametrize(
    ("raw", "confidence"), [(None, 0.5), (float("nan"), 0.5), (float("inf"), 0.5), (3, 1), ("x", 0.5)]
)
def test_confidence_of_a_document(raw: Any, confidence: float) -> None:
    [fact], _ = parsed({"facts": [{"content": "x", "confidence": raw}]}, AT)
    assert fact.confidence == confidence
