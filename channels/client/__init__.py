"""Sika in your Python: a whole server in your process, or one elsewhere, with the same methods.

    from channels.client import SikaClient

    with SikaClient(config_path="config.yaml") as sika:          # or SikaClient(url="http://…", api_key="…")
        print(sika.chat("What is in the repository?", thread_id="tour"))
        sika.upload_files("tour", ["report.pdf"])
        for event in sika.stream("Summarise the report.", thread_id="tour"):
            match event.type, event.data:
                case "messages-tuple", {"type": "ai", "content": text}:
                    print(text, end="", flush=True)
                case "end", {"usage": usage}:
                    print(f"\\n{usage['total_tokens']} tokens")

`AsyncSikaClient` has the same methods for programs with an event loop. Reading order: `aio`, `memory` (the methods),
`events` (the events of a stream), `turn` (a run, over broken connections), `wire` (HTTP and its retries), `sse`,
`servers` (servers of this machine), `local` (the server in the process), `blocking`.
"""

from __future__ import annotations

from channels.client.aio import AsyncSikaClient
from channels.client.blocking import SikaClient
from channels.client.errors import (
    ClientError,
    Forbidden,
    Invalid,
    NotFound,
    Refused,
    RunFailed,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from channels.client.events import StreamEvent
from channels.client.options import Overrides

DeerFlowClient = SikaClient

__all__ = [
    "AsyncSikaClient",
    "ClientError",
    "DeerFlowClient",
    "Forbidden",
    "Invalid",
    "NotFound",
    "Overrides",
    "Refused",
    "RunFailed",
    "SikaClient",
    "StreamEvent",
    "TooLarge",
    "TooMany",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
]
