"""The address of an engine, and the files of its TLS."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from docker.tls import TLSConfig

DEFAULT_HOST = "unix:///var/run/docker.sock"
FILES = ("ca.pem", "cert.pem", "key.pem")
"""Names in the folder `DOCKER_CERT_PATH`, as the program `docker` has them."""


class Address:
    """Where an engine answers: the setting, else `DOCKER_HOST`, else the usual socket. `certificates` is the folder of
    its TLS, None without TLS: that of `DOCKER_CERT_PATH`, or `~/.docker` with `DOCKER_TLS_VERIFY`. An engine with TLS
    must always prove its name.
    """

    def __init__(self, host: str, variables: Mapping[str, str] = os.environ) -> None:
        self.host = host or variables.get("DOCKER_HOST") or DEFAULT_HOST
        folder = variables.get("DOCKER_CERT_PATH", "")
        if not folder and variables.get("DOCKER_TLS_VERIFY"):
            folder = str(Path("~/.docker").expanduser())
        self.certificates = Path(folder) if folder and self.host.startswith("tcp://") else None

    def problem(self, remote: bool) -> str | None:
        """Returns why an engine is not asked at this address. `remote`: it is on another machine."""
        if not self.host.startswith(("unix://", "tcp://")):
            return f"sandbox.docker.host: {self.host} is neither unix:// nor tcp://."
        if self.certificates is None:
            if remote and self.host.startswith("tcp://") and not _is_loopback(self.host):
                return (
                    f"sandbox.docker.host: {self.host} has no TLS, and whoever reaches or reads it is root there. Set "
                    f"DOCKER_CERT_PATH to the folder of {', '.join(FILES)}, or lead a tunnel to loopback."
                )
            return None
        if not remote:
            return "sandbox.docker.host: an engine with TLS (DOCKER_CERT_PATH) needs sandbox.docker.remote: true."
        missing = [name for name in FILES if not (self.certificates / name).is_file()]
        return f"DOCKER_CERT_PATH: {self.certificates} has no {', '.join(missing)}." if missing else None

    def tls(self) -> TLSConfig | bool:
        """Returns the TLS of the package `docker`; False: none."""
        if self.certificates is None:
            return False
        ca, certificate, key = (str(self.certificates / name) for name in FILES)
        return TLSConfig(client_cert=(certificate, key), ca_cert=ca, verify=True)


def _is_loopback(host: str) -> bool:
    name = urlsplit(host).hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
