"""The imports of the tests of a package with a chat platform; installed, this is called `sika.contracts`. See
`actors.contracts`.
"""

from __future__ import annotations

from actors.contracts.arriving import Arriving, ArrivingByButton, ArrivingFiles
from actors.contracts.connections import Connections
from actors.contracts.credentials import Credentials
from actors.contracts.deciding import Decisions
from actors.contracts.deletions import Deletions
from actors.contracts.edits import Edits
from actors.contracts.files import Bundles, Files
from actors.contracts.held import Code, Faults, Held, Repeated
from actors.contracts.people import Groups
from actors.contracts.refusals import Refusals
from actors.contracts.seat import (
    Disconnecting,
    Duplicating,
    Failing,
    Revoking,
    Seat,
    WithBundles,
    WithButtons,
    WithDeletions,
    WithEdits,
    WithFiles,
    WithSigns,
    WithWhispers,
)
from actors.contracts.signs import Signs
from actors.contracts.stopping import Stopping
from actors.contracts.table import Table, table
from actors.contracts.talk import Talk

__all__ = [
    "Arriving",
    "ArrivingByButton",
    "ArrivingFiles",
    "Bundles",
    "Code",
    "Connections",
    "Credentials",
    "Decisions",
    "Deletions",
    "Disconnecting",
    "Duplicating",
    "Edits",
    "Failing",
    "Faults",
    "Files",
    "Groups",
    "Held",
    "Refusals",
    "Repeated",
    "Revoking",
    "Seat",
    "Signs",
    "Stopping",
    "Table",
    "Talk",
    "WithBundles",
    "WithButtons",
    "WithDeletions",
    "WithEdits",
    "WithFiles",
    "WithSigns",
    "WithWhispers",
    "table",
]
