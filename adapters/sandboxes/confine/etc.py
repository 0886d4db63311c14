"""The /etc of commands: copies of those files of the host that programs need, and a list of users of their own."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from adapters.sandboxes.confine.prepared import prepared

_NAMES = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "alternatives", "localtime", "mime.types"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "pki/ca-trust", "pki/tls/certs"),
    *("hosts", "protocols", "services", "terminfo", "fonts", "magic", "python3"),
    *("chromium.d/README", "chromium.d/default-flags", "chromium.d/dev-shm"),
)
"""Files of /etc that programs need. Not all of ssl, pki and chromium.d: keys are there, too."""
_OF_NETWORK = ("resolv.conf", "host.conf", "gai.conf")
_PASSWD = "root:x:0:0:root:/:/sbin/nologin\nagent:x:1000:1000:agent:/mnt/user-data/workspace:/bin/sh\n"
_GROUP = "root:x:0:\nagent:x:1000:\n"


def folder(parent: Path, *, network: bool) -> Path:
    """Returns the folder for /etc. It is made anew when the host's files have changed (certificates, name servers)."""
    names = (*_NAMES, *(_OF_NETWORK if network else ()))
    key = hashlib.sha256(repr([(name, _version(name)) for name in names]).encode())
    return prepared(parent, f"etc-{key.hexdigest()[:16]}", lambda path: _fill(path, names))


def _version(name: str) -> tuple[int, int, int] | None:
    try:
        info = os.stat(f"/etc/{name}")
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def _fill(path: Path, names: tuple[str, ...]) -> None:
    (path / "passwd").write_text(_PASSWD)
    (path / "group").write_text(_GROUP)
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(Path("/etc") / name, path / name)
    for place, _, _ in os.walk(path):
        os.chmod(place, 0o755)


def _copy(source: Path, target: Path) -> None:
    """Copies a file or folder. Follows a link only at the top: links below lead to /usr or within the folder."""
    try:
        if source.is_dir():
            target.mkdir(exist_ok=True)
            for entry in source.iterdir():
                if entry.is_symlink():
                    (target / entry.name).symlink_to(os.readlink(entry))
                else:
                    _copy(entry, target / entry.name)
        elif source.is_file():
            shutil.copyfile(source, target)
    except PermissionError:
        return  # commands could not read it, either
