"""The front door: everything that a plug-in imports, and the only public names. Installed, it is called `sika`.

    from sika import Actor, Context, tool
    from sika.events import RunCompleted

Beside it, `sika.events` has every event type, `sika.testing` what tests need, and `sika.channels` the port of chat
platforms; `sika.http` is `channels.http.extend`, `sika.cli` is `channels.cli.public`, `sika.sandboxes` is
`adapters.sandboxes.extend`, `sika.contracts` is `actors.contracts.extend` (`pyproject.toml`, decision
0049). These modules only name what is elsewhere. Nothing of ours imports them.
"""

from __future__ import annotations

from core.actor import Actor, Context, Progress, Retries
from core.errors import Invalid, NotFound, Refused, SikaError, Unavailable
from core.events import Aggregate, Event, Json, Message, Opaque, Record, thread
from core.log.repository import Repository
from core.phrases import Phrase
from core.policy import End, Policy, Refuse, ToolCall, View
from core.thread.messages import text_of
from core.thread.state import ThreadState
from core.tools import Completion, Files, Prompt, Question, Response, Result, Tool, ToolContext, tool

__all__ = [
    "Actor",
    "Aggregate",
    "Completion",
    "Context",
    "End",
    "Event",
    "Files",
    "Invalid",
    "Json",
    "Message",
    "NotFound",
    "Opaque",
    "Phrase",
    "Policy",
    "Progress",
    "Prompt",
    "Question",
    "Record",
    "Refuse",
    "Refused",
    "Repository",
    "Response",
    "Result",
    "Retries",
    "SikaError",
    "ThreadState",
    "Tool",
    "ToolCall",
    "ToolContext",
    "Unavailable",
    "View",
    "text_of",
    "thread",
    "tool",
]
