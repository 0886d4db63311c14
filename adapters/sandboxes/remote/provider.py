"""Sandboxes by the all-in-one image: at one address for the installation, or by a provisioner (`provisioner`)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from anyio import to_thread

from adapters.sandboxes.docker.background import Background
from adapters.sandboxes.docker.calls import sweep
from adapters.sandboxes.provider import environment
from adapters.sandboxes.remote.api import Image
from adapters.sandboxes.remote.link import Api, Link, script
from adapters.sandboxes.remote.sandbox import AioSandbox
from core.config.sandbox import Aio as Settings
from core.errors import Unavailable
from core.files.paths import ROOTS, USER_DATA, WORKSPACE, Tree, make_thread, mounts_of, thread_root
from core.identity.installation import Installation
from core.ports.sandbox import Machine, MachineLost, Resident, SandboxSetup

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHECK_SECONDS = 5.0
OPEN_SECONDS = 10.0
TOOLS = ("base64", "du", "find", "gzip", "head", "mkfifo", "setsid", "tail", "tar", "tee", "wc", "xargs")
_CLAIM = """\
for tool in {tools}; do command -v $tool >/dev/null || {{ echo "missing $tool"; exit; }}; done
find / -maxdepth 0 -printf '' 2>/dev/null || {{ echo "missing GNU-find"; exit; }}
mkdir -p {folder} {roots} || {{ echo "closed"; exit; }}
(set -C; echo '{claim}' >{folder}/machine) 2>/dev/null
cat {folder}/machine
"""

NOT_COPIED = "changes in skills and sandbox.mounts are not copied back"
"""The weakness that all machines have which do not see this machine's files."""


class Rooms:
    """Parts that sandboxes on machines of the all-in-one agent share, whoever starts these machines."""

    def __init__(self, setup: SandboxSetup, background: Background, path: str = PATH) -> None:
        self.setup, self._background, self._path = setup, background, path

    def installation(self) -> str:
        return Installation(self.setup.home).derived("sandbox machines").reveal()[:16]

    async def claim(self, image: Api, user: str, thread: str, token: str = "", further: str = "") -> str:
        """Makes a machine the thread's, with its agent and its folders. Returns the token of the claim, by default a
        new one. `further`: settings of the agent. Raises `Unavailable` if it serves another thread.
        """
        folder = await _folder(image)
        installation = await to_thread.run_sync(self.installation)
        roots = " ".join(f"{USER_DATA}/{name}" for name in ROOTS)
        claim = f"{token or secrets.token_hex(8)} {installation} {user} {thread}"
        text = _CLAIM.format(tools=" ".join(TOOLS), folder=folder, roots=roots, claim=claim)
        match (await image.order("sh", "-c", text)).split():
            case ["missing", tool]:
                raise Unavailable(f"the sandbox's image lacks the program {tool}")
            case [token, owner, of_user, of_thread] if (owner, of_user, of_thread) == (installation, user, thread):
                await image.upload(f"{folder}/agent.sh", await to_thread.run_sync(script, further))
                return token
            case [_, _, _, _]:
                raise Unavailable("the sandbox serves another thread; with one sandbox, set sandbox.replicas to 1")
        raise Unavailable(f"the sandbox's user cannot make the folders {roots}")

    async def opened(
        self,
        image: Api,
        token: str,
        user: str,
        thread: str,
        gone: Callable[[], Awaitable[bool]],
        abandon: Callable[[], Awaitable[None]],
    ) -> AioSandbox:
        try:
            folder = await _folder(image, OPEN_SECONDS)
        except Unavailable as error:
            if await gone():
                raise MachineLost("the sandbox's machine is gone") from error
            raise
        link = Link(image, folder, token, gone)
        await link.ask("echo", "here")
        return await to_thread.run_sync(self._sandbox, link, token, user, thread, abandon)

    def _sandbox(
        self, link: Link, token: str, user: str, thread: str, abandon: Callable[[], Awaitable[None]]
    ) -> AioSandbox:
        setup, root = self.setup, thread_root(self.setup.home, user, thread)
        make_thread(root)
        records = root / "machines" / hashlib.sha256(token.encode()).hexdigest()[:16]
        records.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(records.parent, records.name)
        tree = Tree(mounts_of(root, setup.skills, setup.mounts))
        variables = environment(WORKSPACE, self._path, setup.environment)
        limits = dict(setup.quota)
        return AioSandbox(root, tree, records, link, setup.max_file_mb, limits, variables, abandon, self._background)


class Aio:
    """One sandbox for the installation, at a fixed address; it serves one thread at a time.

    Guarantees: those of `AioSandbox`. Non-guarantees: limits, network and isolation are those that its container was
    started with. Its API asks for no key, so the address must be a private one.
    """

    name = "aio"

    def __init__(self, setup: SandboxSetup) -> None:
        self._settings = msgspec.convert(dict(setup.settings), Settings)
        self._background, self._images = Background(), dict[str, Image]()
        self._rooms = Rooms(setup, self._background)

    async def check(self) -> str | None:
        if not self._settings.url.startswith(("http://", "https://")):
            return "sandbox.aio.url is not set: the address of a container of the all-in-one image, as http://host:8080"
        try:
            await self._image.ready(CHECK_SECONDS)
        except Unavailable as error:
            return f"{error}. Start a container of the all-in-one image there, on a private network."
        return None

    def strength(self) -> str:
        return "the limits of its container"

    def weaknesses(self) -> Sequence[str]:
        return ("limits and network are those of the container, not of the section sandbox", NOT_COPIED)

    async def acquire(self, user: str, thread: str) -> AioSandbox:
        return await self.open(await self.start(user, thread), user, thread)

    async def run(self) -> None:
        await self._background.run()

    async def start(self, user: str, thread: str) -> Machine:
        await self._image.ready()
        return Machine(id=await self._rooms.claim(self._image, user, thread), address=self._settings.url)

    async def open(self, machine: Machine, user: str, thread: str) -> AioSandbox:
        async def gone() -> bool:
            return False  # nobody can tell: it may be started again

        return await self._rooms.opened(self._image, machine.id, user, thread, gone, lambda: self.end(machine))

    async def end(self, machine: Machine) -> None:
        """Ends the thread's commands, and empties the sandbox for the next thread."""
        link = await self._link(machine.id)
        try:
            await link.ask("clear")
        except MachineLost:
            return

    async def residents(self) -> Sequence[Resident]:
        folder = await _folder(self._image, CHECK_SECONDS)
        words = (await self._image.order("sh", "-c", f"cat {folder}/machine 2>/dev/null; true")).split()
        installation = await to_thread.run_sync(self._rooms.installation)
        if len(words) != 4 or words[1] != installation:
            return []
        return [Resident(Machine(id=words[0], address=self._settings.url), words[2], words[3])]

    async def _link(self, token: str) -> Link:
        async def gone() -> bool:
            return False

        return Link(self._image, await _folder(self._image, OPEN_SECONDS), token, gone)

    @property
    def _image(self) -> Image:
        return self._images.setdefault("", Image(self._settings.url))


async def _folder(image: Api, seconds: float = 60.0) -> str:
    home = await image.ready(seconds)
    plain = Path(home).is_absolute() and all(c.isalnum() or c in "/._-" for c in home)
    return f"{home if plain else '/tmp'}/.sika"
