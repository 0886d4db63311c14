"""Files for chats: an artifact as it is now, copied to where the agent cannot change it while it is sent."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

from core.chat.facts import Artifact, DeliveryPlanned
from core.chat.sizes import over
from core.errors import Invalid, NotFound
from core.files.paths import USER_DATA, Mount, Tree, thread_root

OUTPUTS = f"{USER_DATA}/outputs"


def passing(home: Path, account: str) -> Path:
    """Returns an empty folder for files on their way to and from the platform. Those that a killed process of the
    account has left are removed: only one process serves it at a time."""
    folder = home / "transfers" / account
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


class Unsendable(NamedTuple):
    """The reason why a file is not sent, for the person."""

    reason: str
    too_large: bool = False


def copy(home: Path, plan: DeliveryPlanned, artifact: Artifact, limit: int, into: Path) -> Unsendable | None:
    """Copies an artifact of at most `limit` bytes into a new file. Blocks. Only the outputs of the plan's thread can be
    reached: neither the path nor a link leads anywhere else.
    """
    try:
        outputs = thread_root(home, plan.user, plan.thread) / "user-data" / "outputs"
        with Tree([Mount(outputs, OUTPUTS)]).open(artifact.path) as opened:
            about = os.fstat(opened)
            if not stat.S_ISREG(about.st_mode):
                return Unsendable("it is not a file")
            if about.st_size > limit:
                return Unsendable(over(about.st_size, limit), True)
            with open(opened, "rb", closefd=False) as source, into.open("xb") as target:
                shutil.copyfileobj(source, target)
    except (Invalid, NotFound):
        return Unsendable("it is not in the outputs of the conversation")
    except FileNotFoundError:
        return Unsendable("it is not there any more")
    except OSError as error:
        return Unsendable(f"it cannot be read ({os.strerror(error.errno or 0).lower()})")
    if into.stat().st_size > limit:  # it grew meanwhile
        into.unlink()
        return Unsendable(over(0, limit), True)
    return None
