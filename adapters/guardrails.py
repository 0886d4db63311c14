"""Loads the configured guardrail; also the built-in guardrail, a list of tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from core import plugins
from core.config.load import reveal
from core.config.settings import Guardrails
from core.errors import Invalid, place_of
from core.ports.guardrails import ALLOWED, TOOL_NOT_ALLOWED, Decision, Provider, Reason, Request

_DEER_FLOW = {"deerflow.guardrails.builtin:AllowlistProvider": "adapters.guardrails:AllowList"}
"""Providers by their names in a DeerFlow configuration."""
_FRAMEWORK = "deerflow"
"""The framework of these calls for providers that support several (DeerFlow's middleware Guardrail)."""


class AllowList:
    """Allows the tools of `allowed_tools` (None: all) without those of `denied_tools`."""

    name = "allow_list"

    def __init__(self, allowed_tools: Collection[str] | None = None, denied_tools: Collection[str] = ()) -> None:
        for key, names in (("allowed_tools", allowed_tools), ("denied_tools", denied_tools)):
            if isinstance(names, str):
                raise Invalid(f"{key}: expected a list of names")
        self._allowed = None if allowed_tools is None else frozenset(allowed_tools)
        self._denied = frozenset(denied_tools or ())

    def evaluate(self, request: Request) -> Decision:
        tool = request.tool_name
        if tool in self._denied:
            return Decision(False, [Reason(TOOL_NOT_ALLOWED, f"{tool!r} is one of the denied tools")])
        if self._allowed is not None and tool not in self._allowed:
            return Decision(False, [Reason(TOOL_NOT_ALLOWED, f"{tool!r} is not one of the allowed tools")])
        return Decision(True, [Reason(ALLOWED)])

    async def aevaluate(self, request: Request) -> Decision:
        return self.evaluate(request)


def load(settings: Guardrails) -> Provider | None:
    """Returns the configured provider; None if guardrails are off, or none is named. Raises `Invalid` with the key."""
    entry = settings.provider
    if not settings.enabled or entry is None:
        return None
    provider = _construct(_load(_DEER_FLOW.get(entry.use, entry.use)), entry.config)
    if not any(callable(getattr(provider, method, None)) for method in ("evaluate", "aevaluate")):
        raise Invalid(f"guardrails.provider.use: {entry.use} has neither evaluate nor aevaluate")
    return cast(Provider, provider)


def _load(use: str) -> Callable[..., Any]:
    """Imports `module:Class` or `module.Class`."""
    place = f"guardrails.provider.use: {use}"
    provider = plugins.load(use if ":" in use else ":".join(use.rsplit(".", 1)), place)
    if not callable(provider):
        raise Invalid(f"{place}: is no class")
    return cast(Callable[..., Any], provider)


def _construct(make: Callable[..., Any], config: Mapping[str, Any]) -> Any:
    settings = reveal(config)
    framework = {"framework": _FRAMEWORK} if _takes_framework(make) else {}
    try:
        return make(**framework | settings)
    except Exception as error:
        detail = f": {error}" if settings == config else ""  # else it might show a secret
        raise Invalid(f"guardrails.provider.config: {type(error).__name__}{detail}{place_of(error)}") from None


def _takes_framework(make: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(parameter.name == "framework" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
