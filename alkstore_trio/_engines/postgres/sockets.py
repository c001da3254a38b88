"""Waiting for a socket by the running loop's own means."""

import select
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
from anyio.lowlevel import current_token

__all__ = ["READ", "WRITE", "Socket", "either", "ready_now"]

READ, WRITE = 1, 2  # of psycopg's `Wait` and `Ready`


class Socket:
    """Waits for a socket by the running loop's own means; one task at a time."""

    __slots__ = ("_future", "_loop", "readable")

    def __init__(self) -> None:
        self.readable: Callable[[int], Awaitable[object]] = anyio.wait_readable
        self._future: Any = None
        if current_token().backend_class.__module__.endswith("asyncio") and sys.platform != "win32":
            self._loop: Any = current_token().native_token
            self.readable = self._by_future

    async def _by_future(self, fd: int) -> None:
        future = self._future = self._loop.create_future()
        self._loop.add_reader(fd, self._end, fd)
        try:
            await future
        finally:
            if self._future is future:
                self._loop.remove_reader(fd)
                self._future = None

    def _end(self, fd: int, error: Exception | None = None) -> None:
        self._loop.remove_reader(fd)
        future, self._future = self._future, None
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def closing(self, fd: int) -> None:
        """Wake whoever waits: a closed descriptor leaves the loop without a word."""
        with suppress(RuntimeError):  # there is no loop any more: nobody waits
            anyio.notify_closing(fd)
        if self._future is not None:
            self._end(fd, anyio.ClosedResourceError())


def ready_now(fd: int, wanted: int) -> int:
    """What of that a socket is ready for at this moment."""
    reads, writes = wanted & READ, wanted & WRITE
    if sys.platform == "win32":
        readable, writable, _ = select.select([fd] if reads else [], [fd] if writes else [], [], 0)
        return (READ if readable else 0) | (WRITE if writable else 0)
    poll = select.poll()
    poll.register(fd, (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0))
    found = 0
    for _, events in poll.poll(0):
        found |= (READ if events & select.POLLIN else 0) | (WRITE if events & select.POLLOUT else 0)
        if events & ~(select.POLLIN | select.POLLOUT):  # reading or writing will tell what is wrong
            found |= wanted
    return found


async def either(fd: int, wanted: int) -> int:
    """Wait for a socket to be ready to write, or to read if that is wanted too."""
    found = 0

    async def until(wait: Callable[[int], Awaitable[object]], ready: int) -> None:
        nonlocal found
        await wait(fd)
        found |= ready
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until, anyio.wait_writable, WRITE)
        if wanted & READ:
            tasks.start_soon(until, anyio.wait_readable, READ)
    return found
