"""Changes of the MCP servers by people: masked secrets that survive a round trip, and what may not be set."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from core.config import deerflow
from core.config.mcp import McpServer
from core.errors import Invalid
from core.events import Json
from core.mcp.servers import MOST_SERVERS, OAUTH_SECRETS, SECRETS, McpConfigured, parsed, plain, with_secrets

MASK = "***"
VARIABLES = ("SIKA_MCP_STDIO_COMMANDS", "DEER_FLOW_MCP_STDIO_COMMAND_ALLOWLIST")
_FLAGS = (
    *("-c", "--call", "-e", "--eval", "--exec", "-r", "--require", "--import", "--loader", "--shell"),
    *("--script-shell", "--node-arg", "--node-options", "-n"),
)
"""Arguments by which a launcher executes what is no package."""
_PREFIXES = (
    *("LD_", "DYLD_", "PYTHON", "NODE_", "NPM_", "UV_", "PIP_", "BASH_", "GIT_", "PERL5", "RUBY", "JAVA_", "_JAVA"),
)
_VARIABLES = ("GCONV_PATH", "ENV", "PATH", "SHELL", "IFS", "HOME")
"""Variables, and beginnings of their names, by which a program executes foreign code."""


class Forbidden(Invalid):
    """The setting may only be made in the files of the server (HTTP 400)."""

    code = "mcp_not_allowed"


def masked(server: McpServer) -> Json:
    """Returns a server as DeerFlow's clients see it."""
    raw = with_secrets(plain(server), lambda _: MASK)
    if isinstance(oauth := raw.get("oauth"), dict):
        raw["oauth"] = {**oauth, **dict.fromkeys(OAUTH_SECRETS)}
    return raw


def remarks(name: str, server: McpServer) -> list[str]:
    """Returns the settings that nothing reads, each with the reason."""
    return [
        f"mcp_servers.{name}.{key[:80]}: {deerflow.remark_of(f'mcp.servers.{name}.{key}') or 'unknown key'}"
        for key in server.extra
    ]


def merged(name: str, sent: Mapping[str, Any], before: McpServer | None) -> Json:
    """Returns a server as it is to be: a mask, and a null secret of OAuth, keep the present value.

    Raises `Invalid` for a mask without a present value.
    """
    existing = plain(before) if before is not None else {}
    merged = {key: _unmasked(f"{name}.{key}", value, existing.get(key)) for key, value in sent.items()}
    for field in SECRETS:
        values = sent.get(field) or {}
        if not isinstance(values, Mapping):
            raise Invalid(f"mcp_servers.{name}.{field}: expected an object of texts")
        merged[field] = {
            key: _unmasked(f"{name}.{field}.{key}", v, existing.get(field, {}).get(key)) for key, v in values.items()
        }
    if isinstance(sent.get("args"), list):
        merged["args"] = _unmasked_arguments(name, sent["args"], before)
    if before is not None and before.url and sent.get("url") == masked(before)["url"]:
        merged["url"] = before.url
    if isinstance(oauth := sent.get("oauth"), Mapping):
        present = existing.get("oauth") or {}
        secrets = {key: present.get(key) if oauth.get(key) is None else oauth[key] or None for key in OAUTH_SECRETS}
        merged["oauth"] = {**oauth, **secrets}
    return merged


def _unmasked_arguments(name: str, sent: Sequence[Any], before: McpServer | None) -> list[Any]:
    """Returns arguments as they are to be: one that is as it was shown, in its place, stays."""
    shown, present = (masked(before)["args"], before.args) if before is not None else ((), ())
    words: list[Any] = []
    for place, word in enumerate(sent):
        same = place < len(shown) and word == shown[place]
        words.append(present[place] if same else _unmasked(f"{name}.args", word, None))
    return words


def _unmasked(place: str, value: Any, present: Any) -> Any:
    if value != MASK:
        return value
    if present is None:
        raise Invalid(f"mcp_servers.{place}: {MASK} stands for a present value, and there is none")
    return present


def changed(
    sent: Mapping[str, Mapping[str, Any]],
    present: Mapping[str, McpServer],
    files: Mapping[str, McpServer],
    seal: Callable[[str], str],
) -> McpConfigured:
    """Returns the fact that makes the servers those that were sent. What is as in the files stays with the files.

    Raises `Invalid` for what is wrong, `Forbidden` for what may not be set over HTTP.
    """
    if len(sent) > MOST_SERVERS:
        raise Invalid(f"mcp_servers: at most {MOST_SERVERS}")
    servers: dict[str, Json | None] = {name: None for name in files if name not in sent}
    for name, raw in sent.items():
        before = present.get(name)
        server = parsed(name, merged(name, raw, before))
        if server != before:
            check(name, server, before)
        if server != files.get(name):
            servers[name] = with_secrets(plain(server), seal)
    return McpConfigured(servers=servers)


def check(name: str, server: McpServer, before: McpServer | None) -> None:
    """Raises `Forbidden` for what only the files of the server may say."""
    if server.trusted and not (before is not None and before.trusted and _launched(before) == _launched(server)):
        raise Forbidden(f"mcp_servers.{name}.trusted: a server without a sandbox is configured in config.yaml")
    if server.transport != "stdio" or (before is not None and _launched(before) == _launched(server)):
        return
    allowed = commands()
    if server.command not in allowed:
        command = PurePath(server.command or "").name[:60]
        raise Forbidden(
            f"mcp_servers.{name}.command: {command!r} is none of {', '.join(allowed)}; "
            f"an operator adds it to {VARIABLES[0]}, or configures the server in config.yaml"
        )
    for argument in server.args:
        if argument.partition("=")[0] in _FLAGS:
            raise Forbidden(f"mcp_servers.{name}.args: {argument[:60]!r} executes what is no package")
    for variable in server.env:
        if _is_dangerous(variable):
            raise Forbidden(f"mcp_servers.{name}.env: {variable[:60]} changes what programs execute")


def commands() -> list[str]:
    """Returns the programs that may be named over HTTP."""
    more = ",".join(os.environ.get(name, "") for name in VARIABLES).split(",")
    return ["npx", "uvx", *(word.strip() for word in more if word.strip())]


def _launched(server: McpServer) -> tuple[Any, ...]:
    return server.transport, server.command, server.args, dict(server.env)


def _is_dangerous(variable: str) -> bool:
    return variable.upper() in _VARIABLES or variable.upper().startswith(_PREFIXES)
