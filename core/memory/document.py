"""DeerFlow's `memory.json`: the document of a memory for clients, and memories made of such documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from core import reasons
from core.errors import Invalid
from core.events import Json
from core.ids import now
from core.memory.facts import (
    MOST_CHARACTERS,
    MOST_FACTS,
    MOST_KEYWORDS,
    NAMES,
    SECTIONS,
    SUMMARY_CHARACTERS,
    UNKNOWN,
    Fact,
    Memory,
    Summary,
    fact_id,
)
from core.memory.words import normal

VERSION = "1.0"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def document(memory: Memory) -> Json:
    """Returns the document of a memory. Fields without a value are left out. `lastUpdated` of an empty memory is now:
    clients format it.
    """
    sections = {
        group: {name: _summary(memory.summaries.get(name)) for name in names} for group, names in SECTIONS.items()
    }
    facts = [fact_object(fact) for fact in memory.facts.values()]
    return {"version": VERSION, "lastUpdated": memory.updated_at or now(), **sections, "facts": facts}


def _summary(summary: Summary | None) -> Json:
    return {"summary": summary.text if summary else "", "updatedAt": summary.updated_at if summary else ""}


def fact_object(fact: Fact) -> Json:
    """Returns a fact as clients see it: where it came from is `source`, `sourceRun` and `sourceEvent`."""
    shown = {
        "id": fact.id,
        "content": fact.content,
        "category": fact.category,
        "confidence": fact.confidence,
        "createdAt": fact.created_at,
        "source": fact.source,
    }
    more = {
        "sourceError": fact.source_error,
        "sourceRun": fact.run,
        "sourceMessage": fact.message,
        "sourceEvent": fact.event,
        "keywords": fact.keywords or None,
        "replaces": fact.replaces or None,
    }
    return shown | {name: value for name, value in more.items() if value is not None}


def parsed(raw: Any, at: str) -> tuple[list[Fact], dict[str, Summary]]:
    """Returns the facts and summaries of a document, as DeerFlow or this server wrote it. Facts without a text and
    repeated ones are left out. Raises `Invalid` for what is no such document.
    """
    if not isinstance(raw, dict):
        raise Invalid(f"memory: a JSON object is expected, got {reasons.kind_of(raw)}")
    entries = raw.get("facts") or []
    if not isinstance(entries, list):
        raise Invalid(f"facts: a list is expected, got {reasons.kind_of(entries)}")
    if len(entries) > MOST_FACTS:
        raise Invalid(f"facts: at most {MOST_FACTS}, got {len(entries)}")
    facts: dict[str, Fact] = {}
    texts: set[str] = set()
    for number, entry in enumerate(entries):
        fact = _fact(entry, number, at)
        if fact is None or normal(fact.content) in texts:
            continue
        texts.add(normal(fact.content))
        if fact.id in facts or fact.id in NAMES or not _ID.fullmatch(fact.id):
            fact = msgspec.structs.replace(fact, id=fact_id(Memory(facts=facts), at, number))
        facts[fact.id] = fact
    return list(facts.values()), dict(_summaries(raw, at))


def _summaries(raw: Mapping[str, Any], at: str) -> Iterator[tuple[str, Summary]]:
    for group, names in SECTIONS.items():
        section = raw.get(group) or {}
        if not isinstance(section, dict):
            raise Invalid(f"{group}: an object is expected, got {reasons.kind_of(section)}")
        for name in names:
            entry = section.get(name) or {}
            text = entry.get("summary") if isinstance(entry, dict) else entry
            if text is not None and not isinstance(text, str):
                raise Invalid(f"{group}.{name}.summary: a text is expected, got {reasons.kind_of(text)}")
            if text and text.strip():
                yield name, Summary(text=text.strip()[:SUMMARY_CHARACTERS], updated_at=_text(entry, "updatedAt") or at)


def _fact(entry: Any, number: int, at: str) -> Fact | None:
    if not isinstance(entry, dict):
        raise Invalid(f"facts[{number}]: an object is expected, got {reasons.kind_of(entry)}")
    content = " ".join(_text(entry, "content").split())[:MOST_CHARACTERS]
    if not content:
        return None
    event = entry.get("sourceEvent")
    return Fact(
        id=_text(entry, "id"),
        content=content,
        category=_text(entry, "category")[:100] or "context",
        confidence=confidence(entry.get("confidence"), 0.5),
        created_at=_text(entry, "createdAt") or at,
        source=_text(entry, "source")[:200] or UNKNOWN,
        source_error=_text(entry, "sourceError")[:MOST_CHARACTERS] or None,
        keywords=keywords(entry.get("keywords")),
        run=_text(entry, "sourceRun")[:200] or None,
        message=_text(entry, "sourceMessage")[:200] or None,
        event=event if isinstance(event, int) else None,
    )


def _text(entry: Any, name: str) -> str:
    value = entry.get(name) if isinstance(entry, dict) else None
    return value.strip() if isinstance(value, str) else ""


def confidence(value: Any, default: float) -> float:
    """Returns a confidence from 0 to 1; the default for what is no number, also for NaN and infinity."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else default
    return float(min(max(number, 0), 1)) if abs(number) < float("inf") else default


def keywords(value: Any) -> list[str]:
    texts = [" ".join(word.split())[:60] for word in value if isinstance(word, str)] if isinstance(value, list) else []
    return [word for word in dict.fromkeys(texts) if word][:MOST_KEYWORDS]
