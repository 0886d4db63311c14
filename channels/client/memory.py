"""The methods of the clients on the user's memory: DeerFlow's document of it, and its facts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from channels.client.answers import object_of
from channels.client.events import Json

PATH = "/api/memory"


class MemoryMethods(ABC):
    """Methods on the memory of the default agent, or of the custom agent `agent`. Each that changes it returns the
    whole document: `{version, lastUpdated, user, history, facts: [{id, content, category, confidence, source, …}]}`.
    """

    @abstractmethod
    async def _json(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, safe: bool = False
    ) -> Any:
        """Sends a request and returns the JSON of the response."""

    async def get_memory(self, agent: str | None = None) -> Json:
        """Returns the document."""
        return await self._memory("GET", "", agent)

    async def reload_memory(self, agent: str | None = None) -> Json:
        """Returns the document, which is always current."""
        return await self._memory("POST", "/reload", agent, safe=True)

    async def export_memory(self, agent: str | None = None) -> Json:
        """Returns the document that `import_memory` takes."""
        return await self._memory("GET", "/export", agent)

    async def import_memory(self, document: Mapping[str, Any], agent: str | None = None) -> Json:
        """Replaces what is remembered by a document, also by a `memory.json` of DeerFlow."""
        return await self._memory("POST", "/import", agent, dict(document), safe=True)

    async def clear_memory(self, agent: str | None = None) -> Json:
        """Forgets everything, for good."""
        return await self._memory("DELETE", "", agent, safe=True)

    async def create_memory_fact(
        self, content: str, category: str = "context", confidence: float = 0.5, agent: str | None = None
    ) -> Json:
        """Adds a fact. One that is there already is not added again."""
        fact = {"content": content, "category": category, "confidence": confidence}
        return await self._memory("POST", "/facts", agent, fact, safe=True)

    async def update_memory_fact(
        self,
        fact_id: str,
        content: str | None = None,
        category: str | None = None,
        confidence: float | None = None,
        agent: str | None = None,
    ) -> Json:
        """Changes a fact; what is None stays."""
        changes = {"content": content, "category": category, "confidence": confidence}
        body = {name: value for name, value in changes.items() if value is not None}
        return await self._memory("PATCH", _fact(fact_id), agent, body, safe=True)

    async def delete_memory_fact(self, fact_id: str, agent: str | None = None) -> Json:
        """Forgets a fact for good, with all that it replaced."""
        return await self._memory("DELETE", _fact(fact_id), agent)

    async def get_memory_source(self, fact_id: str, agent: str | None = None) -> Json:
        """Returns the message that a fact is from: `{fact_id, source, run_id, event, link, message}`."""
        return await self._memory("GET", f"{_fact(fact_id)}/source", agent)

    async def get_memory_config(self) -> Json:
        """Returns the settings of memories."""
        return await self._memory("GET", "/config", None)

    async def get_memory_settings(self) -> Json:
        """Returns `{in_groups}`: whether the memory goes into your turns in groups of chat platforms."""
        return await self._memory("GET", "/settings", None)

    async def set_memory_settings(self, *, in_groups: bool) -> Json:
        """Sets whether it does, from your next message there on."""
        return await self._memory("PUT", "/settings", None, {"in_groups": in_groups}, safe=True)

    async def get_memory_status(self, agent: str | None = None) -> Json:
        """Returns `{config, data, former, failed}`: settings, document, former texts, conversations not read."""
        return await self._memory("GET", "/status", agent)

    async def _memory(self, method: str, path: str, agent: str | None, body: Any = None, *, safe: bool = False) -> Json:
        query = {} if agent is None else {"agent": agent}
        return object_of(await self._json(method, f"{PATH}{path}", body, query=query, safe=safe))


def _fact(fact_id: str) -> str:
    return f"/facts/{quote(fact_id, safe='')}"
