"""The imports of a package with a sandbox provider; installed, this is called `sika.sandboxes`. See `core.extend`."""

from __future__ import annotations

from adapters.sandboxes.bubblewrap import Bubblewrap
from adapters.sandboxes.host.sandbox import Host
from adapters.sandboxes.process.job import Job
from core.files.paths import Tree
from core.ports.sandbox import (
    Access,
    Edit,
    Enclosed,
    Encloses,
    ExecResult,
    Explains,
    Listing,
    ListsPorts,
    Machine,
    MachineLost,
    Output,
    Probes,
    Query,
    RecordsNetwork,
    Resident,
    RunsInBackground,
    Sandbox,
    SandboxProvider,
    SandboxSetup,
    ShellCommand,
    StartsMachines,
    WorksInFolders,
)

__all__ = [
    "Access",
    "Bubblewrap",
    "Edit",
    "Enclosed",
    "Encloses",
    "ExecResult",
    "Explains",
    "Host",
    "Job",
    "Listing",
    "ListsPorts",
    "Machine",
    "MachineLost",
    "Output",
    "Probes",
    "Query",
    "RecordsNetwork",
    "Resident",
    "RunsInBackground",
    "Sandbox",
    "SandboxProvider",
    "SandboxSetup",
    "ShellCommand",
    "StartsMachines",
    "Tree",
    "WorksInFolders",
]
