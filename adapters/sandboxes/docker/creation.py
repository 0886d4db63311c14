"""The rules of the socket proxy for the creation of a container: every field is known, or refused if it says anything.

The engine reads names of fields in any case and takes the last of two. So the body is never passed on: a new one is
made of the fields that were checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

MAX_MOUNTS = 64
_USER = re.compile(r"[1-9]\d{0,9}:[1-9]\d{0,9}\Z")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/usr")
"""Directories of a container that no mount may replace."""

Check = Callable[[Any], bool]


class Refused(Exception):
    """A request that is not passed on."""

    def __init__(self, reason: str, status: int = 403) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Rules:
    """The one image, and the one volume whose directories may be mounted."""

    data: Path
    """The volume, as the server and the proxy see it."""
    mountpoint: str
    """The volume, as the engine sees it."""
    volume: str
    image: str
    runtime: str = ""
    label: str = "sika.socketproxy"


def permitted_body(body: Any, rules: Rules) -> dict[str, Any]:
    """Returns the body of a creation that is passed on. Raises `Refused` with the field. Blocks briefly."""
    config = _known("", body, {**_CONFIG, "Image": lambda value: value == rules.image}, ("HostConfig", "Labels"))
    host_checks = {**_HOST, "Runtime": lambda value: value == rules.runtime}  # an empty text is left out
    host = _known("HostConfig.", body.get("HostConfig"), host_checks, ("Mounts",))
    for name in _REQUIRED:
        if name not in host:
            raise Refused(f"HostConfig.{name}: is required")
    for name in ("Image", "User"):
        if name not in config:
            raise Refused(f"{name}: is required")
    if host["MemorySwap"] != host["Memory"]:
        raise Refused("HostConfig.MemorySwap: expected the value of Memory")
    labels = body.get("Labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise Refused("Labels: expected texts")
    return {
        **config,
        "Labels": {**labels, rules.label: rules.volume},
        "HostConfig": {**host, "Mounts": _mounts(body["HostConfig"].get("Mounts") or [], rules)},
    }


def _known(prefix: str, values: Any, checks: Mapping[str, Check], besides: tuple[str, ...]) -> dict[str, Any]:
    """Returns the fields that a check accepts. Fields that say nothing are left out; others are refused."""
    if not isinstance(values, dict):
        raise Refused(f"{prefix or 'body'}: expected an object")
    result = {}
    for name, value in values.items():
        if name in besides or value in (None, False, ""):
            continue
        if (check := checks.get(name)) is None:
            if value not in ([], {}) or name in ("MaskedPaths", "ReadonlyPaths"):
                raise Refused(f"{prefix}{name}: is not allowed")
        elif not check(value):
            raise Refused(f"{prefix}{name}: {str(value)[:100]!r} is not allowed")
        else:
            result[name] = value
    return result


def _mounts(mounts: Any, rules: Rules) -> list[dict[str, Any]]:
    if not isinstance(mounts, list) or len(mounts) > MAX_MOUNTS:
        raise Refused(f"HostConfig.Mounts: expected at most {MAX_MOUNTS}")
    return [_mount(f"HostConfig.Mounts[{index}].", mount, rules) for index, mount in enumerate(mounts)]


def _mount(prefix: str, mount: Any, rules: Rules) -> dict[str, Any]:
    checks: dict[str, Check] = {
        "Type": lambda value: value == "bind",
        "Source": _is_text,
        "Target": _is_target,
        "ReadOnly": lambda value: value is True,
    }
    fields = _known(prefix, mount, checks, ())
    if not {"Type", "Source", "Target"} <= fields.keys():
        raise Refused(f"{prefix}Type, Source and Target are required")
    return {**fields, "Source": _outside(f"{prefix}Source", fields["Source"], rules)}


def _outside(name: str, source: str, rules: Rules) -> str:
    """Returns where the engine sees a directory of the data directory. It must be there, without links on the way."""
    path = PurePosixPath(source)
    if ".." in path.parts or not path.is_relative_to(rules.data) or path == PurePosixPath(rules.data):
        raise Refused(f"{name}: {source[:200]} is not below {rules.data}")
    parts = path.relative_to(rules.data).parts
    directory = os.open(rules.data, _DIRECTORY)
    try:
        for part in parts:
            inner = os.open(part, _DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = inner
    except (OSError, ValueError) as error:
        raise Refused(f"{name}: {source[:200]} is no directory, or has a link on its way") from error
    finally:
        os.close(directory)
    return str(PurePosixPath(rules.mountpoint, *parts))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_target(value: Any) -> bool:
    if not _is_text(value) or not value.startswith("/") or ".." in PurePosixPath(value).parts:
        return False
    path = PurePosixPath("/", value.lstrip("/"))
    return path != PurePosixPath("/") and not any(path.is_relative_to(place) for place in _SYSTEM)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_tmpfs(value: Any) -> bool:
    """True for /tmp in memory, of a stated size and without devices."""
    options = value.get("/tmp") if isinstance(value, dict) and set(value) == {"/tmp"} else None
    words = options.split(",") if isinstance(options, str) else []
    return {"nosuid", "nodev"} <= set(words) and any(re.fullmatch(r"size=[1-9]\d*", word) for word in words)


def _is_logs(value: Any) -> bool:
    return isinstance(value, dict) and value.get("Type") == "json-file" and set(value) <= {"Type", "Config"}


_CONFIG: Mapping[str, Check] = {
    "User": lambda value: isinstance(value, str) and _USER.match(value) is not None,
    "Hostname": _is_text,
    "WorkingDir": _is_text,
    "Entrypoint": _is_texts,
    "Cmd": _is_texts,
    "Env": _is_texts,
    "AttachStdout": lambda value: value is True,
    "AttachStderr": lambda value: value is True,
}
_HOST: Mapping[str, Check] = {
    "ReadonlyRootfs": lambda value: value is True,
    "CapDrop": lambda value: value == ["ALL"],
    "SecurityOpt": lambda value: value == ["no-new-privileges"],
    "NetworkMode": lambda value: value == "none",
    "IpcMode": lambda value: value == "private",
    "PidsLimit": _is_number,
    "Memory": _is_number,
    "MemorySwap": _is_number,
    "NanoCpus": _is_number,
    "ShmSize": _is_number,
    "OomScoreAdj": _is_number,
    "Init": lambda value: value is True,
    "Tmpfs": _is_tmpfs,
    "Ulimits": lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
    "LogConfig": _is_logs,
}
_REQUIRED = ("ReadonlyRootfs", "CapDrop", "SecurityOpt", "NetworkMode", "PidsLimit", "Memory", "MemorySwap", "NanoCpus")
