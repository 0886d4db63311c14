"""Sandboxes of threads: `actor` serves the tools' requests in them."""

from actors.sandbox.actor import Sandbox
from actors.sandbox.requests import Limits
from actors.sandbox.words import cut_middle, cut_tail

__all__ = ["Limits", "Sandbox", "cut_middle", "cut_tail"]
