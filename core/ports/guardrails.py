"""The port of a guardrail: somebody else's word on whether a tool call may be made, as in DeerFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

ALLOWED = "oap.allowed"
DENIED = "oap.denied"
"""For a refusal without a reason."""
TOOL_NOT_ALLOWED = "oap.tool_not_allowed"
EVALUATOR_ERROR = "oap.evaluator_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The call that is to be made. `agent_id`: the configured passport. `timestamp`: ISO 8601, UTC."""

    tool_name: str
    tool_input: Mapping[str, Any]
    agent_id: str | None
    thread_id: str
    is_subagent: bool
    timestamp: str
    user_id: str | None = None
    user_role: str | None = None
    run_id: str | None = None
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """`code` is for programs (`oap.…`), `message` for the model and people."""

    code: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The provider's decision on a call. `policy_id`: the rule that decided."""

    allow: bool
    reasons: Sequence[Reason] = ()
    policy_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Provider(Protocol):
    """Decides on tool calls, many at a time. One of the two methods is enough: `aevaluate` is asked if there is one,
    else `evaluate`, in a thread. What either raises counts as no answer.

    Guarantees: asked before every call of a tool, with a copy of its arguments. Non-guarantees: asked once; after a
    crash the same call is asked about again.
    """

    name: str

    def evaluate(self, request: Request) -> Decision: ...

    async def aevaluate(self, request: Request) -> Decision: ...
