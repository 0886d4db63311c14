"""LangChain's forms of our tools, made once for all workers of a process.

A worker makes them once, 25 ms each; tests have many workers in one process, and fork many from one.
"""

from __future__ import annotations

from functools import cache

from langchain_core.utils.function_calling import convert_to_openai_tool

from actors.agent import check
from actors.agent.loop import langchain_tools
from actors.agent.loop.described import as_langchain
from actors.wiring import discovery

_shared = cache(as_langchain)


def share() -> None:
    """Let the workers of this process use the same forms."""
    for module in (langchain_tools, check):
        assert hasattr(module, "as_langchain"), f"{module.__name__} makes no forms any more"
        vars(module)["as_langchain"] = _shared


def fill() -> None:
    """Make the forms of all tools, with the schemas that models are shown."""
    for tool in discovery.load_tools():
        convert_to_openai_tool(_shared(tool))
