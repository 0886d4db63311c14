"""Settings of the sandbox: where the agent's commands run, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from core.config.sections import Count, Positive, Seconds, Secret, Section


class Mount(Section, frozen=True, kw_only=True):
    """Further folders of this machine that commands see."""

    host_path: str
    """Path on this machine."""
    container_path: str
    """Path in the sandbox, as `/mnt/data`."""
    read_only: bool = False
    """True if commands may only read it."""


class Credential(Section, frozen=True, kw_only=True):
    """A header that the proxy adds to requests to a host over TLS, and that commands never see."""

    host: str
    """As in `allow`."""
    header: str = "Authorization"
    """Name of the header."""
    value: Secret
    """Such as `Bearer $TOKEN`."""


class Egress(Section, frozen=True, kw_only=True):
    """Where commands may connect to, if `network` is on: HTTP and HTTPS through a proxy, and nothing else."""

    allow: tuple[str, ...] = ("*",)
    """Hosts: `example.com`, `*.example.com`, with a port as in `example.com:8443` or `example.com:*` (default: 80 and
    443). `*` is every host that has a public address."""
    allow_private: tuple[str, ...] = ()
    """Hosts that may have a private address, such as `git.internal:443`."""
    credentials: tuple[Credential, ...] = ()
    max_mb: Count = 4096
    """Bytes that one command transfers, in both directions. 0: no limit."""
    direct: bool = False
    """True: commands have this machine's network as it is, its own ports included, without a proxy or a record."""


class Docker(Section, frozen=True, kw_only=True):
    """The provider `docker`."""

    host: str = ""
    """The engine, as `unix:///run/docker.sock` or `tcp://…` of a socket proxy. Empty: `DOCKER_HOST`, else the usual
    socket. It mounts the folders of threads, so that it must see the files of this machine, unless `remote` is true."""
    remote: bool = False
    """True: the engine does not see the files of this machine. They are copied to its containers and back. `host` may
    be `tcp://…` with TLS by the files of `DOCKER_CERT_PATH`; without TLS, of loopback only. `host_base_dir` has no
    effect then."""
    image: str = "sika-sandbox"
    """Image of the containers: any with a POSIX shell. The default is built from `adapters/sandboxes/docker`."""
    runtime: str = ""
    """Runtime of the engine with a stronger boundary, as `runsc` (gVisor) or `kata`. Empty: the engine's default."""
    cpus: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    """Processors for the commands of one thread together."""
    host_base_dir: str = ""
    """Where the data directory lies on the engine's machine, if the server itself runs in a container (DeerFlow's
    `DEER_FLOW_HOST_BASE_DIR`). Empty: where the server sees it."""


class Aio(Section, frozen=True, kw_only=True):
    """The provider `aio`."""

    url: str = ""
    """Address of a container of the all-in-one image, as `http://sandbox:8080`, on a private network: its API asks for
    no key. It serves one thread at a time; set `replicas` to 1."""


class Provisioner(Section, frozen=True, kw_only=True):
    """The provider `provisioner`: a service that starts a container of the all-in-one image for each thread."""

    url: str = ""
    """Address of the service, as `http://provisioner:8002` (`sika provisioner`)."""
    api_key: Secret | None = None
    """The service's bearer key."""


class Sandbox(Section, frozen=True, kw_only=True):
    """The sandbox: where the agent's commands run, and their limits."""

    provider: str = "auto"
    """`bubblewrap` confines commands (Linux). `docker`, `aio` and `provisioner` run them in containers. `host` runs
    them on this machine without confinement. `auto` takes the strongest that works here: bubblewrap, a container
    engine, else `host`. Or the name of a provider of an installed package."""
    docker: Docker = Docker()
    aio: Aio = Aio()
    provisioner: Provisioner = Provisioner()
    allow_host_bash: bool = False
    """With the provider `host`: whether the agent gets a shell. Else it has file tools only."""
    network: bool = False
    """True if commands can reach the network, as far as `egress` allows."""
    egress: Egress = Egress()
    timeout_seconds: Seconds = 600
    """Time for one command that names no timeout."""
    max_timeout_seconds: Seconds = 3500
    """The longest timeout that the agent may give a command."""
    background_seconds: Seconds = 3600
    """Time for one command in the background."""
    max_background: Positive = 8
    """Commands of one thread that run in the background at the same time."""
    idle_seconds: Count = 600
    """Time that a machine stays after its last use, where each thread has one (a container, a pod); with bubblewrap,
    the thread's /tmp. 0: it stays."""
    replicas: Count = 3
    """Number of machines above which the least recently used one is ended when another is started. One in use is never
    ended, so there may be more. 0: no limit."""
    stop_on_exit: bool = False
    """True if machines end with the server, but for those that another worker uses."""
    memory_mb: Positive = 2048
    """Memory of one command, all its processes together."""
    max_processes: Positive = 256
    """Processes of one command."""
    max_file_mb: Positive = 1024
    """Size of one file."""
    max_thread_mb: Count = 4096
    """Size of all files of one thread; a command or another agent that exceeds it is ended. 0: no limit."""
    max_thread_files: Count = 200_000
    """Number of files of one thread. 0: no limit."""
    max_user_mb: Count = 20_480
    """Size of the files of all threads of one user. 0: no limit."""
    max_user_files: Count = 1_000_000
    """Number of files of all threads of one user. 0: no limit."""
    mounts: tuple[Mount, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders of this machine in which every account may let its threads work (`PUT /api/threads/ID/folder`), as
    `/srv/projects`. Elsewhere only administrators may, and the person at a server without accounts."""
    environment: Mapping[str, Secret] = {}
    """Variables that commands see. A `$NAME` that is not set is empty here."""
    bash_output_max_chars: Count = 30_000
    """Characters of a command's output that the model sees. A longer one is cut in the middle, and goes to a file."""
    read_file_output_max_chars: Count = 50_000
    """Characters of a file that the model sees in one call."""
    ls_output_max_chars: Count = 20_000
    """Characters of a listing that the model sees."""
