"""LangChain's forms of our tools, and what is read of skills, made once for all workers of a process.

A worker makes each of them once, which takes 25 and 40 ms in all; tests have many workers in one process, and fork many
from one.
"""

from __future__ import annotations

from functools import cache, lru_cache

from langchain_core.utils.function_calling import convert_to_openai_tool

from actors.agent import check
from actors.agent.loop import langchain_tools
from actors.agent.loop.described import as_langchain
from actors.wiring import discovery
from core.skills import folders, format

_shared = cache(as_langchain)
_read = lru_cache(64)(format.read)


def share() -> None:
    """Let the workers of this process use the same ones."""
    for module, name, shared in (
        (langchain_tools, "as_langchain", _shared),
        (check, "as_langchain", _shared),
        (folders, "read", _read),
    ):
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        vars(module)[name] = shared


def fill() -> None:
    """Make the forms of all tools, with the schemas that models are shown."""
    for tool in discovery.load_tools():
        convert_to_openai_tool(_shared(tool))
