"""The subjects and the streams of the system: every one is named here. Decision 0002 in `core/decisions/` explains the
planes.
"""

from __future__ import annotations

import base64
from typing import Any

from core.errors import Invalid
from core.events import Aggregate

SECOND = 1_000_000_000
"""Nanoseconds: the unit of durations in the JetStream API."""
PREVIEW_SECONDS = 900
"""Time that previews stay in their stream, in memory."""


class Subjects:
    """Names of subjects, streams and buckets, under one prefix."""

    def __init__(self, prefix: str = "sika") -> None:
        if not prefix.replace("-", "").replace("_", "").isalnum():
            raise Invalid(f"nats.prefix: letters, digits, - and _ only, got {prefix!r}")
        self.prefix = prefix
        self.all_log, self.all_live = f"{prefix}.log.>", f"{prefix}.live.>"
        self._log, self._live = f"{prefix}.log.", f"{prefix}.live."

    def stream(self, plane: str) -> str:
        """The stream of `log`, `cmd`, `tok`, `timer`, `place`, `dlq` or `blobs`."""
        return f"OBJ_{self.blobs}" if plane == "blobs" else f"{self.prefix}_{plane}".upper()

    @property
    def blobs(self) -> str:
        """The bucket of the object store."""
        return f"{self.prefix}-blobs"

    def blob(self, name: str) -> str:
        """The subject of an object's description, as JetStream's object store has it."""
        return f"$O.{self.blobs}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def chunks(self, nuid: str) -> str:
        """The subject of the chunks of an upload."""
        return f"$O.{self.blobs}.C.{nuid}"

    def log(self, aggregate: Aggregate) -> str:
        return f"{self._log}{aggregate.kind}.{aggregate.id}"

    def live(self, aggregate: Aggregate) -> str:
        return f"{self._live}{aggregate.kind}.{aggregate.id}"

    def tok(self, run: str) -> str:
        return f"{self.prefix}.tok.{run}"

    def cmd(self, actor: str, aggregate: Aggregate) -> str:
        return f"{self.prefix}.cmd.{actor}.{aggregate.kind}.{aggregate.id}"

    def cmd_of(self, actor: str) -> str:
        return f"{self.prefix}.cmd.{actor}.>"

    def timer(self, actor: str, aggregate: Aggregate, key: str) -> str:
        return f"{self.prefix}.timer.{actor}.{aggregate.kind}.{aggregate.id}.{key}"

    @property
    def all_timers(self) -> str:
        return f"{self.prefix}.timer.>"

    def wake(self, actor: str, aggregate: Aggregate) -> str:
        return f"{self.prefix}.wake.{actor}.{aggregate.kind}.{aggregate.id}"

    @property
    def all_wakes(self) -> str:
        return f"{self.prefix}.wake.>"

    def place(self, actor: str) -> str:
        """The subject of an actor's offset: the sequence up to which its events have been dispatched."""
        return f"{self.prefix}.place.{actor}"

    @property
    def processes(self) -> str:
        """The subject on which every process reports what it does."""
        return f"{self.prefix}.processes"

    @property
    def waiting(self) -> str:
        """The subject on which processes tell of the runs that wait in them for a place."""
        return f"{self.prefix}.waiting"

    @property
    def room(self) -> str:
        """The subject on which a process in which runs wait asks the others for room."""
        return f"{self.prefix}.room"

    def call(self, actor: str) -> str:
        return f"{self.prefix}.call.{actor}"

    def dlq(self, actor: str, aggregate: Aggregate) -> str:
        return f"{self.prefix}.dlq.{actor}.{aggregate.kind}.{aggregate.id}"

    def aggregate(self, subject: str) -> Aggregate:
        """Returns the aggregate at the end of any of these subjects."""
        kind, identity = subject.rsplit(".", 2)[-2:]
        return Aggregate(kind, identity)

    def logged(self, subject: str) -> Aggregate | None:
        """Returns the aggregate of a subject of the log; None if it has too many parts, or too few."""
        parts = subject.removeprefix(self._log).split(".")
        return Aggregate(*parts) if len(parts) == 2 and subject.startswith(self._log) else None

    def target(self, subject: str) -> tuple[str, Aggregate]:
        """Returns actor and aggregate of a `cmd`, `wake` or `dlq` subject. Raises `ValueError` for too few parts."""
        parts = subject.split(".", 4)
        if len(parts) != 5:
            raise ValueError(f"{self.prefix}.<plane>.<actor>.<kind>.<id> has five parts, this subject {len(parts)}")
        return parts[2], Aggregate(parts[3], parts[4])


def stream_configs(names: Subjects, replicas: int = 1) -> dict[str, dict[str, Any]]:
    """Returns the configuration of the streams, by plane. `blobs` is as JetStream's object store has it."""
    prefix = names.prefix
    shared = {"num_replicas": replicas, "storage": "file"}
    configs: dict[str, dict[str, Any]] = {
        "log": {
            **shared,
            "subjects": [names.all_log],
            "retention": "limits",
            "compression": "s2",
            "allow_direct": True,
            "allow_atomic": True,
            "republish": {"src": names.all_log, "dest": names.all_live},
            "duplicate_window": 120 * SECOND,
        },
        "cmd": {
            **shared,
            "subjects": [f"{prefix}.cmd.>"],
            "retention": "workqueue",
            "duplicate_window": 120 * SECOND,
        },
        "timer": {
            **shared,
            "subjects": [names.all_timers, names.all_wakes],
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
        },
        "place": {**shared, "subjects": [names.place("*")], "max_msgs_per_subject": 1},
        "dlq": {**shared, "subjects": [f"{prefix}.dlq.>"], "max_age": 30 * 86400 * SECOND},
        "tok": {
            "subjects": [f"{prefix}.tok.>"],
            "storage": "memory",
            "max_age": PREVIEW_SECONDS * SECOND,
            "max_bytes": 64 << 20,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "num_replicas": 1,
        },
        "blobs": {
            **shared,
            "subjects": [names.chunks(">"), f"$O.{names.blobs}.M.>"],
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        },
    }
    return {plane: {"name": names.stream(plane), **config} for plane, config in configs.items()}
