"""Sandboxes of threads: `actor` serves the tools' requests in them."""

from actors.sandbox.actor import Sandbox
from actors.sandbox.requests import Limits

__all__ = ["Limits", "Sandbox"]
