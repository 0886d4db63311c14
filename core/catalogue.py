"""Every event type of the log: imports all modules of core that declare one.

A process that only shows events has no other reason to import them; to one without a module, its events are `Opaque`.
"""

from __future__ import annotations

import importlib

MODULES = (
    "chat.account", "chat.connections", "chat.facts", "files.workspace", "identity.accounts",
    "identity.activity", "identity.limits", "identity.lockout", "mcp.grants", "mcp.servers", "memory.facts",
    "models.added", "replay.evaluation.facts", "runs.ledger", "runs.windows", "runtime.applied", "runtime.letters",
    "sandbox.facts", "skills.facts", "user.agents", "user.assistants", "user.schedules", "user.store",
)  # fmt: skip
"""The modules of core that declare event types, beside `core.events`."""

for _module in MODULES:
    importlib.import_module(f"core.{_module}")
