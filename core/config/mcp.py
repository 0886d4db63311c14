"""Settings of MCP servers: what they are, and what bounds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from core.config.mcp_oauth import OAuth
from core.config.sections import Count, Positive, Seconds, Secret, Section

CallSeconds = Annotated[float, msgspec.Meta(gt=0, le=3000)]
"""A request to an actor ends after 3600 seconds."""
Kind = Literal["stdio", "sse", "http"]
Sharing = Literal["server", "user", "thread"]
_NAME = re.compile(r"[A-Za-z0-9_. -]{1,64}")
_OTHER_NAMES = {"streamable_http": "http", "streamable-http": "http", "streamableHttp": "http"}
"""Other programs' names of the transport."""


class Sampling(Section, frozen=True, kw_only=True):
    """What a server may have the run's model write (`sampling` of the protocol). Tools in its requests are refused."""

    approval: bool = True
    """True: the person is shown each request, and approves it."""
    max_requests: Positive = 5
    """The most requests during a call."""
    max_tokens: Positive = 2000
    """The most tokens of an answer; the server may ask for fewer."""


class McpServer(Section, frozen=True, kw_only=True):
    """A server with third-party tools. `stdio` needs `command`; `sse` and `http` need `url`."""

    enabled: bool = True
    """False: its tools are not there."""
    type: Kind | Literal["streamable_http", "streamable-http", "streamableHttp"] = "stdio"
    """The transport. `http` is streamable HTTP; `sse` is its predecessor."""
    command: str | None = None
    """The program of a stdio server."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: Mapping[str, Secret] = {}
    """Its environment, besides HOME, PATH and the like."""
    url: str | None = None
    """The address of an sse or http server."""
    headers: Mapping[str, Secret] = {}
    """Headers of every request to it."""
    oauth: OAuth | None = None
    description: str = ""
    """For people."""
    tool_call_timeout: CallSeconds = 120
    """Seconds after which a call of a tool is cancelled. Progress of the call starts them again, up to 3000."""
    session_init_timeout: Seconds = 60
    """Seconds in which it has to start and to list what it has."""
    trusted: bool = False
    """True: the stdio server runs on this machine as the server does. Else it runs in a sandbox, with the files of its
    conversation, and with a network only if the sandbox has one."""
    elicitation: bool = True
    """True: the server may ask the person something during a call, which pauses the run like an approval."""
    elicitation_timeout: CallSeconds = 900
    """Seconds after which such a question without an answer is cancelled."""
    sampling: Sampling | None = None
    """What it may have the run's model write during a call. Default: nothing."""
    roots: bool | None = None
    """True: the server is told that the workspace of its conversation is where it works (`roots` of the protocol),
    which may take the place of folders among its arguments. Default: only in a sandbox."""
    shared: Sharing | None = None
    """The sharing of a session with it: each `thread` has its own (the default of stdio), each `user` (that of http and
    sse), or all share the one of the `server`."""

    @property
    def transport(self) -> str:
        return _OTHER_NAMES.get(self.type, self.type)

    @property
    def sharing(self) -> Sharing:
        return self.shared or ("thread" if self.transport == "stdio" else "user")

    @property
    def problem(self) -> str | None:
        """Returns what is missing for the server to be started; None if nothing is."""
        needed = "command" if self.transport == "stdio" else "url"
        return None if getattr(self, needed) else f"{needed}: a server of type {self.type} needs it"


class McpOffer(Section, frozen=True, kw_only=True):
    """What Sika offers as an MCP server at `/mcp`, besides conversations and their files."""

    tools: tuple[str, ...] = ()
    """Names of the agent's tools that API keys with the scope `runs:create` may call. A call is a run: approvals and
    policies apply."""


class Mcp(Section, frozen=True, kw_only=True):
    """Tools of MCP servers. `mcpServers` of DeerFlow's `extensions_config.json` beside this file are read, too."""

    servers: Mapping[str, McpServer] = {}
    """The servers, by the name that their tools begin with."""
    interceptors: tuple[str, ...] = ()
    """Functions around each call of a tool, as `module:builder`; the first is the outermost. A builder returns an
    `async def interceptor(request, handler)` of langchain-mcp-adapters."""
    direct_tools: Count = 40
    """The most tools of all servers that the model is shown at once. With more it searches for them, as with
    `tool_search`."""
    list_seconds: Seconds = 20
    """Seconds that a run waits for the tools of servers that were never listed."""
    idle_seconds: Seconds = 300
    """Seconds without a call after which a session ends; the next call starts it again."""
    max_sessions: Positive = 32
    """The most sessions of a process at once."""
    memory_mb: Positive = 1024
    """Memory of a stdio server with all its processes."""

    def __post_init__(self) -> None:
        for name in self.servers:
            if not _NAME.fullmatch(name):
                raise ValueError(f"servers.{name[:70]}: a name has 1 to 64 letters, digits, spaces, '_', '-' and '.'")
