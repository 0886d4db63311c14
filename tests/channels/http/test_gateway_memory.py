"""The routes of a memory: what the document says, what is refused, and whose it is."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from core.memory.facts import KIND, FactForgotten, MemoryCleared, MemoryKept, memory_id
from core.events import Aggregate
from core.identity.principal import LOCAL
from core.runtime.system import System
from tests.channels.http.conftest import Api
from tests.channels.http.people import people

pytestmark = pytest.mark.anyio

SUMMARY = {"summary": "", "updatedAt": ""}
EMPTY = {
    "version": "1.0",
    "lastUpdated": "",
    "user": dict.fromkeys(("workContext", "personalContext", "topOfMind"), SUMMARY),
    "history": dict.fromkeys(("recentMonths", "earlierContext", "longTermBackground"), SUMMARY),
    "facts": [],
}
