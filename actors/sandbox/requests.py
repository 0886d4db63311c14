"""The requests to the sandbox actor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from core.ports.sandbox import Edit

CHANNEL_USER = "DEERFLOW_CHANNEL_USER_ID"
"""A variable of commands (DeerFlow's channel connections)."""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    user: str
    thread: str


class Call(Request, frozen=True, kw_only=True):
    """A request with a record in the sandbox. Call ids are unique only within a run."""

    run: str
    call_id: str

    @property
    def key(self) -> str:
        return f"{self.run}-{self.call_id}"


class Run(Call, frozen=True, kw_only=True):
    """A request that runs a command."""

    command: str
    channel_user: str = ""
    """The platform's id of the person in a chat from whom the run came: `CHANNEL_USER` of the command."""
    detailed: bool = False
    """True if the answer to `exec` has the exit code beside the text: `text`, `exit_code`."""


class Exec(Run, frozen=True, kw_only=True, tag="exec"):
    """Runs a command to its end."""

    timeout: float | None = None
    """Seconds, at most `sandbox.max_timeout_seconds`. None: `sandbox.timeout_seconds`."""


class Start(Run, frozen=True, kw_only=True, tag="start"):
    """Starts a command in the background."""


class Output(Call, frozen=True, kw_only=True, tag="output"):
    """Requests the new output of a command in the background, and how it stands. `id`: the command's."""

    id: str
    wait_seconds: float = 0
    """Time to wait for its end."""


class End(Call, frozen=True, kw_only=True, tag="end"):
    """Ends a command in the background."""

    id: str


class Kill(Call, frozen=True, kw_only=True, tag="kill"):
    """Kills the command of a cancelled run. Cancelling the request itself leaves the command running."""


class Write(Call, frozen=True, kw_only=True, tag="write"):
    path: str
    content: str
    append: bool = False


class Replace(Call, frozen=True, kw_only=True, tag="replace"):
    path: str
    old: str
    new: str
    every: bool = False


class EditFiles(Call, frozen=True, kw_only=True, tag="edit"):
    """Makes all edits, or none."""

    edits: Annotated[list[Edit], msgspec.Meta(min_length=1, max_length=200)]


class List(Request, frozen=True, kw_only=True, tag="list"):
    path: str


class Read(Request, frozen=True, kw_only=True, tag="read"):
    path: str
    start_line: int | None = None
    end_line: int | None = None
    line_numbers: bool = False
    pages: str = ""
    sheet: str = ""
    """A part of a document (`core.ports.documents.Selection`)."""
    convert: bool | None = None
    """Whether the text of a document is read, or its source. None: as its kind is mostly read."""


class Glob(Request, frozen=True, kw_only=True, tag="glob"):
    path: str
    pattern: str
    include_dirs: bool = False
    everything: bool = False
    max_results: int = 200


class Grep(Request, frozen=True, kw_only=True, tag="grep"):
    """See `core.ports.sandbox.Query`."""

    path: str
    pattern: str
    glob: str | None = None
    type: str | None = None
    literal: bool = False
    case_sensitive: bool = False
    multiline: bool = False
    before: int = 0
    after: int = 0
    shows: Literal["lines", "files", "counts"] = "lines"
    everything: bool = False
    max_results: int = 100


class View(Request, frozen=True, kw_only=True, tag="image"):
    path: str


class Find(Request, frozen=True, kw_only=True, tag="files"):
    """Checks that the paths are regular files, not links."""

    paths: list[str]


class Version(Request, frozen=True, kw_only=True, tag="version"):
    """Requests the SHA-256 of a file, None if there is none."""

    path: str


class Get(Request, frozen=True, kw_only=True, tag="get"):
    """Requests a part of a file as it is: `data` as hexadecimal digits (in base64 a secret would be searched
    for, and replaced), `size` and `sha256` of all. `most`: a larger file is refused.
    """

    path: str
    offset: int
    size: Annotated[int, msgspec.Meta(ge=1, le=400 << 10)]
    most: int


class Put(Call, frozen=True, kw_only=True, tag="put"):
    """Writes bytes (hexadecimal digits) to a file; with `append` behind what is there, once per call id."""

    path: str
    data: Annotated[str, msgspec.Meta(max_length=800 << 10)]
    append: bool = False


class Names(Request, frozen=True, kw_only=True, tag="names"):
    """Requests the paths of the files below a directory, at most 1000."""

    path: str


class Choose(Request, frozen=True, kw_only=True, tag="folder"):
    """Requests the path of a folder of this machine that the thread may work on. `anywhere`: a person of this machine
    asks, or one who administers it.
    """

    path: str
    writable: bool
    anywhere: bool = False


AnyRequest = (
    Exec
    | Start
    | Output
    | End
    | Kill
    | Write
    | Replace
    | EditFiles
    | List
    | Read
    | Glob
    | Grep
    | View
    | Find
    | Version
    | Get
    | Put
    | Names
    | Choose
)
Answer = str | Mapping[str, Any] | Sequence[str] | None
