"""Program in the sandbox that gives a command its proxy: `python -I -S forwarder.py SOCKET COMMAND…`.

It listens on the sandbox's own loopback, passes each connection on to the unix socket of the proxy outside, and becomes
the command, whose variables name the proxy. Only the standard library, and little of it: it starts with every command
that may use the network.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys

CHUNK = 1 << 16
LOCAL = "localhost,127.0.0.1,::1"
"""Hosts inside the sandbox, which need no proxy."""
MOST = 256
"""Connections at a time; further ones wait in the listener's queue."""


class Forwarder:
    """Passes connections on to a unix socket, in both directions, until the process ends."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self._listener, self._path, self._poller = listener, path, select.poll()
        self._ends: dict[int, socket.socket] = {}
        self._peers: dict[int, int] = {}
        self._pending: dict[int, bytes] = {}
        """What is to be sent to an end."""
        self._ended: set[int] = set()
        """Ends that send nothing more."""

    def serve(self) -> None:
        while True:
            if len(self._ends) < 2 * MOST:
                self._poller.register(self._listener, select.POLLIN)
            else:
                self._unwatch(self._listener.fileno())
            for fd, events in self._poller.poll():
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._ends:
                    self._step(fd, events)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        outside = socket.socket(socket.AF_UNIX)
        try:
            outside.connect(self._path)
        except OSError:
            client.close()
            outside.close()
            return
        for end, peer in ((client, outside), (outside, client)):
            end.setblocking(False)
            self._ends[end.fileno()], self._peers[end.fileno()] = end, peer.fileno()
            self._pending[end.fileno()] = b""
        self._watch(client.fileno())
        self._watch(outside.fileno())

    def _step(self, fd: int, events: int) -> None:
        peer = self._peers[fd]
        try:
            if events & select.POLLOUT:
                self._send(fd)
            else:
                self._receive(fd, peer)
        except BlockingIOError:
            pass
        except OSError:
            self._close(fd)
        if {fd, peer} <= self._ended and not self._pending.get(fd) and not self._pending.get(peer):
            self._close(fd)
        for end in (fd, peer):
            if end in self._ends:
                self._watch(end)

    def _send(self, fd: int) -> None:
        sent = self._ends[fd].send(self._pending[fd])
        self._pending[fd] = self._pending[fd][sent:]
        self._finish(fd)

    def _receive(self, fd: int, peer: int) -> None:
        data = b"" if fd in self._ended else self._ends[fd].recv(CHUNK)
        self._pending[peer] += data
        if not data and fd in self._ended:
            raise BrokenPipeError  # it hung up, and takes nothing more
        if not data:
            self._ended.add(fd)
            self._finish(peer)

    def _finish(self, fd: int) -> None:
        """Ends what is sent to an end if there is no more of it."""
        if not self._pending[fd] and self._peers[fd] in self._ended:
            self._ends[fd].shutdown(socket.SHUT_WR)

    def _watch(self, fd: int) -> None:
        """Reads from an end only while its peer has taken what came before."""
        reads = fd not in self._ended and not self._pending[self._peers[fd]]
        events = (select.POLLIN if reads else 0) | (select.POLLOUT if self._pending[fd] else 0)
        if events:
            self._poller.register(fd, events)
        else:
            self._unwatch(fd)

    def _unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._poller.unregister(fd)

    def _close(self, fd: int) -> None:
        for end in (fd, self._peers.get(fd, fd)):
            if end in self._ends:
                self._unwatch(end)
                del self._peers[end], self._pending[end]
                self._ended.discard(end)
                self._ends.pop(end).close()


def main(path: str, command: list[str]) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=MOST)
    if os.fork() == 0:
        for fd in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)  # the command's output ends with the command
        Forwarder(listener, path).serve()
    proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    variables = {name: proxy for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    local = {"no_proxy": LOCAL, "NO_PROXY": LOCAL, "NODE_USE_ENV_PROXY": "1"}  # node's own fetch, from 24 on
    os.execvpe(command[0], command, {**os.environ, **variables, **local})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
