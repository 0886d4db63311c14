"""Settings of other agents that the agent can give work to (Agent Client Protocol)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from core.config.sections import Seconds, Secret, Section

WorkSeconds = Annotated[float, msgspec.Meta(gt=0, le=3000)]
"""A request to an actor ends after 3600 seconds."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class AcpAgent(Section, frozen=True, kw_only=True):
    """A program that speaks the Agent Client Protocol on its standard input and output."""

    command: Annotated[str, msgspec.Meta(min_length=1)]
    """The program."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: Mapping[str, Secret] = {}
    """Its environment, besides HOME, PATH and the like: the server's own keys are not passed on."""
    description: str = ""
    """For the agent: what this one is good at."""
    model: str | None = None
    """The model that it is to use, by its own name for it."""
    auto_approve_permissions: bool = False
    """True: its requests for permission are granted. Else the person is asked, as by `approvals`."""
    permission_timeout_seconds: WorkSeconds = 900
    """Seconds after which a request for permission without an answer counts as rejected."""
    timeout_seconds: WorkSeconds = 1800
    """Seconds of work on a prompt after which it is cancelled. Waiting for a person does not count."""
    start_timeout_seconds: Seconds = 60
    """Seconds in which it has to start a session."""
    effect: Literal["pure", "idempotent", "once"] = "once"
    """The rule for a call whose outcome is unknown after a crash: `pure` and `idempotent` begin again."""
    trusted: bool = False
    """True: it runs on this machine as the server does. Else it runs in a sandbox, where it sees the programs of the
    system and its own workspace."""
    network: bool = False
    """True: the sandbox has a network. Agents that call a model need it."""
