"""DeerFlow's second file: `extensions_config.json` with MCP servers, middlewares and the states of skills."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import Invalid

NAMES = ("extensions_config.json", "mcp_config.json")
KEYS = ("mcpServers", "mcpInterceptors", "middlewares", "skills")
VARIABLE = "DEER_FLOW_EXTENSIONS_CONFIG_PATH"


def find(project: Path, environ: Mapping[str, str]) -> Path | None:
    """Returns the file: that of the variable, or one of `NAMES` in the project's folder."""
    if named := environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    return next((path for name in NAMES if (path := (project / name).absolute()).exists()), None)


def read(text: str, name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the file's content. `$NAME` stands for a variable; one that is not set is empty, as in DeerFlow.

    Raises `Invalid` with the file's name.
    """
    try:
        raw = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise Invalid(f"{name}: {error}") from None
    if not isinstance(raw, dict) or not all(isinstance(raw.get(key) or {}, dict) for key in ("mcpServers", "skills")):
        raise Invalid(f"{name}: expected {{mcpServers: {{…}}, skills: {{…}}}}")
    resolved: dict[str, Any] = _resolved(raw, environ)
    return resolved


def merged(raw: dict[str, Any], extensions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a raw configuration with what the other file adds: MCP servers (`config.yaml` takes precedence),
    interceptors, middlewares.
    """
    if (added := _entries(extensions, "middlewares")) and isinstance(raw.get("middlewares") or [], list):
        raw = {**raw, "middlewares": [*(raw.get("middlewares") or []), *added]}
    servers, interceptors = extensions.get("mcpServers") or {}, _entries(extensions, "mcpInterceptors")
    own = raw.get("mcp") or {}
    if not (servers or interceptors) or not isinstance(own, dict) or not isinstance(own.get("servers") or {}, dict):
        return raw
    both = {**own, "servers": {**servers, **(own.get("servers") or {})}}
    return {**raw, "mcp": {**both, "interceptors": [*(own.get("interceptors") or []), *interceptors]}}


def unknown(extensions: Mapping[str, Any]) -> list[str]:
    """Returns a remark for each key of the file that has no effect."""
    return [f"{NAMES[0]}: {key}: unknown key" for key in extensions if key not in KEYS]


def _entries(extensions: Mapping[str, Any], key: str) -> list[Any]:
    value = extensions.get(key) or []
    return list(value) if isinstance(value, list) else [value]


def _resolved(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {str(key): _resolved(item, environ) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_resolved(item, environ) for item in value]
    if isinstance(value, str) and value.startswith("$"):
        return environ.get(value[1:].removeprefix("{").removesuffix("}"), "")
    return value
