"""Makes events of a model's reading of a conversation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from actors.memory.extract import Extraction, New, Verdict
from core.config.settings import Memory as Settings
from core.events import Event
from core.memory import facts
from core.memory.facts import (
    MOST_ANCESTORS,
    Fact,
    FactReinforced,
    FactRemembered,
    FactReplaced,
    FactRetired,
    Memory,
    MemoryExtracted,
    SummaryWritten,
)


class Reading(NamedTuple):
    """A conversation that was read from a sequence up to another, and what came of it."""

    thread: str
    since: int
    upto: int
    extraction: Extraction
    verdicts: Mapping[int, Verdict]
    """By the place of the new fact; a fact without one is added."""
    model: str
    usage: Mapping[str, int]


def events(memory: Memory, reading: Reading, settings: Settings, at: str) -> list[Event]:
    """Returns the events of a reading; none if a part of it was read meanwhile: its facts would come twice."""
    if memory.upto(reading.thread) != reading.since:
        return []
    result: list[Event] = []

    def add(*new: Event) -> None:
        nonlocal memory
        for event in new:
            result.append(event)
            memory = facts.after(memory, event, at)

    for section, text in reading.extraction.summaries.items():
        if section not in memory.summaries or memory.summaries[section].text != text:
            add(SummaryWritten(section=section, text=text))
    for identity in reading.extraction.removed:
        if identity in memory.facts:
            add(FactRetired(fact=identity, reason="contradicted"))
    for place, new in enumerate(reading.extraction.new):
        if new.confidence >= settings.fact_confidence_threshold:
            add(*_of_fact(memory, new, reading, place, at))
    add(*facts.evicted(memory, settings.max_facts))
    usage = dict(reading.usage)
    return [*result, MemoryExtracted(thread=reading.thread, upto=reading.upto, model=reading.model, usage=usage)]


def _of_fact(memory: Memory, new: New, reading: Reading, place: int, at: str) -> Sequence[Event]:
    verdict = reading.verdicts.get(place, Verdict("adds", ""))
    known = facts.twin(memory, new.content)
    old = memory.facts.get(verdict.id)
    if verdict.verdict == "ignore":
        return []
    if known is None and verdict.verdict == "same":
        known = old
    if known is not None:
        return [FactReinforced(fact=known.id, confidence=max(known.confidence, new.confidence))]
    fact = _fact(facts.fact_id(memory, reading.thread, reading.upto, place), new, reading.thread, at)
    if verdict.verdict == "replaces" and old is not None:
        return [FactReplaced(replaced=old.id, fact=_instead_of(old, fact))]
    return [FactRemembered(fact=fact)]


def _fact(identity: str, new: New, thread: str, at: str) -> Fact:
    return Fact(
        id=identity,
        content=new.content,
        category=new.category,
        confidence=new.confidence,
        created_at=at,
        seen_at=at,
        source=thread,
        source_error=new.source_error,
        keywords=new.keywords,
        run=new.origin.run,
        message=new.origin.message,
        event=new.origin.event,
    )


def _instead_of(old: Fact, fact: Fact) -> Fact:
    fields = {name: getattr(fact, name) for name in Fact.__struct_fields__}
    return Fact(**{**fields, "replaces": [old.id, *old.replaces][:MOST_ANCESTORS]})
