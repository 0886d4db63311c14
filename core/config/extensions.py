"""DeerFlow's second file: `extensions_config.json` with MCP servers and the states of skills (contract runtime §16)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import Invalid

NAMES = ("extensions_config.json", "mcp_config.json")
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
    """Returns a raw configuration with the MCP servers of the other file; `config.yaml` takes precedence."""
    servers, interceptors = extensions.get("mcpServers") or {}, extensions.get("mcpInterceptors") or []
    own = raw.get("mcp") or {}
    if not (servers or interceptors) or not isinstance(own, dict) or not isinstance(own.get("servers") or {}, dict):
        return raw
    listed = [interceptors] if isinstance(interceptors, str) else list(interceptors)
    both = {**own, "servers": {**servers, **(own.get("servers") or {})}}
    return {**raw, "mcp": {**both, "interceptors": [*(own.get("interceptors") or []), *listed]}}


def _resolved(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {str(key): _resolved(item, environ) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_resolved(item, environ) for item in value]
    if isinstance(value, str) and value.startswith("$"):
        return environ.get(value[1:].removeprefix("{").removesuffix("}"), "")
    return value
