"""The state that an actor declares (`Actor.initial`, `Actor.apply`), folded from its own events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.actor import Actor
from core.errors import Invalid, place_of
from core.events import Aggregate, Opaque, Record
from core.log.repository import Repository
from core.log.store import EventLog


def own_state(actor: str, aggregate: Aggregate) -> Aggregate:
    """Returns the aggregate with the events of an actor's state for another aggregate."""
    name = aggregate.id if aggregate.kind == "thread" else f"{aggregate.kind}-{aggregate.id}"
    return Aggregate(f"actor-{actor}", name)


def repository(log: EventLog, actor: Actor[Any]) -> Repository[Any]:
    """Returns the states of an actor. A state that `apply` cannot fold raises `Invalid` where it is loaded."""

    def fold(records: Iterable[Record], state: Any) -> Any:
        for record in records:
            event = record.event
            if isinstance(event, Opaque):
                continue
            try:
                state = actor.apply(state, event)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}{place_of(error)}"
                raise Invalid(f"actor {actor.name}: apply fails on {record.type} at {record.seq}: {reason}") from error
        return state

    return Repository(log, own_state(actor.name, Aggregate("thread", "")).kind, fold, actor.initial)
