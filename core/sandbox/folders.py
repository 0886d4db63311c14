"""Which folders of the machine a thread may work on."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.config.load import ConfigSource
from core.errors import Invalid, Refused
from core.events import FolderAttached
from core.files.paths import PROJECT, Mount
from core.files.secret_names import Rules

_SYSTEM = """
    /bin /boot /dev /etc /lib /lib32 /lib64 /libx32 /proc /run /sbin /sys /usr /var
    /System /Library /Applications /private/etc /private/var
"""
"""Folders of the system; what is in them is refused, too."""
_OF_PEOPLE = "/dev/shm /var/tmp /var/www /private/var/folders /private/var/tmp"
"""Folders in those of the system in which people work."""
_SHARED = "/ /home /Users /Volumes /media /mnt /opt /private /srv /tmp /private/tmp /root"
"""Folders of everybody; what is in them may be somebody's."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The places of an installation, which no thread may work on."""

    home: Path
    """The data directory: refused, and hidden in a folder that contains it."""
    files: Sequence[Path] = ()
    """Files that the server reads at its start: hidden."""
    reads: Sequence[Path] = ()
    """Directories in which the server looks for its configuration: an agent must not write there."""
    roots: Sequence[str] = ()
    """The configured folders (`sandbox.folders`)."""

    def folder(self, path: str, *, writable: bool, anywhere: bool) -> Path:
        """Returns a folder as it is on this machine, without links. `anywhere`: a person of this machine chooses it,
        else it must be in one of the roots. Raises `Invalid`, and `Refused` for one that may not be chosen.
        """
        folder = _resolved(path)
        rooted = any(folder.is_relative_to(root) for root in map(_real, self.roots))
        if not rooted and not anywhere:
            raise Refused(f"{path}: is in none of the folders that are open to you (sandbox.folders)")
        if reason := ("" if rooted else _reason(folder)) or self._reason(folder, writable):
            raise Refused(f"{path}: {reason}")
        return folder

    def mount(self, folder: FolderAttached) -> Mount:
        """Returns the mount of a thread's folder. Raises `Invalid` if that is gone, or is another one now."""
        path = Path(folder.path)
        if os.path.realpath(path) != folder.path or not path.is_dir():
            raise Invalid(f"{folder.path}: the folder of this thread is not there any more; attach another one")
        own = map(_real, (self.home, *self.files))
        private = tuple(place.relative_to(path).parts for place in own if place.is_relative_to(path))
        rules = Rules(folder.shown, private)
        return Mount(path, PROJECT, writable=folder.access == "read-write", rules=rules)

    def _reason(self, folder: Path, writable: bool) -> str:
        """Returns why not even a configured root may be chosen."""
        home = _real(self.home)
        if folder == Path("/"):
            return "is the whole machine"
        if folder.is_relative_to(home):
            return "is the data directory of this server, or in it"
        if writable and any(_real(place).is_relative_to(folder) for place in self.reads):
            return (
                "the server was started in it and reads config.yaml and .env there, which the agent could write; start "
                "the server in another directory (as ~/.sika), or attach the folder read-only"
            )
        return ""


def installation(home: Path, config: ConfigSource) -> Installation:
    """Returns the places of an installation as they are now."""
    return Installation(home, config.files, config.places, config.current().sandbox.folders)


def _reason(folder: Path) -> str:
    """Returns why a person may not choose a folder; empty if they may."""
    if folder == Path("/"):
        return "is the whole machine"
    homes = {_real(Path.home()), _real(Path(pwd.getpwuid(os.geteuid()).pw_dir))}
    if any(home == folder or home.is_relative_to(folder) for home in homes):
        return "is your home directory, or contains it; choose a folder in it"
    if str(folder) in _SHARED.split():
        return "is a folder of everybody; choose a folder in it"
    if any(folder.is_relative_to(place) for place in _SYSTEM.split()) and not any(
        folder.is_relative_to(place) and str(folder) != place for place in _OF_PEOPLE.split()
    ):
        return "is a folder of the system"
    for home in homes:
        if folder.is_relative_to(home) and folder.relative_to(home).parts[0].startswith((".", "Library")):
            return "holds settings of programs"
    if Rules().hidden(folder.parts[1:]):
        return "holds secrets"
    if folder.stat().st_uid != os.geteuid():
        return "belongs to another user of this machine (sandbox.folders can name it)"
    return ""


def _resolved(path: str) -> Path:
    if not path.startswith("/") or "\0" in path or len(os.fsencode(path)) > 4096:
        raise Invalid(f"{path[:200]!r}: is not an absolute path")
    try:
        folder = Path(path).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise Invalid(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not folder.is_dir():
        raise Invalid(f"{path}: is not a directory")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise Invalid(f"{path}: cannot be read")
    return folder


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))
