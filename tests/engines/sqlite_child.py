"""The other processes of `test_sqlite_processes`: ``python -m tests.engines.sqlite_child ROLE LOOP PATH ...``.

Each is one of the `children`; it ends by itself, whatever becomes of the parent.
"""

import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import anyio
import anyio.to_thread

from alkstore_trio import Store, open_sqlite
from alkstore_trio._engines.sqlite import file
from alkstore_trio._engines.sqlite.peers import Peers
from tests.engines.children import LONGEST, PADDING, effects, forks, load, say

__all__ = ["TASKS", "Outcome"]

TASKS = 4  # of a child under load


# Killed at any instant


async def work(path: str, name: str) -> None:
    """Do what a kill may come upon."""
    async with open_sqlite(path, durability="normal") as store:
        await effects(store, name, 3)  # several tasks, so that groups are committed


# Stopped with a claim


async def claimant(path: str) -> None:
    """Claim a job of 0.3 seconds; ack it when a line comes."""
    async with open_sqlite(path, durability="normal") as store:
        queue = store.queue("jobs", visibility_timeout=0.3)
        await queue.enqueue("job")
        handle = await queue.claim("stopped")
        assert handle is not None
        say("claimed")
        await anyio.to_thread.run_sync(sys.stdin.readline)
        say(await handle.ack())


# Under load


class Outcome(NamedTuple):
    """What a child under load has come to."""

    entered: list[str]
    claimed: list[str]
    refused: list[str]  # acks
    checkpoints: int
    warnings: list[str]


@contextmanager
def logged() -> Iterator[list[str]]:
    """What the library logs during the block, but for its remark on the version of SQLite."""
    messages: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "fixed in" not in record.getMessage():
                messages.append(record.getMessage())

    handler = Keeping()
    logging.getLogger("alkstore_trio").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("alkstore_trio").removeHandler(handler)


async def busy(path: str, name: str, seconds: str, wal_limit: str) -> None:
    """Work as fast as it goes, and say which jobs went in and out."""
    file._WAL_LIMIT = int(wal_limit)
    copy = file.Checkpoints._copy
    with patch.object(file.Checkpoints, "_copy", autospec=True, side_effect=copy) as checkpoint, logged() as warnings:
        async with open_sqlite(path, durability="normal") as store:
            done = await load(store, name, TASKS, float(seconds))
    say(Outcome(*done, checkpoint.call_count, warnings))


async def reopen(path: str, name: str, seconds: str, wal_limit: str) -> None:
    """Open the file, write and close it, again and again."""
    file._WAL_LIMIT = int(wal_limit)
    entered: list[str] = []
    end = time.monotonic() + float(seconds)
    with logged() as warnings:
        while time.monotonic() < end:
            async with open_sqlite(path, durability="normal") as store:
                await store.queue("jobs").enqueue([f"{name}.{len(entered)}", PADDING])
                entered.append(f"{name}.{len(entered)}")
    say(Outcome(entered, [], [], 0, warnings))


# Waking others


async def waker(path: str, behind: str, hints: str) -> None:
    """Do a verb for each line, and say when it was called. Its clock is ``behind`` by so many seconds."""
    seconds = float(behind)
    verbs: dict[str, Callable[[Store, str], Awaitable[object]]] = {
        "notify": lambda store, _: store.notify("channel"),
        "enqueue": lambda store, name: store.queue("work").enqueue(name),
        "publish": lambda store, name: store.stream("stream").publish(name),
        "schedule": lambda store, name: store.schedule(name, "@every 1h", "scheduled", name),
    }
    async with AsyncExitStack() as stack:
        if hints == "lost":
            stack.enter_context(patch.object(Peers, "tell"))
        opening = open_sqlite(path, durability="normal", clock=lambda: time.time() - seconds)
        store = await stack.enter_async_context(opening)
        say("ready")
        for n in itertools.count():
            verb = (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()
            if not verb:
                return
            called = time.monotonic()
            await verbs[verb](store, f"{verb} {n}")
            say(called)


async def idle(path: str) -> None:
    """Have a store open until a line comes."""
    async with open_sqlite(path, durability="normal"):
        say("ready")
        await anyio.to_thread.run_sync(sys.stdin.readline)


async def halfway(path: str) -> None:
    """Be killed while the store makes its FIFO, before others see it."""
    with patch.object(os, "rename", lambda *_: os.kill(os.getpid(), signal.SIGKILL)):
        await idle(path)


_ROLES: dict[str, Callable[..., Awaitable[None]]] = {
    role.__name__: role for role in (claimant, busy, reopen, waker, idle, halfway)
}


def main(role: str, loop: str, *arguments: str) -> None:
    signal.alarm(LONGEST)
    if role == "forks":
        forks(loop, partial(work, *arguments))
    else:
        anyio.run(_ROLES[role], *arguments, backend=loop)


if __name__ == "__main__":
    main(*sys.argv[1:])
