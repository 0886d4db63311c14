"""Sandboxes of threads: `actor` serves the tools' requests in them."""

from actors.sandbox.actor import Sandbox

__all__ = ["Sandbox"]
