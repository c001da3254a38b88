"""What a socket is ready for, and waiting for either of two things."""

import select
import sys
from collections.abc import Awaitable, Callable

import anyio

__all__ = ["READ", "WRITE", "either", "ready_now"]

READ, WRITE = 1, 2  # of psycopg's `Wait` and `Ready`


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
