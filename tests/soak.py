"""What a store keeps of what has passed: nothing, or this exits with 1.

``python -m tests.soak --engine memory|sqlite|postgres [--jobs 100000]``, run by hand on a machine that has little else
to do. Jobs, queues, channels, events, locks and consumers go through a store in laps that are all alike. After each lap
as much is stored as after the one before, so whatever has grown since the laps that warmed up is a leak: of memory,
descriptors, threads, tasks or sessions, of rows, tables or the WAL. Then idle stores are watched. Printed are the
figures, and each bound that is broken. `tests.test_resources` has the short form.
"""

import argparse
import gc
import os
import re
import resource
import sqlite3
import sys
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, closing, contextmanager
from functools import _lru_cache_wrapper, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import attrs
import psycopg

from alkstore_trio import Discard, Job, StopToken, Store, open_memory, open_postgres, open_sqlite
from alkstore_trio._engines.sqlops import PRUNE_EVERY, WAKES_KEPT
from tests.engines.places import until
from tests.folders import FOLDER
from tests.servers import Server

__all__ = [
    "WAL",
    "Lap",
    "Place",
    "broken",
    "consumers",
    "in_memory",
    "in_sqlite",
    "jobs",
    "laps",
    "names",
    "on_postgres",
]

_LAPS = 10
_FEWEST = 20_000
_WINDOW = 3  # laps of which the least figure counts: what is not yet tidied up comes and goes
_BATCH = 100  # jobs of one enqueue
_BACKLOG = 500  # jobs that wait at most
_LOCKS = 100  # names, used again and again: Postgres keeps a released one's row for a day
_CONNECTIONS = 10  # of a store's on a server, of which transactions may have all but one
_REST = 1.0  # seconds in which all has come to rest after a lap
_LISTENERS = 100  # of a store that is idle

_KEPT = 256 * 2**10  # bytes of memory by which even those differ, with plans that a connection comes to late
WAL = 5 * 2**20  # bytes: the store's own limit and what may be written while it waits for a reader
_DEAD = (
    40 * 2**20
)  # bytes: of a table whose dead rows the store has vacuumed when they are 20,000, and the server later

Figures = dict[str, int]
Lap = Callable[[Store, int], Awaitable[None]]


# Where stores are, and what grows there


@attrs.frozen
class Place:
    """A place for stores, and figures of what is outside of this process's memory."""

    open: Callable[..., AbstractAsyncContextManager[Store]]
    figures: Callable[[], Figures]


@contextmanager
def in_memory() -> Iterator[Place]:
    """In this process."""
    yield Place(open_memory, dict)


@contextmanager
def in_sqlite() -> Iterator[Place]:
    """In a file of its own."""
    with TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder, "store.db")

        def figures() -> Figures:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:

                def number(sql: str) -> int:
                    return int(connection.execute(sql).fetchone()[0])

                tables = ("jobs", "events", "offsets", "locks", "wakes")
                return {
                    "bytes in use": 4096 * (number("pragma page_count") - number("pragma freelist_count")),
                    "bytes of the WAL": os.stat(f"{path}-wal").st_size,
                    **{f"rows of {table}": number(f"select count(*) from alkstore_{table}") for table in tables},
                }

        yield Place(partial(open_sqlite, path, durability="normal"), figures)


@contextmanager
def on_postgres(dsn: str, schema: str = "alkstore") -> Iterator[Place]:
    """In a schema of a server's, where the stores' sessions bear its name."""
    with psycopg.Connection.connect(dsn, autocommit=True) as looker:

        def ask(sql: str, *params: str) -> list[tuple[Any, ...]]:
            return looker.execute(sql.encode(), params).fetchall()

        def figures() -> Figures:
            [(sessions,)] = ask("select count(*) from pg_stat_activity where application_name = %s", schema)
            found: Figures = {"sessions": sessions}
            for table in ("jobs", "events", "offsets", "locks"):
                [(found[f"rows of {table}"],)] = ask(f'select count(*) from "{schema}".{table}')
                [(found[f"bytes of {table}"],)] = ask(
                    "select pg_total_relation_size(format('%%I.%%I', %s::text, %s::text)::regclass)", schema, table
                )
            return found

        url = f"{dsn}{'&' if '?' in dsn else '?'}application_name={schema}"
        yield Place(partial(open_postgres, url, schema=schema, max_connections=_CONNECTIONS), figures)


# What passes: each is given the number of its lap, so that names may be new


async def jobs(store: Store, lap: int, *, n: int, subject: str = "jobs") -> None:
    """So many jobs through a worker, some of which fail at first or for good, and what a handler does beside."""
    queue = store.queue(subject, base_backoff=0, dead_retention=0)
    orders = store.stream("orders")
    stop, room = StopToken(), anyio.Semaphore(_BACKLOG // _BATCH)
    left = n

    async def handler(job: Job) -> None:
        nonlocal left
        number = job.payload["number"]
        if number % 50 == 0 and job.attempts == 1:
            raise ConnectionError("the first time")
        if number % 10 == 0:
            await orders.publish_with_key("k", number)
            await store.notify(f"channel {number % 100}")
            lock = await store.try_lock(f"lock {number % _LOCKS}", "owner", 60)
            if lock is not None:
                await lock.release()
        left -= 1
        if left % _BATCH == 0:
            room.release()
        if left == 0:
            stop.cancel()
        if number % 77 == 0:
            raise Discard("for good")

    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(queue.run_worker, handler, concurrency=8, stop=stop))
        for start in range(0, n, _BATCH):
            await room.acquire()
            await queue.enqueue_many([{"number": start + number, "text": "x" * 100} for number in range(_BATCH)])
    await queue.sweep_expired()
    assert (await queue.statistics()).pending == 0
    last = (await orders.statistics()).last
    assert last is not None
    await orders.trim_to(last)


async def names(store: Store, lap: int, *, n: int) -> None:
    """So many channels that are listened to, queues that a job goes through, and transactions; all of new names."""
    for number in range(n):
        name = f"{lap}.{number}"
        async with store.listen(name) as wakes:
            await store.notify(name)
            await wakes.receive()
        queue = store.queue(name)
        await queue.enqueue(number)
        handle = await queue.claim(name)
        assert handle is not None
        assert await handle.ack()
        if number % 10 == 0:
            async with store.transaction() as tx:
                job_id = await tx.enqueue_tx(name, number)
            assert await queue.delete([job_id]) == 1


async def consumers(store: Store, lap: int, *, n: int) -> None:
    """So many consumers, each with an offset saved anew."""
    stream = store.stream("followed")
    offset = await stream.publish(lap)
    for number in range(n):
        assert await stream.save_offset(f"consumer {number}", offset)
    async with stream.subscribe("consumer 0"):
        pass
    await stream.trim_to(offset)


async def laps(place: Place, store: Store, lap: Lap, count: int) -> list[Figures]:
    """The figures after each lap."""
    found = [_figures(place) for _ in range(count)]  # made beforehand, so that they are not among what grows
    tasks = len(anyio.get_running_tasks())
    async with AsyncExitStack() as transactions:  # so that the store has all the connections that it may come to have
        for _ in range(_CONNECTIONS - 1):
            tx = await transactions.enter_async_context(store.begin_tx())
            await tx.get_offset_tx("orders", "nobody")
        await store.queues()
    for number in range(count):
        await lap(store, number)
        with anyio.move_on_after(_REST):  # whoever has something left to do, such as to tell other stores, does it
            await until(lambda: len(anyio.get_running_tasks()) <= tasks)
        found[number].update(_figures(place))
    return found


def _figures(place: Place) -> Figures:
    figures = place.figures()
    return {
        "bytes of memory": _memory(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(anyio.get_running_tasks()),
        **figures,
    }


def broken(found: list[Figures], memory: int = _KEPT) -> list[str]:
    """What has grown past its bound since the laps that warmed up, the first and those that are compared with."""
    first, last = found[1 : 1 + _WINDOW], found[-_WINDOW:]
    lines = []
    for name in found[0]:
        before, after = (min(figures[name] for figures in window) for window in (first, last))
        if after > (most := _most(name, before, memory)):
            lines.append(f"{name}: {after:,} in the last laps, {before:,} in the first, at most {most:,}")
    return lines


def _most(name: str, before: int, memory: int) -> int:
    match name:
        case "bytes of memory":
            return before + memory
        case "bytes of the WAL":
            return WAL
        case "rows of wakes":
            return WAKES_KEPT + PRUNE_EVERY
        case _ if name.startswith("bytes"):
            return before + _DEAD
    return before


def _memory() -> int:
    """What is in use; caches, which are bounded, are emptied for it."""
    for module in [module for name, module in sys.modules.items() if name.startswith("alkstore_trio.")]:
        for thing in vars(module).values():
            if isinstance(thing, _lru_cache_wrapper):
                assert thing.cache_parameters()["maxsize"] is not None
                thing.cache_clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


# The long form


async def _soak(place: Place, total: int) -> bool:
    share = total // _LAPS // _BATCH * _BATCH
    kinds: dict[str, Lap] = {
        f"{share:,} jobs a lap": partial(jobs, n=share),
        f"{share // 10:,} channels, queues and locks of new names a lap": partial(names, n=share // 10),
        f"{share:,} consumers, saved anew each lap": partial(consumers, n=share),
    }
    whole = True
    async with place.open() as store:
        for title, lap in kinds.items():
            tracemalloc.start()
            began = time.perf_counter()
            found = await laps(place, store, lap, _LAPS)
            tracemalloc.stop()
            print(f"\n{title}, {_LAPS} laps, {time.perf_counter() - began:.0f} s")
            for name in found[0]:
                print(f"  {name:18} {'  '.join(f'{figures[name]:>10,}' for figures in found)}")
            for line in broken(found):
                whole = False
                print(f"  BROKEN {line}")
    return whole


async def _idle(place: Place, seconds: float, statements: Callable[[], int] | None, *, working: bool) -> None:
    """Print what a store costs while nothing happens."""
    stop = StopToken()

    async def handler(job: Job) -> None:
        raise AssertionError(job)

    async with place.open() as store, AsyncExitStack() as stack:
        for number in range(_LISTENERS):
            await stack.enter_async_context(store.listen(f"channel {number}"))
        if working:
            await stack.enter_async_context(store.stream("orders").subscribe("consumer"))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            await tasks.start(partial(store.queue("jobs").run_worker, handler, stop=stop))
            await tasks.start(partial(store.run_schedules, stop))
        await anyio.sleep(2)  # what was begun has come to rest
        before, switches, sent = time.process_time(), _switches(), statements() if statements else 0
        await anyio.sleep(seconds)
        cpu, turns = time.process_time() - before, _switches() - switches
        line = f"{cpu / seconds:8.3%} of a core, {turns / seconds:6.1f} awakenings a second"
        if statements:
            line += f", {(statements() - sent) / seconds:5.2f} statements a second"
        also = ", a worker, a subscriber and a runner" if working else ""
        print(f"  {line}   {_LISTENERS} listeners{also}")
        stop.cancel()


def _counted(server: Server) -> Callable[[], int]:
    """How many statements of the stores a server has had; it logs each from now on."""
    with psycopg.Connection.connect(server.dsn, autocommit=True) as administrator:
        administrator.execute("alter system set log_statement = 'all'")
        administrator.execute("alter system set log_line_prefix = '[%a] '")
        administrator.execute("select pg_reload_conf()")
    return lambda: len(re.findall(r"\[alkstore\] LOG:  (?:statement|execute)", server.log.read_text(errors="replace")))


def _switches() -> int:
    """How often this process has been waited for: each wait of a loop or of a thread is one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["memory", "sqlite", "postgres"], required=True)
    parser.add_argument("--jobs", type=int, default=100_000, help="in all; there are a tenth as many new names")
    parser.add_argument("--idle", type=float, default=20, help="seconds for which each idle store is watched")
    parser.add_argument("--loop", choices=["trio", "asyncio"], default="trio")
    options = parser.parse_args()
    if options.jobs < _FEWEST:
        parser.error(f"--jobs is at least {_FEWEST:,}: fewer do not fill a WAL in the laps that warm up")
    with ExitStack() as stack:
        server = stack.enter_context(Server()) if options.engine == "postgres" else None
        if server is not None:
            place = stack.enter_context(on_postgres(server.dsn))
        else:
            place = stack.enter_context(in_memory() if options.engine == "memory" else in_sqlite())
        whole = anyio.run(_soak, place, options.jobs, backend=options.loop)
        statements = None if server is None else _counted(server)
        print(f"\nidle for {options.idle:g} s")
        for working in (False, True):
            anyio.run(partial(_idle, working=working), place, options.idle, statements, backend=options.loop)
    sys.exit(not whole)


if __name__ == "__main__":
    main()
