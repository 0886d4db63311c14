"""The machine of the agent's commands, as runs know it."""

from __future__ import annotations

HOST = "host"
"""The provider that does not confine commands."""


class Environment:
    """The sandboxes of this server. `provider` is the name of what provides them; empty if that is not known."""

    def __init__(self, provider: str = "") -> None:
        self.provider = provider

    @property
    def confined(self) -> bool:
        """Tells whether the sandbox confines commands, so that none need be refused for what it looks like."""
        return self.provider not in ("", HOST)
