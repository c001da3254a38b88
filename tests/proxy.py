"""A network that fails on demand: a TCP proxy between a client and a server, on either loop.

What a test asks of it has happened when the call returns, and nothing is waited for: the methods are synchronous, and
to be called on the loop that the proxy runs on. It knows nothing of what it carries.
"""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import attrs
from anyio import ClosedResourceError, notify_closing, wait_readable, wait_writable
from anyio.lowlevel import checkpoint

__all__ = ["Proxy", "proxy"]

_CHUNK = 2**16  # bytes
_RESET = struct.pack("ii", 1, 0)  # a linger of 0 seconds: what closes such a socket sends an RST


@attrs.define(eq=False)
class _Link:
    """A client's connection with the one made for it."""

    client: socket.socket
    server: socket.socket | None = None
    lost: bool = False  # half-open: it has swallowed bytes, so it is never of use again
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)

    def close(self) -> None:
        """Close both sides, once what they were sent has arrived."""
        for side in (self.client, self.server):
            if side is not None and side.fileno() >= 0:
                notify_closing(side)  # a closed descriptor leaves a loop without a word to who waits for it
                side.close()
        self.scope.cancel()

    def reset(self) -> None:
        """Close both sides abruptly."""
        for side in (self.client, self.server):
            if side is not None and side.fileno() >= 0 and side.family != socket.AF_UNIX:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()


class Proxy:
    """A proxy: listens on ``port`` of 127.0.0.1."""

    def __init__(self, target: Path | tuple[str, int], listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self._target = target
        self._listener = listener
        self._links: set[_Link] = set()
        self._refusing = False
        self._losing = False
        self._going = anyio.Event()
        self._going.set()

    # What a test does to it

    def cut(self) -> None:
        """Reset all connections, on both sides; new ones are as welcome as before."""
        for link in list(self._links):
            link.reset()

    def stall(self) -> None:
        """Forward nothing until `resume`, but lose nothing; new connections wait for the server."""
        if self._going.is_set():
            self._going = anyio.Event()

    def half_open(self) -> None:
        """Swallow what either side sends, from now on and on new connections too; neither learns of the other's end.

        The server keeps its session, with all that it holds. Since each byte is taken, and keepalives are answered,
        no timeout of TCP's helps: only who expects an answer, and stops waiting for it, can tell.
        """
        self._losing = True
        for link in self._links:
            link.lost = True
        self._going.set()

    def resume(self) -> None:
        """End `stall` and `half_open`; connections that were half-open stay so until they are cut."""
        self._losing = False
        self._going.set()

    def refuse(self) -> None:
        """Reset new connections at once, until `accept`; those that are there stay."""
        self._refusing = True

    def accept(self) -> None:
        """End `refuse`."""
        self._refusing = False

    # How it works

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                await wait_readable(self._listener)
                with suppress(BlockingIOError, ConnectionAbortedError):  # who has left again
                    client, _ = self._listener.accept()
                    _prepare(client)
                    link = _Link(client, lost=self._losing)
                    if self._refusing:
                        link.reset()
                    else:
                        self._links.add(link)
                        tasks.start_soon(self._carry, link)

    async def _carry(self, link: _Link) -> None:
        """See a connection through to its end."""
        try:
            with link.scope:
                await self._leave()
                if not link.lost:
                    await self._connect(link)
                if link.server is None:
                    await self._pump(link, link.client, link.client)  # swallowed
                else:
                    async with anyio.create_task_group() as directions:
                        directions.start_soon(self._pump, link, link.client, link.server)
                        directions.start_soon(self._pump, link, link.server, link.client)
                if link.lost:
                    await anyio.sleep_forever()
        finally:
            self._links.discard(link)
            link.close()

    async def _connect(self, link: _Link) -> None:
        """Connect to the server; where there is none the client is reset."""
        family, address = _addressed(self._target)
        link.server = socket.socket(family)
        _prepare(link.server)
        try:
            with suppress(BlockingIOError):
                link.server.connect(address)
            await wait_writable(link.server)  # now it is connected, or the first use of it says why not
        except (OSError, ClosedResourceError):
            link.reset()

    async def _leave(self) -> None:
        """Wait until something may be forwarded, which then is to be done at once."""
        await checkpoint()
        while not self._going.is_set():  # there may be a new stall by the time that the end of the last is noticed
            await self._going.wait()

    async def _pump(self, link: _Link, source: socket.socket, sink: socket.socket) -> None:
        """Forward one direction, its end included."""
        try:
            while True:
                await self._leave()
                try:
                    data = source.recv(_CHUNK)
                except BlockingIOError:
                    await wait_readable(source)
                    continue
                if not data:
                    break
                while data and not link.lost:
                    try:
                        data = data[sink.send(data) :]
                    except BlockingIOError:
                        await wait_writable(sink)
                        await self._leave()
            if not link.lost:
                sink.shutdown(socket.SHUT_WR)
        except (OSError, ClosedResourceError):
            if not link.lost:
                link.reset()


def _addressed(target: Path | tuple[str, int]) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    if isinstance(target, Path):
        return socket.AF_UNIX, str(target)
    return socket.AF_INET, target


def _prepare(side: socket.socket) -> None:
    side.setblocking(False)
    if side.family != socket.AF_UNIX:
        side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@asynccontextmanager
async def proxy(target: Path | tuple[str, int]) -> AsyncIterator[Proxy]:
    """A proxy to a Unix socket or to a host and port, which need not be there yet; at its end all is cut."""
    failure: Exception | None = None
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        listener.setblocking(False)
        between = Proxy(target, listener)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(between._run)
            try:
                yield between
            except Exception as error:
                failure = error  # raised below, ungrouped
            finally:
                between.cut()
                tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
