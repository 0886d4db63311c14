"""The configuration as a fact: what a server works with from when on. Operators see what changed before a fault.

What is set is kept by key, as `models[0].model`; of a secret only that there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

import anyio
import anyio.to_thread
import structlog

from core.config.in_force import keys_set
from core.config.load import ConfigSource
from core.errors import SikaError
from core.events import Event, Record
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

log = structlog.get_logger("sika.config")

KIND = "configuration"
ID = "applied"
LOOK_SECONDS = 1.0
RETRY_SECONDS = 10.0
VALUE_CHARACTERS = 200
MOST_KEYS = 2000


class ConfigurationApplied(Event, frozen=True):
    """A server works with this configuration from here on. `changed`: keys that differ from the one before, with their
    values as JSON, without secrets; null: the default one.
    """

    phrase = Phrase("Configuration applied", "配置已生效", "{file}: {changed}, by {by}", "{file}：{changed}，{by}")
    file: str
    changed: Mapping[str, str | None]
    by: str
    """The process."""


Values = Mapping[str, str]


def fold(records: Iterable[Record], start: Values) -> Values:
    """Returns the values by key after these records."""
    values: dict[str, str | None] = {**start}
    for record in records:
        if isinstance(record.event, ConfigurationApplied):
            values |= record.event.changed
    return {key: value for key, value in values.items() if value is not None}


async def keep_record(eventlog: EventLog, source: ConfigSource, process: str) -> None:
    """Records the configuration in force, at the start and whenever it changes, until cancelled."""
    repository, recorded = Repository[Values](eventlog, KIND, fold, {}), ""
    while True:
        current = source.current().hash
        if current != recorded:
            decision = partial(_decide, await anyio.to_thread.run_sync(values_of, source), source, process)
            try:
                await repository.decide(ID, decision, actor="config")
                recorded = current
            except SikaError as error:
                log.warning("configuration not recorded", error=str(error))
                await anyio.sleep(RETRY_SECONDS)
        await anyio.sleep(LOOK_SECONDS)


def _decide(now: Values, source: ConfigSource, process: str, before: Values) -> Sequence[Event]:
    changed: dict[str, str | None] = {key: value for key, value in now.items() if before.get(key) != value}
    changed |= {key: None for key in before.keys() - now.keys()}
    file = str(source.files[0].name) if source.files else ""
    return [ConfigurationApplied(file=file, changed=changed, by=process)] if changed else []


def values_of(source: ConfigSource) -> Values:
    """Returns the values that are not the default ones, by key, as `core.config.in_force` shows them."""
    keys = islice(keys_set(source.current(), source.written()), MOST_KEYS)
    return {path: value[:VALUE_CHARACTERS] for path, value in keys}
