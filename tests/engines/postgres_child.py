"""The other processes of `test_postgres_processes`: ``python -m tests.engines.postgres_child ROLE LOOP DSN SCHEMA``.

What a child does it says in lines of JSON on its standard output, each written whole before the next step. It asserts
nothing: its parent reads the lines and judges. It ends by itself, whatever becomes of the parent. `Place`, which says
where a store is and looks at its server from outside, is for the tests too.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from unittest.mock import patch

import anyio
import anyio.to_thread
import attrs
import psycopg

from alkstore_trio import Store, open_postgres

__all__ = ["LEASE", "Place", "until"]

LEASE = 0.5  # seconds of a claim whose claimant may be killed, after which another child takes the job
_LONGEST = 100  # seconds that a child lives at most
_BOUND = 30.0  # seconds that no fact takes to come about
_LOOK = 0.005  # seconds between two looks at the server


@attrs.frozen
class Place:
    """A schema of a server, whose stores' sessions bear its name."""

    dsn: str  # through the socket, for who looks; and for stores, unless they are given a port
    schema: str

    def url(self, port: int | None = None) -> str:
        """Where to open a store, through a port of a proxy's if need be."""
        base = self.dsn if port is None else f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
        return f"{base}{'&' if '?' in base else '?'}application_name={self.schema}"

    def open(self, port: int | None = None, **options: Any) -> AbstractAsyncContextManager[Store]:
        """A store here."""
        return open_postgres(self.url(port), schema=self.schema, **options)

    def ask(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """The rows of a statement, on a connection of its own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql, params)
            return cursor.fetchall() if cursor.description else []

    def sessions(self, condition: str = "true") -> list[int]:
        """The pids of the stores' sessions of which something is true."""
        text = f"select pid from pg_stat_activity where application_name = %s and {condition} order by backend_start"
        return [pid for (pid,) in self.ask(text, self.schema)]

    def locks(self) -> list[tuple[Any, ...]]:
        """What the stores' sessions hold or wait for."""
        return self.ask(
            "select locktype, mode, granted, query from pg_locks join pg_stat_activity using (pid)"
            " where application_name = %s",
            self.schema,
        )


async def until(fact: Callable[[], object]) -> None:
    """Wait until something is the case."""
    with anyio.fail_after(_BOUND):
        while True:
            if fact():
                return
            await anyio.sleep(_LOOK)


def say(*words: object) -> None:
    """Write a line that a kill a moment later does not take back."""
    os.write(1, json.dumps(words).encode() + b"\n")


# Killed at any instant


def forks(loop: str, dsn: str, schema: str) -> None:
    """Fork a child for each name on the standard input; starting a Python for each would cost more than its work."""
    import trio  # noqa: F401  # what is imported here no child has to import

    import alkstore_trio._engines.postgres  # noqa: F401

    while name := sys.stdin.readline().strip():
        process = os.fork()
        if not process:
            signal.alarm(_LONGEST)
            try:
                anyio.run(_effects, Place(dsn, schema), name, backend=loop)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        say("pid", process)
        say("dead", os.waitpid(process, 0)[1])


async def _effects(place: Place, name: str) -> None:
    async with place.open(max_connections=5) as store, anyio.create_task_group() as tasks:
        say("ready", name)
        for number in range(4):  # several, so that some travel together and others wait for each other
            tasks.start_soon(_effects_of_a_task, store, name, number)


async def _effects_of_a_task(store: Store, name: str, number: int) -> None:
    choose = random.Random(f"{name}.{number}")
    consumer = f"task {number}"
    for n in itertools.count():
        unique = f"{name}.{number}.{n}"
        verb = choose.choice([_enqueue, _claim_and_ack, _transaction, _copy if number == 0 else _enqueue])
        await verb(store, consumer, unique)


async def _enqueue(store: Store, consumer: str, unique: str) -> None:
    say("about to enqueue", unique)
    await store.queue("jobs", visibility_timeout=LEASE, max_attempts=10_000).enqueue(unique)
    say("enqueued", unique)


async def _claim_and_ack(store: Store, consumer: str, unique: str) -> None:
    handle = await store.queue("jobs").claim(consumer)
    if handle is not None:
        say("about to ack", handle.job.payload)
        landed = await handle.ack()
        say("acked" if landed else "refused", handle.job.payload)


async def _transaction(store: Store, consumer: str, unique: str) -> None:
    """Three effects; the publish has the transaction hold the stream."""
    say("about to commit", unique)
    async with store.transaction() as tx:
        offset = await tx.publish_tx("events", [unique, consumer])
        await tx.save_offset_tx("events", consumer, offset)
        await tx.enqueue_tx("committed", unique)
    say("committed", unique)


async def _copy(store: Store, consumer: str, unique: str) -> None:
    """Work on an event exactly once: the effect and the offset in one transaction."""
    for event in await store.stream("events").read_from_consumer("copier", 1):
        say("about to copy", event.offset)
        async with store.begin_tx() as tx:
            if await tx.save_offset_tx("events", "copier", event.offset):  # else a child's commit outlived its kill
                await tx.enqueue_tx("copies", event.offset)
                await tx.commit()
                say("copied", event.offset)


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


_ROLES: dict[str, Callable[..., Awaitable[None]]] = {role.__name__: role for role in (claimant, astray, leader)}


def main(role: str, loop: str, dsn: str, schema: str, *arguments: str) -> None:
    signal.alarm(_LONGEST)
    if role == "forks":
        forks(loop, dsn, schema)
    else:
        anyio.run(_ROLES[role], Place(dsn, schema), *arguments, backend=loop)


if __name__ == "__main__":
    main(*sys.argv[1:])
