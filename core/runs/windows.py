"""Context windows that providers named when they refused a request, for all processes and after restarts.

One aggregate for all models. A window counts for `DAYS`: a server may be started again with a longer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlsplit

from core.config.agent import Model
from core.config.load import Config
from core.config.windows import Window, window_of
from core.events import Address, Event, Record
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

KIND, ALL = "windows", "all"
DAYS = 30
KEPT = 1000
"""Limit of the models that are remembered; the oldest go."""


class WindowLearned(Event, frozen=True):
    """A provider refused a request for its length, and named the context window of the model."""

    phrase = Phrase("Context window learned", "已得知上下文窗口", "{model}: {tokens} tokens", "{model}：{tokens} 词元")
    model: str
    """The provider's name of it."""
    address: Address
    """The provider's address, or the class of the client, without credentials."""
    tokens: int


class Learned(NamedTuple):
    """A window, and when it was named."""

    tokens: int
    at: str


Known = Mapping[tuple[str, str], Learned]
"""Windows by address and model."""


def fold(records: Iterable[Record], start: Known) -> Known:
    """Pure and total."""
    known = dict(start)
    for record in records:
        if isinstance(event := record.event, WindowLearned):
            known.pop((event.address, event.model), None)
            known[event.address, event.model] = Learned(event.tokens, record.at)
    for oldest in list(known)[: max(0, len(known) - KEPT)]:
        del known[oldest]
    return known


class Windows:
    """One per process."""

    def __init__(self, log: EventLog) -> None:
        self._known: Repository[Known] = Repository(log, KIND, fold, {})

    async def of(self, config: Config, name: str | None, at_least: int | None = None) -> Window:
        """Returns the window of a configured model. Raises `Unavailable`."""
        entry = next((model for model in config.models if model.name == name), None)
        known = await self._known.load(ALL, at_least=at_least) if entry else {}
        return window_of(config, name, _current(known, entry) if entry else None)

    async def learn(self, config: Config, name: str, tokens: int, *, actor: str) -> None:
        """Records what a provider said of a configured model, unless it is known. Raises `Unavailable`."""
        entry = next((model for model in config.models if model.name == name), None)
        if entry is None:
            return
        event = WindowLearned(model=entry.model, address=address_of(entry), tokens=tokens)
        await self._known.decide(ALL, lambda known: [] if _current(known, entry) == tokens else [event], actor=actor)


def address_of(entry: Model) -> str:
    """Returns the address of a model's provider without credentials and query, or the class of its client."""
    names = ("base_url", "api_base", "openai_api_base", "anthropic_api_url", "endpoint_url")
    named = next((entry.extra[name] for name in names if isinstance(entry.extra.get(name), str)), "")
    url = urlsplit(named)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if url.netloc else entry.use


def _current(known: Known, entry: Model) -> int | None:
    learned = known.get((address_of(entry), entry.model))
    if learned is None or _age(learned.at) > timedelta(days=DAYS):
        return None
    return learned.tokens


def _age(at: str) -> timedelta:
    try:
        return datetime.now(UTC) - datetime.fromisoformat(at)
    except (ValueError, TypeError):
        return timedelta(0)
