"""Every event type of the log: imports all modules of core that declare one; `installed` those of packages, too.

A process that only shows events has no other reason to import them; to one without a module, its events are `Opaque`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from core import events, plugins

MODULES = (
    "chat.account", "chat.connections", "chat.facts", "files.workspace", "identity.accounts",
    "identity.activity", "identity.limits", "identity.lockout", "mcp.grants", "mcp.servers", "memory.facts",
    "models.added", "replay.evaluation.facts", "runs.ledger", "runs.windows", "runtime.applied", "runtime.letters",
    "sandbox.facts", "skills.facts", "user.agents", "user.assistants", "user.schedules", "user.store",
)  # fmt: skip
"""The modules of core that declare event types, beside `core.events`."""

for _module in MODULES:
    importlib.import_module(f"core.{_module}")


def installed() -> Mapping[str, type[events.Event]]:
    """Returns the event types of core and of installed packages (`plugins.EVENTS`), by name: the same ones in every
    process, whatever else it has imported.
    """
    values = [plugin.value for plugin in plugins.load_events() if not plugin.problem]
    modules = ["core", *(getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in values)]
    roots = tuple(f"{module}." for module in modules)
    return {name: cls for name, cls in sorted(events.catalogue().items()) if f"{cls.__module__}.".startswith(roots)}
