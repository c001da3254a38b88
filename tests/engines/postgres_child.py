"""The other processes of `test_postgres_processes`: ``python -m tests.engines.postgres_child ROLE LOOP DSN SCHEMA``.

Each is one of the `children`; it ends by itself, whatever becomes of the parent.
"""

import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from unittest.mock import patch

import anyio
import anyio.to_thread

from tests.engines.children import LONGEST, effects, forks, load, say
from tests.engines.places import Place

# Killed at any instant


async def work(place: Place, name: str) -> None:
    """Do what a kill may come upon."""
    async with place.open(max_connections=5) as store:
        say("ready", name)
        await effects(store, name, 4)  # several tasks, so that some travel together and others wait for each other


# Stopped with a claim


async def claimant(place: Place, seconds: str) -> None:
    """Claim a job for so long; ack it when a line comes."""
    async with place.open() as store:
        queue = store.queue("jobs", visibility_timeout=float(seconds))
        await queue.enqueue("job")
        handle = await queue.claim("stopped")
        assert handle is not None
        say("claimed", handle.job.claim_expires_at)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        say(await handle.ack())


# Under load


async def busy(place: Place, name: str, seconds: str) -> None:
    """Work as fast as it goes, and say which jobs went in and out."""
    async with place.open() as store:
        say(*await load(store, name, 4, float(seconds)))


# Of another opinion about the time


async def astray(place: Place, seconds: str) -> None:
    """Claim, on a host whose clock is wrong by so many seconds, for each line; say until when, or null."""
    right = time.time
    with patch.object(time, "time", lambda: right() + float(seconds)):
        async with place.open() as store:
            say("ready")
            while await anyio.to_thread.run_sync(sys.stdin.readline):
                handle = await store.queue("jobs").claim("astray")
                say(None if handle is None else handle.job.claim_expires_at)


# Leading


async def leader(place: Place) -> None:
    """Run the schedules."""
    async with place.open() as store, anyio.create_task_group() as tasks:
        await tasks.start(store.run_schedules)
        say("leads")


_ROLES: dict[str, Callable[..., Awaitable[None]]] = {role.__name__: role for role in (claimant, busy, astray, leader)}


def main(role: str, loop: str, dsn: str, schema: str, *arguments: str) -> None:
    signal.alarm(LONGEST)
    if role == "forks":
        import alkstore_trio._engines.postgres  # noqa: F401  # what is imported here no child has to import

        forks(loop, partial(work, Place(dsn, schema)))
    else:
        anyio.run(_ROLES[role], Place(dsn, schema), *arguments, backend=loop)


if __name__ == "__main__":
    main(*sys.argv[1:])
