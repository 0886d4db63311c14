"""Memory of a user, for all agents or for one of them: facts and summaries, as a fold over events.

Rules.
1. A fact's text is in the event that brought it, and in no other aggregate: conversations and runs hold references
(`Fact.ref`), of which the text is made when it is needed. So a fact that is forgotten is gone everywhere.
2. `MemoryKept` holds the whole state. All events before it are erased: to forget something, and to keep the log short.
3. The position up to which a conversation was read is part of the state (`reads`), so it is read once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from core.errors import Invalid, NotFound, Refused
from core.events import Event, Opaque, Record, User
from core.ids import safe_id
from core.log.repository import Decision, Repository
from core.log.store import EventLog
from core.memory.words import normal
from core.phrases import Phrase

KIND = "memory"
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "user": {"workContext": "Work", "personalContext": "Personal", "topOfMind": "Current Focus"},
    "history": {"recentMonths": "Recent", "earlierContext": "Earlier", "longTermBackground": "Background"},
}
"""The summaries, with the labels under which the agent reads them."""
NAMES = tuple(name for names in SECTIONS.values() for name in names)
MOST_CHARACTERS = 2_000
"""Limit of characters of a fact; of a summary `SUMMARY_CHARACTERS`."""
SUMMARY_CHARACTERS = 4_000
MOST_KEYWORDS = 16
MOST_FACTS = 10_000
"""Limit of facts of a memory, whatever `memory.max_facts` says."""
MOST_READS = 2_000
"""Limit of conversations whose position is remembered."""
MOST_FORMER = 300
"""Limit of former versions of facts and summaries that are kept for replays."""
MOST_ANCESTORS = 20
CUT_AFTER = 200
"""Events after which the older ones are replaced by a `MemoryKept`."""
ERASE_SECONDS = 10.0
MANUAL, UNKNOWN = "manual", "unknown"

Retirement = Literal["evicted", "contradicted"]


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sentence about the user."""

    id: str
    content: str
    category: str = "context"
    confidence: float = 0.5
    created_at: str = ""
    source: str = UNKNOWN
    """Id of the thread that it is from, `manual` or `unknown`."""
    source_error: str | None = None
    """The wrong approach that it corrects."""
    keywords: list[str] = []
    """Synonyms and topics by which it is found, written with the fact."""
    run: str | None = None
    message: str | None = None
    """Id of the person's message that it is from."""
    event: int | None = None
    """Sequence of the event that brought the message."""
    replaces: list[str] = []
    """Ids of the facts that it replaced, the newest first."""
    seen_at: str = ""
    """Time at which it was last said."""
    version: int = 0

    @property
    def ref(self) -> str:
        """The name of this version of the fact."""
        return f"{self.id}.{self.version}"


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text of a section."""

    text: str
    updated_at: str = ""
    version: int = 0


class FactRemembered(Event, frozen=True):
    """A fact is known from here on."""

    phrase = Phrase("Fact remembered", "已记住事实", "{fact.id} {fact.content:quote}")
    fact: Fact


class FactReplaced(Event, frozen=True):
    """A fact took the place of the fact `replaced`, which it contradicts or makes more exact."""

    phrase = Phrase(
        "Fact replaced",
        "事实已替换",
        "{replaced} by {fact.id} {fact.content:quote}",
        "{replaced} → {fact.id} {fact.content:quote}",
    )
    replaced: str
    fact: Fact


class FactReinforced(Event, frozen=True):
    """The person said again what the fact says."""

    phrase = Phrase("Fact confirmed", "事实已确认", "{fact}, confidence {confidence}", "{fact}，可信度 {confidence}")
    fact: str
    confidence: float


class FactRevised(Event, frozen=True):
    """A person changed the fact, which is `fact` from here on."""

    phrase = Phrase("Fact changed by a person", "事实被用户修改", "{fact.id} {fact.content:quote}")
    fact: Fact


class FactRetired(Event, frozen=True):
    """The fact is not used any more: there were too many, or the person said that it is not so."""

    phrase = Phrase("Fact retired", "事实已停用", "{fact}: {reason}")
    fact: str
    reason: Retirement


class FactForgotten(Event, frozen=True):
    """A person had the fact forgotten. Its text was erased from the log; this tombstone stays."""

    phrase = Phrase("Fact forgotten", "事实已遗忘", "{fact}")
    fact: str


class SummaryWritten(Event, frozen=True):
    """The summary of a section has this text from here on."""

    phrase = Phrase("Summary of the memory written", "记忆摘要已写入", "{section}: {text:quote}")
    section: str
    text: str


class MemoryExtracted(Event, frozen=True):
    """The conversation in a thread was read up to a sequence; the events before this one in the log came of it."""

    phrase = Phrase(
        "Conversation read for the memory",
        "已为记忆读取对话",
        "thread {thread} up to {upto}<, by {model}>",
        "对话 {thread} 到 {upto}<，{model}>",
    )
    thread: str
    upto: int
    model: str | None = None
    usage: Mapping[str, int] = {}


class MemoryFailed(Event, frozen=True):
    """A conversation could not be read: no model gave a usable answer. `again_at`: the time of the next attempt."""

    phrase = Phrase(
        "Conversation not read for the memory",
        "未能为记忆读取对话",
        "thread {thread}, attempt {attempt}: {reason}",
        "对话 {thread}，第 {attempt} 次：{reason}",
    )
    thread: str
    upto: int
    attempt: int
    reason: str
    again_at: str | None = None


class MemoryCleared(Event, frozen=True):
    """A person had everything forgotten. The texts were erased from the log."""

    phrase = Phrase("Memory erased", "记忆已清除")


class MemoryImported(Event, frozen=True):
    """A person replaced the memory by a document; its content is in the `MemoryKept` before."""

    phrase = Phrase("Memory replaced by a document", "记忆已由文档替换", "{facts} fact<facts!=1?s>", "{facts} 条事实")
    facts: int


class MemoryGroupsSet(Event, frozen=True):
    """From here on the memory of the person goes into their own turns in groups, or not any more. `by`: who set it."""

    phrase = Phrase(
        "Memory set for groups",
        "记忆的群组设置已更改",
        "<in_groups?goes into the person's turns in groups, ><!in_groups?stays out of groups, >by {by}",
        "<in_groups?可用于本人在群组中的发言，><!in_groups?不用于群组，>{by}",
    )
    in_groups: bool
    by: User


class MemoryKept(Event, frozen=True):
    """The whole memory as it is here. Older events are erased."""

    phrase = Phrase(
        "Memory summed up",
        "记忆已汇总",
        "{facts:count} fact<facts:count!=1?s>, {summaries:count} summar<summaries:count=1?y><summaries:count!=1?ies>",
        "{facts:count} 条事实，{summaries:count} 条摘要",
    )
    facts: list[Fact] = []  # noqa: RUF012
    summaries: Mapping[str, Summary] = {}
    reads: Mapping[str, int] = {}
    floor: int = 0
    former: Mapping[str, str] = {}
    updated_at: str = ""
    in_groups: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one user or agent."""

    facts: Mapping[str, Fact] = field(default_factory=dict)
    summaries: Mapping[str, Summary] = field(default_factory=dict)
    former: Mapping[str, str] = field(default_factory=dict)
    """Texts of former versions of facts and summaries, by their refs: runs got them."""
    reads: Mapping[str, int] = field(default_factory=dict)
    floor: int = 0
    """Threads that are not in `reads` were read up to this sequence."""
    failed: Mapping[str, MemoryFailed] = field(default_factory=dict)
    updated_at: str = ""
    in_groups: bool = False
    """True if the person lets it into their own turns in groups. That of the user counts for the agents, too."""
    events: int = 0
    """Events since the last `MemoryKept`."""

    @property
    def empty(self) -> bool:
        """True if nothing is remembered."""
        return not (self.facts or self.summaries or self.former)

    def upto(self, thread: str) -> int:
        """Returns the sequence up to which a thread was read."""
        return self.reads.get(thread, self.floor)

    def ref_of(self, section: str) -> str:
        return f"{section}.{self.summaries[section].version}"

    def text(self, ref: str) -> str | None:
        """Returns the text of a ref; None if it was forgotten."""
        name, _, version = ref.rpartition(".")
        fact, summary = self.facts.get(name), self.summaries.get(name)
        if fact is not None and fact.ref == ref:
            return line(fact)
        if summary is not None and str(summary.version) == version:
            return summary.text
        return self.former.get(ref)


def line(fact: Fact) -> str:
    """Returns a fact as the agent reads it."""
    avoid = f" (avoid: {fact.source_error})" if fact.source_error else ""
    return f"[{fact.category} | {fact.confidence:.2f}] {fact.content}{avoid}"


# ── fold ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fold(records: Iterable[Record], memory: Memory) -> Memory:
    for record in records:
        memory = replace(after(memory, record.event, record.at), events=memory.events + 1)
        if isinstance(record.event, MemoryKept):
            memory = replace(memory, events=0)
    return memory


def after(memory: Memory, event: Event | Opaque, at: str) -> Memory:
    """Returns the memory after an event."""
    match event:
        case FactRemembered(fact=fact) | FactRevised(fact=fact):
            return _with(memory, fact, at)
        case FactReplaced(replaced=replaced, fact=fact):
            return _with(_without(memory, [replaced], former=True), fact, at)
        case FactReinforced(fact=identity, confidence=confidence) if before := memory.facts.get(identity):
            version = before.version + (confidence != before.confidence)
            fact = msgspec.structs.replace(before, confidence=confidence, seen_at=at, version=version)
            return _with(memory, fact, at)
        case FactRetired(fact=identity):
            return replace(_without(memory, [identity], former=True), updated_at=at)
        case FactForgotten(fact=identity):
            return replace(_without(memory, [identity], former=False), updated_at=at)
        case SummaryWritten(section=section, text=text):
            return _written(memory, section, text, at)
        case MemoryExtracted(thread=thread, upto=upto):
            failed = {name: event for name, event in memory.failed.items() if name != thread}
            return _read(replace(memory, failed=failed), thread, upto)
        case MemoryFailed():
            return replace(memory, failed={**memory.failed, event.thread: event})
        case MemoryCleared():
            return Memory(reads=memory.reads, floor=memory.floor, updated_at=at, in_groups=memory.in_groups)
        case MemoryGroupsSet(in_groups=in_groups):
            return replace(memory, in_groups=in_groups)
        case MemoryKept():
            return Memory(
                facts={fact.id: fact for fact in event.facts},
                summaries=event.summaries,
                former=event.former,
                reads=event.reads,
                floor=event.floor,
                updated_at=event.updated_at,
                in_groups=event.in_groups,
            )
    return memory


def _with(memory: Memory, fact: Fact, at: str) -> Memory:
    before = memory.facts.get(fact.id)
    former = memory.former if before is None or before.ref == fact.ref else _former(memory, before.ref, line(before))
    return replace(memory, facts={**memory.facts, fact.id: fact}, former=former, updated_at=at)


def _without(memory: Memory, ids: Collection[str], *, former: bool) -> Memory:
    """Returns the memory without facts. `former`: their texts stay for replays, else those of all versions go."""
    old = {fact.ref: line(fact) for identity in ids if former and (fact := memory.facts.get(identity))}
    rest = {name: fact for name, fact in memory.facts.items() if name not in ids}
    remaining = {ref: text for ref, text in memory.former.items() if former or ref.rpartition(".")[0] not in ids}
    return replace(memory, facts=rest, former=_newest({**remaining, **old}))


def _written(memory: Memory, section: str, text: str, at: str) -> Memory:
    before, former, version = memory.summaries.get(section), memory.former, 0
    if before is not None:
        version = before.version + 1
        former = _former(memory, memory.ref_of(section), before.text)
    summary = Summary(text=text, updated_at=at, version=version)
    return replace(memory, summaries={**memory.summaries, section: summary}, former=former, updated_at=at)


def _former(memory: Memory, ref: str, text: str) -> Mapping[str, str]:
    return _newest({**memory.former, ref: text})


def _newest(former: Mapping[str, str]) -> Mapping[str, str]:
    return dict(list(former.items())[-MOST_FORMER:])


def _read(memory: Memory, thread: str, upto: int) -> Memory:
    reads = {**{name: at for name, at in memory.reads.items() if name != thread}, thread: upto}
    dropped = list(reads)[: max(0, len(reads) - MOST_READS)]
    floor = max([memory.floor, *(reads.pop(name) for name in dropped)])
    return replace(memory, reads=reads, floor=floor)


# ── decisions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fact_id(memory: Memory, *parts: object) -> str:
    """Returns a new id in DeerFlow's form that is derived from these parts."""
    for salt in range(100):
        identity = "fact_" + hashlib.sha256(repr((*parts, salt)).encode()).hexdigest()[:8]
        if identity not in memory.facts and f"{identity}.0" not in memory.former:
            return identity
    raise Refused("the memory has no room for another fact")


def twin(memory: Memory, content: str) -> Fact | None:
    """Returns the fact that says the same in the same words."""
    key = normal(content)
    return next((fact for fact in memory.facts.values() if normal(fact.content) == key), None)


def evicted(memory: Memory, limit: int) -> list[Event]:
    """Returns the events that retire what is over a limit: first the least confident, then what was said longest ago.
    Facts that a person wrote stay.
    """
    over = len(memory.facts) - limit
    if over <= 0:
        return []
    order = sorted(
        (fact for fact in memory.facts.values() if fact.source != MANUAL),
        key=lambda fact: (fact.confidence, fact.seen_at or fact.created_at),
    )
    return [FactRetired(fact=fact.id, reason="evicted") for fact in order[:over]]


def snapshot(memory: Memory) -> MemoryKept:
    """Returns the event that holds a memory as it is."""
    return MemoryKept(
        facts=list(memory.facts.values()),
        summaries=dict(memory.summaries),
        reads=dict(memory.reads),
        floor=memory.floor,
        former=dict(memory.former),
        updated_at=memory.updated_at,
        in_groups=memory.in_groups,
    )


def forgotten(memory: Memory, identity: str) -> list[Event]:
    """Returns the events that forget a fact with all that it replaced, and each summary that quotes it. Raises
    `NotFound`.
    """
    fact = memory.facts.get(identity)
    if fact is None and not any(ref.rpartition(".")[0] == identity for ref in memory.former):
        raise NotFound(f"Fact {identity[:80]} not found")
    ids = [identity, *(fact.replaces if fact else ())]
    texts = [fact.content] if fact else []
    texts += [text.partition("] ")[2] for ref, text in memory.former.items() if ref.rpartition(".")[0] in ids]
    rest = _without(memory, ids, former=False)
    rest = replace(
        rest,
        summaries={name: s for name, s in rest.summaries.items() if not _quotes(s.text, texts)},
        former={ref: text for ref, text in rest.former.items() if not _quotes(text, texts)},
    )
    return [snapshot(rest), *(FactForgotten(fact=name) for name in ids)]


def _quotes(text: str, texts: Iterable[str]) -> bool:
    whole = normal(text)
    return any((part := normal(quote)) and part in whole for quote in texts)


def cleared(memory: Memory) -> list[Event]:
    """Returns the events that forget everything, but not which conversations were read."""
    empty = MemoryKept(facts=[], reads=dict(memory.reads), floor=memory.floor, in_groups=memory.in_groups)
    return [empty, MemoryCleared()]


def set_for_groups(memory: Memory, in_groups: bool, by: str) -> list[Event]:
    """Returns the event that lets a memory into turns of its person in groups, or keeps it out of them."""
    return [MemoryGroupsSet(in_groups=in_groups, by=by)] if in_groups != memory.in_groups else []


def imported(memory: Memory, facts: Sequence[Fact], summaries: Mapping[str, Summary], at: str) -> list[Event]:
    """Returns the events that replace a memory. Raises `Refused` for too many facts."""
    if len(facts) > MOST_FACTS:
        raise Refused(f"at most {MOST_FACTS} facts, got {len(facts)}")
    new = Memory(
        facts={fact.id: fact for fact in facts},
        summaries=summaries,
        reads=memory.reads,
        floor=memory.floor,
        updated_at=at,
        in_groups=memory.in_groups,
    )
    return [snapshot(new), MemoryImported(facts=len(facts))]


# ── memories ────────────────────────────────────────────────────────────────────────────────────────────────────────


def memory_id(user: str, agent: str | None) -> str:
    """Returns the id of the memory of a user, or of one of the user's agents: a token of a subject."""
    safe_id(user, "user")
    return user if agent is None else f"{user}~{safe_id(agent, 'agent').lower()}"


def owner(identity: str) -> str:
    """Returns the user of a memory, by its `memory_id`."""
    return identity.partition("~")[0]


def aggregates(log: EventLog) -> Repository[Memory]:
    """Returns the repository of memories, by `memory_id`."""
    return Repository(log, KIND, fold, Memory())


class Memories:
    """Memories, read and decided on by one part of the server (`actor`)."""

    def __init__(self, log: EventLog, *, actor: str) -> None:
        self.repository = aggregates(log)
        self._actor = actor

    async def of(self, user: str, agent: str | None = None, at_least: int | None = None) -> Memory:
        """Returns what is remembered. `at_least`: see `Repository.load`. Raises `Unavailable`."""
        return await self.repository.load(memory_id(user, agent), at_least=at_least)

    async def move(self, source: str, target: str) -> None:
        """Adds what is remembered of a user to the memory of another one, and forgets it there. May be repeated."""
        if facts := list((await self.of(source)).facts.values()):
            await self.decide(memory_id(target, None), lambda memory: joined(memory, facts))
            await self.decide(memory_id(source, None), lambda memory: cleared(memory) if memory.facts else [])

    async def decide(self, identity: str, decision: Decision[Memory], cause: str | None = None) -> Memory:
        """Decides on the memory with this id, and erases what the decision made obsolete. An erasure that takes longer
        than `ERASE_SECONDS` is finished by the memory actor.
        """
        memory, records = await self.repository.decide(identity, decision, actor=self._actor, cause=cause)
        for record in records:
            if isinstance(record.event, MemoryKept):
                await self.repository.erase(identity, before=record.seq, seconds=ERASE_SECONDS)
        return memory


def joined(memory: Memory, facts: Iterable[Fact]) -> list[Event]:
    """Returns the events that add facts of another memory, but those that it has in the same words."""
    events: list[Event] = []
    for fact in facts:
        if twin(memory, fact.content) is None and len(memory.facts) + len(events) < MOST_FACTS:
            fresh = fact_id(memory, "joined", fact.id, fact.content)
            events.append(FactRemembered(fact=msgspec.structs.replace(fact, id=fresh, replaces=[], version=0)))
    return events


def checked_fact(fact: Fact) -> Fact:
    """Returns a fact of a person, on one line. Raises `Invalid`."""
    content = " ".join(fact.content.split())
    if not content:
        raise Invalid("content: must not be blank")
    if len(content) > MOST_CHARACTERS:
        raise Invalid(f"content: at most {MOST_CHARACTERS} characters, got {len(content)}")
    if not 0 <= fact.confidence <= 1:  # also for what is no number
        raise Invalid(f"confidence: from 0 to 1, got {fact.confidence}")
    return msgspec.structs.replace(fact, content=content, category=" ".join(fact.category.split()) or "context")
